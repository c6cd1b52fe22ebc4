//! Proxies in front of one Pod's proxy, and the treatment of client certificates: `gatewayTopology` and `proxyHeaders`
//! in the Pod's annotation `proxy.istio.io/config`.

use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report, SpannedValue};
use crate::mesh::{ClientCertificateDetails, ForwardClientCertificate, Topology};
use crate::names::Labels;
use crate::text::clip;
use crate::yaml::{self, Value};

use crate::check::values::join;

const ANNOTATION: &str = "proxy.istio.io/config";
const TOPOLOGY: &str = "gatewayTopology";
const HEADERS: &str = "proxyHeaders";
/// Supported fields of this annotation.
const HEARD: [&str; 2] = [TOPOLOGY, HEADERS];

/// Istio's words.
const FORWARDS: [(&str, Option<ForwardClientCertificate>); 6] = [
    ("UNDEFINED", None),
    ("SANITIZE", Some(ForwardClientCertificate::Sanitize)),
    ("FORWARD_ONLY", Some(ForwardClientCertificate::ForwardOnly)),
    (
        "APPEND_FORWARD",
        Some(ForwardClientCertificate::AppendForward),
    ),
    ("SANITIZE_SET", Some(ForwardClientCertificate::SanitizeSet)),
    (
        "ALWAYS_FORWARD_ONLY",
        Some(ForwardClientCertificate::AlwaysForwardOnly),
    ),
];

/// Reads the annotation. Errors are reported, and the Pod is then not in force.
pub(in crate::check) fn topology(
    annotations: &Labels,
    at: &FieldPath,
    report: &Report,
) -> Topology {
    let none = Topology::default();
    let Some(text) = annotations.get(ANNOTATION) else {
        return none;
    };
    let at = FieldPath {
        place: at.place,
        path: join(&at.path, &format!("metadata.annotations[{ANNOTATION}]")),
    };
    let mut root = match yaml::parse_document(text, at.place) {
        Ok(Some(root)) if !root.is_null() => root,
        Ok(_) => return none,
        Err(error) => {
            report.error(error.code, &at, error.message, error.help);
            return none;
        }
    };
    // A line inside an annotation has no line of its own in the file: errors name the start of its Pod.
    crate::check::config::pin(&mut root, at.place);
    let Value::Map(entries) = &root.value else {
        report.error(codes::WRONG_TYPE, &at, "a mapping is expected here", "");
        return none;
    };
    for (key, _) in entries
        .iter()
        .filter(|(key, _)| !HEARD.contains(&&*key.text))
    {
        let message = format!(
            "`{}` of this annotation is not in force: for a single Pod only {} are supported",
            clip(&key.text),
            HEARD.join(" and ")
        );
        let help = "set it for all proxies in MeshConfig's defaultConfig";
        report.warning(codes::NOT_YET, &at, message, help);
    }
    let inner = |name: &str| {
        let (_, node) = entries.iter().find(|(key, _)| &*key.text == name)?;
        let at = FieldPath {
            place: at.place,
            path: format!("{}.{name}", at.path).into(),
        };
        Some(Cursor { node, at, report })
    };
    let mut read = none;
    if let Some(cursor) = inner(TOPOLOGY) {
        cursor.mapping(|fields| gateway(fields, &mut read));
    }
    if let Some(cursor) = inner(HEADERS) {
        cursor.mapping(|fields| headers(fields, &mut read));
    }
    read
}

/// The fields of `gatewayTopology`.
pub(in crate::check) fn gateway(fields: &mut Fields<'_>, topology: &mut Topology) {
    let report = fields.report();
    let number = fields.integer("numTrustedProxies");
    topology.trusted_proxies = number.and_then(|number| trusted_proxies(&number, report));
    topology.proxy_protocol = fields.mapping("proxyProtocol", |_| ()).is_some();
    let forwards = fields.one_of("forwardClientCertDetails", &FORWARDS);
    topology.forwards.gateway = forwards.flatten();
}

/// The fields of `proxyHeaders` for `x-forwarded-client-cert`.
pub(in crate::check) fn headers(fields: &mut Fields<'_>, topology: &mut Topology) {
    let forwards = &mut topology.forwards;
    forwards.sidecar = fields.one_of("forwardedClientCert", &FORWARDS).flatten();
    forwards.details = fields.mapping("setCurrentClientCertDetails", |inner| {
        ClientCertificateDetails {
            subject: inner.flag("subject"),
            certificate: inner.flag("cert"),
            chain: inner.flag("chain"),
            dns: inner.flag("dns"),
            uri: inner.flag("uri"),
        }
    });
    for (name, field, so_anyway, instead) in HEADERS_AS_THEY_ARE {
        fields.mapping(name, |inner| {
            inner.not_obeyed(field, so_anyway, instead, "remove it");
            if name == "server" {
                inner.ignore(&["disabled"]);
            }
        });
    }
    // Names go on in the case in which they came, and there is no metadata to be exchanged.
    fields.ignore(&[
        "metadataExchangeHeaders",
        "perserveHttp1HeaderCase",
        "preserveHttp1HeaderCase",
    ]);
}

/// Headers that `proxyHeaders` cannot change: the header, its field, the values that match Voile's behaviour, and that
/// behaviour.
const HEADERS_AS_THEY_ARE: [(&str, &str, &[&str], &str); 6] = [
    (
        "attemptCount",
        "disabled",
        &["false"],
        "retries have x-envoy-attempt-count",
    ),
    (
        "envoyDebugHeaders",
        "disabled",
        &["true"],
        "no proxy writes these headers",
    ),
    (
        "requestId",
        "disabled",
        &["false"],
        "proxies generate x-request-id if spans or an access log need it",
    ),
    ("server", "value", &[""], "no proxy writes the header"),
    (
        "xForwardedHost",
        "enabled",
        &["false"],
        "no proxy writes x-forwarded-host",
    ),
    (
        "xForwardedPort",
        "enabled",
        &["false"],
        "no proxy writes x-forwarded-port",
    ),
];

/// `numTrustedProxies`.
fn trusted_proxies(number: &SpannedValue<i64>, report: &Report) -> Option<u32> {
    let count = u32::try_from(number.value).ok();
    if count.is_none() {
        let message = format!("{} is not a number of proxies", number.value);
        report.error(codes::BAD_VALUE, &number.at, message, "write 0 or more");
    }
    count
}
