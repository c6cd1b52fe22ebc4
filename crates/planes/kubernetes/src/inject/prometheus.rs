//! The annotations by which Prometheus finds metrics lead to the proxy, which serves those of the application behind its own, as in Istio.

use serde_json::{Map, Value, json};

use super::containers::METRICS_PORT;

/// Variable of the proxy with the application's own annotations.
pub(super) const VARIABLE: &str = "ISTIO_PROMETHEUS_ANNOTATIONS";
/// Begins the annotations; Prometheus reads every character but letters and digits as `_`.
const PREFIX: &str = "prometheus_io_";
/// The annotations that the proxy takes the place of.
const FIELDS: [&str; 3] = ["scrape", "path", "port"];
/// Ports of the proxy, where no application serves metrics.
const OWN_PORTS: std::ops::RangeInclusive<u16> = 15000..=15090;

/// Leads Prometheus to the proxy. Returns the value of [`VARIABLE`] if the application has metrics of its own.
pub(super) fn redirect(
    annotations: &mut Map<String, Value>,
    warnings: &mut Vec<String>,
) -> Option<String> {
    let field = |key: &str| {
        let key = key.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let name = key.strip_prefix(PREFIX)?;
        FIELDS.into_iter().find(|known| *known == name)
    };
    let own: Map<String, Value> = annotations
        .iter()
        .filter_map(|(key, value)| Some((field(key)?.to_owned(), value.clone())))
        .collect();
    if own.get("scrape").and_then(Value::as_str) == Some("false") {
        return None;
    }
    let port = own.get("port").and_then(Value::as_str).unwrap_or("80");
    let number = port.parse::<u16>().ok().filter(|number| *number > 0);
    match number {
        // It leads to the proxy already.
        Some(METRICS_PORT) => return None,
        Some(number) if !OWN_PORTS.contains(&number) => {}
        _ => {
            let message = format!(
                "annotation `prometheus.io/port`: `{port}` is no port of an application; its metrics are not merged, scrape the proxy at \
                 port {METRICS_PORT}, path /stats/prometheus, by a job of its own"
            );
            warnings.push(message);
            return None;
        }
    }
    annotations.retain(|key, _| field(key).is_none());
    let proxy = METRICS_PORT.to_string();
    for (key, value) in [
        ("prometheus.io/scrape", "true"),
        ("prometheus.io/port", &proxy),
        ("prometheus.io/path", "/stats/prometheus"),
    ] {
        annotations.insert(key.to_owned(), value.into());
    }
    (!own.is_empty()).then(|| json!(own).to_string())
}
