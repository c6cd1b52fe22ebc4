//! Waypoints: Gateways in front of services and workloads, chosen by Istio's labels. A label holds even if the waypoint
//! does not exist, or does not admit the namespace. Bypassing a waypoint would bypass its policies, so traffic to it
//! then goes nowhere. (Istio bypasses it.)

use std::sync::Arc;

use crate::mesh::authorization::{PolicyTarget, TargetReference};
use crate::mesh::gateway_api::{Admission, GATEWAY_NAME, GROUP, Gateway, label_value};
use crate::mesh::{
    AuthorizationPolicy, Mesh, MeshService, RequestAuthentication, ServiceOrigin, Workload,
};
use crate::names::{CLUSTER_DOMAIN, Hostname, Labels, Namespace, Port, ResourceName};

/// Label of a service, a workload or a namespace that names its waypoint. [`NO_WAYPOINT`] means none, and overrides the
/// namespace's label.
pub const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// Label beside it: the waypoint's namespace, if not its own.
pub const USE_WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
/// Label of a waypoint: the kind of resource that it serves.
pub const WAYPOINT_FOR: &str = "istio.io/waypoint-for";
/// Classes of the Gateways that are waypoints, without being declared: our own, and Istio's, which users have already written.
pub const WAYPOINT_CLASSES: [&str; 2] = ["voile-waypoint", "istio-waypoint"];
/// Controller of the GatewayClass `voile-waypoint`.
pub const WAYPOINT_CONTROLLER: &str = "voile.dev/mesh-controller";
/// Label value for no waypoint.
pub const NO_WAYPOINT: &str = "none";
/// Protocol of a waypoint's listener.
pub const HBONE: &str = "HBONE";
/// Port of a waypoint's listener.
pub const HBONE_PORT: u16 = 15008;

/// Annotation of a waypoint: the way in which a node proxy, which accepts tunnels for the waypoint's pods, calls them.
pub const INBOUND_BINDING: &str = "ambient.istio.io/waypoint-inbound-binding";

/// Value of that annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboundBinding {
    /// PROXY: with a PROXY header, which names the caller. NONE: without a header.
    pub proxy: bool,
    /// The port, if it differs from the called one.
    pub port: Option<Port>,
}

impl InboundBinding {
    /// `PROXY` or `NONE`, and a port behind a slash; none of anything else.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (protocol, port) = match text.split_once('/') {
            Some((protocol, port)) => (protocol, Some(port.parse().ok().and_then(Port::new)?)),
            None => (text, None),
        };
        let proxy = match protocol {
            "PROXY" => true,
            "NONE" => false,
            _ => return None,
        };
        Some(Self { proxy, port })
    }
}

/// The waypoint that a resource's labels choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaypointChoice {
    /// It has none.
    Nobody,
    /// This one; in its own namespace where none is said.
    Named(Arc<str>, Option<Namespace>),
}

impl WaypointChoice {
    /// The choice of these labels, if any.
    #[must_use]
    pub fn of(labels: &Labels) -> Option<Self> {
        let name = labels.get(USE_WAYPOINT).filter(|name| !name.is_empty())?;
        if name == NO_WAYPOINT {
            return Some(Self::Nobody);
        }
        let namespace = labels.get(USE_WAYPOINT_NAMESPACE).and_then(Namespace::new);
        Some(Self::Named(name.into(), namespace))
    }
}

/// The waypoint that applies a target of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetBinding {
    /// This one, or those of this class.
    Bound(String),
    /// None: the target has no waypoint.
    Unbound,
    /// None: the target does not exist.
    Missing,
}

/// The kinds of traffic that waypoints handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaypointScope {
    /// Traffic to a service's address.
    Services,
    /// Traffic to a workload's own address.
    Workloads,
}

impl Gateway {
    /// Returns true if it is a waypoint.
    #[must_use]
    pub fn is_waypoint(&self) -> bool {
        WAYPOINT_CLASSES.contains(&&*self.class.0)
    }

    /// Returns true if it handles this kind of traffic; the default of [`WAYPOINT_FOR`] is `service`.
    #[must_use]
    pub fn stands(&self, before: WaypointScope) -> bool {
        match self.own_labels.get(WAYPOINT_FOR) {
            None | Some("service") => before == WaypointScope::Services,
            Some("workload") => before == WaypointScope::Workloads,
            Some("all") => true,
            Some(_) => false,
        }
    }

