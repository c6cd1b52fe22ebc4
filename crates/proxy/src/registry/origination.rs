//! TLS that we make towards a destination, because a DestinationRule says so: what it is made of, made once for all that want the
//! same. Nothing is sent in plaintext instead of what cannot be made.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use rustls::pki_types::{InvalidDnsNameError, ServerName};
use voile_identity::TowardsOutside;
use voile_model::ServiceKey;
use voile_model::mesh::traffic::{Authorities, ClientTls, TlsOrigin};
use voile_transport::alpn;
use voile_xds::wire::Credential;

use super::Registry;
use crate::plan::{Origination, Same, ServicePlan, WorldTls};

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
}

/// What is made, for as long as a plan speaks of it.
#[derive(Debug, Default)]
pub(crate) struct Originations {
    made: RefCell<HashMap<Terms, Weak<Origination>>>,
    /// Tunnels with waypoints, by what those are told.
    through: RefCell<HashMap<Arc<str>, Weak<Origination>>>,
}

/// Entries from which on those that nobody holds are looked for.
const MANY: usize = 64;

impl Originations {
    fn of(&self, terms: Terms) -> Same<Origination> {
        let mut all = self.made.borrow_mut();
        if let Some(known) = all.get(&terms).and_then(Weak::upgrade) {
            return Same(known);
        }
        let made = match make(&terms) {
            Origination::Unmade(why) => unmade(why, &terms, &all),
            made => Arc::new(made),
        };
        if terms.said.as_ref().is_some_and(|said| said.unverified) {
            let name = terms.name.as_deref().unwrap_or_default();
            tracing::warn!(
                name,
                "the server's certificate is not looked at: insecureSkipVerify"
            );
        }
        if all.len() >= MANY {
            all.retain(|_, held| held.strong_count() > 0);
        }
        all.insert(terms, Arc::downgrade(&made));
        Same(made)
    }

    /// What whoever is called through a waypoint has that is told this.
    pub(super) fn through(&self, called: &str) -> Same<Origination> {
        let mut all = self.through.borrow_mut();
        if let Some(known) = all.get(called).and_then(Weak::upgrade) {
            return Same(known);
        }
        if all.len() >= MANY {
            all.retain(|_, held| held.strong_count() > 0);
        }
        let called: Arc<str> = called.into();
        let made = Arc::new(Origination::Through(Arc::clone(&called)));
        all.insert(called, Arc::downgrade(&made));
        Same(made)
    }
}

impl Registry {
    /// What TLS a service's endpoints are spoken to in, beyond what the mesh speaks by itself.
    pub(super) fn origination(
        &self,
        said: Option<&ClientTls>,
        service: &ServiceKey,
    ) -> Option<Same<Origination>> {
        let terms = match said? {
            ClientTls::Disable | ClientTls::Mutual(None) => return None,
            ClientTls::Mutual(Some(name)) => Terms {
                said: None,
                name: Ok(name.clone()),
                names: Vec::new(),
                credential: None,
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
                        Err(format!("{host} is no name to ask for; write `sni`").into())
                    }
                    None => Ok(host.as_str().into()),
                };
                let credential = origin.credential.as_ref();
                Terms {
                    said: Some(Arc::clone(origin)),
                    name,
                    names,
                    credential: credential.map(|name| self.gateway.credential(name)),
                }
            }
        };
        Some(self.originations.of(terms))
    }
}

/// What cannot be made: a credential that is there and cannot be used leaves what was made of the one before, on the same terms. One
/// that is gone leaves nothing.
fn unmade(
    why: Arc<str>,
    terms: &Terms,
    all: &HashMap<Terms, Weak<Origination>>,
) -> Arc<Origination> {
    let held = |terms: &Terms| matches!(terms.credential, Some(Ok(_)));
    let same = |other: &Terms| {
        let named = (&other.said, &other.name, &other.names);
        held(other) && named == (&terms.said, &terms.name, &terms.names)
    };
    let mut before = all.iter().filter(|(other, _)| held(terms) && same(other));
    let good = before.find_map(|(_, made)| {
        let made = made.upgrade()?;
        matches!(*made, Origination::World(_)).then_some(made)
    });
    match good {
        Some(good) => {
            tracing::warn!(%why, "a credential cannot be used; the one before stays");
            good
        }
        None => {
            tracing::warn!(%why, "TLS cannot be made as a DestinationRule says; nobody is called");
            Arc::new(Origination::Unmade(why))
        }
    }
}

/// What whoever is called through tunnels has; all the same one, since equal is only what is the same.
pub(super) fn tunnel() -> Same<Origination> {
    static TUNNEL: LazyLock<Arc<Origination>> = LazyLock::new(|| Arc::new(Origination::Tunnel));
    Same(Arc::clone(&TUNNEL))
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
    let of_credential = credential.as_ref().map(|one| &one.authorities);
    let authorities = match &said.authorities {
        Authorities::Pem(pem) => Some(pem.to_vec()),
        Authorities::System => of_credential.filter(|pem| !pem.is_empty()).cloned(),
        Authorities::File(path) => {
            return Err(format!("the authorities of {path} are not read").into());
        }
    };
    let certificate = match (said.mutual, &credential) {
        (false, _) => None,
        (true, Some(one)) => Some((one.certificates.clone(), one.private_key.clone())),
        (true, None) => return Err("there is no certificate to show".into()),
    };
    let towards = TowardsOutside {
        authorities,
        certificate,
        names: terms.names.clone(),
        unverified: said.unverified,
    };
    let config = towards.client().map_err(|error| {
        let credential = said.credential.as_deref().unwrap_or(&name);
        Arc::<str>::from(format!("{credential}: {error}"))
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

fn server_name(name: &str) -> Result<ServerName<'static>, Arc<str>> {
    let read: Result<_, InvalidDnsNameError> = ServerName::try_from(name.to_owned());
    read.map_err(|_| format!("`{name}` is no name to ask for").into())
}

/// Every endpoint of a destination is spoken to as its traffic policy says. TLS of the world's stands in the place of the mesh's.
pub(super) fn originate(plan: &mut ServicePlan) {
    let Some(origination) = &plan.traffic.origination else {
        return;
    };
    for endpoint in &mut plan.endpoints {
        let tunnelled = endpoint.origination.as_ref();
        let tunnelled = tunnelled.is_some_and(|one| matches!(*one.0, Origination::Tunnel));
        if tunnelled && matches!(*origination.0, Origination::Mesh(_)) {
            // A name is asked for only where connections are told apart by it.
            continue;
        }
        endpoint.origination = Some(origination.clone());
        if !matches!(*origination.0, Origination::Mesh(_)) {
            endpoint.expected = None;
        }
    }
}
