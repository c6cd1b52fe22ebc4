//! Values that several kinds share: names, labels, selectors, addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::check::header::{Header, Metadata};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, SpannedValue, Text, TextMap};
use crate::mesh::{Exports, Protocol, Transport, Visibility};
use crate::names::{
    Hostname, Labels, Namespace, ResourceName, is_dns_label, is_dns_subdomain, is_object_name,
};
use crate::source::Source;
use crate::text::clip;

/// Checked metadata.
pub(in crate::check) struct Meta {
    pub(in crate::check) name: ResourceName,
    pub(in crate::check) source: Source,
    pub(in crate::check) at: FieldPath,
    pub(in crate::check) labels: Labels,
    pub(in crate::check) annotations: Labels,
    pub(in crate::check) created: Option<i64>,
    pub(in crate::check) owners: Vec<(Arc<str>, Arc<str>)>,
    pub(in crate::check) live: bool,
    pub(in crate::check) removed: bool,
}

/// The name of a document, as far as it is readable.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DocumentName {
    pub(crate) name: Option<Arc<str>>,
    /// That of a namespaced kind; the default one where none is written.
    pub(crate) namespace: Option<Namespace>,
}

/// Checks metadata. Without a usable name, the error holds the readable parts.
pub(in crate::check) fn meta(
    header: &Header,
    namespaced: bool,
    report: &Report,
) -> Result<Meta, DocumentName> {
    let metadata = &header.metadata;
    let parent = FieldPath {
        place: metadata.at.as_ref().unwrap_or(&header.at).place,
        path: join(&header.at.path, "metadata"),
    };
    let name = report.required(metadata.name.clone(), &parent, "name");
    let valid = "lower-case letters, digits, `-` and `.`, beginning and ending with a letter or digit, at most 253";
    let named = |name: &Text| {
        let name_like = |text: &str| is_object_name(text).then(|| text.into());
        report.parsed(name, "a name", name_like, valid)
    };
    let value = name.as_ref().and_then(named);
    let namespace = match &metadata.namespace {
        Some(namespace) if namespaced => self::namespace(namespace, report),
        None if namespaced && metadata.namespace_unread => None,
        _ => Some(Namespace::default_namespace()),
    };
    let (name, name_value, namespace) = match (name, value, namespace) {
        (Some(name), Some(value), Some(namespace)) => (name, value, namespace),
        (_, name, namespace) => return Err(DocumentName { name, namespace }),
    };
    Ok(meta_of(
        header,
        ResourceName::new(namespace, name_value),
        name.at,
        report,
    ))
}

/// Checks metadata except the name; `at` is the name's location.
pub(in crate::check) fn meta_of(
    header: &Header,
    name: ResourceName,
    at: FieldPath,
    report: &Report,
) -> Meta {
    let metadata = &header.metadata;
    let (labels, annotations) = labels_and_annotations(metadata, report);
    Meta {
        name,
        source: report.source(&at),
        at: header.at.clone(),
        labels,
        annotations,
        created: metadata
            .created
            .as_ref()
            .and_then(|created| timestamp(created, report)),
        owners: metadata.owners.clone(),
        live: metadata.live,
        removed: metadata.removed,
    }
}

pub(in crate::check) fn join(parent: &str, name: &str) -> Arc<str> {
    if parent.is_empty() {
        name.into()
    } else {
        format!("{parent}.{name}").into()
    }
}

/// Labels and annotations of metadata.
pub(in crate::check) fn labels_and_annotations(
    metadata: &Metadata,
    report: &Report,
) -> (Labels, Labels) {
    let keys = (&metadata.labels, &metadata.annotations);
    crate::check::istio_metadata::check(keys, metadata.live, report);
    let annotations = metadata
        .annotations
        .iter()
        .map(|(key, value)| (key.value.clone(), value.value.clone()))
        .collect();
    (labels(&metadata.labels, report), annotations)
}

