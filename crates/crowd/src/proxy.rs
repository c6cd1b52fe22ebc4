//! One simulated proxy: it asks for its configuration, the services it uses and how to speak to them, follows the policies that its
//! configuration names, and notes when what arrives.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use prost::Message;
use tokio::sync::{mpsc, watch};
use voile_proto::discovery::Node;
use voile_proto::proxy::ProxyConfiguration;
use voile_proto::type_url::{ADDRESS, AUTHORIZATION_POLICY, PROXY_CONFIGURATION, SERVICE_POLICY};
use voile_xds::client::{
    ClientConfig, ClientState, Credential, CredentialSource, Rejection, Update, XdsClient,
};

use crate::ledger::{EVERYBODY, mark_in, now_ns};
use crate::plan::Part;
use crate::{Settings, Shared, Wish, lock};

/// What has to be answered before a proxy is in sync.
const TYPES: [&str; 3] = [PROXY_CONFIGURATION, ADDRESS, SERVICE_POLICY];

struct Fixed(Credential);

impl CredentialSource for Fixed {
    fn credential(&self) -> std::io::Result<Credential> {
        Ok(self.0.clone())
    }
}

/// What one proxy knows of itself.
struct Simulated {
    number: usize,
    ledger: Shared,
    wishes: mpsc::UnboundedSender<Wish>,
    state: Arc<OnceLock<watch::Receiver<ClientState>>>,
    /// Streams opened when `answered` was begun.
    connections: u64,
    answered: BTreeSet<Arc<str>>,
    policies: BTreeSet<Arc<str>>,
}

/// Starts it on the current runtime.
pub(crate) fn start(
    settings: &Settings,
    part: Part,
    number: usize,
    credential: Credential,
    ledger: Shared,
    wishes: mpsc::UnboundedSender<Wish>,
) -> Result<XdsClient, String> {
    let config = ClientConfig {
        addresses: settings.control.clone(),
        root_certificate: Some(settings.state.join("root-cert.pem")),
        node: Node {
            id: format!("sidecar~simulated~{}.{}", part.pod, part.namespace),
            ..Node::default()
        },
    };
    let state = Arc::new(OnceLock::new());
    let mut simulated = Simulated {
        number,
        ledger,
        wishes,
        state: state.clone(),
        connections: 0,
        answered: BTreeSet::new(),
        policies: BTreeSet::new(),
    };
    let handler = Box::new(move |update: &Update| simulated.take(update));
    let runtime = tokio::runtime::Handle::current();
    let client = XdsClient::start(config, Arc::new(Fixed(credential)), handler, &runtime);
    // The client begins when we next wait: it finds this there.
    let _ = state.set(client.state());
    let own = format!("{}/{}", part.namespace, part.pod);
    let asked = [
        (PROXY_CONFIGURATION, vec![own]),
        (ADDRESS, part.services.clone()),
        (SERVICE_POLICY, part.services),
    ];
    for (type_url, names) in asked {
        let names = names.into_iter().map(Arc::<str>::from);
        client
            .subscribe(type_url, names)
            .map_err(|e| e.to_string())?;
    }
    Ok(client)
}

impl Simulated {
    fn take(&mut self, update: &Update) -> Vec<Rejection> {
        let now = now_ns();
        let connections = self
            .state
            .get()
            .map_or(0, |state| state.borrow().connections);
        let ledger = self.ledger.clone();
        let mut ledger = lock(&ledger);
        if connections != self.connections {
            self.connections = connections;
            self.answered.clear();
        }
        ledger.heard(update.added.len());
        for name in &update.removed {
            ledger.removed(self.number, name);
        }
        match &*update.type_url {
            ADDRESS => {
                for resource in &update.added {
                    ledger.arrived(self.number, &resource.name, mark_in(&resource.body), now);
                }
            }
            // It is asked for because the configuration names it: both are there.
            AUTHORIZATION_POLICY => {
                for resource in &update.added {
                    ledger.arrived(
                        self.number,
                        EVERYBODY,
                        mark_in(resource.name.as_bytes()),
                        now,
                    );
                }
            }
            PROXY_CONFIGURATION => {
                for resource in &update.added {
                    self.follow(&resource.body);
                }
            }
            _ => {}
        }
        let first = self.answered.insert(update.type_url.clone());
        if first && TYPES.iter().all(|of| self.answered.contains(*of)) {
            ledger.in_sync(self.number, now);
        }
        Vec::new()
    }

    /// Asks for the policies that the configuration names.
    fn follow(&mut self, body: &[u8]) {
        let Ok(configuration) = ProxyConfiguration::decode(body) else {
            return;
        };
        let references = configuration.authorization_policies.into_iter();
        let named: BTreeSet<Arc<str>> = references.map(|one| one.name.into()).collect();
        let more: Vec<Arc<str>> = named.difference(&self.policies).cloned().collect();
        let less: Vec<Arc<str>> = self.policies.difference(&named).cloned().collect();
        self.policies = named;
        if !more.is_empty() || !less.is_empty() {
            // Nobody listens any more when the crowd ends.
            let _ = self.wishes.send(Wish {
                proxy: self.number,
                more,
                less,
            });
        }
    }
}
