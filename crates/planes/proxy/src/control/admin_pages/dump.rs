//! `/config_dump` and `/certs`: the state of this proxy in JSON, for people with a question.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use voile_model::mesh::telemetry::TelemetrySide;
use voile_xds::wire::{
    AccessLog, CapturedPort, InboundCapture, InboundListener, LogSink, OutboundListener,
    PortPolicy, Service, ServicePolicy, Telemetry, Tracing, WireWorkload,
};

use crate::control::admin_pages::metrics::word;
use crate::control::discovery::state::Control;
use crate::control::network::sockets::{Socket, Sockets};
use crate::registry::{Findings, Registry, Versioned};

pub(in crate::control) fn configuration(control: &Control) -> String {
    let shared = control.shared();
    let registry = &shared.registry;
    let own = registry.configuration.as_ref().map(|held| {
        let configuration = &held.value;
        json!({
            "resource": control.workload,
            "version": &*held.version,
            "workload_uid": &*configuration.workload_uid,
            "trust_domain": configuration.trust_domain.to_string(),
            "trust_domain_aliases": texts(&configuration.trust_domain_aliases),
            "outbound_policy": format!("{:?}", configuration.outbound_policy),
            "source_address": configuration.source_address.map(|address| address.to_string()),
            "telemetry": telemetry(&configuration.telemetry),
            "waypoint_telemetry": configuration.telemetries().skip(1).map(telemetry).collect::<Vec<_>>(),
            "capture": configuration.capture.as_ref().map(capture),
            "inbound": configuration.inbound.iter().map(|l| inbound(control, l)).collect::<Vec<_>>(),
            "outbound": configuration.outbound.iter().map(outbound).collect::<Vec<_>>(),
        })
    });
    let services: Vec<Value> = registry
        .services
        .iter()
        .map(|(name, held)| service(name, &held.version, &held.value))
        .collect();
    let workloads: Vec<Value> = registry
        .workloads
        .iter()
        .map(|(name, held)| workload(name, &held.version, &held.value))
        .collect();
    pretty(&json!({
        "control_plane": control_plane(control),
        "in_force": control.published.is_some(),
        "waiting_for": texts(&registry.unanswered()),
        "configuration": own,
        "listeners": listeners(&shared.sockets),
        "captured_destinations": control.destinations.dump(),
        "services": services,
        "workloads": workloads,
        "service_policies": service_policies(registry),
        "callers_by_zone": registry.callers_shown().map(|callers| callers.by_zone().collect::<BTreeMap<_, _>>()),
        "routes": routes(registry),
        "gateway": gateway(registry),
        "files": files(registry),
        "health_checks": health_checks(registry),
        "authorization_policies": authorization(registry),
        "request_authentications": tokens(registry),
        "key_sets": registry.tokens.key_sets().map(|name| &**name).collect::<Vec<_>>(),
    }))
}

fn listeners(sockets: &Sockets) -> Vec<Value> {
    sockets
        .entries
        .iter()
        .map(|((direction, address), entry)| {
            let (state, error) = match &entry.socket {
                Socket::Accepting => ("listening", None),
                Socket::Bound(_) => ("bound, not accepting until the configuration is complete", None),
                Socket::Failed(reason) => ("failed", Some(reason.as_str())),
            };
            json!({"name": &*entry.name, "direction": direction.as_str(), "address": address.to_string(), "state": state, "error": error})
        })
        .collect()
}

fn service_policies(registry: &Registry) -> Vec<Value> {
    let one = |(name, held): (&Arc<str>, &Versioned<ServicePolicy>)| {
        let ports = held.value.ports.iter();
        let ports: Vec<Value> = ports
            .map(|(port, policy)| port_policy(port.get(), policy))
            .collect();
        json!({"resource": &**name, "version": &*held.version, "ports": ports})
    };
    registry.policies.iter().map(one).collect()
}

fn routes(registry: &Registry) -> Vec<Value> {
    let one = |(name, held): (&Arc<str>, &crate::registry::routes::HeldRoutes)| {
        let shown = held.shown().into_iter();
        let shown: Vec<Value> = shown
            .map(|(name, to)| json!({"name": name, "destinations": to}))
            .collect();
        json!({"resource": &**name, "version": &*held.version, "routes": shown})
    };
    registry.routes.iter().map(one).collect()
}

