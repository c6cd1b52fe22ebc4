//! Parses a client's packet as far as needed to decide on an answer here, and makes the answers. Every byte of a
//! packet is the sender's: a fault in it becomes a refusal or silence, never more.

use std::fmt::Write;
use std::net::IpAddr;

use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use domain::base::message_builder::{AnswerBuilder, PushError, StaticCompressor};
use domain::base::name::{FlattenInto, Name, ParsedName};
use domain::base::{Message, MessageBuilder, Ttl};
use domain::rdata::{A, Aaaa, Cname, Ptr};

/// Largest answer made here over UDP, in bytes, whatever the client offers: larger ones are fragmented and lost
/// (DNS flag day 2020).
const MAX_UDP_ANSWER: usize = 1232;
/// Largest UDP answer for a client without EDNS, in bytes (RFC 1035).
const PLAIN_UDP_ANSWER: usize = 512;
/// An OPT record without options, in bytes; kept free at the end of an answer.
const OPT_BYTES: usize = 11;
/// Largest answer over TCP, in bytes: the length prefix has two.
const MAX_TCP_ANSWER: usize = 65_535;

/// A packet, judged.
#[derive(Debug)]
pub enum ReceivedMessage<'a> {
    /// One question of class IN that may be answered.
    Query(Query<'a>),
    /// Well-formed, and for the resolver alone: another class, or a name that no host can have.
    Foreign,
    /// To be sent back as it is.
    Refuse(Vec<u8>),
    /// Not worth a word: too short for a header, or itself an answer.
    Ignore(&'static str),
}

/// Type of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryKind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Anything else, as its number.
    Other(u16),
}

/// One question.
#[derive(Debug)]
pub struct Query<'a> {
    message: &'a Message<[u8]>,
    /// The name asked for: lower case, without a final dot.
    pub name: String,
    /// Type of the question.
    pub kind: QueryKind,
}

/// Judges a packet.
pub fn receive(packet: &[u8]) -> ReceivedMessage<'_> {
    let Ok(message) = Message::from_slice(packet) else {
        return ReceivedMessage::Ignore("shorter than a header");
    };
    let header = message.header();
    if header.qr() {
        return ReceivedMessage::Ignore("a response without a query");
    }
    if header.opcode() != Opcode::QUERY {
        return ReceivedMessage::Refuse(bare(message, Rcode::NOTIMP));
    }
    let Ok(question) = message.sole_question() else {
        return ReceivedMessage::Refuse(bare(message, Rcode::FORMERR));
    };
    // A transfer is many messages; a client that wants one asks the resolver itself.
    if matches!(question.qtype(), Rtype::AXFR | Rtype::IXFR) {
        return ReceivedMessage::Refuse(bare(message, Rcode::REFUSED));
    }
    let records = message.additional();
    if records.map_or(true, |mut records| records.any(|record| record.is_err())) {
        return ReceivedMessage::Refuse(bare(message, Rcode::FORMERR));
    }
    match host_name(question.qname()) {
        Some(name) if question.qclass() == Class::IN => ReceivedMessage::Query(Query {
            message,
            name,
            kind: match question.qtype() {
                Rtype::A => QueryKind::A,
                Rtype::AAAA => QueryKind::Aaaa,
                other => QueryKind::Other(other.to_int()),
            },
        }),
        _ => ReceivedMessage::Foreign,
    }
}