/// Labels, each checked by Kubernetes' rules for keys and values.
pub(in crate::check) fn labels(map: &TextMap, report: &Report) -> Labels {
    const MAX_VALUE_BYTES: usize = 63; // Kubernetes' limit, so that a folder stays applicable to a cluster
    let name_like = |text: &str| {
        let bytes = text.as_bytes();
        bytes.len() <= MAX_VALUE_BYTES
            && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
            && bytes
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    let checked = |(key, value): &(Text, Text)| {
        let (prefix, name) = key
            .value
            .split_once('/')
            .map_or((None, &*key.value), |(prefix, name)| (Some(prefix), name));
        let is_key = name_like(name) && prefix.is_none_or(is_dns_subdomain);
        if !is_key {
            report.bad(
                key,
                " as the key of a label",
                "write NAME or DNS-NAME/NAME with letters, digits, `-`, `_`, `.`",
            );
        }
        let is_value = value.value.is_empty() || name_like(&value.value);
        if !is_value {
            report.bad(
                value,
                " as the value of a label",
                "letters, digits, `-`, `_` and `.`, at most 63",
            );
        }
        // An invalid label drops out: the selector then selects more.
        (is_key && is_value).then(|| (key.value.clone(), value.value.clone()))
    };
    map.iter().filter_map(checked).collect()
}

/// The labels of `name: {labels_name: {…}}`. One without labels selects everything, as none does, yet it is there.
pub(in crate::check) fn selector_labels(
    fields: &mut Fields<'_>,
    name: &'static str,
    labels_name: &'static str,
) -> Option<Labels> {
    let report = fields.report();
    fields.mapping(name, |inner| labels(&inner.text_map(labels_name), report))
}

/// The same of a selector as a rule: none where it selects everything.
pub(in crate::check) fn selected(
    fields: &mut Fields<'_>,
    name: &'static str,
    labels_name: &'static str,
) -> Option<Labels> {
    selector_labels(fields, name, labels_name).filter(|labels| !labels.is_empty())
}

/// The name of a namespace.
pub(in crate::check) fn namespace(text: &Text, report: &Report) -> Option<Namespace> {
    report.parsed(
        text,
        "a namespace",
        Namespace::new,
        "lower-case letters, digits and inner `-`, at most 63",
    )
}

/// `exportTo`: `*` is every namespace, `.` the own namespace, `~` none; a missing list is every namespace.
pub(in crate::check) fn visibility(list: &[Text], own: &Namespace, report: &Report) -> Visibility {
    if list.is_empty() || list.iter().any(|text| &*text.value == "*") {
        return Visibility::Public;
    }
    let named = list.iter().filter_map(|text| match &*text.value {
        "." => Some(own.clone()),
        "~" => None,
        _ => namespace(text, report),
    });
    Visibility::Namespaces(named.collect())
}

/// The same for the mesh's defaults.
pub(in crate::check) fn exports(list: &[Text], report: &Report) -> Exports {
    if list.is_empty() || list.iter().any(|text| &*text.value == "*") {
        return Exports::All;
    }
    let named = list.iter().filter_map(|text| match &*text.value {
        "." | "~" => None,
        _ => namespace(text, report),
    });
    Exports::Some {
        own: list.iter().any(|text| &*text.value == "."),
        namespaces: named.collect(),
    }
}

/// The name of a service account.
pub(in crate::check) fn service_account(text: Option<&Text>, report: &Report) -> Arc<str> {
    let help = "lower-case letters, digits, `-` and `.`, at most 253";
    // Kubernetes takes an empty one for the default.
    let named = text.filter(|text| !text.value.is_empty());
    named
        .and_then(|text| {
            report.parsed(
                text,
                "a service account",
                |name| is_dns_subdomain(name).then(|| name.into()),
                help,
            )
        })
        .unwrap_or_else(|| "default".into())
}

/// Returns true if a certificate's name is a URI.
pub(in crate::check) fn is_uri(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    plain && scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.bytes().all(of_scheme))
}

