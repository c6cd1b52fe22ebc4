//! HealthChecks ⇄ `voile.proxy.v1.HealthCheck`. A message with a part that this end does not know is refused whole: a proxy with
//! a different check would take healthy endpoints out.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::health_check::{CheckQuestion, CheckTerms, HealthCheck as Said};
use voile_model::{Hostname, Namespace, Port, ServiceKey};
use voile_proto::proxy as wire;

use super::{WireError, WireType, port};

/// A HealthCheck as a proxy obeys it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// The host whose endpoints are asked.
    pub host: Hostname,
    /// Of its ports this one; `None` is each.
    pub port: Option<Port>,
    /// For services of this namespace; `None` is any.
    pub namespace: Option<Namespace>,
    /// Question and interval.
    pub terms: CheckTerms,
}

impl HealthCheck {
    /// One by which a proxy asks the services of a namespace, or of any.
    #[must_use]
    pub fn of(said: &Said, namespace: Option<&Namespace>) -> Self {
        Self {
            name: said.name.to_string().into(),
            host: said.host.clone(),
            port: said.port,
            namespace: namespace.cloned(),
            terms: said.terms.clone(),
        }
    }

    /// Returns true if it is for this port of a service.
    #[must_use]
    pub fn is_for(&self, service: &ServiceKey, port: Port) -> bool {
        let near = self.namespace.as_ref();
        self.host == service.hostname
            && self.port.is_none_or(|only| only == port)
            && near.is_none_or(|only| *only == service.namespace)
    }
}

impl WireType<wire::HealthCheck> for HealthCheck {
    fn to_wire(&self) -> wire::HealthCheck {
        let terms = &self.terms;
        let namespace = self.namespace.as_ref();
        let mut message = wire::HealthCheck {
            name: self.name.to_string(),
            host: self.host.to_string(),
            port: self.port.map_or(0, |port| port.get().into()),
            namespace: namespace.map(ToString::to_string).unwrap_or_default(),
            interval_ms: milliseconds(terms.interval),
            timeout_ms: milliseconds(terms.timeout),
            jitter_percent: terms.jitter_percent,
            healthy_threshold: terms.healthy_threshold,
            unhealthy_threshold: terms.unhealthy_threshold,
            panic_percent: terms.panic_percent,
            ..wire::HealthCheck::default()
        };
        match &terms.question {
            CheckQuestion::Tcp => message.tcp = Some(wire::TcpCheck {}),
            CheckQuestion::Grpc { service } => {
                let service = service.to_string();
                message.grpc = Some(wire::GrpcCheck { service });
            }
            CheckQuestion::Http {
                path,
                host,
                expected,
            } => {
                let range = |range: &Range<u16>| wire::StatusRange {
                    start: range.start.into(),
                    end: range.end.into(),
                };
                message.http = Some(wire::HttpCheck {
                    path: path.to_string(),
                    host: host.as_deref().unwrap_or_default().to_owned(),
                    expected: expected.iter().map(range).collect(),
                });
            }
        }
        message
    }

    fn from_wire(message: wire::HealthCheck) -> Result<Self, WireError> {
        let counted = |field: &str, number: u32| match number {
            0 => Err(WireError::new(field, "it is 0")),
            number => Ok(number),
        };
        let percent = |field: &str, number: u32| match number {
            0..=100 => Ok(number),
            _ => Err(WireError::new(field, "it is more than 100")),
        };
        let host = Hostname::new(&message.host);
        let terms = CheckTerms {
            question: question(&message)?,
            interval: Duration::from_millis(counted("interval_ms", message.interval_ms)?.into()),
            timeout: Duration::from_millis(counted("timeout_ms", message.timeout_ms)?.into()),
            jitter_percent: percent("jitter_percent", message.jitter_percent)?,
            healthy_threshold: counted("healthy_threshold", message.healthy_threshold)?,
            unhealthy_threshold: counted("unhealthy_threshold", message.unhealthy_threshold)?,
            panic_percent: percent("panic_percent", message.panic_percent)?,
        };
        if terms.timeout > terms.interval {
            return Err(WireError::new(
                "timeout_ms",
                "it is longer than the interval",
            ));
        }
        Ok(Self {
            name: message.name.as_str().into(),
            host: host.ok_or_else(|| WireError::new("host", "it is not a host name"))?,
            port: match message.port {
                0 => None,
                number => Some(port("port", number)?),
            },
            namespace: match message.namespace.as_str() {
                "" => None,
                name => Some(
                    Namespace::new(name)
                        .ok_or_else(|| WireError::new("namespace", "it is not a namespace"))?,
                ),
            },
            terms,
        })
    }
}

fn question(message: &wire::HealthCheck) -> Result<CheckQuestion, WireError> {
    match (&message.http, &message.grpc, &message.tcp) {
        (Some(http), None, None) => {
            self::http(http).map_err(|error: WireError| error.within("http"))
        }
        (None, Some(grpc), None) => Ok(CheckQuestion::Grpc {
            service: grpc.service.as_str().into(),
        }),
        (None, None, Some(_)) => Ok(CheckQuestion::Tcp),
        _ => Err(WireError::new("", "expected one of http, grpc and tcp")),
    }
}

fn http(message: &wire::HttpCheck) -> Result<CheckQuestion, WireError> {
    let path = &message.path;
    // It goes into a request line as it is.
    if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(WireError::new("path", "it is not valid in a request line"));
    }
    let host = match message.host.as_str() {
        "" => None,
        host => Some(
            Hostname::new(host).ok_or_else(|| WireError::new("host", "it is not a host name"))?,
        ),
    };
    let range = |range: &wire::StatusRange| {
        let (start, end) = (u16::try_from(range.start), u16::try_from(range.end));
        match (start, end) {
            (Ok(start), Ok(end)) if start < end => Ok(start..end),
            _ => Err(WireError::new("expected", "an empty or invalid range")),
        }
    };
    let expected: Vec<Range<u16>> = message
        .expected
        .iter()
        .map(range)
        .collect::<Result<_, _>>()?;
    if expected.is_empty() {
        return Err(WireError::new("expected", "missing"));
    }
    Ok(CheckQuestion::Http {
        path: path.as_str().into(),
        host: host.map(|host| host.as_str().into()),
        expected,
    })
}

/// At least one: what is shorter is a millisecond. More than fits is as much as fits.
fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis().max(1)).unwrap_or(u32::MAX)
}
