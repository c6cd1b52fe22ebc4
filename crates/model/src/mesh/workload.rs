//! Workloads (what runs and answers), and the Pods and Deployments they come from.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::capture::{CaptureScope, Scope};
use super::probe::Probes;
use crate::names::{Hostname, Identity, Labels, Port, ResourceName, TrustDomain, WorkloadKey};
use crate::source::Source;

/// Something that runs at an address under an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// `namespace/name`.
    pub key: WorkloadKey,
    /// Its name on the wire: `cluster/group/kind/namespace/name` such as `Kubernetes//Pod/default/reviews-1`.
    pub uid: Arc<str>,
    /// Where it was written.
    pub source: Source,
    /// What it comes from.
    pub kind: WorkloadKind,
    /// Its addresses, the primary one first; empty when only a hostname is known.
    pub addresses: Vec<IpAddr>,
    /// Its DNS name, when that is all a WorkloadEntry says.
    pub hostname: Option<Hostname>,
    /// Its labels.
    pub labels: Labels,
    /// Its service account, `default` when not said.
    pub service_account: Arc<str>,
    /// Whether a proxy of the mesh stands before it, so that it can be spoken to in mutual TLS.
    pub has_sidecar: bool,
    /// Whether that proxy is all there is: a gateway, which takes what comes from outside at the ports that Gateways open.
    pub gateway: bool,
    /// Whether that gateway is a waypoint, which takes nothing but what node proxies bring for others.
    pub waypoint: bool,
    /// Whether a node proxy (ztunnel) stands before it, which is spoken to over HBONE. Never together with a sidecar.
    pub ambient: bool,
    /// The node it runs on, empty when not said.
    pub node: Arc<str>,
    /// Name shown in metrics, by Istio's labels.
    pub canonical_name: Arc<str>,
    /// Revision shown in metrics, `latest` when no label says.
    pub canonical_revision: Arc<str>,
    /// Name of what owns it: the Deployment, or itself.
    pub workload_name: Arc<str>,
    /// Kind of what owns it.
    pub workload_type: WorkloadType,
    /// Ports by name: container ports of a Pod, `ports` of a WorkloadEntry or endpoint.
    pub named_ports: BTreeMap<Arc<str>, Port>,
    /// Every declared container port.
    pub container_ports: Vec<Port>,
    /// Ports that its sidecar takes where the kernel redirects connections.
    pub captured_ports: Scope<Port>,
    /// What stands in front of its sidecar.
    pub topology: Topology,
    /// Its network, empty for ours.
    pub network: Arc<str>,
    /// `region/zone/subzone`, empty when not said.
    pub locality: Arc<str>,
    /// Its share of the load.
    pub weight: Option<u32>,
    /// Whether it can take traffic: a Pod's phase is Running or not said, a WorkloadEntry's condition `Healthy` is not False,
    /// and True where its health is checked.
    pub ready: bool,
    /// The WorkloadGroup that it joined, where it came by itself.
    pub group: Option<ResourceName>,
}

/// Label of a Pod whose sidecar takes tunnels of HBONE, and its only value.
pub const TUNNEL: (&str, &str) = ("networking.istio.io/tunnel", "http");

/// Whether the sidecar of a workload with these labels takes tunnels of HBONE: an older one, or a stranger's, may not.
#[must_use]
pub fn sidecar_takes_tunnels(labels: &Labels) -> bool {
    labels.get(TUNNEL.0) == Some(TUNNEL.1)
}

impl Workload {
    /// Who it is, in this trust domain.
    pub fn identity(&self, trust_domain: &TrustDomain) -> Identity {
        Identity {
            trust_domain: trust_domain.clone(),
            namespace: self.key.namespace.clone(),
            service_account: self.service_account.clone(),
        }
    }
}

/// What stands in front of a workload's sidecar (`gatewayTopology`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Topology {
    /// Proxies whose word in `x-forwarded-for` is believed; `None` where the mesh says.
    pub trusted_proxies: Option<u32>,
    /// Whether whoever connects in plaintext says by a PROXY header for whom; MeshConfig says it of gateways.
    pub proxy_protocol: bool,
    /// What becomes of `x-forwarded-client-cert`, where the mesh does not say.
    pub forwards: Forwards,
}

impl Workload {
    /// Whether its proxy hears first for whom a connection is made, where the mesh says so of gateways or not.
    #[must_use]
    pub fn hears_proxy_header(&self, mesh: bool) -> bool {
        self.topology.proxy_protocol || (mesh && self.gateway)
    }

