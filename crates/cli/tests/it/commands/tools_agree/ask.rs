//! Real requests of the pods of a running mesh: in a pod's own network, or on loopback addresses at its sidecar's listener for the
//! service, and without an identity where a service is published.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use voile_model::mesh::{Mesh, MeshService, PodTemplate};
use voile_model::{Identity, Namespace};

use crate::mesh::{Answer, exchange};
use crate::up::Up;
use crate::up::netns::inside;

/// Longest time for which an answer may differ from the prediction. A push may be on its way, and a first try may meet a
/// pod that is going.
const PATIENCE: Duration = Duration::from_secs(6);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(50);

pub(crate) type Published = BTreeMap<String, SocketAddr>;

/// Options of the mesh's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Sidecars, on loopback addresses.
    Loopback,
    /// In namespaces, without `--dataplane`: sidecars, and a node proxy where labels ask for one.
    Labels,
    /// In namespaces, with `--dataplane mixed`.
    Mixed,
    /// In namespaces, with `--dataplane node`.
    Node,
}

impl Mode {
    /// Options beside the isolation.
    pub(crate) fn options(self) -> &'static [&'static str] {
        match self {
            Self::Loopback | Self::Labels => &[],
            Self::Mixed => &["--dataplane", "mixed"],
            Self::Node => &["--dataplane", "node"],
        }
    }
}

/// Result of a request.
pub(crate) enum Seen {
    /// It reached an application.
    Reached,
    /// It was refused.
    Denied(String),
    /// It was answered on the way: a redirect, a limit, no route.
    Answered(u16),
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reached => f.write_str("answers from the application"),
            Self::Denied(how) => write!(f, "refuses it: {how}"),
            Self::Answered(status) => write!(f, "answers {status} on the way"),
        }
    }
}

impl Seen {
    pub(crate) fn is_denial(&self) -> bool {
        matches!(self, Self::Denied(_))
    }

    fn of(answer: io::Result<Answer>) -> Self {
        match answer {
            // Connections that are cut before an answer are how a node proxy refuses.
            Err(error) => Self::Denied(error.to_string()),
            Ok(answer) if answer.head.to_ascii_lowercase().contains("x-voile-echo:") => {
                Self::Reached
            }
            Ok(answer) if matches!(answer.status, 401 | 403 | 503) => {
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                Self::Denied(format!("{} {body}", answer.status))
            }
            Ok(answer) => Self::Answered(answer.status),
        }
    }
}

/// The process of an application, and its variables.
struct Pod {
    name: String,
    namespace: String,
    pid: u32,
    variables: BTreeMap<String, String>,
}

/// See the module.
pub(crate) struct Running<'a> {
    _up: &'a Up,
    published: Published,
    pods: Vec<Pod>,
    mode: Mode,
}

/// A client of a service.
pub(crate) struct Asking {
    /// None: in plaintext.
    pub(crate) identity: Option<Identity>,
    name: String,
    /// In whose network, where that is not ours.
    network: Option<u32>,
    /// Address of the service.
    host: SocketAddr,
    /// True if the address has the port to use, in place of the service's.
    published: bool,
}

impl<'a> Running<'a> {
    pub(crate) fn of(up: &'a Up, published: Published, mode: Mode) -> Self {
        let family = up.family();
        let pids = family
            .iter()
            .filter_map(|line| line.split(' ').next()?.parse().ok());
        let mut pods: Vec<Pod> = pids.filter_map(pod_of).collect();
        pods.sort_by(|one, other| {
            (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name))
        });
        // Pods of one Deployment are alike.
        pods.dedup_by_key(|pod| (pod.namespace.clone(), workload(&pod.name).to_owned()));
        Self {
            _up: up,
            published,
            pods,
            mode,
        }
    }

    /// Callers of this service: a pod for each workload with a proxy, and plaintext if the service is
    /// published.
    pub(crate) fn callers(&self, mesh: &Mesh, service: &MeshService) -> Vec<Asking> {
        let mut all = Vec::new();
        for pod in &self.pods {
            let Some(template) = template(mesh, pod) else {
                continue;
            };
            if !(template.has_sidecar || template.ambient) || template.is_gateway() {
                continue;
            }
            let Some(host) = pod.finds(service) else {
                continue;
            };
            all.push(Asking {
                identity: Some(Identity {
                    trust_domain: mesh.config.trust_domain.clone(),
                    namespace: Namespace::new(&pod.namespace).expect("a namespace"),
                    service_account: template.service_account.clone(),
                }),
                name: format!("{}/{}", pod.namespace, pod.name),
                network: (self.mode != Mode::Loopback).then_some(pod.pid),
                host,
                published: false,
            });
        }
        let name = format!("{}/{}", service.key.namespace, service.name);
        all.extend(self.published.get(&name).map(|at| Asking {
            identity: None,
            name: "plaintext".to_owned(),
            network: None,
            host: *at,
            published: true,
        }));
        all
    }
}

impl Asking {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Asks until it is as it was said, or for as long as that may take.
    pub(crate) fn ask(&self, port: u16, (method, path): (&str, &str), allowed: bool) -> Seen {
        let until = Instant::now() + PATIENCE;
        loop {
            let seen = self.once(port, method, path);
            if seen.is_denial() != allowed || Instant::now() >= until {
                return seen;
            }
            let next = Instant::now() + AGAIN;
            while Instant::now() < next {
                std::thread::yield_now();
            }
        }
    }

    fn once(&self, port: u16, method: &str, path: &str) -> Seen {
        let mut at = self.host;
        if !self.published {
            at.set_port(port);
        }
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {at}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let asks = move || exchange(at, request.as_bytes());
        Seen::of(match self.network {
            Some(pid) => inside(pid, asks),
            None => asks(),
        })
    }
}

impl Pod {
    /// Address at which the pod finds a service, if it does.
    fn finds(&self, service: &MeshService) -> Option<SocketAddr> {
        let word = |text: &str| text.to_ascii_uppercase().replace(['-', '.'], "_");
        let (name, namespace) = (word(&service.name), word(service.key.namespace.as_str()));
        let key = match *service.key.namespace.as_str() == *self.namespace {
            true => format!("{name}_SERVICE_HOST"),
            false => format!("{name}_{namespace}_SERVICE_HOST"),
        };
        let host = self.variables.get(&key)?.parse().ok()?;
        Some(SocketAddr::new(host, 0))
    }
}

/// The workload of a pod: `web` of `web-0`.
fn workload(pod: &str) -> &str {
    pod.rsplit_once('-').map_or(pod, |(workload, _)| workload)
}

fn template<'a>(mesh: &'a Mesh, pod: &Pod) -> Option<&'a PodTemplate> {
    let is = |name: &voile_model::ResourceName| {
        *name.namespace.as_str() == *pod.namespace && *name.name == *workload(&pod.name)
    };
    let deployments = mesh.deployments.values().filter(|one| is(&one.name));
    let pods = mesh.pods.values().filter(|one| is(&one.name));
    let mut templates = deployments
        .map(|one| &one.template)
        .chain(pods.map(|one| &one.template));
    templates.next()
}

fn pod_of(pid: u32) -> Option<Pod> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variables = environment.split(|byte| *byte == 0).filter_map(|one| {
        let one = String::from_utf8(one.to_vec()).ok()?;
        let (name, value) = one.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    let variables: BTreeMap<String, String> = variables.collect();
    Some(Pod {
        name: variables.get("POD_NAME")?.clone(),
        namespace: variables.get("POD_NAMESPACE")?.clone(),
        pid,
        variables,
    })
}