fn gateway(registry: &Registry) -> Vec<Value> {
    let one = |(listener, host, routes): (&str, &str, Vec<(String, Vec<String>)>)| {
        let routes = routes.into_iter();
        let routes: Vec<Value> = routes
            .map(|(name, to)| json!({"name": name, "destinations": to}))
            .collect();
        json!({"listener": listener, "host": host, "routes": routes})
    };
    registry.gateway.shown().map(one).collect()
}

/// Named local files, their errors, and the consequences at each server.
fn files(registry: &Registry) -> Value {
    let read = registry.files_shown();
    let read: Vec<Value> = read
        .map(|(path, error)| json!({"path": path, "error": error}))
        .collect();
    let troubles = registry.gateway.file_troubles();
    let troubles: Vec<Value> = troubles
        .map(|(server, trouble)| json!({"server": server, "trouble": trouble}))
        .collect();
    json!({"read": read, "troubles": troubles})
}

fn health_checks(registry: &Registry) -> Vec<Value> {
    let one = |shown: Findings| {
        let endpoints = shown.endpoints.into_iter();
        let endpoints: Vec<Value> = endpoints
            .map(|(address, standing, why)| {
                json!({"address": address.to_string(), "state": word(standing), "last_failure": why})
            })
            .collect();
        json!({"cluster": shown.cluster, "by": &*shown.by, "endpoints": endpoints, "good": shown.good, "bad": shown.bad})
    };
    registry.health.asked().into_iter().map(one).collect()
}

fn authorization(registry: &Registry) -> Vec<Value> {
    let versions = registry.authorization.versions();
    versions
        .map(|(name, version)| json!({"resource": &**name, "version": &**version}))
        .collect()
}

fn tokens(registry: &Registry) -> Vec<Value> {
    let versions = registry.tokens.versions();
    versions
        .map(|(name, version)| json!({"resource": &**name, "version": &**version}))
        .collect()
}

fn control_plane(control: &Control) -> Value {
    let state = control.client.state().borrow().clone();
    let types: Vec<Value> = state
        .types
        .iter()
        .map(|(url, kind)| {
            json!({
                "type": &**url,
                "held": kind.held,
                "updates": kind.updates,
                "last_update": kind.last_update.map(timestamp),
                "last_rejection": kind.last_rejection.as_ref().map(|(at, why)| json!({"at": timestamp(*at), "why": why})),
            })
        })
        .collect();
    json!({
        "connected": state.connected,
        "address": state.address,
        "connections": state.connections,
        "connected_since": state.connected_since.map(timestamp),
        "last_error": state.last_error,
        "types": types,
    })
}

