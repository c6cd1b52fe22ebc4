//! Proxies in front of one Pod's proxy, and the treatment of client certificates: `gatewayTopology` and `proxyHeaders`
//! in the Pod's annotation `proxy.istio.io/config`.

use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report, SpannedValue};
use crate::mesh::{ForwardClientCertificate, Topology};
use crate::names::Labels;
use crate::text::clip;
use crate::written::{Text, config as written};
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
        Cursor { node, at, report }.fields()
    };
    let mut read = none;
    if let Some(mut fields) = inner(TOPOLOGY) {
        let number = fields.integer("numTrustedProxies");
        let proxy_protocol = fields.inner("proxyProtocol").map(Fields::finish);
        read.forwards.gateway = forwards(fields.text(written::GATEWAYS_FORWARD).as_ref(), report);
        fields.finish();
        read.trusted_proxies = number.and_then(|number| trusted_proxies(&number, report));
        read.proxy_protocol = proxy_protocol.is_some();
    }
    if let Some(mut fields) = inner(HEADERS) {
        let (word, details) = written::proxy_headers(&mut fields);
        read.forwards.sidecar = forwards(word.as_ref(), report);
        read.forwards.details = details;
        fields.finish();
    }
    read
}

/// Treatment of `x-forwarded-client-cert`.
pub(in crate::check) fn forwards(
    word: Option<&Text>,
    report: &Report,
) -> Option<ForwardClientCertificate> {
    report.one_of(word?, &FORWARDS)?
}

/// `numTrustedProxies`.
pub(in crate::check) fn trusted_proxies(
    number: &SpannedValue<i64>,
    report: &Report,
) -> Option<u32> {
    let count = u32::try_from(number.value).ok();
    if count.is_none() {
        let message = format!("{} is not a number of proxies", number.value);
        report.error(codes::BAD_VALUE, &number.at, message, "write 0 or more");
    }
    count
}
