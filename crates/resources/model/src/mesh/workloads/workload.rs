//! Workloads (what runs and answers), and the Pods and Deployments they come from.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::mesh::capture::{CaptureScope, CaptureSelection};
use crate::mesh::probe::Probes;
use crate::names::{Hostname, Identity, Labels, Port, ResourceName, TrustDomain, WorkloadKey};
use crate::source::Source;

/// Something that runs at an address under an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// `namespace/name`.
    pub key: WorkloadKey,
    /// Its name on the wire: `cluster/group/kind/namespace/name` such as `Kubernetes//Pod/default/reviews-1`.
    pub uid: Arc<str>,
    /// File and line of its definition.
    pub source: Source,
    /// The resource it comes from.
    pub kind: WorkloadKind,
    /// Its addresses, the primary one first; empty when only a hostname is known.
    pub addresses: Vec<IpAddr>,
    /// Its DNS name, when that is all a WorkloadEntry says.
    pub hostname: Option<Hostname>,
    /// Its labels.
    pub labels: Labels,
    /// Its service account, `default` when not said.
    pub service_account: Arc<str>,
    /// True if a proxy of the mesh serves it, so that clients can speak mutual TLS.
    pub has_sidecar: bool,
    /// True for a gateway: a proxy alone, for traffic from outside at the ports that Gateways open.
    pub gateway: bool,
    /// True for a waypoint: it accepts only traffic that node proxies bring for other workloads.
    pub waypoint: bool,
    /// True if a node proxy (ztunnel) serves it; clients reach it by HBONE. Never together with a sidecar.
    pub ambient: bool,
    /// True if it asks for a node proxy by its labels, so that its node's proxy may have its certificate before it serves it.
    pub asks_for_ambient: bool,
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
    pub captured_ports: CaptureSelection<Port>,
    /// Proxies in front of its sidecar.
    pub topology: Topology,
    /// Its network, empty for ours.
    pub network: Arc<str>,
    /// `region/zone/subzone`, empty when not said.
    pub locality: Arc<str>,
    /// Its share of the load.
    pub weight: Option<u32>,
    /// True if it can receive traffic. A Pod's phase is Running or unset, and the Pod is ready. A WorkloadEntry's condition `Healthy` is not
    /// False, and is True if its health is checked.
    pub ready: bool,
    /// The WorkloadGroup that it joined, where it came by itself.
    pub group: Option<ResourceName>,
}

/// Label of a Pod whose sidecar takes tunnels of HBONE, and its only value.
pub const TUNNEL: (&str, &str) = ("networking.istio.io/tunnel", "http");

/// Returns true if the sidecar of a workload with these labels accepts HBONE tunnels. An older sidecar, or that of
/// another mesh, may not.
#[must_use]
pub fn sidecar_takes_tunnels(labels: &Labels) -> bool {
    labels.get(TUNNEL.0) == Some(TUNNEL.1)
}

impl Workload {
    /// Its identity in this trust domain.
    pub fn identity(&self, trust_domain: &TrustDomain) -> Identity {
        Identity {
            trust_domain: trust_domain.clone(),
            namespace: self.key.namespace.clone(),
            service_account: self.service_account.clone(),
        }
    }
}

/// Proxies in front of a workload's sidecar (`gatewayTopology`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Topology {
    /// Number of trusted proxies in `x-forwarded-for`; `None`: the mesh decides.
    pub trusted_proxies: Option<u32>,
    /// True if each plaintext connection begins with a PROXY header that names the client. MeshConfig sets this for
    /// gateways.
    pub proxy_protocol: bool,
    /// Treatment of `x-forwarded-client-cert`, if the mesh sets none.
    pub forwards: Forwards,
}

impl Workload {
    /// Returns true if its proxy first reads a PROXY header. `mesh` is the mesh's setting for gateways.
    #[must_use]
    pub fn hears_proxy_header(&self, mesh: bool) -> bool {
        self.topology.proxy_protocol || (mesh && self.gateway)
    }

    /// Treatment of `x-forwarded-client-cert` by its proxy, given the mesh's setting. By default gateways add the
    /// client's certificate, as Istio's do. Sidecars add it only if told so, because it costs each request.
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
    /// The parts of a client's certificate that its proxy adds, given the mesh's setting. Gateways ignore the settings.
    #[must_use]
    pub fn certificate_details(&self, mesh: &Forwards) -> ClientCertificateDetails {
        let said = self.topology.forwards.details.or(mesh.details);
        match self.gateway {
            true => ClientCertificateDetails::OF_GATEWAYS,
            false => said.unwrap_or(ClientCertificateDetails::OF_SIDECARS),
        }
    }
}

