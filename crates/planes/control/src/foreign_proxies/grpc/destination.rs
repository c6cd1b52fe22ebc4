//! A port of a service, or of a part of it, as a client without a sidecar may call it: who is behind it, who is to be expected there,
//! and what is said of calls.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use prost::Message;
use serde_json::Value;
use voile_envoy::grpc::{self, DestinationEndpoints, Discovery, GrpcEndpoint};
use voile_envoy::{Limit, LimitName};
use voile_model::mesh::traffic::{ClientTls, PortTraffic};
use voile_model::{Labels, Port, ServiceKey};
use voile_proto::{type_url, workload as wire};
use voile_xds::wire::{Address, PortPolicy, ServicePolicy, Tunnel, WireError, WireWorkload};

use super::{At, policy_of};
use crate::snapshot::{MeshSnapshot, SnapshotCaller};
use crate::ztunnel;

/// See the module.
#[derive(Default)]
pub(super) struct Destination {
    endpoints: Vec<GrpcEndpoint>,
    /// Identities to expect; none is plaintext.
    expected: Option<Vec<String>>,
    dns: Option<(String, u16)>,
    traffic: PortTraffic,
    /// Endpoints that are not called since the others speak mutual TLS.
    left_out: usize,
    /// Some have a node proxy in place of a sidecar.
    tunnelled: bool,
    /// Other networks, on which others are.
    networks: BTreeSet<Arc<str>>,
}

impl Destination {
    /// Nobody: whoever came would have to prove to be nobody.
    pub(super) fn nobody() -> Self {
        Self {
            expected: Some(Vec::new()),
            ..Self::default()
        }
    }

    pub(super) fn of(
        snapshot: &MeshSnapshot,
        caller: &SnapshotCaller,
        (name, port, subset): At<'_>,
    ) -> Result<Self, String> {
        let unreadable = |error: &dyn std::fmt::Display| format!("{name}: {error}");
        let address = snapshot
            .all_addresses
            .get(name)
            .map(|one| Address::decode(&one.body));
        let Some(Ok(Address::Service(service))) = address else {
            return Err(format!("{name} is not a service"));
        };
        if service.port(port).is_none() {
            return Err(format!("{name} has no port {port}"));
        }
        if let Some(waypoint) = &service.waypoint {
            return Err(past_waypoint(snapshot, waypoint, (name, port, subset)));
        }
        if service.passthrough {
            return Err(format!(
                "{name} has resolution NONE: clients call the address that they dialled, and a gRPC channel has none"
            ));
        }
        let policy = policy_of(snapshot, caller, name)?;
        let part = match subset {
            Some(subset) => {
                let part = policy.as_ref().and_then(|all| all.subsets.get(subset));
                let part = part.ok_or_else(|| format!("{name} has no subset {subset}"))?;
                part.labels.clone()
            }
            None => Labels::default(),
        };
        let traffic = traffic_of(policy.as_ref(), port, subset);
        let traffic = traffic.cloned().unwrap_or_default();
        if let Some(ClientTls::Originate(_)) = traffic.tls {
            return Err(format!(
                "a DestinationRule originates TLS to {name}, which gRPC clients do not support"
            ));
        }
        let policy = policy.and_then(|mut policy| policy.ports.remove(&port));
        let at = (&service.key, port, &part);
        let mut found = PortBackends {
            plaintext: matches!(traffic.tls, Some(ClientTls::Disable)),
            ..PortBackends::default()
        };
        found
            .look(snapshot, name, at, policy.as_ref())
            .map_err(|error| unreadable(&error))?;
        let own = service.subject_alt_names.iter().map(ToString::to_string);
        let (members, expected, left_out) = found.spoken_to(traffic.tls.as_ref(), own);
        let mut named = members.named.into_iter();
        let dns = match (named.next(), named.next(), members.endpoints.is_empty()) {
            (None, ..) => None,
            (Some(one), None, true) => Some(one),
            _ => {
                return Err(format!(
                    "{name} has several endpoints, some of them DNS names: gRPC supports one DNS name, or addresses only"
                ));
            }
        };
        Ok(Self {
            endpoints: members.endpoints,
            expected,
            dns,
            traffic,
            left_out,
            tunnelled: found.tunnelled,
            networks: found.networks,
        })
    }