/// Returns the name as text; `None` if it cannot be a host's name.
fn host_name(name: &ParsedName<&[u8]>) -> Option<String> {
    let mut text = String::new();
    for label in name.iter().filter(|label| !label.is_root()) {
        if !text.is_empty() {
            text.push('.');
        }
        for byte in label.as_slice() {
            let byte = byte.to_ascii_lowercase();
            if !(byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
                return None;
            }
            text.push(char::from(byte));
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Returns a header and nothing else: the question may be at fault.
fn bare(message: &Message<[u8]>, rcode: Rcode) -> Vec<u8> {
    let mut builder = MessageBuilder::new_vec();
    let header = builder.header_mut();
    header.set_id(message.header().id());
    header.set_qr(true);
    header.set_opcode(message.header().opcode());
    header.set_rd(message.header().rd());
    header.set_rcode(rcode);
    builder.finish()
}

/// Returns SERVFAIL for the sender of `packet`; nothing if it is no question.
pub fn server_failure(packet: &[u8]) -> Option<Vec<u8>> {
    without_records(packet, Rcode::SERVFAIL)
}

/// Returns NXDOMAIN for the sender of `packet`; nothing if it is no question.
pub fn no_such_name(packet: &[u8]) -> Option<Vec<u8>> {
    without_records(packet, Rcode::NXDOMAIN)
}

fn without_records(packet: &[u8], rcode: Rcode) -> Option<Vec<u8>> {
    let message = Message::from_slice(packet).ok()?;
    if message.header().qr() {
        return None;
    }
    let made = MessageBuilder::new_vec()
        .start_answer(message, rcode)
        .map(|mut answer| {
            answer.header_mut().set_ra(true);
            answer.finish()
        });
    Some(made.unwrap_or_else(|_| bare(message, Rcode::SERVFAIL)))
}

/// The address that `4.3.2.1.in-addr.arpa` and the like stand for.
pub fn reverse_address(name: &str) -> Option<IpAddr> {
    if let Some(digits) = name.strip_suffix(".in-addr.arpa") {
        let labels: Vec<&str> = digits.rsplit('.').collect();
        let text = (labels.len() == 4).then(|| labels.join("."))?;
        return text.parse().ok().map(IpAddr::V4);
    }
    let digits = name.strip_suffix(".ip6.arpa")?;
    let mut bits: u128 = 0;
    let mut count = 0;
    for label in digits.rsplit('.') {
        let one = (label.len() == 1).then(|| u128::from_str_radix(label, 16).ok())??;
        bits = (bits << 4) | one;
        count += 1;
        if count > 32 {
            return None;
        }
    }
    (count == 32).then(|| IpAddr::V6(bits.into()))
}

type Builder = AnswerBuilder<StaticCompressor<Vec<u8>>>;

impl Query<'_> {
    /// The name does not exist.
    pub fn no_such_name(&self) -> Vec<u8> {
        self.make(Rcode::NXDOMAIN, MAX_TCP_ANSWER, |_| Ok(()))
    }

    /// The name exists, without records of this type. Never NXDOMAIN: a client would give up on the other family.
    pub fn nothing_of_that_kind(&self) -> Vec<u8> {
        self.make(Rcode::NOERROR, MAX_TCP_ANSWER, |_| Ok(()))
    }

    /// Answers with the addresses of the requested family, behind another name if there is an `alias`. Addresses that
    /// do not fit are left for TCP.
    pub fn addresses(
        &self,
        addresses: &[IpAddr],
        alias: Option<&str>,
        ttl_seconds: u32,
        over_udp: bool,
    ) -> Vec<u8> {
        let limit = if over_udp {
            self.udp_limit()
        } else {
            MAX_TCP_ANSWER
        };
        self.make(Rcode::NOERROR, limit, |answer| {
            let Ok(question) = self.message.sole_question() else {
                return Ok(()); // It was there when the query was taken apart.
            };
            let ttl = Ttl::from_secs(ttl_seconds);
            let mut owner: Name<Vec<u8>> = question
                .qname()
                .try_flatten_into()
                .unwrap_or_else(|_| Name::root_vec());
            if let Some(alias) = alias
                && let Ok(target) = Name::<Vec<u8>>::from_chars(alias.chars())
            {
                answer.push((&owner, ttl, Cname::new(&target)))?;
                owner = target;
            }
            for address in addresses {
                match (self.kind, address) {
                    (QueryKind::A, IpAddr::V4(v4)) => answer.push((&owner, ttl, A::new(*v4)))?,
                    (QueryKind::Aaaa, IpAddr::V6(v6)) => {
                        answer.push((&owner, ttl, Aaaa::new(*v6)))?;
                    }
                    _ => {}
                }
            }
            Ok(())
        })
    }

    /// Answers with the name of the address in question, if the question is for names.
    pub fn pointer(&self, name: &str, ttl_seconds: u32) -> Vec<u8> {
        self.make(Rcode::NOERROR, PLAIN_UDP_ANSWER, |answer| {
            if self.kind != QueryKind::Other(Rtype::PTR.to_int()) {
                return Ok(());
            }
            let (Ok(question), Ok(target)) = (
                self.message.sole_question(),
                Name::<Vec<u8>>::from_chars(name.chars()),
            ) else {
                return Ok(()); // The question was there before, and our names are names.
            };
            let ttl = Ttl::from_secs(ttl_seconds);
            answer.push((question.qname(), ttl, Ptr::new(target)))
        })
    }

    fn udp_limit(&self) -> usize {
        match self.message.opt() {
            Some(opt) => {
                usize::from(opt.udp_payload_size()).clamp(PLAIN_UDP_ANSWER, MAX_UDP_ANSWER)
            }
            None => PLAIN_UDP_ANSWER,
        }
    }

    fn make(
        &self,
        rcode: Rcode,
        limit: usize,
        fill: impl FnOnce(&mut Builder) -> Result<(), PushError>,
    ) -> Vec<u8> {
        let Ok(builder) = MessageBuilder::from_target(StaticCompressor::new(Vec::new()));
        let Ok(mut answer) = builder.start_answer(self.message, rcode) else {
            return bare(self.message, Rcode::SERVFAIL);
        };
        let header = answer.header_mut();
        header.set_aa(true);
        header.set_ra(true);
        answer.set_push_limit(limit - OPT_BYTES);
        if fill(&mut answer).is_err() {
            answer.header_mut().set_tc(true);
        }
        answer.clear_push_limit();
        let mut additional = answer.additional();
        if let Some(asked) = self.message.opt() {
            // Cannot fail: the record's place was kept free.
            let _ = additional.opt(|opt| {
                opt.set_udp_payload_size(MAX_UDP_ANSWER as u16);
                opt.set_dnssec_ok(asked.dnssec_ok());
                Ok(())
            });
        }
        additional.finish().into_target()
    }
}

/// Returns the question of a packet, for the log.
pub fn shown(packet: &[u8]) -> String {
    let mut text = String::new();
    if let Ok(message) = Message::from_slice(packet)
        && let Ok(question) = message.sole_question()
    {
        let _ = write!(text, "{} {}", question.qname(), question.qtype());
    }
    text
}