/// Treatment of `x-forwarded-client-cert`, by the role of the proxy; `None` if unset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forwards {
    /// At gateways: `gatewayTopology.forwardClientCertDetails`.
    pub gateway: Option<ForwardClientCertificate>,
    /// At sidecars: `proxyHeaders.forwardedClientCert`.
    pub sidecar: Option<ForwardClientCertificate>,
    /// Parts of the certificate that sidecars add: `proxyHeaders.setCurrentClientCertDetails`.
    pub details: Option<ClientCertificateDetails>,
}

/// Parts of a client's certificate that are added beside its hash.
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
    /// Default of sidecars, as Istio's.
    pub const OF_SIDECARS: Self = Self {
        subject: true,
        certificate: false,
        chain: false,
        dns: true,
        uri: true,
    };
    /// Default of gateways, as Istio's.
    pub const OF_GATEWAYS: Self = Self {
        certificate: true,
        ..Self::OF_SIDECARS
    };
}

/// Treatment of `x-forwarded-client-cert` by a proxy. Only the last one trusts the header of a client without a
/// verified certificate.
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
    /// It goes on as it came, from every client.
    AlwaysForwardOnly,
}

/// The resource that a workload comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadKind {
    /// A Pod.
    Pod,
    /// A WorkloadEntry.
    WorkloadEntry,
    /// An endpoint written inside this ServiceEntry.
    ServiceEntryEndpoint(ResourceName),
    /// An endpoint of the EndpointSlices of this Service of its namespace, at an address without another workload.
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
    /// File and line of its definition.
    pub source: Source,
    /// Its containers and settings.
    pub template: PodTemplate,
    /// `status.podIP` and `podIPs`.
    pub addresses: Vec<IpAddr>,
    /// `status.phase`.
    pub phase: PodPhase,
    /// True if it can receive traffic: the condition `Ready` is not False, and the Pod is not being removed.
    pub ready: bool,
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
    /// File and line of its definition.
    pub source: Source,
    /// Kind of the controller.
    pub kind: ControllerKind,
    /// Number of Pods.
    pub replicas: u32,
    /// Labels of its Pods.
    pub selector: Labels,
    /// Template of its Pods.
    pub template: PodTemplate,
    /// Replacement of its Pods.
    pub strategy: Strategy,
}

/// Controller that keeps Pods of a template running.
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
        /// True if each Pod knows its own part of the work.
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

/// Replacement of Pods with numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodNumbering {
    /// The first number.
    pub first: u32,
    /// Pods below this number stay as they are when the template changes.
    pub kept_below: u32,
    /// A Pod comes when those before it are ready.
    pub in_order: bool,
    /// Pods are replaced one after another, the last first; else all at once.
    pub in_turn: bool,
    /// Number of Pods that run at a time; Pods that ended for good do not count.
    pub at_once: u32,
}

/// `spec.strategy` of a Deployment, and what the other controllers have in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Each under its own number, the old one before the new one.
    Numbered(PodNumbering),
    /// All at once: first the old go, then the new come.
    Recreate,
    /// In turn.
    RollingUpdate {
        /// Number of Pods above the wanted number.
        surge: CountOrPercent,
        /// Number of Pods that may be not ready.
        unavailable: CountOrPercent,
    },
}

/// A number, or a part of the wanted number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountOrPercent {
    /// So many.
    Count(u32),
    /// So many of a hundred.
    Percent(u32),
}

impl Strategy {
    /// Kubernetes' default.
    pub const DEFAULT: Self = Self::RollingUpdate {
        surge: CountOrPercent::Percent(25),
        unavailable: CountOrPercent::Percent(25),
    };

