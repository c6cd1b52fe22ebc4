//! Check of Sidecar.

use std::net::{IpAddr, SocketAddr};

use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report};
use crate::mesh::{
    CaptureMode, DefaultEndpoint, EgressHost, EgressListener, EgressNamespace, EndpointHost,
    IngressListener, ListenerPort, OutboundPolicy, Sidecar,
};
use crate::names::{Hostname, Namespace, Port};
use crate::text::clip;
use crate::written::{Text, networking as written};

/// Words of `outboundTrafficPolicy.mode`.
pub(in crate::check) const OUTBOUND_MODES: [(&str, OutboundPolicy); 2] = [
    ("ALLOW_ANY", OutboundPolicy::AllowAny),
    ("REGISTRY_ONLY", OutboundPolicy::RegistryOnly),
];

const CAPTURE_MODES: [(&str, CaptureMode); 3] = [
    ("DEFAULT", CaptureMode::Default),
    ("IPTABLES", CaptureMode::Iptables),
    ("NONE", CaptureMode::None),
];

pub(in crate::check) fn sidecar(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<Sidecar> {
    let written = written::WrittenSidecar::read(fields);
    let ingress: Vec<_> = written
        .ingress
        .iter()
        .filter_map(|listener| ingress(listener, report))
        .collect();
    let egress: Vec<_> = written
        .egress
        .iter()
        .filter_map(|listener| egress(listener, report))
        .collect();
    if let Some((_, catch_all)) = written
        .egress
        .iter()
        .rev()
        .skip(1)
        .map(|e| (e, &e.at))
        .find(|(e, _)| e.port.is_none())
    {
        let help = "move it to the end, and keep only one";
        report.error(
            codes::CONTRADICTION,
            catch_all,
            "only the last egress listener may be without a port",
            help,
        );
    }
    let outbound_policy = written
        .outbound_mode
        .as_ref()
        .and_then(|mode| report.one_of(mode, &OUTBOUND_MODES));
    let selector = values::selector(written.selector.as_ref(), report);
    Some(Sidecar {
        name: meta.name,
        source: meta.source,
        selector,
        ingress,
        egress,
        outbound_policy,
    })
}

fn ingress(written: &written::Ingress, report: &Report) -> Option<IngressListener> {
    let port = report
        .required(written.port.as_ref(), &written.at, "port")
        .and_then(|port| listener_port(port, report));
    let bind = bind(written.bind.as_ref(), report);
    let capture_mode = capture_mode(written.capture_mode.as_ref(), report);
    let default_endpoint = written
        .default_endpoint
        .as_ref()
        .map(|text| default_endpoint(text, report));
    if bind.is_some() && capture_mode == Some(CaptureMode::Iptables) {
        let message = "`bind` has no effect when the kernel redirects traffic";
        report.error(
            codes::CONTRADICTION,
            &written.at,
            message,
            "remove `bind`, or write captureMode: NONE",
        );
    }
    Some(IngressListener {
        port: port?,
        bind,
        capture_mode: capture_mode?,
        default_endpoint: match default_endpoint {
            None => None,
            Some(endpoint) => Some(endpoint?),
        },
        source: report.source(&written.at),
    })
}

fn egress(written: &written::Egress, report: &Report) -> Option<EgressListener> {
    let port = written
        .port
        .as_ref()
        .map(|port| listener_port(port, report));
    let bind = bind(written.bind.as_ref(), report);
    let capture_mode = capture_mode(written.capture_mode.as_ref(), report)?;
    if written.hosts.is_empty() {
        report.required(None::<()>, &written.at, "hosts");
    }
    if written.port.is_none() && (written.bind.is_some() || capture_mode == CaptureMode::None) {
        let message =
            "`bind` and captureMode: NONE of a listener without `port` are not yet supported";
        report.error(
            codes::NOT_YET,
            &written.at,
            message,
            "give it `port`, or remove `bind` and captureMode: NONE",
        );
    }
    let hosts = written
        .hosts
        .iter()
        .filter_map(|text| egress_host(text, report))
        .collect();
    Some(EgressListener {
        port: match port {
            None => None,
            Some(port) => Some(port?),
        },
        bind,
        capture_mode,
        hosts,
        source: report.source(&written.at),
    })
}

fn listener_port(written: &written::ListenerPort, report: &Report) -> Option<ListenerPort> {
    let number = report
        .required(written.number.as_ref(), &written.at, "number")
        .and_then(|number| report.port(number));
    let name = written
        .name
        .as_ref()
        .map_or_else(|| Some("".into()), |name| values::port_name(name, report));
    let protocol = values::istio_protocol(written.protocol.as_ref(), report);
    Some(ListenerPort {
        number: number?,
        protocol,
        name: name?,
    })
}

fn capture_mode(text: Option<&Text>, report: &Report) -> Option<CaptureMode> {
    text.map_or(Some(CaptureMode::Default), |text| {
        report.one_of(text, &CAPTURE_MODES)
    })
}

fn bind(text: Option<&Text>, report: &Report) -> Option<IpAddr> {
    let text = text.filter(|text| !text.value.is_empty())?;
    if text.value.starts_with("unix:") {
        not_yet_unix(&text.at, report);
        return None;
    }
    values::ip(text, report)
}

fn not_yet_unix(at: &FieldPath, report: &Report) {
    report.error(
        codes::NOT_YET,
        at,
        "Unix sockets are not yet supported here",
        "write an IP address",
    );
}

fn default_endpoint(text: &Text, report: &Report) -> Option<DefaultEndpoint> {
    if text.value.starts_with("unix:") {
        not_yet_unix(&text.at, report);
        return None;
    }
    let parse = |text: &str| {
        let address: SocketAddr = text.parse().ok()?;
        let host = match address.ip() {
            ip if ip.is_loopback() => EndpointHost::Loopback(ip),
            ip if ip.is_unspecified() => EndpointHost::Workload,
            _ => return None,
        };
        Some(DefaultEndpoint {
            host,
            port: Port::new(address.port())?,
        })
    };
    let help = "write 127.0.0.1:PORT or [::1]:PORT, or 0.0.0.0:PORT for the workload's own address";
    report.parsed(text, "an endpoint of the application", parse, help)
}

fn egress_host(text: &Text, report: &Report) -> Option<EgressHost> {
    let Some((namespace, host)) = text.value.split_once('/') else {
        let help = format!(
            "write */{0} for any namespace, or ./{0} for the Sidecar's own",
            clip(&text.value)
        );
        report.bad(text, " as a host", help);
        return None;
    };
    let namespace = match namespace {
        "*" => EgressNamespace::Any,
        "." => EgressNamespace::Own,
        "~" => EgressNamespace::Nothing,
        excluded if excluded.starts_with('~') => {
            let message = format!(
                "`{}` is not yet supported and excludes nothing: the other entries define the visible services",
                clip(&text.value)
            );
            let help = "list only the services that the workload calls";
            report.warning(codes::NOT_OBEYED, &text.at, message, help);
            return None;
        }
        name => EgressNamespace::Named(report.parsed(
            text,
            "a host",
            |_| Namespace::new(name),
            "write NAMESPACE/HOST",
        )?),
    };
    let help = "after the `/` comes a host name, *.HOST or *";
    let hostname = report.parsed(text, "a host", |_| Hostname::new(host), help)?;
    Some(EgressHost {
        namespace,
        hostname,
        source: report.source(&text.at),
    })
}