    /// What its proxy makes of `x-forwarded-client-cert`, in a mesh that says this for all. Gateways tell of clients' certificates where
    /// nothing is said, as Istio's; sidecars, where that would cost each request, only where it is.
    #[must_use]
    pub fn forwards(&self, mesh: &Forwards) -> ForwardClientCertificate {
        let own = &self.topology.forwards;
        match (self.gateway, self.waypoint) {
            (_, true) => ForwardClientCertificate::Sanitize,
            (true, false) => {
                let said = own.gateway.or(mesh.gateway);
                said.unwrap_or(ForwardClientCertificate::SanitizeSet)
            }
            (false, false) => own.sidecar.or(mesh.sidecar).unwrap_or_default(),
        }
    }
}

impl Workload {
    /// What of a client's certificate its proxy tells, in a mesh that says this for all.
    #[must_use]
    pub fn certificate_details(&self, mesh: &Forwards) -> ClientCertificateDetails {
        let said = self.topology.forwards.details.or(mesh.details);
        match self.gateway {
            true => ClientCertificateDetails::OF_GATEWAYS,
            false => said.unwrap_or(ClientCertificateDetails::OF_SIDECARS),
        }
    }
}

/// What becomes of `x-forwarded-client-cert`, by the role of the proxy; `None` where it is not said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forwards {
    /// At gateways: `gatewayTopology.forwardClientCertDetails`.
    pub gateway: Option<ForwardClientCertificate>,
    /// At sidecars: `proxyHeaders.forwardedClientCert`.
    pub sidecar: Option<ForwardClientCertificate>,
    /// What of a certificate sidecars tell: `proxyHeaders.setCurrentClientCertDetails`.
    pub details: Option<ClientCertificateDetails>,
}

/// What of a client's certificate is told beside its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientCertificateDetails {
    /// Its owner's name.
    pub subject: bool,
    /// The certificate.
    pub certificate: bool,
    /// It and those that came with it.
    pub chain: bool,
    /// Its host names.
    pub dns: bool,
    /// Its URIs.
    pub uri: bool,
}

impl ClientCertificateDetails {
    /// What sidecars tell where nothing is said, as Istio's.
    pub const OF_SIDECARS: Self = Self {
        subject: true,
        certificate: false,
        chain: false,
        dns: true,
        uri: true,
    };
    /// What gateways tell, as Istio's.
    pub const OF_GATEWAYS: Self = Self {
        certificate: true,
        ..Self::OF_SIDECARS
    };
}

/// What a proxy makes of `x-forwarded-client-cert`. A client without a verified certificate is believed by none but the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForwardClientCertificate {
    /// It is taken out.
    #[default]
    Sanitize,
    /// It goes on as it came.
    ForwardOnly,
    /// The client's certificate is added to what came.
    AppendForward,
    /// The client's certificate takes the place of what came.
    SanitizeSet,
    /// It goes on as it came, whoever the client is.
    AlwaysForwardOnly,
}

/// What a workload comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadKind {
    /// A Pod.
    Pod,
    /// A WorkloadEntry.
    WorkloadEntry,
    /// An endpoint written inside this ServiceEntry.
    ServiceEntryEndpoint(ResourceName),
    /// An endpoint of the EndpointSlices of this Service of its namespace, at whose address nobody else is.
    SliceEndpoint(Arc<str>),
}

/// Kind of what owns a workload, as the wire knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadType {
    /// A Deployment.
    Deployment,
    /// A CronJob.
    CronJob,
    /// Nothing: a bare Pod or entry.
    Pod,
    /// A Job.
    Job,
}

/// A Pod as declared. It is a workload once it has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
    /// What runs in it.
    pub template: PodTemplate,
    /// `status.podIP` and `podIPs`.
    pub addresses: Vec<IpAddr>,
    /// `status.phase`.
    pub phase: PodPhase,
    /// The Deployment (or other controller) of its ownerReferences, or guessed from `pod-template-hash`.
    pub owner: Option<(WorkloadType, Arc<str>)>,
}

/// Life of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodPhase {
    /// Not started.
    Pending,
    /// Running, or not said.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Its node is lost.
    Unknown,
}

/// Several Pods of one template: a Deployment, or another controller of Pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
    /// What it is.
    pub kind: ControllerKind,
    /// How many Pods.
    pub replicas: u32,
    /// Labels of its Pods.
    pub selector: Labels,
    /// What each of its Pods is.
    pub template: PodTemplate,
    /// How its Pods are replaced.
    pub strategy: Strategy,
}

