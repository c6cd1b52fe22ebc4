//! Check of the providers of telemetry and of authorization.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::check::telemetry::header_name;
use crate::check::values;
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, SpannedValue, Text};
use crate::logs::log_format::{FormatError, LogFormat};
use crate::mesh::authorization::StringMatch;
use crate::mesh::{
    AlsProvider, BodyInCheck, ExtAuthzProvider, ExtAuthzTransport, ExtensionProvider,
    FileLogProvider, HttpAuthorizer, MAX_BODY_IN_CHECK, OpenTelemetryProvider, OtlpTransport,
    Provider, ProviderHeader, ProviderService,
};

/// Longest path in a span that a configuration may request, in bytes.
const MAX_TAG_LENGTH: i64 = 64 * 1024;
/// Default path of OTLP over HTTP for spans.
const OTLP_PATH: &str = "/v1/traces";

/// The kinds of provider.
const PROVIDER_KINDS: [&str; 15] = [
    "envoyExtAuthzHttp",
    "envoyExtAuthzGrpc",
    "zipkin",
    "lightstep",
    "datadog",
    "skywalking",
    "opencensus",
    "opentelemetry",
    "stackdriver",
    "prometheus",
    "envoyFileAccessLog",
    "envoyHttpAls",
    "envoyTcpAls",
    "envoyOtelAls",
    "sds",
];

/// `extensionProviders` by their names.
pub(super) fn providers(fields: &mut Fields<'_>) -> BTreeMap<Arc<str>, ExtensionProvider> {
    let report = fields.report();
    let mut names = Vec::new();
    let providers = fields.mappings("extensionProviders", |fields| {
        let name = fields.text("name");
        names.extend(name.clone());
        let name = name.filter(|name| !name.value.is_empty());
        let name = report.required(name, fields.at(), "name");
        let kinds = PROVIDER_KINDS.into_iter();
        let kinds: Vec<&str> = kinds.filter(|kind| fields.get(kind).is_some()).collect();
        let provider = provider(fields);
        let [kind] = kinds[..] else {
            let message = format!("a provider has exactly one type, not {}", kinds.len());
            let help = "write one field such as envoyExtAuthzHttp or opentelemetry";
            report.error(codes::CONTRADICTION, fields.at(), message, help);
            return None;
        };
        let name = name?.value;
        let provider = ExtensionProvider {
            name: name.clone(),
            kind: kind.into(),
            provider: provider?,
            source: report.source(fields.at()),
        };
        Some((name, provider))
    });
    let names = names.iter().map(|name| (name.value.clone(), &name.at));
    values::unique("provider", names, report);
    providers.into_iter().collect()
}

