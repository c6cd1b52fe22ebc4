//! The request's values as the tables want them: lower case where case does not count, one text where the facts are in
//! pieces. Only what some rule of the engine asks for is prepared, on the stack.

use std::net::IpAddr;

use smallvec::SmallVec;
use voile_model::Identity;

use super::rules::{DimKind, Dimension};
use super::store::Store;
use crate::authorization::facts::{HttpFacts, RequestFacts, without_query};
use crate::authorization::lines::joined;
use crate::claims::Claim;

/// Room for texts that are written together, in bytes: identities and hosts are shorter as a rule; longer ones allocate.
const ROOM: usize = 128;
/// Headers, and claims, of one request that some rule asks for and that are held without allocating.
const NAMED: usize = 4;

type Bytes = SmallVec<[u8; ROOM]>;

/// Which values the rules of an engine ask for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UsedValues {
    pub(super) peer: bool,
    pub(super) host: bool,
    pub(super) sni: bool,
    pub(super) headers: bool,
    pub(super) token: bool,
}

/// A reading of the namespace: where it lies in the principal.
struct NamespaceSpan {
    start: u32,
    end: u32,
}

/// The values of one request.
pub(super) struct Prepared<'a> {
    facts: &'a RequestFacts<'a>,
    /// `TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`; empty without a peer.
    principal: Bytes,
    trust_domain: usize,
    readings: SmallVec<[NamespaceSpan; 2]>,
    host: Option<Bytes>,
    sni: Bytes,
    port: [u8; 2],
    path: Option<&'a [u8]>,
    /// Each line by itself.
    headers: SmallVec<[(u16, &'a [u8]); NAMED]>,
    /// The joined value of each header whose lines form one value.
    joined: Vec<(u16, Vec<u8>)>,
    claims: SmallVec<[(u16, Claim<'a>); NAMED]>,
    pub(super) issuer: Option<&'a [u8]>,
    pub(super) subject: Option<&'a [u8]>,
    /// Issuer, zero, subject.
    pair: Option<Bytes>,
}

const NS: &[u8] = b"/ns/";

impl<'a> Prepared<'a> {
    pub(super) fn new(store: &Store, facts: &'a RequestFacts<'a>) -> Self {
        let mut prepared = Self {
            facts,
            principal: Bytes::new(),
            trust_domain: 0,
            readings: SmallVec::new(),
            host: None,
            sni: Bytes::new(),
            port: facts.destination.port().to_be_bytes(),
            path: facts.http.map(|http| without_query(http.path)),
            headers: SmallVec::new(),
            joined: Vec::new(),
            claims: SmallVec::new(),
            issuer: None,
            subject: None,
            pair: None,
        };
        let uses = store.uses;
        if let (true, Some(peer)) = (uses.peer, facts.source) {
            prepared.peer(peer);
        }
        if let (true, Some(name)) = (uses.sni, facts.sni) {
            prepared
                .sni
                .extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
        }
        if let Some(http) = facts.http {
            prepared.http(store, uses, http);
        }
        prepared
    }

    fn peer(&mut self, peer: &Identity) {
        let (domain, namespace) = (peer.trust_domain.as_str(), peer.namespace.as_str());
        self.trust_domain = domain.len();
        self.principal.extend_from_slice(domain.as_bytes());
        self.principal.extend_from_slice(NS);
        let start = self.principal.len();
        self.principal.extend_from_slice(namespace.as_bytes());
        let end = self.principal.len();
        self.principal.extend_from_slice(b"/sa");
        let second = self.principal.len();
        self.principal.push(b'/');
        self.principal
            .extend_from_slice(peer.service_account.as_bytes());
        let mut read = |start: usize, end: usize| {
            let (start, end) = (start as u32, end as u32);
            self.readings.push(NamespaceSpan { start, end });
        };
        read(start, end);
        read(start, second);
        // `/ns/` occurs elsewhere too where the domain or the namespace is called `ns`.
        if domain == "ns" {
            read(NS.len() - 1, start - 1);
            read(NS.len() - 1, end);
            read(NS.len() - 1, second);
        }
        if namespace == "ns" {
            read(end + 1, second);
        }
    }

    fn http(&mut self, store: &Store, uses: UsedValues, http: HttpFacts<'a>) {
        if let (true, Some(host)) = (uses.host, http.authority) {
            let lower = host.iter().map(u8::to_ascii_lowercase);
            self.host = Some(lower.collect());
        }
        if uses.headers {
            self.headers(store, http);
        }
        if let (false, Some(claims)) = (store.claims.is_empty(), http.claims) {
            store.claims.each(claims.object(), &mut |number, value| {
                self.claims.push((number, value));
            });
        }
        if let (true, Some(claims)) = (uses.token, http.claims) {
            let text = |name| Some(claims.get(name)?.as_str()?.as_bytes());
            self.issuer = text("iss");
            self.subject = text("sub");
            if let (Some(issuer), Some(subject)) = (self.issuer, self.subject) {
                let mut pair = Bytes::from_slice(issuer);
                pair.push(0);
                pair.extend_from_slice(subject);
                self.pair = Some(pair);
            }
        }
    }

    fn headers(&mut self, store: &Store, http: HttpFacts<'a>) {
        let pseudo = [
            (&b":authority"[..], http.authority),
            (b"host", http.authority),
            (b":method", Some(http.method)),
            (b":path", Some(http.path)),
        ];
        for (name, value) in pseudo {
            if let (Some(number), Some(value)) = (store.header_number(name), value) {
                self.headers.push((number, value));
            }
        }
        http.headers.each(&mut |name, value| {
            if name.eq_ignore_ascii_case(b"host") || name.first() == Some(&b':') {
                return;
            }
            if let Some(number) = store.header_number(name) {
                self.headers.push((number, value));
            }
        });
        for number in &store.headers.joined {
            let lines = self.headers.iter().filter(|known| known.0 == *number);
            if lines.clone().nth(1).is_some() {
                let lines: Vec<&[u8]> = lines.map(|(_, value)| *value).collect();
                self.joined.push((*number, joined(&lines)));
            }
        }
    }

    /// The headers and claims it has that some rule asks for.
    pub(super) fn named(&self) -> impl Iterator<Item = Dimension> {
        let lines = self.headers.iter().enumerate();
        let first = lines.filter(|(at, (number, _))| {
            let before = &self.headers[..*at];
            before.iter().all(|(known, _)| known != number)
        });
        let headers = first.map(|(_, (number, _))| Dimension::header(*number));
        headers.chain(
            self.claims
                .iter()
                .map(|(number, _)| Dimension::claim(*number)),
        )
    }

    /// The address of an attribute; IPv4 if possible.
    pub(super) fn address(&self, dim: Dimension) -> IpAddr {
        let address = match dim {
            Dimension::SOURCE_IP => self.facts.source_ip,
            Dimension::REMOTE_IP => self.facts.remote_ip,
            _ => self.facts.destination.ip(),
        };
        address.to_canonical()
    }

    /// The readings of the namespace.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &[u8]> {
        let readings = self.readings.iter();
        readings.map(|reading| &self.principal[reading.start as usize..reading.end as usize])
    }

    /// The one text a fixed attribute stands for.
    pub(super) fn text(&self, dim: Dimension) -> Option<&[u8]> {
        let of_peer = |start: usize, end: usize| {
            let some = !self.principal.is_empty();
            some.then(|| &self.principal[start..end])
        };
        match dim {
            Dimension::PRINCIPAL => of_peer(0, self.principal.len()),
            Dimension::ACCOUNT => of_peer(self.trust_domain + NS.len(), self.principal.len()),
            Dimension::TRUST_DOMAIN => of_peer(0, self.trust_domain),
            Dimension::PORT => Some(&self.port),
            Dimension::SNI => Some(&self.sni),
            Dimension::HOST => self.host.as_deref(),
            Dimension::METHOD => Some(self.facts.http?.method),
            Dimension::PATH => self.path,
            Dimension::ISSUER => self.issuer,
            Dimension::SUBJECT => self.subject,
            Dimension::ISSUER_SUBJECT => self.pair.as_deref(),
            _ => None,
        }
    }

    /// Every text an attribute stands for: a claim may be a list, a header several lines, a namespace has several readings.
    pub(super) fn each_text(&self, dim: Dimension, found: &mut impl FnMut(&[u8])) {
        if dim == Dimension::NAMESPACE {
            return self.namespaces().for_each(found);
        }
        let number = match dim.kind() {
            DimKind::Fixed => return self.text(dim).into_iter().for_each(found),
            DimKind::Header(number) => {
                let mut joined = self.joined.iter();
                if let Some((_, whole)) = joined.find(|known| known.0 == number) {
                    return found(whole);
                }
                let lines = self.headers.iter().filter(|known| known.0 == number);
                return lines.for_each(|(_, value)| found(value));
            }
            DimKind::Claim(number) => number,
        };
        let mut claims = self.claims.iter();
        let value = claims.find(|known| known.0 == number).map(|known| known.1);
        match value {
            Some(Claim::Text(text)) => found(text.as_bytes()),
            Some(Claim::List(list)) => {
                let texts = list.iter().filter_map(Claim::as_str);
                texts.for_each(|text| found(text.as_bytes()));
            }
            _ => {}
        }
    }
}
