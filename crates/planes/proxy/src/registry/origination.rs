//! TLS origination by DestinationRules. Equal settings share one TLS configuration. If TLS cannot be made, nothing is sent in
//! plaintext instead.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use rustls::pki_types::{InvalidDnsNameError, ServerName};
use voile_identity::{OutsideTlsError, TowardsOutside};
use voile_model::ServiceKey;
use voile_model::mesh::traffic::{Authorities, ClientTls, TlsOrigin};
use voile_transport::alpn;
use voile_xds::wire::{Credential, RemoteGateway};

use super::Registry;
use super::files::{Read, of_origin};
use crate::health::Watch;
use crate::plan::{FarPlan, Origination, ServicePlan, SharedPart, WorldTls};

/// All that decides what is spoken.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Terms {
    /// None is the mesh's own.
    said: Option<Arc<TlsOrigin>>,
    /// The name that is asked for, or why there is none.
    name: Result<Arc<str>, Arc<str>>,
    names: Vec<Arc<str>>,
    /// The credential, where one is named; an error where it is not here.
    credential: Option<Result<Arc<Credential>, Arc<str>>>,
    /// Content of the named local files: certificate, its key, authorities, revocation lists.
    files: [Option<Read>; 4],
}

/// TLS made from some terms.
#[derive(Debug)]
struct MadeOrigination {
    made: Weak<Origination>,
    /// When it was last wanted: the higher, the later.
    turn: u64,
    /// True if TLS could not be made: then the last good one is used, or none.
    failed: bool,
}

/// Target that a tunnel asks for, and the gateways of another network that lead there; none for a waypoint's.
type Told = (Arc<str>, Vec<RemoteGateway>);

/// TLS origination, kept as long as a plan uses it.
#[derive(Debug, Default)]
pub(crate) struct Originations {
    made: RefCell<HashMap<Terms, MadeOrigination>>,
    /// Tunnels to waypoints, by their targets, and through other networks' gateways.
    told: RefCell<HashMap<Told, Weak<Origination>>>,
    /// Number of times that TLS was wanted.
    turn: Cell<u64>,
}

/// Number of entries from which on unused ones are removed.
const MANY: usize = 64;

impl Originations {
    fn of(&self, terms: Terms) -> SharedPart<Origination> {
        let mut all = self.made.borrow_mut();
        let turn = 1 + self.turn.get();
        self.turn.set(turn);
        if let Some(known) = all.get_mut(&terms)
            && let Some(made) = known.made.upgrade()
        {
            if known.failed {
                return SharedPart(last_good(&terms, &all).unwrap_or(made));
            }
            known.turn = turn;
            return SharedPart(made);
        }
        let (made, failed) = match make(&terms) {
            Origination::Unmade(why) => (unmade(why, &terms, &all), true),
            made => (Arc::new(made), false),
        };
        if terms.said.as_ref().is_some_and(|said| said.unverified) {
            let name = terms.name.as_deref().unwrap_or_default();
            tracing::warn!(
                name,
                "the server's certificate is not verified: insecureSkipVerify"
            );
        }
        if all.len() >= MANY {
            all.retain(|_, held| held.made.strong_count() > 0);
        }
        let held = MadeOrigination {
            made: Arc::downgrade(&made),
            turn,
            failed,
        };
        all.insert(terms, held);
        SharedPart(made)
    }

    /// Origination through a waypoint, whose tunnel asks for `called`.
    pub(super) fn through(&self, called: &str) -> SharedPart<Origination> {
        self.told(called, Vec::new())
    }

    /// Origination through one of these gateways of another network; tunnels ask for `called`.
    pub(super) fn far(&self, called: &str, gates: Vec<RemoteGateway>) -> SharedPart<Origination> {
        self.told(called, gates)
    }

    fn told(&self, called: &str, gates: Vec<RemoteGateway>) -> SharedPart<Origination> {
        let mut all = self.told.borrow_mut();
        let key = (Arc::from(called), gates);
        if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
            return SharedPart(known);
        }
        if all.len() >= MANY {
            all.retain(|_, held| held.strong_count() > 0);
        }
        let (called, gates) = key.clone();
        let made = Arc::new(match gates.is_empty() {
            true => Origination::Through(called),
            false => Origination::Far(FarPlan { gates, called }),
        });
        all.insert(key, Arc::downgrade(&made));
        SharedPart(made)
    }
}