fn capture(capture: &InboundCapture) -> Value {
    let port = |(number, port): (&voile_model::Port, &CapturedPort)| {
        json!({
            "port": number.get(),
            "protocol": format!("{:?}", port.protocol),
            "mutual_tls": format!("{:?}", port.mutual_tls),
            "endpoint": port.endpoint.map(|endpoint| endpoint.to_string()),
            "service": port.service.as_ref().map(|(key, port)| format!("{key}:{}", port.get())),
        })
    };
    json!({
        "mutual_tls": format!("{:?}", capture.mutual_tls),
        "ports": capture.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

fn inbound(_: &Control, listener: &InboundListener) -> Value {
    json!({
        "name": &*listener.name,
        "bind": listener.bind.to_string(),
        "protocol": format!("{:?}", listener.protocol),
        "mutual_tls": format!("{:?}", listener.mutual_tls),
        "endpoint": listener.endpoint.to_string(),
        "service": listener.service.as_ref().map(|(key, port)| format!("{key}:{}", port.get())),
    })
}

fn outbound(listener: &OutboundListener) -> Value {
    let services: Vec<Value> = listener
        .services
        .iter()
        .map(|service| {
            json!({"service": service.key.to_string(), "port": service.port.get(), "authorities": texts(&service.authorities)})
        })
        .collect();
    json!({
        "name": &*listener.name,
        "bind": listener.bind.to_string(),
        "protocol": format!("{:?}", listener.protocol),
        "services": services,
    })
}

fn service(name: &str, version: &str, service: &Service) -> Value {
    let ports: Vec<Value> = service
        .ports
        .iter()
        .map(|port| json!({"number": port.number.get(), "target": port.target.map(voile_model::Port::get), "protocol": format!("{:?}", port.protocol)}))
        .collect();
    json!({
        "resource": name,
        "version": version,
        "addresses": texts(&service.addresses),
        "ports": ports,
        "subject_alt_names": texts(&service.subject_alt_names),
    })
}

fn workload(name: &str, version: &str, workload: &WireWorkload) -> Value {
    json!({
        "resource": name,
        "version": version,
        "name": &*workload.name,
        "namespace": workload.namespace.to_string(),
        "addresses": texts(&workload.addresses),
        "identity": workload.identity.as_ref().map(ToString::to_string),
        "tunnel": format!("{:?}", workload.tunnel),
        "healthy": workload.healthy,
        "weight": workload.weight,
        "services": workload.services.keys().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn port_policy(port: u16, policy: &PortPolicy) -> Value {
    json!({
        "port": port,
        "protocol": format!("{:?}", policy.protocol),
        "plaintext_workloads": texts(&policy.plaintext_workloads),
        "http2_upgrade": policy.http2_upgrade,
        "client_protocol": policy.client_protocol,
    })
}

/// Certificate chain with its decoded fields; never the key.
pub(in crate::control) fn certificates(control: &Control) -> String {
    let Some(held) = control.store.current() else {
        return pretty(
            &json!({"certificate": null, "reason": "no certificate has been issued yet"}),
        );
    };
    let trust = control.store.trust().current();
    pretty(&json!({
        "certificate": {
            "identity": held.identity().to_string(),
            "serial": held.serial(),
            "not_before": timestamp(held.not_before()),
            "not_after": timestamp(held.not_after()),
            "expires_in_seconds": held.not_after().duration_since(SystemTime::now()).unwrap_or_default().as_secs(),
            "chain_pem": held.chain_pem(),
        },
        "trust": trust.map(|trust| json!({
            "trust_domain": trust.trust_domain().to_string(),
            "aliases": texts(trust.aliases()),
            "roots": trust.roots().len(),
        })),
    }))
}

fn texts<'a, T: ToString + 'a>(items: impl IntoIterator<Item = &'a T>) -> Vec<String> {
    items.into_iter().map(ToString::to_string).collect()
}

fn timestamp(at: SystemTime) -> String {
    OffsetDateTime::from(at)
        .format(&Rfc3339)
        .unwrap_or_default()
}

fn pretty(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

fn telemetry(telemetry: &Telemetry) -> Value {
    let log = |log: &AccessLog| {
        let to = match &log.sink {
            LogSink::File { path, format, .. } => {
                json!({"file": &**path, "format": format.source()})
            }
            LogSink::Grpc(log) => json!({
                "service": format!("{}:{}", log.collector.service, log.collector.port),
                "log_name": &*log.log_name,
            }),
        };
        json!({
            "side": format!("{:?}", log.side),
            "provider": &*log.provider,
            "filter": log.filter.as_ref().map(voile_model::log_filter::LogFilter::source),
            "to": to,
        })
    };
    let spans = |tracing: &Tracing| {
        json!({
            "service": format!("{}:{}", tracing.collector.service, tracing.collector.port),
            "http_path": tracing.http_path.as_deref(),
            "sampling_percent": f64::from(tracing.sampling.millionths()) / 10_000.0,
            "report": tracing.report,
        })
    };
    json!({
        "access_logs": telemetry.access_logs.iter().map(log).collect::<Vec<_>>(),
        "client_tracing": telemetry.tracing(TelemetrySide::Client).map(spans),
        "server_tracing": telemetry.tracing(TelemetrySide::Server).map(spans),
        "metric_overrides": telemetry.metrics.len(),
    })
}