/// Returns true if a certificate can have this name: a host without a `*`, an address, a URI.
pub(in crate::check) fn is_certificate_name(text: &str) -> bool {
    is_uri(text)
        || text.parse::<IpAddr>().is_ok()
        || Hostname::new(text).is_some_and(|host| !host.is_wildcard())
}

/// Longest path that a kernel accepts, in bytes.
const MAX_PATH_BYTES: usize = 4095;

/// A file of a proxy's own machine; a path that is not absolute begins where the proxy runs, as in Istio.
pub(in crate::check) fn file(text: &Text, report: &Report) -> Option<Arc<str>> {
    let path = |path: &str| {
        let fits = (1..=MAX_PATH_BYTES).contains(&path.len());
        (fits && !path.chars().any(char::is_control)).then(|| path.into())
    };
    let help = "a path on the machine of the proxy, such as /etc/certs/tls.crt";
    report.parsed(text, "a file", path, help)
}

pub(in crate::check) fn ip(text: &Text, report: &Report) -> Option<IpAddr> {
    report.parsed(
        text,
        "an IP address",
        |text| text.parse().ok(),
        "write one such as 127.1.0.3 or fd00::3",
    )
}

/// An address that something can be reached at: not `0.0.0.0`, not multicast.
pub(in crate::check) fn unicast_ip(text: &Text, report: &Report) -> Option<IpAddr> {
    let address = ip(text, report)?;
    if address.is_unspecified() || address.is_multicast() {
        report.bad(
            text,
            " as an address to reach something at",
            "write the address of one host",
        );
        return None;
    }
    Some(address)
}

/// Such addresses, each once.
pub(in crate::check) fn unicast_ips(texts: &[Text], report: &Report) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in texts.iter().filter_map(|text| unicast_ip(text, report)) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// A host name.
pub(in crate::check) fn hostname(text: &Text, report: &Report) -> Option<Hostname> {
    let part = text
        .value
        .strip_prefix('*')
        .filter(|rest| !rest.is_empty() && !rest.starts_with('.'));
    let rest = part.map(|rest| rest.trim_start_matches('-'));
    if rest.is_some_and(|rest| Hostname::new(rest).is_some_and(|host| !host.is_wildcard())) {
        let message = format!(
            "`{}` is not yet supported as a host name: `*` must be a whole label",
            clip(&text.value)
        );
        let help = "write *.DOMAIN, or each name";
        report.error(codes::NOT_YET, &text.at, message, help);
        return None;
    }
    report.parsed(
        text,
        "a host name",
        Hostname::new,
        "labels of letters, digits and inner `-` joined by dots; only the first may be `*`",
    )
}

/// A port's name: a DNS label.
pub(in crate::check) fn port_name(text: &Text, report: &Report) -> Option<Arc<str>> {
    label_name(text, "the name of a port", report)
}

/// A name that is one DNS label.
pub(in crate::check) fn label_name(text: &Text, what: &str, report: &Report) -> Option<Arc<str>> {
    let help = "lower-case letters, digits and inner `-`";
    report.parsed(
        text,
        what,
        |name| is_dns_label(name).then(|| name.into()),
        help,
    )
}

/// Istio's protocol words, any case.
pub(in crate::check) fn protocol_word(word: &str) -> Option<Protocol> {
    Some(match word.to_ascii_lowercase().as_str() {
        "http" | "grpc-web" | "kubernetes.io/ws" => Protocol::Http,
        "http2" | "kubernetes.io/h2c" => Protocol::Http2,
        "grpc" => Protocol::Grpc,
        "tcp" | "mongo" | "mysql" | "redis" => Protocol::Tcp,
        "https" | "tls" | "kubernetes.io/wss" => Protocol::Tls,
        "udp" => Protocol::Udp,
        _ => return None,
    })
}

