//! Health probe of a member of a WorkloadGroup, to the wire and back.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::{Probe, ProbeAction, Workload, WorkloadGroup};
use voile_proto::proxy as wire;

use super::{WireError, WireType, address, address_bytes, port};

/// Health probe of the application beside a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthProbe {
    /// Question and interval.
    pub probe: Probe,
    /// Where.
    pub address: IpAddr,
}

impl HealthProbe {
    /// Of a member of a group, which is asked at its own address unless the group says where.
    #[must_use]
    pub fn of(group: &WorkloadGroup, member: &Workload) -> Option<Self> {
        let asked = group.probe.as_ref()?;
        let own = member.addresses.first().copied();
        Some(Self {
            probe: asked.probe.clone(),
            address: asked.host.or(own)?,
        })
    }
}

impl WireType<wire::HealthProbe> for HealthProbe {
    fn to_wire(&self) -> wire::HealthProbe {
        let probe = &self.probe;
        let mut message = wire::HealthProbe {
            address: address_bytes(self.address),
            initial_delay_ms: milliseconds(probe.initial_delay),
            period_ms: milliseconds(probe.period),
            timeout_ms: milliseconds(probe.timeout),
            success_threshold: probe.success_threshold,
            failure_threshold: probe.failure_threshold,
            ..wire::HealthProbe::default()
        };
        match &probe.question {
            ProbeAction::Http {
                port,
                tls,
                path,
                headers,
            } => {
                let header = |(name, value): &(Arc<str>, Arc<str>)| wire::ProbeHeader {
                    name: name.to_string(),
                    value: value.to_string(),
                };
                message.http = Some(wire::HttpProbe {
                    port: port.get().into(),
                    tls: *tls,
                    path: path.to_string(),
                    headers: headers.iter().map(header).collect(),
                });
            }
            ProbeAction::Tcp { port } => {
                let port = port.get().into();
                message.tcp = Some(wire::TcpProbe { port });
            }
            ProbeAction::Grpc { port, service } => {
                message.grpc = Some(wire::GrpcProbe {
                    port: port.get().into(),
                    service: service.to_string(),
                });
            }
            ProbeAction::Exec { command } => {
                let command = command.iter().map(ToString::to_string).collect();
                message.exec = Some(wire::ExecProbe { command });
            }
        }
        message
    }

    fn from_wire(message: wire::HealthProbe) -> Result<Self, WireError> {
        let counted = |field: &str, number: u32| match number {
            0 => Err(WireError::new(field, "0 is not allowed")),
            number => Ok(number),
        };
        let time = |field: &str, number: u32| -> Result<Duration, WireError> {
            let number = counted(field, number)?;
            Ok(Duration::from_millis(number.into()))
        };
        Ok(Self {
            address: address("address", &message.address)?,
            probe: Probe {
                question: question(&message)?,
                initial_delay: Duration::from_millis(message.initial_delay_ms.into()),
                period: time("period_ms", message.period_ms)?,
                timeout: time("timeout_ms", message.timeout_ms)?,
                success_threshold: counted("success_threshold", message.success_threshold)?,
                failure_threshold: counted("failure_threshold", message.failure_threshold)?,
                termination_grace: None,
            },
        })
    }
}

fn question(message: &wire::HealthProbe) -> Result<ProbeAction, WireError> {
    match (&message.http, &message.tcp, &message.grpc, &message.exec) {
        (Some(http), None, None, None) => {
            let header = |one: &wire::ProbeHeader| {
                let (name, value): (Arc<str>, Arc<str>) =
                    (one.name.as_str().into(), one.value.as_str().into());
                (name, value)
            };
            Ok(ProbeAction::Http {
                port: port("http.port", http.port)?,
                tls: http.tls,
                path: http.path.as_str().into(),
                headers: http.headers.iter().map(header).collect(),
            })
        }
        (None, Some(tcp), None, None) => Ok(ProbeAction::Tcp {
            port: port("tcp.port", tcp.port)?,
        }),
        (None, None, Some(grpc), None) => Ok(ProbeAction::Grpc {
            port: port("grpc.port", grpc.port)?,
            service: grpc.service.as_str().into(),
        }),
        (None, None, None, Some(exec)) if !exec.command.is_empty() => Ok(ProbeAction::Exec {
            command: exec
                .command
                .iter()
                .map(|word| word.as_str().into())
                .collect(),
        }),
        _ => Err(WireError::new(
            "",
            "expected one of http, tcp, grpc and exec",
        )),
    }
}

/// More than fits is as much as fits.
fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
