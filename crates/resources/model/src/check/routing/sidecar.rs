//! Check of Sidecar.

use std::net::{IpAddr, SocketAddr};

use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, Text};
use crate::mesh::{
    CaptureMode, DefaultEndpoint, EgressHost, EgressListener, EgressNamespace, EndpointHost,
    IngressListener, ListenerPort, OutboundPolicy, Sidecar,
};
use crate::names::{Hostname, Namespace, Port};
use crate::text::clip;

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

/// What is said of the connection pools of inbound listeners.
const UNBOUNDED: &str = "the application sets its number of connections";

pub(in crate::check) fn sidecar(meta: Meta, fields: &mut Fields<'_>) -> Sidecar {
    let mut sidecar = Sidecar {
        name: meta.name,
        source: meta.source,
        selector: None,
        ingress: Vec::new(),
        egress: Vec::new(),
        outbound_policy: None,
    };
    fields.ignore(&["status"]);
    fields.mapping("spec", |spec| {
        let outbound = spec.mapping("outboundTrafficPolicy", |policy| {
            let mode = policy.one_of("mode", &OUTBOUND_MODES);
            policy.not_yet(&["egressProxy"]);
            mode
        });
        sidecar.outbound_policy = outbound.flatten();
        sidecar.selector = values::selected(spec, "workloadSelector", "labels");
        sidecar.ingress = spec.mappings("ingress", ingress);
        let mut ports = Vec::new();
        sidecar.egress = spec.mappings("egress", |fields| {
            let (has_port, listener) = egress(fields);
            ports.push((has_port, fields.at().clone()));
            listener
        });
        let mut but_last = ports.iter().rev().skip(1);
        if let Some((_, catch_all)) = but_last.find(|(has_port, _)| !has_port) {
            let message = "only the last egress listener may be without a port";
            let help = "move it to the end, and keep only one";
            let report = spec.report();
            report.error(codes::CONTRADICTION, catch_all, message, help);
        }
        spec.without_effect(&[("inboundConnectionPool", UNBOUNDED)]);
    });
    sidecar
}

fn ingress(fields: &mut Fields<'_>) -> Option<IngressListener> {
    let report = fields.report();
    let port = fields.mapping("port", listener_port);
    let port = report.required(port, fields.at(), "port").flatten();
    let bind = bind(fields.text("bind").as_ref(), report);
    let capture_mode = capture_mode(fields);
    let default_endpoint = fields.text("defaultEndpoint");
    let default_endpoint = default_endpoint.map(|text| default_endpoint_of(&text, report));
    if bind.is_some() && capture_mode == Some(CaptureMode::Iptables) {
        let message = "`bind` has no effect when the kernel redirects traffic";
        let help = "remove `bind`, or write captureMode: NONE";
        report.error(codes::CONTRADICTION, fields.at(), message, help);
    }
    fields.not_yet(&["tls"]);
    fields.without_effect(&[("connectionPool", UNBOUNDED)]);
    Some(IngressListener {
        port: port?,
        bind,
        capture_mode: capture_mode?,
        default_endpoint: default_endpoint.flatten(),
        source: report.source(fields.at()),
    })
}

/// The listener, and whether it has a port.
fn egress(fields: &mut Fields<'_>) -> (bool, Option<EgressListener>) {
    let report = fields.report();
    let port = fields.mapping("port", listener_port);
    let has_port = port.is_some();
    let said = fields.text("bind");
    let bind = bind(said.as_ref(), report);
    let capture_mode = capture_mode(fields);
    let hosts = fields.texts("hosts");
    if hosts.is_empty() {
        report.required(None::<()>, fields.at(), "hosts");
    }
    if !has_port && (said.is_some() || capture_mode == Some(CaptureMode::None)) {
        let message =
            "`bind` and captureMode: NONE of a listener without `port` are not yet supported";
        let help = "give it `port`, or remove `bind` and captureMode: NONE";
        report.error(codes::NOT_YET, fields.at(), message, help);
    }
    let hosts = hosts.iter().filter_map(|text| egress_host(text, report));
    let hosts = hosts.collect();
    let listener = capture_mode.map(|capture_mode| EgressListener {
        port: port.flatten(),
        bind,
        capture_mode,
        hosts,
        source: report.source(fields.at()),
    });
    (has_port, listener)
}

fn listener_port(fields: &mut Fields<'_>) -> Option<ListenerPort> {
    let report = fields.report();
    let number = report
        .required(fields.integer("number"), fields.at(), "number")
        .and_then(|number| report.port(&number));
    let protocol = values::istio_protocol(fields.text("protocol").as_ref(), report);
    let name = match fields.text("name") {
        Some(name) => values::port_name(&name, report),
        None => Some("".into()),
    };
    fields.ignore(&["targetPort"]);
    Some(ListenerPort {
        number: number?,
        protocol,
        name: name?,
    })
}

fn capture_mode(fields: &mut Fields<'_>) -> Option<CaptureMode> {
    match fields.text("captureMode") {
        Some(text) => fields.report().one_of(&text, &CAPTURE_MODES),
        None => Some(CaptureMode::Default),
    }
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

fn default_endpoint_of(text: &Text, report: &Report) -> Option<DefaultEndpoint> {
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