    /// The allowed surplus and deficit of `replicas` Pods; never both zero.
    pub fn bounds(self, replicas: u32) -> (u32, u32) {
        let part = |percent: u32| u64::from(percent) * u64::from(replicas);
        let whole = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        match self {
            Self::Recreate => (0, replicas),
            Self::Numbered(_) => (0, 1),
            Self::RollingUpdate { surge, unavailable } => {
                let surge = match surge {
                    CountOrPercent::Count(count) => count,
                    CountOrPercent::Percent(percent) => whole(part(percent).div_ceil(100)),
                };
                let unavailable = match unavailable {
                    CountOrPercent::Count(count) => count,
                    CountOrPercent::Percent(percent) => whole(part(percent) / 100),
                };
                match (surge, unavailable.min(replicas)) {
                    (0, 0) => (0, 1),
                    bounds => bounds,
                }
            }
        }
    }
}

/// Containers, account and settings of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodTemplate {
    /// Its labels.
    pub labels: Labels,
    /// Its annotations.
    pub annotations: Labels,
    /// Its service account, `default` when not said.
    pub service_account: Arc<str>,
    /// Location of `serviceAccountName`.
    pub service_account_source: Option<Source>,
    /// True if it has a sidecar: `sidecar.istio.io/inject` of the Pod, else `istio-injection` of the namespace.
    pub has_sidecar: bool,
    /// Of a Pod that an API server knows: true if it has the sidecar's container. `None` of a Pod that is only written down.
    pub injected: Option<bool>,
    /// True if the Pod has the network of its node (`hostNetwork`), where no proxy of the mesh takes its connections.
    pub host_network: bool,
    /// True if a node proxy (ztunnel) serves it: `ambient.istio.io/redirection` of the Pod. A Pod that is only written down is
    /// served if it asks for it. A sidecar takes precedence.
    pub ambient: bool,
    /// True if `istio.io/dataplane-mode` of the Pod, else of its namespace, asks for a node proxy, and it has no sidecar.
    pub asks_for_ambient: bool,
    /// `nodeName`, empty when not said.
    pub node: Arc<str>,
    /// Its containers, in the order written.
    pub containers: Vec<Container>,
    /// Grace period at termination.
    pub termination_grace: std::time::Duration,
    /// Restart policy of its containers.
    pub restart: Restart,
    /// Which connections its sidecar takes, where the kernel redirects them.
    pub capture: CaptureScope,
    /// Proxies in front of its sidecar.
    pub topology: Topology,
    /// True if its probes bypass its sidecar's mutual TLS (`sidecar.istio.io/rewriteAppHTTPProbers`). Otherwise they
    /// arrive like those of any caller without a sidecar.
    pub rewrites_probes: bool,
}

/// Annotation that says by which templates a Pod is injected.
pub const TEMPLATES: &str = "inject.istio.io/templates";
/// The template of gateways, that of waypoints, and their container, which stands for the proxy.
const GATEWAY_TEMPLATE: &str = "gateway";
pub(crate) const WAYPOINT_TEMPLATE: &str = "waypoint";
pub(crate) const PROXY_CONTAINER: &str = "istio-proxy";

impl PodTemplate {
    /// Returns true if it is injected as a gateway: a proxy without an application. A waypoint is one.
    pub fn is_gateway(&self) -> bool {
        self.is_injected_as(GATEWAY_TEMPLATE) || self.is_waypoint()
    }

    /// Returns true if it is injected as a waypoint.
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
    /// Whole ConfigMaps and Secrets whose keys are variables; `env` takes precedence.
    pub env_from: Vec<EnvFrom>,
    /// Environment, in the order written (a later one may name an earlier one as `$(NAME)`).
    pub env: Vec<(Arc<str>, EnvValue)>,
    /// Working directory.
    pub working_dir: Option<Arc<str>>,
    /// Its ports.
    pub ports: Vec<ContainerPort>,
    /// Startup, readiness and liveness probes.
    pub probes: Probes,
    /// User, group and privileges, from its own `securityContext` and its Pod's.
    pub security: SecurityContext,
    /// File and line of its definition.
    pub source: Source,
}

/// User, group and privileges of an application.
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
    /// True for a Secret, false for a ConfigMap.
    pub secret: bool,
    /// Its name.
    pub name: Arc<str>,
    /// True if it may be missing.
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
        /// True if it may be missing.
        optional: bool,
    },
    /// A key of a Secret of the Pod's namespace.
    SecretKey {
        /// Name of the Secret.
        name: Arc<str>,
        /// The key.
        key: Arc<str>,
        /// True if it may be missing.
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
    /// File and line of its definition.
    pub source: Source,
}
