//! A sidecar's listeners. Inbound listeners come from the Sidecar resource or else from the services of the workload.
//! Outbound listeners are the Sidecar's egress listeners that clients connect to (`captureMode: NONE`). Transparent
//! capture is in `capture`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use voile_model::mesh::{
    CaptureMode, EgressListener, EndpointHost, IngressListener, Mesh, Sidecar, Workload,
    WorkloadService,
};
use voile_model::{Port, ServiceKey};
use voile_policy::effective;
use voile_xds::wire::{
    InboundListener, OutboundListener, OutboundService, WireProtocol, protocol_of,
};

use super::capture::mutual_tls;

/// One port the workload takes calls on.
struct Inbound {
    bind: SocketAddr,
    endpoint: SocketAddr,
    protocol: WireProtocol,
    /// The port that policies know it by.
    port: Port,
    beside_capture: bool,
}

pub(super) fn inbound(
    mesh: &Mesh,
    workload: &Workload,
    sidecar: Option<&Sidecar>,
    problems: &mut Vec<String>,
) -> Vec<InboundListener> {
    let Some(own) = workload.addresses.first().copied() else {
        return Vec::new();
    };
    let services = mesh.services_of(workload);
    let wanted: Vec<Inbound> = match sidecar {
        Some(sidecar) if !sidecar.ingress.is_empty() => sidecar
            .ingress
            .iter()
            .filter_map(|listener| from_ingress(listener, own))
            .collect(),
        _ => from_services(&services, own),
    };
    let mut binds = BTreeSet::new();
    let mut listeners = Vec::new();
    for listener in wanted {
        if listener.bind == listener.endpoint {
            problems.push(format!(
                "{}: inbound {} would forward to itself; give the application another address (Sidecar ingress.defaultEndpoint)",
                workload.key, listener.bind
            ));
        } else if !binds.insert(listener.bind) {
            problems.push(format!(
                "{}: inbound {} is declared twice",
                workload.key, listener.bind
            ));
        } else {
            listeners.push(inbound_listener(mesh, workload, &services, &listener));
        }
    }
    listeners
}

/// The port callers name, and where the application behind it listens.
pub(super) fn ingress_endpoint(listener: &IngressListener, own: IpAddr) -> (Port, SocketAddr) {
    let port = listener.port.number;
    let endpoint = match listener.default_endpoint {
        None => SocketAddr::new(loopback(own), port.get()),
        Some(endpoint) => {
            let address = match endpoint.host {
                EndpointHost::Loopback(address) => address,
                EndpointHost::Workload => own,
            };
            SocketAddr::new(address, endpoint.port.get())
        }
    };
    (port, endpoint)
}

fn from_ingress(listener: &IngressListener, own: IpAddr) -> Option<Inbound> {
    let (port, endpoint) = ingress_endpoint(listener, own);
    Some(Inbound {
        bind: SocketAddr::new(listener.bind.unwrap_or(own), port.get()),
        endpoint,
        protocol: protocol_of(listener.port.protocol)?,
        port,
        beside_capture: listener.capture_mode == CaptureMode::None,
    })
}

/// Each target port once; the first service that names it says what is spoken, unless another says another version of
/// HTTP: then each caller does, since a server of both would lose what only one of them carries (streams of gRPC).
pub(super) fn target_ports(services: &[WorkloadService]) -> BTreeMap<Port, WireProtocol> {
    let mut by_target: BTreeMap<Port, WireProtocol> = BTreeMap::new();
    for member in services {
        for port in &member.service.ports {
            let target = member.ports.get(&port.number);
            if let (Some(target), Some(protocol)) = (target, protocol_of(port.protocol)) {
                let known = by_target.entry(*target).or_insert(protocol);
                if known.is_http() && protocol.is_http() && known.is_http2() != protocol.is_http2()
                {
                    *known = WireProtocol::Auto;
                }
            }
        }
    }
    by_target
}

fn from_services(services: &[WorkloadService], own: IpAddr) -> Vec<Inbound> {
    target_ports(services)
        .into_iter()
        .map(|(port, protocol)| Inbound {
            bind: SocketAddr::new(own, port.get()),
            endpoint: SocketAddr::new(loopback(own), port.get()),
            protocol,
            port,
            beside_capture: false,
        })
        .collect()
}