    pub(super) fn message(&self, part: &str, name: &str) -> Value {
        match part {
            type_url::CLUSTER => {
                let discovery = match &self.dns {
                    Some((host, port)) => Discovery::Dns(host, *port),
                    None => Discovery::Endpoints,
                };
                grpc::cluster(name, &discovery, self.expected.as_deref(), &self.traffic)
            }
            _ => grpc::endpoints(name, &self.endpoints),
        }
    }

    /// Names what of it a client is not told.
    pub(super) fn say(&self, snapshot: &MeshSnapshot, (service, port, subset): At<'_>) {
        let about = about(port, subset);
        let mut limits = grpc::untold(&about, &self.traffic, self.crowd());
        let mut limit = |name, why: &str| limits.insert(Limit::new(name, &about, why));
        if self.left_out > 0 {
            let why = "some endpoints accept mutual TLS and some do not, which one cluster cannot express: endpoints without mutual TLS are left out";
            limit(LimitName::PlaintextEndpoints, why);
        }
        if self.tunnelled {
            let why = "endpoints behind a node proxy need an HBONE tunnel, which gRPC does not support: they are called in plaintext, and calls fail if plaintext is refused (PeerAuthentication STRICT, tls ISTIO_MUTUAL)";
            limit(LimitName::Tunnel, why);
        }
        // A part is on our own network alone for everybody.
        if !self.networks.is_empty() && subset.is_none() {
            let networks: Vec<&str> = self.networks.iter().map(|one| &**one).collect();
            let why = format!(
                "endpoints on the network {} are reached through its gateway, which gRPC does not support: they are left out",
                networks.join(", ")
            );
            limit(LimitName::Network, &why);
        }
        snapshot.made.limits.met(service, about, limits);
    }

    fn crowd(&self) -> DestinationEndpoints {
        let locality = |one: &GrpcEndpoint| one.locality.clone();
        let mut weights: Vec<_> = self
            .endpoints
            .iter()
            .map(|one| (locality(one), one.weight))
            .collect();
        weights.sort_unstable();
        let differ = |pair: &[([String; 3], u32)]| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1;
        DestinationEndpoints {
            is_name: self.dns.is_some(),
            is_weighted: weights.windows(2).any(differ),
            is_placed: weights.iter().any(|(place, _)| !place[0].is_empty()),
        }
    }
}

/// Why a service behind a waypoint is left out, which is a limit with a name.
fn past_waypoint(
    snapshot: &MeshSnapshot,
    waypoint: &impl std::fmt::Display,
    (name, port, subset): At<'_>,
) -> String {
    let why = format!(
        "the service is behind the waypoint {waypoint}, which gRPC clients do not use: the cluster is left out, so that no call bypasses the waypoint"
    );
    let about = about(port, subset);
    let limit = Limit::new(LimitName::Waypoint, &about, &why);
    snapshot.made.limits.met(name, about, [limit].into());
    format!("{name}: {why}")
}

/// Subject of the limits.
fn about(port: Port, subset: Option<&str>) -> String {
    match subset {
        Some(subset) => format!("port {port}, subset {subset}"),
        None => format!("port {port}"),
    }
}

/// Traffic policy of calls to a port, or to a subset of it.
pub(super) fn traffic_of<'a>(
    policy: Option<&'a ServicePolicy>,
    port: Port,
    subset: Option<&str>,
) -> Option<&'a PortTraffic> {
    let of_part = subset.and_then(|name| policy?.subsets.get(name)?.ports.get(&port));
    let whole = || policy?.ports.get(&port).map(|port| &port.traffic);
    of_part.map(|port| &port.traffic).or_else(whole)
}

/// Those behind a port who speak alike.
#[derive(Default)]
struct Members {
    endpoints: Vec<GrpcEndpoint>,
    named: Vec<(String, u16)>,
}

impl Members {
    fn len(&self) -> usize {
        self.endpoints.len() + self.named.len()
    }
}

/// Workloads behind a service's port.
#[derive(Default)]
struct PortBackends {
    mutual: Members,
    plain: Members,
    identities: BTreeSet<String>,
    /// A rule wants plaintext of all.
    plaintext: bool,
    tunnelled: bool,
    networks: BTreeSet<Arc<str>>,
}

