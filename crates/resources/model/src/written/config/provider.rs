//! The providers of telemetry and of authorization, as written.

use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};
use crate::written::{Text, TextMap};
use crate::yaml::YamlNode;

/// One of them.
#[derive(Debug)]
pub(crate) enum Telemetry {
    File(FileLog),
    HttpAls(WrittenAls),
    TcpAls(WrittenAls),
    OpenTelemetry(OpenTelemetry),
    Prometheus,
    ExtAuthz(Box<ExtAuthz>),
}

/// `envoyExtAuthzHttp` and `envoyExtAuthzGrpc`.
#[derive(Debug)]
pub(crate) struct ExtAuthz {
    pub(crate) service: WrittenProviderService,
    pub(crate) timeout: Option<Text>,
    pub(crate) fail_open: Option<SpannedValue<bool>>,
    pub(crate) status_on_error: Option<Text>,
    pub(crate) body: Option<BodyInCheck>,
    /// There when it is asked over HTTP.
    pub(crate) http: Option<HttpAuthorizer>,
}

/// `includeRequestBodyInCheck`.
#[derive(Debug)]
pub(crate) struct BodyInCheck {
    pub(crate) at: FieldPath,
    pub(crate) max_bytes: Option<SpannedValue<i64>>,
    pub(crate) allow_partial: Option<SpannedValue<bool>>,
    pub(crate) pack_as_bytes: Option<SpannedValue<bool>>,
}

/// Fields of `envoyExtAuthzHttp` alone.
#[derive(Debug)]
pub(crate) struct HttpAuthorizer {
    pub(crate) path_prefix: Option<Text>,
    pub(crate) request_headers: Vec<Text>,
    pub(crate) additional_headers: TextMap,
    pub(crate) upstream_on_allow: Vec<Text>,
    pub(crate) downstream_on_deny: Vec<Text>,
    pub(crate) downstream_on_allow: Vec<Text>,
}

/// `envoyFileAccessLog`.
#[derive(Debug)]
pub(crate) struct FileLog {
    pub(crate) path: Option<Text>,
    pub(crate) text: Option<Text>,
    pub(crate) labels: Option<SpannedValue<YamlNode>>,
    pub(crate) omit_empty: Option<SpannedValue<bool>>,
}

/// `service` and `port`.
#[derive(Debug)]
pub(crate) struct WrittenProviderService {
    pub(crate) at: FieldPath,
    pub(crate) service: Option<Text>,
    pub(crate) port: Option<SpannedValue<i64>>,
}

/// `envoyHttpAls` and `envoyTcpAls`.
#[derive(Debug)]
pub(crate) struct WrittenAls {
    pub(crate) service: WrittenProviderService,
    pub(crate) log_name: Option<Text>,
    pub(crate) request_headers: Vec<Text>,
    pub(crate) response_headers: Vec<Text>,
    pub(crate) response_trailers: Vec<Text>,
}

/// A header for a collector.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) value: Option<Text>,
    pub(crate) variable: Option<Text>,
}

/// `opentelemetry`.
#[derive(Debug)]
pub(crate) struct OpenTelemetry {
    pub(crate) at: FieldPath,
    pub(crate) service: WrittenProviderService,
    pub(crate) max_tag_length: Option<SpannedValue<i64>>,
    /// There when `http` is.
    pub(crate) path: Option<Option<Text>>,
    pub(crate) has_grpc: bool,
    pub(crate) timeout: Option<Text>,
    pub(crate) headers: Vec<Header>,
    pub(crate) environment_detector: bool,
}

impl Telemetry {
    /// Reads the first that is there.
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        if let Some(inner) = fields.inner("envoyFileAccessLog") {
            return Some(Self::File(FileLog::read(inner)));
        }
        if let Some(inner) = fields.inner("envoyHttpAls") {
            return Some(Self::HttpAls(WrittenAls::read(inner)));
        }
        if let Some(inner) = fields.inner("envoyTcpAls") {
            return Some(Self::TcpAls(WrittenAls::read(inner)));
        }
        if let Some(inner) = fields.inner("opentelemetry") {
            return Some(Self::OpenTelemetry(OpenTelemetry::read(inner)));
        }
        if let Some(inner) = fields.inner("envoyExtAuthzHttp") {
            return Some(Self::ExtAuthz(ExtAuthz::read(inner, true).into()));
        }
        if let Some(inner) = fields.inner("envoyExtAuthzGrpc") {
            return Some(Self::ExtAuthz(ExtAuthz::read(inner, false).into()));
        }
        let prometheus = fields.inner("prometheus")?;
        prometheus.finish();
        Some(Self::Prometheus)
    }
}