fn loopback(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

fn inbound_listener(
    mesh: &Mesh,
    workload: &Workload,
    services: &[WorkloadService],
    listener: &Inbound,
) -> InboundListener {
    InboundListener {
        bind: listener.bind,
        protocol: listener.protocol,
        mutual_tls: mutual_tls(effective(mesh, workload, listener.port).mode),
        endpoint: listener.endpoint,
        service: service_at(services, listener.port),
        name: format!("inbound/{}", listener.bind).into(),
        beside_capture: listener.beside_capture,
    }
}

/// The service whose target port this is, and its port.
pub(super) fn service_at(services: &[WorkloadService], target: Port) -> Option<(ServiceKey, Port)> {
    services.iter().find_map(|member| {
        let (number, _) = member.ports.iter().find(|(_, to)| **to == target)?;
        Some((member.service.key.clone(), *number))
    })
}

pub(super) fn outbound(
    mesh: &Mesh,
    workload: &Workload,
    sidecar: Option<&Sidecar>,
    problems: &mut Vec<String>,
) -> Vec<OutboundListener> {
    let mut binds = BTreeSet::new();
    let mut listeners = Vec::new();
    for listener in sidecar.into_iter().flat_map(|sidecar| &sidecar.egress) {
        let Some((bind, made)) = from_egress(mesh, workload, listener) else {
            continue;
        };
        match binds.insert(bind) {
            true => listeners.push(made),
            false => problems.push(format!(
                "{}: {}: outbound {bind} is declared twice",
                listener.source, workload.key
            )),
        }
    }
    listeners
}

fn from_egress(
    mesh: &Mesh,
    workload: &Workload,
    listener: &EgressListener,
) -> Option<(SocketAddr, OutboundListener)> {
    if listener.capture_mode != CaptureMode::None {
        return None;
    }
    let port = listener.port.as_ref()?;
    let protocol = protocol_of(port.protocol)?;
    let bind = listener.bind.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let bind = SocketAddr::new(bind, port.number.get());
    let namespace = &workload.key.namespace;
    let mut taken = BTreeSet::new();
    let services = mesh
        .egress_services(namespace, listener)
        .into_iter()
        .map(|service| OutboundService {
            key: service.key.clone(),
            port: port.number,
            // A short name belongs to the first service that has it.
            authorities: service
                .authorities(namespace)
                .into_iter()
                .filter(|authority| taken.insert(authority.clone()))
                .map(Into::into)
                .collect(),
        })
        .collect();
    let made = OutboundListener {
        bind,
        protocol,
        services,
        name: format!("outbound/{bind}").into(),
    };
    Some((bind, made))
}

#[cfg(test)]
mod tests {
    use voile_model::Port;
    use voile_xds::wire::WireProtocol;

    /// Protocol of port 8080 of a workload whose service has these ports.
    fn spoken(ports: &[&str]) -> Option<WireProtocol> {
        let mut list = String::new();
        for (at, name) in ports.iter().enumerate() {
            list += &format!("{{name: {name}, port: {}, targetPort: 8080}}, ", 80 + at);
        }
        let text = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n\
             spec: {{selector: {{app: web}}, ports: [{list}]}}\n---\n\
             apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop, labels: {{app: web}}}}\n\
             spec: {{containers: [{{name: app}}]}}\nstatus: {{podIP: 10.0.0.1, phase: Running}}\n"
        );
        let files = [voile_model::SourceFile::new("mesh.yaml", &text)];
        let (mesh, problems) = voile_model::check(&files, None);
        let wrong = problems.iter().any(voile_model::Diagnostic::is_error);
        assert!(!wrong, "{problems:?}");
        let workload = mesh.workloads.values().next().expect("a workload");
        let by_target = super::target_ports(&mesh.services_of(workload));
        by_target.get(&Port::new(8080)?).copied()
    }

    #[test]
    fn a_target_port_speaks_what_its_service_says_and_both_versions_of_http_where_it_says_both() {
        for (ports, expected) in [
            (&["http"][..], WireProtocol::Http),
            (&["grpc"], WireProtocol::Grpc),
            (&["http2", "grpc"], WireProtocol::Http2),
            (&["http", "grpc"], WireProtocol::Auto),
            (&["grpc", "http"], WireProtocol::Auto),
            (&["http", "http2-b"], WireProtocol::Auto),
            (&["http", "grpc", "http-b"], WireProtocol::Auto),
            // The first one says it, as before.
            (&["http", "tcp"], WireProtocol::Http),
            (&["tcp", "http"], WireProtocol::Tcp),
            (&["raw", "http"], WireProtocol::Auto),
        ] {
            assert_eq!(spoken(ports), Some(expected), "{ports:?}");
        }
    }
}
