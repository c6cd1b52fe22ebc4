//! How clients must speak to a service: what Istio's workload messages cannot say.

use voile_model::mesh::{Location, Mesh, Resolution, Service, Workload};
use voile_policy::{Mode, effective};
use voile_proto::proxy as wire;
use voile_xds::wire::protocol_of;

/// Protocol by port, and the workloads to be spoken to in plaintext although they have a sidecar.
pub(super) fn service_policy(mesh: &Mesh, service: &Service) -> wire::ServicePolicy {
    // Nobody in the mesh stands behind it, or nobody is to speak mutual TLS unasked.
    let never = service.location == Location::MeshExternal || !mesh.config.enable_auto_mtls;
    let workloads = mesh.workloads_of(service);
    let port_policy = |port: &voile_model::mesh::ServicePort| {
        let protocol = protocol_of(port.protocol)?;
        let plaintext = workloads.iter().filter(|member| {
            let disabled = || {
                member.ports.get(&port.number).is_some_and(|target| {
                    effective(mesh, &member.workload, *target).mode == Mode::Disable
                })
            };
            member.workload.has_sidecar && (never || disabled())
        });
        Some(wire::PortPolicy {
            port: port.number.get().into(),
            protocol: protocol.to_proxy().into(),
            plaintext_workloads: plaintext
                .map(|member| member.workload.uid.to_string())
                .collect(),
            http2_upgrade: upgrades(mesh, protocol.to_proxy()),
            retry: retry(mesh),
        })
    };
    wire::ServicePolicy {
        ports: service.ports.iter().filter_map(port_policy).collect(),
        plaintext: false,
        first_address_only: service.resolution == Resolution::DnsRoundRobin,
    }
}

/// MeshConfig's `defaultHttpRetryPolicy`, where it was written.
fn retry(mesh: &Mesh) -> Option<wire::RetryPolicy> {
    let policy = mesh.config.default_retry.as_ref()?;
    Some(wire::RetryPolicy {
        retries: policy.attempts,
        on: policy.on.iter().map(ToString::to_string).collect(),
        per_try_timeout_ms: policy.per_try_timeout.map_or(0, super::milliseconds),
        backoff_ms: policy.backoff.map_or(0, super::milliseconds),
    })
}

/// Whether HTTP/1.1 to a port travels as HTTP/2: only ports that are known to speak it, as in Istio.
fn upgrades(mesh: &Mesh, protocol: wire::Protocol) -> bool {
    mesh.config.http2_upgrade && protocol == wire::Protocol::Http
}

/// The same for a workload that is called by its own address.
pub(super) fn workload_policy(mesh: &Mesh, workload: &Workload) -> wire::ServicePolicy {
    let never = !mesh.config.enable_auto_mtls;
    let uid = || workload.uid.to_string();
    let captured =
        super::capture::capture(mesh, workload, mesh.sidecar_for(workload).map(|s| &**s));
    let disabled = |mode: i32| never || mode == i32::from(wire::MutualTls::Disable);
    let port_policy = |port: &wire::CapturedPort| wire::PortPolicy {
        port: port.port,
        protocol: port.protocol,
        plaintext_workloads: disabled(port.mutual_tls).then(uid).into_iter().collect(),
        http2_upgrade: upgrades(mesh, port.protocol()),
        retry: retry(mesh),
    };
    wire::ServicePolicy {
        ports: captured.ports.iter().map(port_policy).collect(),
        plaintext: disabled(captured.mutual_tls),
        first_address_only: false,
    }
}