impl PortBackends {
    fn look(
        &mut self,
        snapshot: &MeshSnapshot,
        name: &Arc<str>,
        at: (&ServiceKey, Port, &Labels),
        policy: Option<&PortPolicy>,
    ) -> Result<(), WireError> {
        let uids = snapshot.behind.get(name).into_iter();
        for uid in uids.flat_map(|all| all.iter()) {
            let Some(resource) = snapshot.all_addresses.get(uid) else {
                continue;
            };
            let read = wire::Address::decode(&*resource.body)?;
            if let Some(wire::address::Type::Workload(message)) = read.r#type {
                let workload = WireWorkload::check(&message)?;
                let refuses =
                    |port| ztunnel::refuses_plaintext(&snapshot.node_policies, &message, port);
                if let Some(target) = self.is_called(&workload, at, refuses) {
                    let locality = message.locality.unwrap_or_default();
                    self.add(&workload, (locality, target), policy);
                }
            }
        }
        Ok(())
    }

    /// At which port somebody is called, if at all. Proxies of ours would call some otherwise than gRPC can.
    fn is_called(
        &mut self,
        workload: &WireWorkload,
        (service, port, part): (&ServiceKey, Port, &Labels),
        refuses_plaintext: impl Fn(Port) -> bool,
    ) -> Option<Port> {
        if !part.selects(&workload.own_labels) {
            return None;
        }
        let target = *workload.services.get(service)?.get(&port)?;
        // Its own address leads nowhere from here, or to somebody else.
        if workload.is_behind_gateway() {
            let away = workload.away.iter().filter(|_| !self.plaintext);
            self.networks.extend(away.map(|away| away.network.clone()));
            return None;
        }
        if workload.tunnel == Tunnel::Hbone && !self.plaintext {
            self.tunnelled = true;
            return (!refuses_plaintext(target)).then_some(target);
        }
        Some(target)
    }

    fn add(
        &mut self,
        workload: &WireWorkload,
        (locality, target): (wire::Locality, Port),
        policy: Option<&PortPolicy>,
    ) {
        let spared = |policy: &PortPolicy| policy.plaintext_workloads.contains(&workload.uid);
        let mutual = workload.tunnel == Tunnel::Mtls && !policy.is_some_and(spared);
        let members = match (mutual, &workload.identity) {
            (true, Some(identity)) => {
                self.identities.insert(identity.to_string());
                &mut self.mutual
            }
            // Without a name nobody can be told from anybody else.
            (true, None) => return,
            (false, _) => &mut self.plain,
        };
        let Some(address) = workload.addresses.first() else {
            if let Some(hostname) = &workload.hostname {
                members.named.push((hostname.to_string(), target.get()));
            }
            return;
        };
        if !workload.healthy {
            return;
        }
        members.endpoints.push(GrpcEndpoint {
            address: SocketAddr::new(*address, target.get()),
            locality: [locality.region, locality.zone, locality.subzone],
            weight: workload.weight,
        });
    }

    /// Selects the endpoints that are called, the identities that are expected of them (`None`: any, in plaintext), and the
    /// number of endpoints that are not called.
    fn spoken_to(
        &mut self,
        tls: Option<&ClientTls>,
        names: impl Iterator<Item = String>,
    ) -> (Members, Option<Vec<String>>, usize) {
        let (mutual, plain) = (
            std::mem::take(&mut self.mutual),
            std::mem::take(&mut self.plain),
        );
        // A service without endpoints keeps mutual TLS: a later endpoint must prove its identity until it is known that it
        // cannot.
        let nobody = plain.len() == 0;
        let is_mutual = match tls {
            Some(ClientTls::Disable) => false,
            Some(ClientTls::Mutual(_) | ClientTls::Originate(_)) => true,
            None => nobody || !self.identities.is_empty(),
        };
        if !is_mutual {
            let mut all = plain;
            // Nobody else is left, unless a rule wants plaintext of all.
            all.endpoints.extend(mutual.endpoints);
            all.named.extend(mutual.named);
            return (all, None, 0);
        }
        let known = !self.identities.is_empty();
        let mut expected = std::mem::take(&mut self.identities);
        expected.extend(names.filter(|_| known));
        // If a rule asks for mutual TLS, leaving out the other endpoints is the rule's own meaning.
        let left_out = if tls.is_none() { plain.len() } else { 0 };
        (mutual, Some(expected.into_iter().collect()), left_out)
    }
}
