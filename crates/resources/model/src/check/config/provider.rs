//! Check of the providers of telemetry and of authorization.

use std::sync::Arc;

use crate::check::telemetry::header_name;
use crate::check::values;
use crate::codes;
use crate::decode::{Report, SpannedValue};
use crate::logs::log_format::{FormatError, LogFormat};
use crate::mesh::authorization::StringMatch;
use crate::mesh::{
    AlsProvider, BodyInCheck, ExtAuthzProvider, ExtAuthzTransport, FileLogProvider, HttpAuthorizer,
    MAX_BODY_IN_CHECK, OpenTelemetryProvider, OtlpTransport, Provider, ProviderHeader,
    ProviderService,
};
use crate::written::Text;
use crate::written::config::provider as written;

/// Longest path in a span that a configuration may request, in bytes.
const MAX_TAG_LENGTH: i64 = 64 * 1024;
/// Default path of OTLP over HTTP for spans.
const OTLP_PATH: &str = "/v1/traces";

/// `None` when it cannot be used.
pub(super) fn provider(written: &written::Telemetry, report: &Report) -> Option<Provider> {
    match written {
        written::Telemetry::File(file) => file_log(file, report).map(Provider::File),
        written::Telemetry::HttpAls(als) => {
            als_of(als, "http_envoy_accesslog", report).map(Provider::HttpAls)
        }
        written::Telemetry::TcpAls(als) => {
            als_of(als, "tcp_envoy_accesslog", report).map(Provider::TcpAls)
        }
        written::Telemetry::OpenTelemetry(otel) => {
            open_telemetry(otel, report).map(Provider::OpenTelemetry)
        }
        written::Telemetry::Prometheus => Some(Provider::Prometheus),
        written::Telemetry::ExtAuthz(authz) => ext_authz(authz, report).map(Provider::ExtAuthz),
    }
}

/// Reports the error of a format at its location.
pub(super) fn format<T>(
    text: &SpannedValue<T>,
    parsed: Result<LogFormat, FormatError>,
    report: &Report,
) -> Option<LogFormat> {
    parsed
        .map_err(|error| report.error(codes::BAD_VALUE, &text.at, error.message, error.help))
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

fn file_log(written: &written::FileLog, report: &Report) -> Option<FileLogProvider> {
    let text = written.text.as_ref().filter(|text| !text.value.is_empty());
    let parsed = match (text, &written.labels) {
        (Some(_), Some(labels)) => {
            let message = "`text` and `labels` contradict each other";
            report.error(codes::CONTRADICTION, &labels.at, message, "keep one");
            return None;
        }
        (Some(text), None) => Some(format(text, LogFormat::text(&text.value), report)?),
        (None, Some(labels)) => Some(format(labels, LogFormat::json_of(&labels.value), report)?),
        (None, None) => None,
    };
    let path = match written.path.as_ref().filter(|path| !path.value.is_empty()) {
        Some(path) => log_path(path, report)?,
        None => "/dev/stdout".into(),
    };
    Some(FileLogProvider {
        path,
        format: parsed,
        omit_empty: written.omit_empty.as_ref().is_some_and(|flag| flag.value),
    })
}

/// A service that proxies call on their own account.
pub(in crate::check) fn service(
    written: &written::WrittenProviderService,
    report: &Report,
) -> Option<ProviderService> {
    let name = report.required(written.service.as_ref(), &written.at, "service");
    let port = report.required(written.port.as_ref(), &written.at, "port");
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
        port: report.port(port?)?,
    })
}

fn ext_authz(written: &written::ExtAuthz, report: &Report) -> Option<ExtAuthzProvider> {
    let status = |text: &str| {
        let number: u16 = text.parse().ok()?;
        (200..600).contains(&number).then_some(number)
    };
    let transport = match &written.http {
        None => ExtAuthzTransport::Grpc,
        Some(http) => ExtAuthzTransport::Http(http_authorizer(http, report)?),
    };
    Some(ExtAuthzProvider {
        timeout: written
            .timeout
            .as_ref()
            .and_then(|text| report.duration(text))
            .filter(|limit| !limit.is_zero()),
        fail_open: written.fail_open.as_ref().is_some_and(|flag| flag.value),
        status_on_error: match &written.status_on_error {
            None => None,
            Some(text) => {
                Some(report.parsed(text, "a status", status, "write one such as \"503\"")?)
            }
        },
        body: match &written.body {
            None => None,
            Some(body) => Some(body_in_check(body, report)?),
        },
        transport,
        service: service(&written.service, report)?,
    })
}

/// A body that is not shown is a body that is not judged, so what cannot be meant is refused.
fn body_in_check(written: &written::BodyInCheck, report: &Report) -> Option<BodyInCheck> {
    let wanted = report.required(written.max_bytes.as_ref(), &written.at, "maxRequestBytes")?;
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
    let flag = |flag: &Option<SpannedValue<bool>>| flag.as_ref().is_some_and(|flag| flag.value);
    Some(BodyInCheck {
        max_bytes,
        allow_partial: flag(&written.allow_partial),
        pack_as_bytes: flag(&written.pack_as_bytes),
    })
}

