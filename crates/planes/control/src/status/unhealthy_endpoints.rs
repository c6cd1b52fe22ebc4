//! Endpoints that proxies found to be unwell by HealthChecks, as they tell: whose they are, and what was wrong.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use prost::Message;
use serde::Serialize;
use voile_model::mesh::{Mesh, Workload, WorkloadKind};
use voile_proto::proxy::{HealthFinding, HealthFindings};

/// Endpoints kept of one proxy: a page is read by people. Proxies tell no more by themselves.
const KEPT: usize = 100;
/// Longest text kept of any, in characters: what a proxy says is shown, not believed.
const LONGEST: usize = 300;

/// By stream: hardly any proxy has some.
#[derive(Debug, Default)]
pub(super) struct UnhealthyEndpoints(BTreeMap<u64, HealthFindings>);

/// One endpoint.
#[derive(Debug, Serialize)]
pub(super) struct EndpointStatus<'a> {
    endpoint: &'a str,
    /// As access logs name what was called.
    cluster: &'a str,
    /// The HealthCheck.
    check: &'a str,
    why: &'a str,
    /// Workload with this address, as far as the mesh knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<String>,
    /// Document that declares the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<String>,
}

/// Findings of one proxy.
#[derive(Debug, Default, Serialize)]
pub(super) struct ProxyHealthReport<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unhealthy: Vec<EndpointStatus<'a>>,
    /// Those that are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    unhealthy_more: Option<u32>,
}

impl UnhealthyEndpoints {
    /// A proxy tells all that it knows of; what cannot be read is nothing.
    pub(super) fn told(&mut self, stream: u64, details: &[u8]) {
        let mut findings = match HealthFindings::decode(details) {
            Ok(findings) => findings,
            Err(error) => {
                tracing::warn!(stream, %error, "cannot read a proxy's health check report");
                HealthFindings::default()
            }
        };
        let more = findings.findings.len().saturating_sub(KEPT);
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        findings.more = findings.more.saturating_add(more);
        findings.findings.truncate(KEPT);
        for one in &mut findings.findings {
            let texts = [
                &mut one.check,
                &mut one.cluster,
                &mut one.endpoint,
                &mut one.why,
            ];
            for text in texts {
                *text = text.chars().take(LONGEST).collect();
            }
        }
        match findings.findings.is_empty() {
            true => drop(self.0.remove(&stream)),
            false => drop(self.0.insert(stream, findings)),
        }
    }

    pub(super) fn closed(&mut self, stream: u64) {
        self.0.remove(&stream);
    }

    pub(super) fn of(&self, stream: u64, mesh: &Mesh) -> ProxyHealthReport<'_> {
        let Some(told) = self.0.get(&stream) else {
            return ProxyHealthReport::default();
        };
        ProxyHealthReport {
            unhealthy: told.findings.iter().map(|one| shown(one, mesh)).collect(),
            unhealthy_more: (told.more > 0).then_some(told.more),
        }
    }
}

fn shown<'a>(one: &'a HealthFinding, mesh: &Mesh) -> EndpointStatus<'a> {
    let address = one.endpoint.parse::<SocketAddr>().ok();
    let mut all = mesh.workloads.values();
    let whose = address.and_then(|address| {
        let ip = address.ip().to_canonical();
        all.find(|workload| workload.addresses.contains(&ip))
    });
    let named = |workload: &Workload| match &workload.kind {
        WorkloadKind::Pod => format!("Pod {}", workload.key),
        WorkloadKind::WorkloadEntry => format!("WorkloadEntry {}", workload.key),
        WorkloadKind::ServiceEntryEndpoint(entry) => format!("ServiceEntry {entry}"),
        WorkloadKind::SliceEndpoint(service) => {
            format!("EndpointSlices of {}/{service}", workload.key.namespace)
        }
    };
    EndpointStatus {
        endpoint: &one.endpoint,
        cluster: &one.cluster,
        check: &one.check,
        why: &one.why,
        workload: whose.map(|workload| named(workload)),
        document: whose.map(|workload| workload.source.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_people_read_whatever_a_proxy_tells() {
        let one = |number: usize| HealthFinding {
            check: "shop/ask".to_owned(),
            cluster: "outbound|80||web".to_owned(),
            endpoint: format!("10.0.0.1:{number}"),
            why: "é".repeat(LONGEST + number),
        };
        let told = |count: usize, more: u32| HealthFindings {
            findings: (1..=count).map(one).collect(),
            more,
        };
        let (mut unwell, mesh) = (UnhealthyEndpoints::default(), Mesh::default());
        unwell.told(1, &told(KEPT + 5, 7).encode_to_vec());
        unwell.told(2, &told(1, 0).encode_to_vec());
        let all = unwell.of(1, &mesh);
        assert_eq!((all.unhealthy.len(), all.unhealthy_more), (KEPT, Some(12)));
        assert_eq!(all.unhealthy[0].why.chars().count(), LONGEST);
        let other = unwell.of(2, &mesh);
        assert_eq!((other.unhealthy.len(), other.unhealthy_more), (1, None));
        // Nothing is wrong any more; what cannot be read is nothing; and who is gone tells nothing.
        unwell.told(1, &HealthFindings::default().encode_to_vec());
        unwell.told(2, b"\xff\xff");
        assert!(unwell.0.is_empty());
        unwell.told(3, &told(1, 0).encode_to_vec());
        unwell.closed(3);
        assert!(unwell.of(3, &mesh).unhealthy.is_empty());
    }
}