/// What keeps Pods of a template running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControllerKind {
    /// Pods that can stand in for each other.
    Deployment,
    /// Pods that each have a name which stays theirs.
    StatefulSet,
    /// A Pod on each node: one machine is one.
    DaemonSet,
    /// Pods that do something and end.
    Job {
        /// Whether each knows which part of the work is its own.
        indexed: bool,
    },
}

impl ControllerKind {
    /// Its `apiVersion`.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Deployment | Self::StatefulSet | Self::DaemonSet => "apps/v1",
            Self::Job { .. } => "batch/v1",
        }
    }
}

impl fmt::Display for ControllerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job { .. } => "Job",
        })
    }
}

impl Deployment {
    /// Its key among all controllers of a mesh: a Deployment's name, and of the others KIND/NAME, which no name can be.
    #[must_use]
    pub fn key(&self) -> ResourceName {
        match self.kind {
            ControllerKind::Deployment => self.name.clone(),
            kind => {
                let name = format!("{kind}/{}", self.name.name);
                ResourceName::new(self.name.namespace.clone(), name)
            }
        }
    }
}

/// How Pods are replaced that have numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbering {
    /// The first number.
    pub first: u32,
    /// Pods below this number stay as they are when the template changes.
    pub kept_below: u32,
    /// A Pod comes when those before it are ready.
    pub in_order: bool,
    /// Pods are replaced one after another, the last first; else all at once.
    pub in_turn: bool,
    /// How many run at a time; those that have ended for good do not count.
    pub at_once: u32,
}

/// `spec.strategy` of a Deployment, and what the other controllers have in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Each under its own number, the old one before the new one.
    Numbered(Numbering),
    /// All at once: first the old go, then the new come.
    Recreate,
    /// In turn.
    RollingUpdate {
        /// How many more Pods than wanted there may be.
        surge: Share,
        /// How many fewer may be ready.
        unavailable: Share,
    },
}

/// A number, or a part of the wanted number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// So many.
    Count(u32),
    /// So many of a hundred.
    Percent(u32),
}

impl Strategy {
    /// Kubernetes' default.
    pub const DEFAULT: Self = Self::RollingUpdate {
        surge: Share::Percent(25),
        unavailable: Share::Percent(25),
    };

    /// How many of `replicas` there may be too many, and how many too few; never neither.
    pub fn bounds(self, replicas: u32) -> (u32, u32) {
        let part = |percent: u32| u64::from(percent) * u64::from(replicas);
        let whole = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        match self {
            Self::Recreate => (0, replicas),
            Self::Numbered(_) => (0, 1),
            Self::RollingUpdate { surge, unavailable } => {
                let surge = match surge {
                    Share::Count(count) => count,
                    Share::Percent(percent) => whole(part(percent).div_ceil(100)),
                };
                let unavailable = match unavailable {
                    Share::Count(count) => count,
                    Share::Percent(percent) => whole(part(percent) / 100),
                };
                match (surge, unavailable.min(replicas)) {
                    (0, 0) => (0, 1),
                    bounds => bounds,
                }
            }
        }
    }
}

/// What a Pod runs, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodTemplate {
    /// Its labels.
    pub labels: Labels,
    /// Its annotations.
    pub annotations: Labels,
    /// Its service account, `default` when not said.
    pub service_account: Arc<str>,
    /// Where `serviceAccountName` was written.
    pub service_account_source: Option<Source>,
    /// Whether a sidecar stands before it: `sidecar.istio.io/inject` of the Pod, else `istio-injection` of the namespace.
    pub has_sidecar: bool,
    /// Whether a node proxy (ztunnel) stands before it: `ambient.istio.io/redirection` or `istio.io/dataplane-mode` of the Pod,
    /// else the latter of the namespace. A sidecar is stronger.
    pub ambient: bool,
    /// `nodeName`, empty when not said.
    pub node: Arc<str>,
    /// Its containers, in the order written.
    pub containers: Vec<Container>,
    /// How long it may take to stop.
    pub termination_grace: std::time::Duration,
    /// Whether its containers are started again when they end.
    pub restart: Restart,
    /// Which connections its sidecar takes, where the kernel redirects them.
    pub capture: CaptureScope,
    /// What stands in front of its sidecar.
    pub topology: Topology,
    /// Whether its probes go round its sidecar's mutual TLS (`sidecar.istio.io/rewriteAppHTTPProbers`); else they reach it
    /// as any caller without a sidecar does.
    pub rewrites_probes: bool,
}

