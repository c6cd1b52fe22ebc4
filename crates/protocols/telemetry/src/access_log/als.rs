//! Entries as Envoy's gRPC access log service takes them. Made on the worker, sent by the control thread.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message;
use voile_model::log_format::HeaderSource;
use voile_proto::access_log as wire;

use super::LogNeeds;
use super::entry::{AccessLogEntry, HttpLogFields};
use crate::outbox::Outbox;

/// Longest text of an entry, in bytes: a path of 60 KB is not worth the cost of sending.
pub const MAX_TEXT_BYTES: usize = 8 * 1024;

/// One entry on its way.
#[derive(Debug, Clone, PartialEq)]
pub enum AlsRecord {
    /// A request.
    Http(Box<wire::HttpAccessLogEntry>),
    /// An opaque connection.
    Tcp(Box<wire::TcpAccessLogEntry>),
}

/// Headers sent along, in lower case.
#[derive(Debug, Default, Clone)]
pub struct AlsHeaders {
    /// Of the request.
    pub request: Vec<Arc<str>>,
    /// Of the response.
    pub response: Vec<Arc<str>>,
    /// Trailers of the response.
    pub trailers: Vec<Arc<str>>,
}

/// The sending end. Cheap to clone, one per worker.
#[derive(Debug, Clone)]
pub struct AlsLog {
    records: Outbox<AlsRecord>,
    /// Takes requests, or else opaque connections.
    requests: bool,
    headers: Arc<AlsHeaders>,
}

impl AlsLog {
    /// Sends requests, or else opaque connections, to the reader of `records`.
    #[must_use]
    pub fn new(records: Outbox<AlsRecord>, requests: bool, headers: AlsHeaders) -> Self {
        Self {
            records,
            requests,
            headers: Arc::new(headers),
        }
    }

    pub(super) fn wants(&self) -> LogNeeds {
        LogNeeds {
            response: self.requests,
            upstream_local: true,
            request_id: self.requests,
            response_fields: self.headers.response.clone(),
            trailer_fields: self.headers.trailers.clone(),
        }
    }

    pub(super) fn write(&self, entry: &AccessLogEntry<'_>) {
        match &entry.http {
            Some(http) if self.requests => {
                let made = self.request(entry, http);
                let bytes = made.encoded_len();
                self.records.send(AlsRecord::Http(Box::new(made)), bytes);
            }
            None if !self.requests => {
                let made = wire::TcpAccessLogEntry {
                    common_properties: Some(common(entry)),
                    connection_properties: Some(wire::ConnectionProperties {
                        received_bytes: entry.received,
                        sent_bytes: entry.sent,
                    }),
                };
                let bytes = made.encoded_len();
                self.records.send(AlsRecord::Tcp(Box::new(made)), bytes);
            }
            Some(_) | None => {}
        }
    }

    fn request(
        &self,
        entry: &AccessLogEntry<'_>,
        http: &HttpLogFields<'_>,
    ) -> wire::HttpAccessLogEntry {
        let field = |name| {
            let value = http.fields.field(HeaderSource::Request, name);
            value.map(lossy).unwrap_or_default()
        };
        let several = |direction, names: &[Arc<str>]| -> BTreeMap<String, String> {
            let named = |name: &Arc<str>| {
                let value = entry.header(direction, name)?;
                Some((name.to_string(), lossy(value)))
            };
            names.iter().filter_map(named).collect()
        };
        wire::HttpAccessLogEntry {
            common_properties: Some(common(entry)),
            protocol_version: match http.version {
                "HTTP/1.0" => wire::HttpVersion::Http10,
                "HTTP/1.1" => wire::HttpVersion::Http11,
                "HTTP/2" => wire::HttpVersion::Http2,
                "HTTP/3" => wire::HttpVersion::Http3,
                _ => wire::HttpVersion::ProtocolUnspecified,
            }
            .into(),
            request: Some(wire::HttpRequestProperties {
                request_method: wire::RequestMethod::from_str_name(http.method)
                    .unwrap_or(wire::RequestMethod::MethodUnspecified)
                    .into(),
                scheme: entry.scheme().to_owned(),
                authority: clipped(http.authority),
                port: None,
                path: clipped(http.path),
                user_agent: field("user-agent"),
                referer: field("referer"),
                forwarded_for: field("x-forwarded-for"),
                request_id: field("x-request-id"),
                original_path: field("x-envoy-original-path"),
                request_headers_bytes: http.request_head,
                request_body_bytes: entry.received,
                request_headers: several(HeaderSource::Request, &self.headers.request),
            }),
            response: Some(wire::HttpResponseProperties {
                response_code: (http.code != 0).then(|| http.code.into()),
                response_headers_bytes: http.response_head,
                response_body_bytes: entry.sent,
                response_headers: several(HeaderSource::Response, &self.headers.response),
                response_trailers: several(HeaderSource::Trailer, &self.headers.trailers),
                response_code_details: entry.details.to_owned(),
            }),
        }
    }
}