impl ExtAuthz {
    fn read(mut fields: Fields<'_>, http: bool) -> Self {
        let read = Self {
            service: WrittenProviderService::read(&mut fields),
            timeout: fields.text("timeout"),
            fail_open: fields.boolean("failOpen"),
            status_on_error: fields.text("statusOnError"),
            body: fields
                .inner("includeRequestBodyInCheck")
                .map(BodyInCheck::read),
            http: http.then(|| HttpAuthorizer::read(&mut fields)),
        };
        // There are no routes to choose again.
        fields.ignore(&["clearRouteCache"]);
        fields.finish();
        read
    }
}

impl BodyInCheck {
    fn read(mut fields: Fields<'_>) -> Self {
        let read = Self {
            at: fields.at().clone(),
            max_bytes: fields.integer("maxRequestBytes"),
            allow_partial: fields.boolean("allowPartialMessage"),
            pack_as_bytes: fields.boolean("packAsBytes"),
        };
        fields.finish();
        read
    }
}

impl HttpAuthorizer {
    fn read(fields: &mut Fields<'_>) -> Self {
        let mut request_headers = fields.texts("includeRequestHeadersInCheck");
        // Its older name.
        request_headers.extend(fields.texts("includeHeadersInCheck"));
        Self {
            path_prefix: fields.text("pathPrefix"),
            request_headers,
            additional_headers: fields.text_map("includeAdditionalHeadersInCheck"),
            upstream_on_allow: fields.texts("headersToUpstreamOnAllow"),
            downstream_on_deny: fields.texts("headersToDownstreamOnDeny"),
            downstream_on_allow: fields.texts("headersToDownstreamOnAllow"),
        }
    }
}

impl FileLog {
    fn read(mut fields: Fields<'_>) -> Self {
        let (mut text, mut labels) = (None, None);
        let path = fields.text("path");
        if let Some(mut format) = fields.inner("logFormat") {
            text = format.text("text");
            labels = format.get("labels").map(|cursor| SpannedValue {
                value: cursor.node.clone(),
                at: cursor.at,
            });
            format.finish();
        }
        let omit_empty = fields.boolean("omitEmptyValues");
        fields.finish();
        Self {
            path,
            text,
            labels,
            omit_empty,
        }
    }
}

impl WrittenProviderService {
    /// Reads host and port of a service that a provider names.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Self {
        Self {
            at: fields.at().clone(),
            service: fields.text("service"),
            port: fields.integer("port"),
        }
    }
}

impl WrittenAls {
    fn read(mut fields: Fields<'_>) -> Self {
        let read = Self {
            service: WrittenProviderService::read(&mut fields),
            log_name: fields.text("logName"),
            request_headers: fields.texts("additionalRequestHeadersToLog"),
            response_headers: fields.texts("additionalResponseHeadersToLog"),
            response_trailers: fields.texts("additionalResponseTrailersToLog"),
        };
        fields.without_effect(&[("filterStateObjectsToLog", "the log has no filter state")]);
        fields.finish();
        read
    }
}

impl Header {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let read = Self {
            at: cursor.at.clone(),
            name: fields.text("name"),
            value: fields.text("value"),
            variable: fields.text("envName"),
        };
        fields.finish();
        Some(read)
    }
}

impl OpenTelemetry {
    fn read(mut fields: Fields<'_>) -> Self {
        let at = fields.at().clone();
        let service = WrittenProviderService::read(&mut fields);
        let max_tag_length = fields.integer("maxTagLength");
        let (mut path, mut timeout, mut headers, mut has_grpc) = (None, None, Vec::new(), false);
        if let Some(mut http) = fields.inner("http") {
            path = Some(http.text("path"));
            timeout = http.text("timeout");
            headers = http.list("headers", Header::read);
            http.finish();
        }
        if let Some(mut grpc) = fields.inner("grpc") {
            has_grpc = true;
            timeout = timeout.or_else(|| grpc.text("timeout"));
            headers.extend(grpc.list("initialMetadata", Header::read));
            grpc.ignore(&["timeout"]);
            grpc.finish();
        }
        let mut environment_detector = false;
        if let Some(mut detectors) = fields.inner("resourceDetectors") {
            environment_detector = detectors.get("environment").is_some();
            detectors
                .without_effect(&[("dynatrace", "spans contain no Dynatrace host attributes")]);
            detectors.finish();
        }
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
        fields.finish();
        Self {
            at,
            service,
            max_tag_length,
            path,
            has_grpc,
            timeout,
            headers,
            environment_detector,
        }
    }
}