    /// The namespaces whose services and workloads it serves.
    fn admits_to_waypoint(&self) -> &Admission {
        let mut hbone = self.listeners.iter();
        let hbone = hbone.find(|one| &*one.protocol == HBONE);
        hbone.map_or(&Admission::Nobody, |listener| &listener.from)
    }
}

/// The host of the Service that is made for a waypoint, which is called as its Gateway is.
#[must_use]
pub fn waypoint_host(name: &ResourceName) -> Option<Hostname> {
    Hostname::new(&format!(
        "{}.{}.svc.{CLUSTER_DOMAIN}",
        name.name, name.namespace
    ))
}

/// Returns true if a reference in this namespace means the service.
pub(in crate::mesh) fn is_meant(
    from: &Namespace,
    target: &TargetReference,
    service: &MeshService,
) -> bool {
    let kind = match service.origin {
        ServiceOrigin::Kubernetes => ("", "Service"),
        ServiceOrigin::ServiceEntry => ("networking.istio.io", "ServiceEntry"),
    };
    (&*target.group, &*target.kind) == kind
        && *from == service.key.namespace
        && target.name == service.name
}

impl MeshService {
    /// Returns true if its own label chooses a waypoint.
    #[must_use]
    pub fn names_waypoint(&self) -> bool {
        self.waypoint.is_some()
    }
}

impl Workload {
    /// Returns true if its own label chooses a waypoint.
    #[must_use]
    pub fn names_waypoint(&self) -> bool {
        self.labels.get(USE_WAYPOINT).is_some()
    }
}

impl Mesh {
    /// The Gateway of a waypoint.
    #[must_use]
    pub fn waypoint(&self, name: &ResourceName) -> Option<&Arc<Gateway>> {
        let mut all = self.gateway_api.gateways.iter();
        all.find(|one| one.is_waypoint() && one.name == *name)
    }

    /// Returns true if a waypoint exists or is named.
    #[must_use]
    pub fn has_waypoints(&self) -> bool {
        let named = |labels: &Labels| labels.get(USE_WAYPOINT).is_some();
        self.gateway_api
            .gateways
            .iter()
            .any(|one| one.is_waypoint())
            || self.namespaces.values().any(|one| named(&one.labels))
            || self.services.values().any(|one| one.names_waypoint())
            || self.workloads.values().any(|one| one.names_waypoint())
    }

    /// The waypoint before a service.
    #[must_use]
    pub fn waypoint_of(&self, service: &MeshService) -> Option<ResourceName> {
        let chosen = self.chosen(service.waypoint.as_ref(), &service.key.namespace)?;
        let is_itself = waypoint_host(&chosen).is_some_and(|host| host == service.key.hostname);
        (!is_itself && !self.is_of_waypoint(service))
            .then_some(chosen)
            .filter(|name| self.may_stand(name, WaypointScope::Services))
    }

    /// The waypoint before a workload that is called by its own address.
    #[must_use]
    pub fn waypoint_of_workload(&self, workload: &Workload) -> Option<ResourceName> {
        let own = WaypointChoice::of(&workload.labels);
        let chosen = self.chosen(own.as_ref(), &workload.key.namespace)?;
        let stands = workload.ambient && self.may_stand(&chosen, WaypointScope::Workloads);
        // No waypoint handles traffic to the pods of a waypoint: callers reach these directly.
        (stands && self.named_by(workload).is_none()).then_some(chosen)
    }

    /// The waypoint whose Pod a workload is.
    #[must_use]
    pub fn waypoint_run_by(&self, workload: &Workload) -> Option<&Arc<Gateway>> {
        self.named_by(workload).filter(|_| workload.waypoint)
    }

    /// The way a node proxy calls the pod of a waypoint, if the waypoint sets it and the pod runs another program than
    /// Voile.
    #[must_use]
    pub fn binding_of(&self, workload: &Workload) -> Option<InboundBinding> {
        let served = workload.ambient && !workload.waypoint;
        self.named_by(workload).filter(|_| served)?.binding
    }

    /// The waypoint that a workload's label names, for a pod of any program.
    fn named_by(&self, workload: &Workload) -> Option<&Arc<Gateway>> {
        let label = workload.labels.get(GATEWAY_NAME)?;
        let mut all = self.gateway_api.gateways.iter();
        all.find(|one| {
            one.is_waypoint()
                && one.name.namespace == workload.key.namespace
                && label_value(&one.name.name) == label
        })
    }