/// Annotation that says by which templates a Pod is injected.
pub const TEMPLATES: &str = "inject.istio.io/templates";
/// The template of gateways, that of waypoints, and their container, which stands for the proxy.
const GATEWAY_TEMPLATE: &str = "gateway";
pub(crate) const WAYPOINT_TEMPLATE: &str = "waypoint";
const PROXY_CONTAINER: &str = "istio-proxy";

impl PodTemplate {
    /// Whether it is injected as a gateway: a proxy and nothing behind it. A waypoint is one.
    pub fn is_gateway(&self) -> bool {
        self.is_injected_as(GATEWAY_TEMPLATE) || self.is_waypoint()
    }

    /// Whether it is injected as a waypoint.
    pub fn is_waypoint(&self) -> bool {
        self.is_injected_as(WAYPOINT_TEMPLATE)
    }

    fn is_injected_as(&self, template: &str) -> bool {
        let templates = self.annotations.get(TEMPLATES).unwrap_or_default();
        let mut templates = templates.split(',').map(str::trim);
        self.has_sidecar && templates.any(|one| one == template)
    }

    /// The containers that are applications: of a gateway not the one that the injector makes the proxy of.
    pub fn applications(&self) -> impl Iterator<Item = &Container> {
        let gateway = self.is_gateway();
        let all = self.containers.iter();
        all.filter(move |one| !gateway || &*one.name != PROXY_CONTAINER)
    }
}

/// `restartPolicy` of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// However they end.
    Always,
    /// When they fail.
    OnFailure,
    /// When they fail, so often at most: `backoffLimit` of a Job.
    Times(u32),
    /// Never.
    Never,
}

/// One container: locally, one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: Arc<str>,
    /// Its image; means nothing locally.
    pub image: Option<Arc<str>>,
    /// Program and first arguments; empty leaves it to the image, which cannot be run locally.
    pub command: Vec<Arc<str>>,
    /// More arguments.
    pub args: Vec<Arc<str>>,
    /// Whole ConfigMaps and Secrets whose keys are variables; those of `env` are stronger.
    pub env_from: Vec<EnvFrom>,
    /// Environment, in the order written (a later one may name an earlier one as `$(NAME)`).
    pub env: Vec<(Arc<str>, EnvValue)>,
    /// Working directory.
    pub working_dir: Option<Arc<str>>,
    /// Its ports.
    pub ports: Vec<ContainerPort>,
    /// Who asks whether it has started, is ready and lives.
    pub probes: Probes,
    /// What it runs as, by its own `securityContext` and its Pod's.
    pub security: SecurityContext,
    /// Where it was written.
    pub source: Source,
}

/// What an application runs as.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecurityContext {
    /// `runAsUser`.
    pub user: Option<u32>,
    /// `runAsGroup`.
    pub group: Option<u32>,
    /// Privileges beyond those of an application that it asks for: `capabilities.add`, `privileged`.
    pub privileges: Vec<Arc<str>>,
}

/// A ConfigMap or Secret of the Pod's namespace whose keys are variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvFrom {
    /// Stands before each name.
    pub prefix: Arc<str>,
    /// Whether it is a Secret; else a ConfigMap.
    pub secret: bool,
    /// Its name.
    pub name: Arc<str>,
    /// Whether it may be missing.
    pub optional: bool,
}

/// Value of an environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvValue {
    /// Written out.
    Text(Arc<str>),
    /// A field of the Pod such as `status.podIP` or `metadata.name`.
    Field(Arc<str>),
    /// A key of a ConfigMap of the Pod's namespace.
    ConfigMapKey {
        /// Name of the ConfigMap.
        name: Arc<str>,
        /// The key.
        key: Arc<str>,
        /// Whether it may be missing.
        optional: bool,
    },
    /// A key of a Secret of the Pod's namespace.
    SecretKey {
        /// Name of the Secret.
        name: Arc<str>,
        /// The key.
        key: Arc<str>,
        /// Whether it may be missing.
        optional: bool,
    },
}

/// A declared container port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    /// Its name, if any.
    pub name: Option<Arc<str>>,
    /// Its number.
    pub number: Port,
    /// Where it was written.
    pub source: Source,
}