fn clipped(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT_BYTES)]).into_owned()
}

fn address(address: SocketAddr) -> wire::Address {
    wire::Address {
        socket_address: Some(wire::SocketAddress {
            address: address.ip().to_string(),
            port_value: address.port().into(),
        }),
    }
}

/// Seconds and nanoseconds, as the wire has them.
fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    prost_types::Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
    }
}

fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}

fn common(entry: &AccessLogEntry<'_>) -> wire::AccessLogCommon {
    let http = entry.http.as_ref();
    let san = |uri: &str| wire::CertificateProperties {
        subject_alt_name: vec![wire::certificate_properties::SubjectAltName {
            san: Some(wire::certificate_properties::subject_alt_name::San::Uri(
                uri.to_owned(),
            )),
        }],
    };
    use wire::tls_properties::TlsVersion;
    wire::AccessLogCommon {
        sample_rate: 1.0,
        downstream_remote_address: Some(address(entry.remote)),
        downstream_local_address: Some(address(entry.local)),
        tls_properties: entry.tls.map(|tls| wire::TlsProperties {
            tls_version: match tls.version {
                "TLSv1.3" => TlsVersion::Tlsv13,
                "TLSv1.2" => TlsVersion::Tlsv12,
                _ => TlsVersion::VersionUnspecified,
            }
            .into(),
            tls_sni_hostname: entry.server_name.to_owned(),
            local_certificate_properties: (!tls.own.is_empty()).then(|| san(tls.own)),
            peer_certificate_properties: (!tls.peer.is_empty()).then(|| san(tls.peer)),
        }),
        start_time: Some(timestamp(entry.start)),
        time_to_last_rx_byte: http.and_then(|http| http.request_duration).map(duration),
        time_to_first_upstream_rx_byte: http.and_then(|http| http.response_duration).map(duration),
        time_to_last_downstream_tx_byte: Some(duration(entry.duration)),
        upstream_remote_address: entry.upstream.map(address),
        upstream_local_address: entry.upstream_local.map(address),
        upstream_cluster: entry.cluster.to_owned(),
        response_flags: flags(entry.flags),
        upstream_transport_failure_reason: entry.upstream_failure.to_owned(),
        route_name: entry.route.to_owned(),
        downstream_direct_remote_address: Some(address(entry.remote)),
        custom_tags: BTreeMap::new(),
        duration: Some(duration(entry.duration)),
        upstream_request_attempt_count: http.map_or(0, |http| http.attempts),
        connection_termination_details: entry.termination.to_owned(),
    }
}

/// Absent when nothing went wrong.
fn flags(short: &str) -> Option<wire::ResponseFlags> {
    let mut flags = wire::ResponseFlags::default();
    match short {
        "UH" => flags.no_healthy_upstream = true,
        "UT" => flags.upstream_request_timeout = true,
        "UF" => flags.upstream_connection_failure = true,
        "UC" | "UR" => flags.upstream_connection_termination = true,
        "UO" => flags.upstream_overflow = true,
        "NR" => flags.no_route_found = true,
        "RL" => flags.rate_limited = true,
        "RLSE" => flags.rate_limit_service_error = true,
        "UAEX" => {
            let reason = wire::unauthorized::Reason::ExternalService.into();
            flags.unauthorized_details = Some(wire::Unauthorized { reason });
        }
        "DC" | "DR" => flags.downstream_connection_termination = true,
        "URX" => flags.upstream_retry_limit_exceeded = true,
        "SI" => flags.stream_idle_timeout = true,
        "DPE" => flags.downstream_protocol_error = true,
        "UPE" => flags.upstream_protocol_error = true,
        "OM" => flags.overload_manager = true,
        _ => return None,
    }
    Some(flags)
}
