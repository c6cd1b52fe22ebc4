//! `results.csv`: one line per cell, under the column names that users of istio/tools know (latencies in whole
//! microseconds, CPU in thousandths of a core, memory in MiB), then ours.

use crate::record::{Record, Summary};

const COLUMNS: [&str; 46] = [
    "StartTime",
    "ActualDuration",
    "Labels",
    "NumThreads",
    "ActualQPS",
    "p50",
    "p90",
    "p99",
    "p999",
    "cpu_mili_avg_istio_proxy_fortioclient",
    "cpu_mili_avg_istio_proxy_fortioserver",
    "cpu_mili_avg_istio_proxy_istio-ingressgateway",
    "mem_Mi_avg_istio_proxy_fortioclient",
    "mem_Mi_avg_istio_proxy_fortioserver",
    "mem_Mi_avg_istio_proxy_istio-ingressgateway",
    "contestant",
    "mode",
    "tls",
    "arrival",
    "rounds",
    "invalid",
    "added_p50_us",
    "added_p99_us",
    "cpu_us_per_request_per_sidecar",
    "machine_cpu_us_per_request",
    "rss_bytes_per_sidecar",
    "kind",
    "protocol",
    "shape",
    "cpu_us_user_sampled_per_sidecar",
    "cpu_us_system_sampled_per_sidecar",
    "machine_us_softirq_sampled",
    "ctx_switches_per_request_per_sidecar",
    "pss_bytes_per_sidecar",
    "anonymous_bytes_per_sidecar",
    "bytes_per_idle_connection",
    "cpu_us_per_request_load",
    "cpu_us_per_request_server",
    "cpu_us_per_request_control",
    "gigabits_per_second",
    "cpu_mili_client_node",
    "cpu_mili_server_node",
    "cpu_mili_waypoint",
    "mem_Mi_client_node",
    "mem_Mi_server_node",
    "mem_Mi_waypoint",
];

/// Draws the table.
#[must_use]
pub fn render(record: &Record) -> String {
    let mut text = COLUMNS.join(",") + "\n";
    for summary in &record.summary {
        let fields: Vec<String> = line(record, summary)
            .iter()
            .map(|field| quote(field))
            .collect();
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

fn line(record: &Record, summary: &Summary) -> [String; 46] {
    let figure = |name: &str| summary.figures.get(name).map(|estimate| estimate.median);
    let whole = |name: &str| figure(name).map_or_else(String::new, |value| format!("{value:.0}"));
    let scaled = |name: &str, by: f64, digits: usize| {
        figure(name).map_or_else(String::new, |value| format!("{:.digits$}", value * by))
    };
    const MEBI: f64 = 1.0 / (1024.0 * 1024.0);
    [
        record.experiment.started_at.clone(),
        format!(
            "{}",
            record.experiment.slice_seconds * f64::from(summary.runs_valid)
        ),
        labels(record, summary),
        summary.connections.to_string(),
        scaled("achieved_rps", 1.0, 2),
        whole("latency_us.p50"),
        whole("latency_us.p90"),
        whole("latency_us.p99"),
        whole("latency_us.p999"),
        scaled("client-sidecar.vcpu", 1000.0, 2),
        scaled("server-sidecar.vcpu", 1000.0, 2),
        scaled("gateway.vcpu", 1000.0, 2),
        scaled("client-sidecar.rss_bytes", MEBI, 2),
        scaled("server-sidecar.rss_bytes", MEBI, 2),
        scaled("gateway.rss_bytes", MEBI, 2),
        summary.contestant.clone(),
        summary.mode.clone(),
        summary.tls.to_string(),
        summary.arrival.clone(),
        summary.runs_valid.to_string(),
        summary.runs_invalid.to_string(),
        whole("added_us.p50"),
        whole("added_us.p99"),
        scaled("sidecar.cpu_us_per_request", 1.0, 2),
        scaled("machine_cpu_us_per_request", 1.0, 2),
        whole("sidecar.rss_bytes"),
        format!("{:?}", summary.kind).to_lowercase(),
        summary.protocol.clone(),
        summary.shape.to_string(),
        scaled("sidecar.user_us_per_request_sampled", 1.0, 2),
        scaled("sidecar.system_us_per_request_sampled", 1.0, 2),
        scaled("machine_softirq_us_per_request_sampled", 1.0, 2),
        scaled("sidecar.ctx_switches_per_request", 1.0, 3),
        whole("sidecar.pss_bytes"),
        whole("sidecar.anonymous_bytes"),
        whole("sidecar.bytes_per_connection"),
        scaled("load.cpu_us_per_request", 1.0, 2),
        scaled("server.cpu_us_per_request", 1.0, 2),
        scaled("control.cpu_us_per_request", 1.0, 2),
        scaled("gigabits_per_second", 1.0, 3),
        scaled("client-node.vcpu", 1000.0, 2),
        scaled("server-node.vcpu", 1000.0, 2),
        scaled("waypoint.vcpu", 1000.0, 2),
        scaled("client-node.rss_bytes", MEBI, 2),
        scaled("server-node.rss_bytes", MEBI, 2),
        scaled("waypoint.rss_bytes", MEBI, 2),
    ]
}

/// As istio/tools builds them: `runid_qps_N_c_N_size_telemetry_mode`.
fn labels(record: &Record, summary: &Summary) -> String {
    format!(
        "{}_qps_{}_c_{}_{}_{}{}_{}_{}",
        record.experiment.name,
        summary.rate,
        summary.connections,
        summary
            .shape
            .response_bytes
            .unwrap_or(record.experiment.size_bytes),
        summary.contestant,
        if summary.tls { "_mtls" } else { "" },
        summary.arrival,
        summary.mode
    )
}

/// RFC 4180.
pub(crate) fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Process, SliceRun};
    use crate::summarise::summarise;

    #[test]
    fn each_proxys_cores_and_memory_stand_in_columns_of_its_own() {
        let roles = [
            ("client-sidecar", "istio_proxy_fortioclient"),
            ("server-sidecar", "istio_proxy_fortioserver"),
            ("gateway", "istio_proxy_istio-ingressgateway"),
            ("client-node", "client_node"),
            ("server-node", "server_node"),
            ("waypoint", "waypoint"),
        ];
        for (role, column) in roles {
            let process = Process {
                role: role.to_owned(),
                vcpu: 0.25,
                rss_bytes: 3 << 20,
                ..Process::default()
            };
            let mut record = Record::default();
            record.runs.push(SliceRun {
                contestant: "voile".to_owned(),
                valid: true,
                processes: vec![process],
                ..SliceRun::default()
            });
            summarise(&mut record);
            let text = render(&record);
            let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
            for (heading, field) in rows[0].iter().zip(&rows[1]) {
                let own = heading
                    .strip_prefix("cpu_mili_")
                    .map(|rest| (rest, "250.00"));
                let own = own.or_else(|| Some((heading.strip_prefix("mem_Mi_")?, "3.00")));
                let Some((whose, wanted)) = own else { continue };
                let is_its = whose.trim_start_matches("avg_") == column;
                let wanted = if is_its { wanted } else { "" };
                assert_eq!(*field, wanted, "{role}: {heading}");
            }
        }
    }

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        assert_eq!(quote("plain"), "plain");
        assert_eq!(quote("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