/// The protocol of an Istio port; not said is `Auto`.
pub(in crate::check) fn istio_protocol(text: Option<&Text>, report: &Report) -> Protocol {
    const WORDS: [&str; 11] = [
        "HTTP", "HTTPS", "HTTP2", "GRPC", "GRPC-WEB", "TCP", "TLS", "MONGO", "MYSQL", "REDIS",
        "UDP",
    ];
    let Some(text) = text.filter(|text| !text.value.is_empty()) else {
        return Protocol::Auto;
    };
    protocol_word(&text.value).unwrap_or_else(|| {
        if text.value.eq_ignore_ascii_case("HTTP_PROXY") {
            let message = "the protocol HTTP_PROXY is not yet supported, and would not be in force";
            let help = "remove this port, or wait for a later version";
            report.error(codes::NOT_YET, &text.at, message, help);
            return Protocol::Auto;
        }
        report.bad(text, "", crate::text::suggest(&text.value, WORDS));
        Protocol::Auto
    })
}

/// Seconds since 1970 of an RFC 3339 time in UTC, which is what Kubernetes writes.
fn timestamp(text: &Text, report: &Report) -> Option<i64> {
    report.parsed(
        text,
        "a time",
        parse_timestamp,
        "write it as 2026-01-31T12:00:00Z",
    )
}

fn parse_timestamp(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, by: char| -> Option<[i64; 3]> {
        let mut parts = text
            .split(by)
            .map(|part| part.parse::<u16>().ok().map(i64::from));
        let three = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(three)
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time.split('.').next()?, ':')?;
    if !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    // Days from the civil calendar, counted in eras of 400 years that begin in March.
    let (y, m) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let era = y.div_euclid(400);
    let year_of_era = y - era * 400;
    let day_of_era =
        year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * m + 2) / 5 + day - 1;
    let days = era * 146_097 + day_of_era - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Highest weight of a destination, as in Istio's own examples a share of some hundreds or thousands; sums must not overflow. Gateway
/// API's schema has the same.
const MAX_WEIGHT: i64 = 1_000_000;

/// A destination's share of the requests.
pub(in crate::check) fn weight(weight: &SpannedValue<i64>, report: &Report) -> Option<u32> {
    let fits = (0..=MAX_WEIGHT).contains(&weight.value);
    if !fits {
        let message = format!("{} is not a weight", weight.value);
        let help = format!("write a number from 0 to {MAX_WEIGHT}");
        report.error(codes::BAD_VALUE, &weight.at, message, help);
    }
    u32::try_from(weight.value).ok().filter(|_| fits)
}

/// `protocol` of a port; one without it is TCP.
pub(in crate::check) fn transport(fields: &mut Fields<'_>) -> Option<Transport> {
    const WORDS: [(&str, Option<Transport>); 3] = [
        ("TCP", Some(Transport::Tcp)),
        ("UDP", Some(Transport::Udp)),
        ("SCTP", None),
    ];
    let report = fields.report();
    let Some(text) = fields.text("protocol") else {
        return Some(Transport::Tcp);
    };
    let transport = report.one_of(&text, &WORDS)?;
    if transport.is_none() {
        let message = "SCTP is not yet supported";
        report.error(codes::NOT_YET, fields.at(), message, "use TCP or UDP");
    }
    transport
}

/// Says that a second thing in a list has the same name, as written.
pub(in crate::check) fn unique_names(what: &str, names: &[Text], report: &Report) {
    let names = names.iter().map(|name| (name.value.clone(), &name.at));
    unique(what, names, report);
}

/// Says that a second thing in a list has the same name.
pub(in crate::check) fn unique<'a, T: Ord + std::fmt::Display + 'a>(
    what: &str,
    items: impl IntoIterator<Item = (T, &'a FieldPath)>,
    report: &Report,
) {
    let mut seen = BTreeSet::new();
    for (item, at) in items {
        let shown = clip(&item.to_string());
        if !seen.insert(item) {
            let message = format!("{what} {shown} appears twice");
            report.error(codes::CONTRADICTION, at, message, "each must be different");
        }
    }
}