    /// The services that a waypoint takes: those that name it, of namespaces that it lets in.
    pub fn services_behind(&self, waypoint: &Gateway) -> impl Iterator<Item = &Arc<MeshService>> {
        self.services.values().filter(|service| {
            let named = self.waypoint_of(service);
            named.is_some_and(|name| name == waypoint.name)
                && self.takes(waypoint, &service.key.namespace)
        })
    }

    /// The same of workloads.
    pub fn workloads_behind(&self, waypoint: &Gateway) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.values().filter(|workload| {
            let named = self.waypoint_of_workload(workload);
            named.is_some_and(|name| name == waypoint.name)
                && self.takes(waypoint, &workload.key.namespace)
        })
    }

    /// Returns true if a waypoint serves a namespace.
    #[must_use]
    pub fn takes(&self, waypoint: &Gateway, namespace: &Namespace) -> bool {
        self.admits(
            waypoint.admits_to_waypoint(),
            &waypoint.name.namespace,
            namespace,
        )
    }

    /// The policies that aim at a waypoint, or at a service behind it: of their own namespaces, and by class of the root namespace.
    #[must_use]
    pub fn authorization_aimed_at(
        &self,
        waypoint: &Gateway,
        service: Option<&MeshService>,
    ) -> Vec<&Arc<AuthorizationPolicy>> {
        let all = self.authorization_policies.values();
        let aims = |policy: &&Arc<AuthorizationPolicy>| {
            self.aims(&policy.target, &policy.name, waypoint, service)
        };
        all.filter(aims).collect()
    }

    /// The RequestAuthentications that hold there: those that aim so, and those that select the waypoint's own Pods.
    #[must_use]
    pub fn request_authentication_at(
        &self,
        waypoint: &Gateway,
        service: Option<&MeshService>,
        own: Option<&Workload>,
    ) -> Vec<&Arc<RequestAuthentication>> {
        let all = self.request_authentications.iter();
        let aimed = all.filter(|one| self.aims(&one.target, &one.name, waypoint, service));
        let selecting = own.map(|own| self.request_authentication_for(own));
        selecting.into_iter().flatten().chain(aimed).collect()
    }

    /// Returns true if a policy of this name targets a waypoint, or a service behind it.
    fn aims(
        &self,
        target: &PolicyTarget,
        policy: &ResourceName,
        waypoint: &Gateway,
        service: Option<&MeshService>,
    ) -> bool {
        let PolicyTarget::References(targets) = target else {
            return false;
        };
        let at = &policy.namespace;
        targets.iter().any(|target| {
            self.is_waypoint_meant(at, target, waypoint)
                || service.is_some_and(|service| is_meant(at, target, service))
        })
    }

    /// All policies at a waypoint, for every called service.
    #[must_use]
    pub fn authorization_through(&self, waypoint: &Gateway) -> Vec<&Arc<AuthorizationPolicy>> {
        let behind: Vec<&MeshService> = self.services_behind(waypoint).map(|one| &**one).collect();
        let mut found = self.authorization_aimed_at(waypoint, None);
        for service in behind {
            for policy in self.authorization_aimed_at(waypoint, Some(service)) {
                if !found.iter().any(|one| Arc::ptr_eq(one, policy)) {
                    found.push(policy);
                }
            }
        }
        found
    }

    /// Returns true if a proxy applies this target: a gateway or waypoint that is the target, or the waypoint of a service.
    #[must_use]
    pub fn is_obeyed(&self, from: &Namespace, target: &TargetReference) -> bool {
        let ours = |one: &Gateway| self.gateway_api.is_ours(&one.class.0);
        self.other_gateway(from, target).is_some_and(ours)
            || matches!(self.target_binding(from, target), TargetBinding::Bound(_))
    }

    /// The waypoint that applies a target of a policy in this namespace.
    #[must_use]
    pub fn target_binding(&self, from: &Namespace, target: &TargetReference) -> TargetBinding {
        let is_class = &*target.kind == "GatewayClass";
        let mut waypoints = self.gateway_api.gateways.iter();
        let waypoint =
            waypoints.find(|one| one.is_waypoint() && self.is_waypoint_meant(from, target, one));
        if let Some(waypoint) = waypoint {
            return TargetBinding::Bound(match is_class {
                true => target.name.to_string(),
                false => waypoint.name.to_string(),
            });
        }
        let services = self.services.values();
        let mut meant = services
            .filter(|one| is_meant(from, target, one))
            .peekable();
        if meant.peek().is_none() && !is_class {
            return TargetBinding::Missing;
        }
        let bound = meant.find_map(|service| {
            let name = self.waypoint_of(service)?;
            let waypoint = self.waypoint(&name)?;
            self.takes(waypoint, &service.key.namespace).then_some(name)
        });
        bound.map_or(TargetBinding::Unbound, |name| {
            TargetBinding::Bound(name.to_string())
        })
    }

    /// The Gateway that a target in this namespace means, if it is no waypoint.
    #[must_use]
    pub fn other_gateway(&self, from: &Namespace, target: &TargetReference) -> Option<&Gateway> {
        let is_meant = |one: &&Arc<Gateway>| {
            (&*target.group, &*target.kind) == (GROUP, "Gateway")
                && one.name.namespace == *from
                && one.name.name == target.name
        };
        let found = self.gateway_api.gateways.iter().find(is_meant)?;
        (!found.is_waypoint()).then_some(&**found)
    }

    fn is_waypoint_meant(
        &self,
        from: &Namespace,
        target: &TargetReference,
        waypoint: &Gateway,
    ) -> bool {
        if &*target.group != GROUP {
            return false;
        }
        match &*target.kind {
            "Gateway" => *from == waypoint.name.namespace && target.name == waypoint.name.name,
            "GatewayClass" => {
                *from == self.config.root_namespace && target.name == waypoint.class.0
            }
            _ => false,
        }
    }

    fn chosen(&self, own: Option<&WaypointChoice>, namespace: &Namespace) -> Option<ResourceName> {
        let inherited = || WaypointChoice::of(&self.namespaces.get(namespace)?.labels);
        match own.cloned().or_else(inherited)? {
            WaypointChoice::Nobody => None,
            WaypointChoice::Named(name, of) => {
                let of = of.unwrap_or_else(|| namespace.clone());
                Some(ResourceName::new(of, name))
            }
        }
    }

    /// Returns true if the waypoint handles this kind of traffic. A waypoint that does not exist may handle any.
    fn may_stand(&self, name: &ResourceName, before: WaypointScope) -> bool {
        self.waypoint(name).is_none_or(|one| one.stands(before))
    }

    /// No waypoint serves a waypoint or a gateway between networks.
    fn is_of_waypoint(&self, service: &MeshService) -> bool {
        let mut all = self.gateway_api.gateways.iter();
        all.any(|one| {
            (one.is_waypoint() || one.is_east_west())
                && one.name.namespace == service.key.namespace
                && *one.name.name == *service.name
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Diagnostic, SourceFile, check};

    #[test]
    fn a_waypoint_of_its_whole_namespace_does_not_stand_before_its_own_pods() {
        let pod = |name: &str, last: u8, labels: &str| {
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{{labels}}}}}\n\
                 spec: {{serviceAccountName: {name}, containers: [{{name: app, image: none}}]}}\n\
                 status: {{phase: Running, podIP: 10.244.0.{last}}}\n"
            )
        };
        let text = [
            "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n  labels: {istio.io/dataplane-mode: ambient, istio.io/use-waypoint: gate}\n\
             ---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: gate, namespace: shop, labels: {istio.io/waypoint-for: all}}\n\
             spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}\n"
                .to_owned(),
            pod("web", 3, "app: web"),
            pod("gate", 7, "gateway.networking.k8s.io/gateway-name: gate"),
            pod("other", 8, "gateway.networking.k8s.io/gateway-name: nobody"),
        ];
        let (mesh, problems) = check(&[SourceFile::new("mesh.yaml", text.concat())], None);
        let wrong = problems.iter().any(Diagnostic::is_error);
        assert!(!wrong, "{problems:?}");
        let behind = mesh.workloads.values();
        let behind = behind.filter(|one| mesh.waypoint_of_workload(one).is_some());
        let mut behind: Vec<String> = behind.map(|one| one.key.name.to_string()).collect();
        behind.sort();
        assert_eq!(behind, ["other", "web"]);
    }
}