impl Registry {
    /// TLS to a service's endpoints, beyond the mesh's own.
    pub(super) fn origination(
        &self,
        said: Option<&ClientTls>,
        service: &ServiceKey,
    ) -> Option<SharedPart<Origination>> {
        let terms = match said? {
            ClientTls::Disable | ClientTls::Mutual(None) => return None,
            ClientTls::Mutual(Some(name)) => Terms {
                said: None,
                name: Ok(name.clone()),
                names: Vec::new(),
                credential: None,
                files: Default::default(),
            },
            ClientTls::Originate(origin) => {
                let mut names = origin.subject_alt_names.clone();
                if names.is_empty() {
                    let known = self.services.get(service.to_string().as_str());
                    let known = known.map(|held| held.value.subject_alt_names.as_slice());
                    names.extend(known.unwrap_or_default().iter().cloned());
                }
                let host = &service.hostname;
                let name = match &origin.server_name {
                    Some(name) => Ok(name.clone()),
                    None if host.is_wildcard() => {
                        Err(format!("{host} cannot be a server name (SNI); set `sni`").into())
                    }
                    None => Ok(host.as_str().into()),
                };
                let credential = origin.credential.as_ref();
                Terms {
                    said: Some(Arc::clone(origin)),
                    name,
                    names,
                    credential: credential.map(|name| self.gateway.credential(name)),
                    files: of_origin(origin).map(|path| Some(self.files.of(path?))),
                }
            }
        };
        Some(self.originations.of(terms))
    }
}

/// Replacement for TLS that cannot be made.
fn unmade(why: Arc<str>, terms: &Terms, all: &HashMap<Terms, MadeOrigination>) -> Arc<Origination> {
    match last_good(terms, all) {
        Some(good) => {
            tracing::warn!(%why, "cannot use the new TLS settings of a DestinationRule; the previous ones stay in force");
            good
        }
        None => {
            tracing::warn!(%why, "cannot originate TLS as a DestinationRule requires; the destination is not called");
            Arc::new(Origination::Unmade(why))
        }
    }
}

/// Last good TLS of the same terms. An unusable credential leaves it in force, and so does any problem with files. A removed
/// credential leaves nothing.
fn last_good(terms: &Terms, all: &HashMap<Terms, MadeOrigination>) -> Option<Arc<Origination>> {
    let held = |terms: &Terms| {
        let files = terms.files.iter().any(Option::is_some);
        terms.credential.as_ref().map_or(files, Result::is_ok)
    };
    // Revocation lists belong to the terms: earlier lists, or none, never replace the wanted ones.
    let lists = |terms: &Terms| match &terms.credential {
        Some(Ok(credential)) => credential.revocations.clone(),
        _ => Vec::new(),
    };
    let same = |other: &Terms| {
        let named = (&other.said, &other.name, &other.names);
        held(other)
            && named == (&terms.said, &terms.name, &terms.names)
            && lists(other) == lists(terms)
    };
    let good = |(other, held): (&Terms, &MadeOrigination)| {
        let made = (!held.failed && same(other)).then(|| held.made.upgrade())??;
        matches!(*made, Origination::World(_)).then_some((made, held.turn))
    };
    let before = all.iter().filter(|_| held(terms)).filter_map(good);
    // Connections may still hold an older one: the last that was in force counts.
    let last = before.max_by_key(|(_, turn)| *turn);
    last.map(|(made, _)| made)
}

/// Origination of destinations behind tunnels; always the same value, since equality compares pointers.
pub(super) fn tunnel() -> SharedPart<Origination> {
    static TUNNEL: LazyLock<Arc<Origination>> = LazyLock::new(|| Arc::new(Origination::Tunnel));
    SharedPart(Arc::clone(&TUNNEL))
}

/// Destination of TLS passthrough of the mesh's own TLS. Only endpoints whose sidecar takes that TLS are available; bytes that
/// were encrypted for the mesh never reach others.
pub(super) fn unread(plan: &mut ServicePlan) {
    static UNREAD: LazyLock<Arc<Origination>> = LazyLock::new(|| Arc::new(Origination::Unread));
    for endpoint in &mut plan.endpoints {
        endpoint.available &= endpoint.is_sidecar();
        endpoint.origination = Some(SharedPart(Arc::clone(&UNREAD)));
    }
    // A health check cannot use a client's TLS.
    let asked = |SharedPart(watch): &SharedPart<Watch>| watch.checks.is_some();
    if plan.traffic.watch.as_ref().is_some_and(asked) {
        plan.traffic.watch = None;
    }
}