fn http_authorizer(written: &written::HttpAuthorizer, report: &Report) -> Option<HttpAuthorizer> {
    let prefix = |path: &str| {
        let printable = path.bytes().all(|b| matches!(b, 0x21..=0x7e));
        (path.starts_with('/') && printable && !path.contains(['?', '#'])).then(|| path.into())
    };
    let names = |texts: &[Text]| -> Vec<StringMatch> {
        let one = |text: &Text| {
            let bare = Text {
                value: text.value.trim_matches('*').into(),
                at: text.at.clone(),
            };
            // `*` alone is every header.
            if !bare.value.is_empty() {
                header_name(&bare, report)?;
            }
            Some(StringMatch::parse(&text.value.to_ascii_lowercase()))
        };
        texts.iter().filter_map(one).collect()
    };
    let added = written.additional_headers.iter();
    let added = added.filter_map(|(name, value)| {
        let visible = |text: &str| text.bytes().all(|b| matches!(b, 0x20..=0x7e));
        if !visible(&value.value) {
            report.bad(value, " as the value of a header", "printable ASCII");
        }
        Some((header_name(name, report)?, value.value.clone()))
    });
    Some(HttpAuthorizer {
        path_prefix: match written
            .path_prefix
            .as_ref()
            .filter(|text| !text.value.is_empty())
        {
            None => "".into(),
            Some(text) => {
                report.parsed(text, "a path", prefix, "it begins with / and has no query")?
            }
        },
        request_headers: names(&written.request_headers),
        additional_headers: added.collect(),
        upstream_on_allow: names(&written.upstream_on_allow),
        downstream_on_deny: names(&written.downstream_on_deny),
        downstream_on_allow: names(&written.downstream_on_allow),
    })
}

fn als_of(written: &written::WrittenAls, log_name: &str, report: &Report) -> Option<AlsProvider> {
    let names = |texts: &[Text]| -> Vec<Arc<str>> {
        texts
            .iter()
            .filter_map(|text| header_name(text, report))
            .collect()
    };
    let said = written
        .log_name
        .as_ref()
        .filter(|name| !name.value.is_empty());
    Some(AlsProvider {
        request_headers: names(&written.request_headers),
        response_headers: names(&written.response_headers),
        response_trailers: names(&written.response_trailers),
        log_name: said.map_or_else(|| log_name.into(), |name| name.value.clone()),
        service: service(&written.service, report)?,
    })
}

fn open_telemetry(
    written: &written::OpenTelemetry,
    report: &Report,
) -> Option<OpenTelemetryProvider> {
    let transport = match &written.path {
        Some(_) if written.has_grpc => {
            let message = "`http` and `grpc` contradict each other";
            report.error(codes::CONTRADICTION, &written.at, message, "keep one");
            return None;
        }
        None => OtlpTransport::Grpc,
        Some(None) => OtlpTransport::Http {
            path: OTLP_PATH.into(),
        },
        Some(Some(path)) => {
            let fine = |path: &str| {
                let printable = path.bytes().all(|b| matches!(b, 0x21..=0x7e));
                (path.starts_with('/') && printable).then(|| path.into())
            };
            OtlpTransport::Http {
                path: report.parsed(path, "a path", fine, "it begins with / and has no blanks")?,
            }
        }
    };
    let headers = written.headers.iter().map(|one| header(one, report));
    Some(OpenTelemetryProvider {
        transport,
        timeout: written
            .timeout
            .as_ref()
            .and_then(|text| report.duration(text)),
        headers: headers.collect::<Option<_>>()?,
        max_tag_length: written
            .max_tag_length
            .as_ref()
            .and_then(|number| tag_length(number, report)),
        environment_detector: written.environment_detector,
        service: service(&written.service, report)?,
    })
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

fn header(written: &written::Header, report: &Report) -> Option<ProviderHeader> {
    let name = report.required(written.name.as_ref(), &written.at, "name")?;
    let name = header_name(name, report)?;
    let (value, from_environment) = match (&written.value, &written.variable) {
        (Some(value), None) => (value, false),
        (None, Some(variable)) => (variable, true),
        _ => {
            let message = "a header has one of `value` and `envName`";
            report.error(codes::CONTRADICTION, &written.at, message, "");
            return None;
        }
    };
    let visible = |text: &str| {
        text.bytes()
            .all(|b| matches!(b, 0x20..=0x7e))
            .then(|| text.into())
    };
    let value = report.parsed(value, "the value of a header", visible, "printable ASCII")?;
    Some(ProviderHeader {
        name,
        value,
        from_environment,
    })
}
