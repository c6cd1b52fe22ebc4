//! The file of curves: what each data plane and feature cost on one machine, by load. JSON with a version; docs/reference/plan.md
//! describes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use voile_report::record::{Environment, Estimate};

/// The version that this program writes and reads.
pub const FORMAT: u32 = 1;

/// What was measured on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Version of this layout, see [`FORMAT`].
    pub format: u32,
    /// The machine, as in records.
    pub machine: Environment,
    /// Worker threads of each proxy.
    pub workers: u32,
    /// The records that the points are from.
    pub records: Vec<CurveSource>,
    /// The points of each data plane, and of each feature as the difference to two sidecars with mutual TLS.
    pub sets: BTreeMap<String, Vec<CurvePoint>>,
}

/// A record of the lab.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurveSource {
    /// Name of its experiment.
    pub experiment: String,
    /// When it began.
    pub started_at: String,
    /// `release` or `debug`.
    pub profile: String,
    /// SHA-256 of the program that was measured.
    pub voile_sha256: String,
}

/// One measured cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// `http1` or `grpc`.
    pub protocol: String,
    /// Requests per second; 0 if the proxies were idle.
    pub rate: f64,
    /// Connections of the client.
    pub connections: u32,
    /// Bytes of the bodies of a request and its response together.
    pub body_bytes: u64,
    /// Services of the mesh beside those that the requests need.
    pub services: u32,
    /// Number of policies or issuers.
    #[serde(default)]
    pub amount: u32,
    /// Cost of each proxy on the way, by role.
    pub sides: BTreeMap<String, SideCost>,
    /// Microseconds that the mesh adds; of `none` the whole latency.
    pub latency_us: LatencyCost,
}

/// Cost of one proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SideCost {
    /// CPU per request, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<Estimate>,
    /// Resident memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Estimate>,
}

/// Latency by percentile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyCost {
    /// The mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<Estimate>,
    /// Median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<Estimate>,
    /// 90th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<Estimate>,
    /// 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<Estimate>,
}

impl Curves {
    /// Reads a file.
    ///
    /// # Errors
    /// If the text is no file of curves, or one of a newer version.
    pub fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let wrong = |why: serde_json::Error| {
            format!("this is no file of curves: {why}; cure: write one with `voile bench curves`")
        };
        let version: Version = serde_json::from_str(text).map_err(wrong)?;
        if version.format != FORMAT {
            return Err(format!(
                "curves of format {}, and this program reads {FORMAT}; cure: write them again with `voile bench curves`",
                version.format
            ));
        }
        serde_json::from_str(text).map_err(wrong)
    }

    /// The file's text.
    ///
    /// # Errors
    /// If a figure is not a number.
    pub fn to_json(&self) -> Result<String, String> {
        let text = serde_json::to_string_pretty(self);
        text.map(|text| text + "\n").map_err(|e| e.to_string())
    }

    /// The points of a set.
    ///
    /// # Errors
    /// If it was not measured, with the cure.
    pub fn set(&self, name: &str) -> Result<&[CurvePoint], String> {
        match self.sets.get(name) {
            Some(points) if !points.is_empty() => Ok(points),
            _ => {
                let known: Vec<&str> = self.sets.keys().map(String::as_str).collect();
                Err(format!(
                    "the curves have no `{name}`, only {}; cure: measure it with `voile bench curves`, or name a record of it after --from",
                    known.join(", ")
                ))
            }
        }
    }
}