/// The first kind that is there; a kind without an effect is another. `None` when it cannot be used.
fn provider(fields: &mut Fields<'_>) -> Option<Provider> {
    type Read = fn(&mut Fields<'_>) -> Option<Provider>;
    let readers: [(&str, Read); 7] = [
        ("envoyFileAccessLog", |fields| {
            file_log(fields).map(Provider::File)
        }),
        ("envoyHttpAls", |fields| {
            als(fields, "http_envoy_accesslog").map(Provider::HttpAls)
        }),
        ("envoyTcpAls", |fields| {
            als(fields, "tcp_envoy_accesslog").map(Provider::TcpAls)
        }),
        ("opentelemetry", |fields| {
            open_telemetry(fields).map(Provider::OpenTelemetry)
        }),
        ("envoyExtAuthzHttp", |fields| {
            ext_authz(fields, true).map(Provider::ExtAuthz)
        }),
        ("envoyExtAuthzGrpc", |fields| {
            ext_authz(fields, false).map(Provider::ExtAuthz)
        }),
        ("prometheus", |_| Some(Provider::Prometheus)),
    ];
    let mut readers = readers.into_iter();
    let first = readers.find_map(|(kind, read)| fields.mapping(kind, read));
    first.unwrap_or(Some(Provider::Other))
}

/// Reports the error of a format at its location.
pub(super) fn format(
    at: &FieldPath,
    parsed: Result<LogFormat, FormatError>,
    report: &Report,
) -> Option<LogFormat> {
    parsed
        .map_err(|error| report.error(codes::BAD_VALUE, at, error.message, error.help))
        .ok()
}

/// A file to log to.
pub(super) fn log_path(path: &Text, report: &Report) -> Option<Arc<str>> {
    let absolute = |path: &str| path.starts_with('/').then(|| path.into());
    report.parsed(
        path,
        "a file",
        absolute,
        "write /dev/stdout or an absolute path",
    )
}

fn file_log(fields: &mut Fields<'_>) -> Option<FileLogProvider> {
    let path = fields.text("path").filter(|path| !path.value.is_empty());
    let format = fields.mapping("logFormat", log_format);
    let omit_empty = fields.flag("omitEmptyValues");
    Some(FileLogProvider {
        format: format.unwrap_or(Some(None))?,
        path: match path {
            Some(path) => log_path(&path, fields.report())?,
            None => "/dev/stdout".into(),
        },
        omit_empty,
    })
}

/// `None` when it cannot be used.
fn log_format(fields: &mut Fields<'_>) -> Option<Option<LogFormat>> {
    let report = fields.report();
    let text = fields.text("text").filter(|text| !text.value.is_empty());
    match (text, fields.get("labels")) {
        (Some(_), Some(labels)) => {
            let message = "`text` and `labels` contradict each other";
            report.error(codes::CONTRADICTION, labels.at(), message, "keep one");
            None
        }
        (Some(text), None) => format(&text.at, LogFormat::text(&text.value), report).map(Some),
        (None, Some(labels)) => {
            format(labels.at(), LogFormat::json_of(labels.node), report).map(Some)
        }
        (None, None) => Some(None),
    }
}

/// A service that proxies call on their own account: `service` and `port`.
pub(in crate::check) fn service(fields: &mut Fields<'_>) -> Option<ProviderService> {
    let report = fields.report();
    let said = (fields.text("service"), fields.integer("port"));
    checked_service(said, fields.at(), report)
}

fn checked_service(
    (name, port): (Option<Text>, Option<SpannedValue<i64>>),
    at: &FieldPath,
    report: &Report,
) -> Option<ProviderService> {
    let name = report.required(name, at, "service");
    let port = report.required(port, at, "port");
    let name = name?;
    let (namespace, host) = match name.value.split_once('/') {
        Some((namespace, host)) => (Some(namespace), host),
        None => (None, &*name.value),
    };
    let part = |part: &str| Text {
        value: part.into(),
        at: name.at.clone(),
    };
    let namespace = match namespace {
        Some(namespace) => Some(values::namespace(&part(namespace), report)?),
        None => None,
    };
    Some(ProviderService {
        namespace,
        host: values::hostname(&part(host), report)?,
        port: report.port(&port?)?,
    })
}

fn ext_authz(fields: &mut Fields<'_>, http: bool) -> Option<ExtAuthzProvider> {
    let report = fields.report();
    let status = |text: &str| {
        let number: u16 = text.parse().ok()?;
        (200..600).contains(&number).then_some(number)
    };
    let service = service(fields);
    let timeout = fields.duration("timeout");
    let fail_open = fields.flag("failOpen");
    let on_error = fields.text("statusOnError");
    let on_error =
        on_error.map(|text| report.parsed(&text, "a status", status, "write one such as \"503\""));
    let body = fields.mapping("includeRequestBodyInCheck", body_in_check);
    let transport = match http {
        true => ExtAuthzTransport::Http(http_authorizer(fields)),
        false => ExtAuthzTransport::Grpc,
    };
    // There are no routes to choose again.
    fields.ignore(&["clearRouteCache"]);
    Some(ExtAuthzProvider {
        timeout: timeout.filter(|limit| !limit.is_zero()),
        fail_open,
        status_on_error: on_error.flatten(),
        body: body.flatten(),
        transport,
        service: service?,
    })
}

/// A body that is not shown is a body that is not judged, so what cannot be meant is refused.
fn body_in_check(fields: &mut Fields<'_>) -> Option<BodyInCheck> {
    let report = fields.report();
    let wanted = fields.integer("maxRequestBytes");
    let wanted = report.required(wanted, fields.at(), "maxRequestBytes");
    let (allow_partial, pack_as_bytes) = (
        fields.flag("allowPartialMessage"),
        fields.flag("packAsBytes"),
    );
    let wanted = wanted?;
    let max_bytes = u32::try_from(wanted.value).ok();
    let Some(max_bytes) = max_bytes.filter(|bytes| (1..=MAX_BODY_IN_CHECK).contains(bytes)) else {
        report.error(
            codes::BAD_VALUE,
            &wanted.at,
            format!("{} is no size of a body that can be held", wanted.value),
            format!("a number of bytes from 1 to {MAX_BODY_IN_CHECK}"),
        );
        return None;
    };
    Some(BodyInCheck {
        max_bytes,
        allow_partial,
        pack_as_bytes,
    })
}

/// Fields of `envoyExtAuthzHttp` alone.
fn http_authorizer(fields: &mut Fields<'_>) -> HttpAuthorizer {
    let report = fields.report();
    let prefix = |path: &str| {
        let printable = path.bytes().all(|b| matches!(b, 0x21..=0x7e));
        (path.starts_with('/') && printable && !path.contains(['?', '#'])).then(|| path.into())
    };
    let names = |texts: Vec<Text>| -> Vec<StringMatch> {
        let one = |text: Text| {
            let bare = Text {
                value: text.value.trim_matches('*').into(),
                at: text.at,
            };
            // `*` alone is every header.
            if !bare.value.is_empty() {
                header_name(&bare, report)?;
            }
            Some(StringMatch::parse(&text.value.to_ascii_lowercase()))
        };
        texts.into_iter().filter_map(one).collect()
    };
    let added = |(name, value): (Text, Text)| {
        let visible = |text: &str| text.bytes().all(|b| matches!(b, 0x20..=0x7e));
        if !visible(&value.value) {
            report.bad(&value, " as the value of a header", "printable ASCII");
        }
        Some((header_name(&name, report)?, value.value))
    };
    let path = fields.text("pathPrefix");
    let path = path.filter(|text| !text.value.is_empty());
    let help = "it begins with / and has no query";
    let mut request_headers = fields.texts("includeRequestHeadersInCheck");
    // Its older name.
    request_headers.extend(fields.texts("includeHeadersInCheck"));
    let additional = fields.text_map("includeAdditionalHeadersInCheck");
    HttpAuthorizer {
        path_prefix: path
            .and_then(|text| report.parsed(&text, "a path", prefix, help))
            .unwrap_or_else(|| "".into()),
        request_headers: names(request_headers),
        additional_headers: additional.into_iter().filter_map(added).collect(),
        upstream_on_allow: names(fields.texts("headersToUpstreamOnAllow")),
        downstream_on_deny: names(fields.texts("headersToDownstreamOnDeny")),
        downstream_on_allow: names(fields.texts("headersToDownstreamOnAllow")),
    }
}

/// `envoyHttpAls` and `envoyTcpAls`.
fn als(fields: &mut Fields<'_>, log_name: &str) -> Option<AlsProvider> {
    let report = fields.report();
    let service = service(fields);
    let said = fields.value("logName").filter(|name| !name.is_empty());
    let mut names = |name| -> Vec<Arc<str>> {
        let texts = fields.texts(name);
        let texts = texts.iter();
        texts.filter_map(|text| header_name(text, report)).collect()
    };
    let request_headers = names("additionalRequestHeadersToLog");
    let response_headers = names("additionalResponseHeadersToLog");
    let response_trailers = names("additionalResponseTrailersToLog");
    fields.without_effect(&[("filterStateObjectsToLog", "the log has no filter state")]);
    Some(AlsProvider {
        request_headers,
        response_headers,
        response_trailers,
        log_name: said.unwrap_or_else(|| log_name.into()),
        service: service?,
    })
}

fn open_telemetry(fields: &mut Fields<'_>) -> Option<OpenTelemetryProvider> {
    let report = fields.report();
    let service = (fields.text("service"), fields.integer("port"));
    let length = fields.integer("maxTagLength");
    let (mut timeout, mut headers) = (None, Vec::new());
    let http = fields.mapping("http", |http| {
        let path = http.text("path");
        timeout = http.text("timeout");
        headers = http.mappings("headers", header);
        let path = match path {
            Some(path) => otlp_path(&path, report)?,
            None => OTLP_PATH.into(),
        };
        Some(OtlpTransport::Http { path })
    });
    let grpc = fields.mapping("grpc", |grpc| {
        timeout = timeout.take().or_else(|| grpc.text("timeout"));
        headers.extend(grpc.mappings("initialMetadata", header));
        grpc.ignore(&["timeout"]);
    });
    if http.is_some() && grpc.is_some() {
        let message = "`http` and `grpc` contradict each other";
        report.error(codes::CONTRADICTION, fields.at(), message, "keep one");
    }
    let environment = fields.mapping("resourceDetectors", |detectors| {
        let instead = "spans contain no Dynatrace host attributes";
        detectors.without_effect(&[("dynatrace", instead)]);
        detectors.get("environment").is_some()
    });
    fields.without_effect(&[
        (
            "disableContextPropagation",
            "trace headers are forwarded to the next workload",
        ),
        ("dynatraceSampler", "Telemetry sets the sampling percentage"),
        (
            "serviceAttributeEnrichment",
            "spans have the attributes of Istio's defaults",
        ),
    ]);
    Some(OpenTelemetryProvider {
        transport: http.unwrap_or(Some(OtlpTransport::Grpc))?,
        timeout: timeout.and_then(|text| report.duration(&text)),
        headers,
        max_tag_length: length.and_then(|number| tag_length(&number, report)),
        environment_detector: environment == Some(true),
        service: checked_service(service, fields.at(), report)?,
    })
}

fn otlp_path(path: &Text, report: &Report) -> Option<Arc<str>> {
    let fine = |path: &str| {
        let printable = path.bytes().all(|b| matches!(b, 0x21..=0x7e));
        (path.starts_with('/') && printable).then(|| path.into())
    };
    report.parsed(path, "a path", fine, "it begins with / and has no blanks")
}

/// A length of tags.
pub(super) fn tag_length(number: &SpannedValue<i64>, report: &Report) -> Option<u32> {
    let length = u32::try_from(number.value).ok();
    let length = length.filter(|length| (1..=MAX_TAG_LENGTH).contains(&i64::from(*length)));
    if length.is_none() {
        let message = format!("{} is not a length", number.value);
        report.error(
            codes::BAD_VALUE,
            &number.at,
            message,
            format!("a number of bytes from 1 to {MAX_TAG_LENGTH}"),
        );
    }
    length
}

/// A header for a collector.
fn header(fields: &mut Fields<'_>) -> Option<ProviderHeader> {
    let report = fields.report();
    let name = report.required(fields.text("name"), fields.at(), "name");
    let said = (fields.text("value"), fields.text("envName"));
    let name = header_name(&name?, report)?;
    let (value, from_environment) = match said {
        (Some(value), None) => (value, false),
        (None, Some(variable)) => (variable, true),
        _ => {
            let message = "a header has one of `value` and `envName`";
            report.error(codes::CONTRADICTION, fields.at(), message, "");
            return None;
        }
    };
    let visible = |text: &str| {
        let printable = text.bytes().all(|b| matches!(b, 0x20..=0x7e));
        printable.then(|| text.into())
    };
    let value = report.parsed(&value, "the value of a header", visible, "printable ASCII")?;
    Some(ProviderHeader {
        name,
        value,
        from_environment,
    })
}