fn make(terms: &Terms) -> Origination {
    match try_make(terms) {
        Ok(made) => made,
        Err(why) => Origination::Unmade(why),
    }
}

fn try_make(terms: &Terms) -> Result<Origination, Arc<str>> {
    let name = terms.name.clone()?;
    let server = server_name(&name)?;
    let Some(said) = &terms.said else {
        return Ok(Origination::Mesh(server));
    };
    let credential = terms.credential.clone().transpose()?;
    let [certificate, key, authorities, revocations] = terms.files.clone().map(Option::transpose);
    let (pair, of_file, lists) = (certificate?.zip(key?), authorities?, revocations?);
    let of_credential = credential.as_ref().map(|one| &one.authorities);
    let authorities = match &said.authorities {
        Authorities::Pem(pem) => Some(pem.to_vec()),
        Authorities::System => of_credential.filter(|pem| !pem.is_empty()).cloned(),
        Authorities::File(path) => {
            let read =
                of_file.ok_or_else(|| Arc::<str>::from(format!("{path} has not been read")))?;
            Some(read.0.to_vec())
        }
    };
    let certificate = match (said.mutual, &credential, pair) {
        (false, ..) => None,
        (true, _, Some((certificate, key))) => Some((certificate.0.to_vec(), key.0.to_vec())),
        (true, Some(one), None) => Some((one.certificates.clone(), one.private_key.clone())),
        (true, None, None) => return Err("mode MUTUAL has no client certificate".into()),
    };
    let of_credential = credential.as_ref().map(|one| &one.revocations);
    let of_credential = of_credential.filter(|pem| !pem.is_empty()).cloned();
    let towards = TowardsOutside {
        revocations: lists.map(|lists| lists.0.to_vec()).or(of_credential),
        authorities,
        certificate,
        names: terms.names.clone(),
        unverified: said.unverified,
    };
    let config = towards.client().map_err(|error| {
        let credential = said.credential.as_deref();
        let about = about(&error, said).or(credential).unwrap_or(&name);
        Arc::<str>::from(format!("{about}: {error}"))
    })?;
    let naming = |protocols: &[&[u8]]| {
        let mut config = config.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    };
    Ok(Origination::World(WorldTls {
        name: server,
        http: naming(&[alpn::PLAIN_HTTP11]),
        http2: naming(&[alpn::PLAIN_HTTP2]),
        tcp: naming(&[]),
    }))
}

/// The file that an error is about, where it is about one.
fn about<'a>(error: &OutsideTlsError, said: &'a TlsOrigin) -> Option<&'a str> {
    let [certificate, key, authorities, revocations] = of_origin(said);
    let file = match error {
        OutsideTlsError::Certificate(_) => certificate,
        OutsideTlsError::Key | OutsideTlsError::Mismatch => key,
        OutsideTlsError::Authorities(_) => authorities,
        OutsideTlsError::Revocations(_) => revocations,
        OutsideTlsError::Name(_) | OutsideTlsError::Suite(_) | OutsideTlsError::Refused(_) => None,
    };
    file.map(|path| &**path)
}

fn server_name(name: &str) -> Result<ServerName<'static>, Arc<str>> {
    let read: Result<_, InvalidDnsNameError> = ServerName::try_from(name.to_owned());
    read.map_err(|_| format!("`{name}` is not a server name (SNI)").into())
}

/// Every endpoint of a destination is spoken to as its traffic policy says. TLS of the world's stands in the place of the mesh's.
pub(super) fn originate(plan: &mut ServicePlan) {
    let Some(origination) = &plan.traffic.origination else {
        return;
    };
    for endpoint in &mut plan.endpoints {
        let tunnelled = endpoint.origination.as_ref();
        let tunnelled = tunnelled.is_some_and(|one| one.0.is_tunnel());
        if tunnelled && matches!(*origination.0, Origination::Mesh(_)) {
            // A tunnel needs no server name: its connections are not distinguished by it.
            continue;
        }
        endpoint.origination = Some(origination.clone());
        if !matches!(*origination.0, Origination::Mesh(_)) {
            endpoint.expected = None;
        }
    }
}
