//! `report.html` of a graph's record: words, the graph's picture, plots, a table of every service and call, and the evidence.

use std::fmt::Write as _;

use super::parts::{GraphFigures, PairedFigure};
use super::{CLAIMED_RATE, CLAIMED_SIDECARS, GraphRecord};
use crate::html;
use crate::page::{begin, end, table, words};
use crate::record::Estimate;
use crate::side_record::SideRecord;
use crate::words::{bytes, duration, escape, micro, range};

impl GraphRecord {
    /// The page.
    pub(super) fn page(&self) -> String {
        let mut page = begin(&format!("Cost of a mesh for {}", self.graph), &self.head);
        let isolation = match self.isolation.as_str() {
            "netns" => "each service in a network namespace of its own",
            _ => "loopback addresses",
        };
        let _ = writeln!(
            page,
            "<p class=\"soft\">{} · {} services · {}/s over {} connections · {isolation}</p>",
            escape(&self.graph),
            self.services,
            self.rate,
            self.connections
        );
        words(&mut page, &self.in_words());
        self.drawn(&mut page);
        self.extrapolated(&mut page);
        html::draw(&mut page, &self.plots());
        self.services_table(&mut page);
        self.calls_table(&mut page);
        self.evidence(&mut page);
        let _ = writeln!(
            page,
            "<details><summary>The graph</summary><pre>{}</pre></details>",
            escape(&self.graph_text)
        );
        end(&mut page, &self.head, self.file());
        page
    }

    /// The picture has colours of its own, for light and dark, so it stands in a frame of its own.
    fn drawn(&self, page: &mut String) {
        if self.picture.is_empty() {
            return;
        }
        let _ = writeln!(
            page,
            "<h2>The graph</h2>\n<figure class=\"scroll\"><img alt=\"the services of {} and their calls\" src=\"data:image/svg+xml,{}\"></figure>",
            escape(&self.graph),
            percent_encoded(&self.picture)
        );
    }

    /// Writes extrapolated figures in a section apart from measured ones.
    fn extrapolated(&self, page: &mut String) {
        let of = |slice: &super::GraphSlice| slice.cpu_us.get("sidecar").copied();
        let per_request = |slice: &super::GraphSlice| {
            Some(if slice.mesh {
                of(slice)? / self.requests
            } else {
                0.0
            })
        };
        let (Some(each), Some(memory)) = (
            self.in_mesh(&per_request),
            self.in_mesh(&|slice| Some(slice.memory_bytes.get("sidecar").copied().unwrap_or(0.0))),
        ) else {
            return;
        };
        let measured = self.rate * self.requests;
        let cores = |rate: f64| format!("{:.2}", each.median * rate / 1e6);
        let services = f64::from(self.services);
        page.push_str("<h2>Measured, and extrapolated</h2>\n");
        table(
            page,
            &[
                "",
                "service requests/s",
                "cores of all sidecars",
                "sidecars",
                "memory of all sidecars (PSS)",
            ],
            &[
                vec![
                    "measured here".to_owned(),
                    format!("{measured:.0}"),
                    cores(measured),
                    format!("{services:.0} services"),
                    bytes(memory.median * services),
                ],
                vec![
                    "<b>EXTRAPOLATED</b> in a straight line, not measured".to_owned(),
                    format!("{CLAIMED_RATE:.0}"),
                    cores(CLAIMED_RATE),
                    format!("{CLAIMED_SIDECARS:.0}"),
                    bytes(memory.median * CLAIMED_SIDECARS),
                ],
            ],
        );
        page.push_str(
            "<p class=\"soft\">The second line is Istio's published load test. A straight line assumes that the cost of a request depends neither on their number nor on the number of machines; this is not shown here.</p>\n",
        );
    }

    fn services_table(&self, page: &mut String) {
        let parts = self.service_parts();
        if parts.is_empty() {
            return;
        }
        page.push_str(
            "<h2>Every service</h2>\n<p class=\"soft\">Medians over rounds with 95 % intervals below. Times from a request's head to its answer, \
             the service's own calls included. Means are exact; percentiles are read between the bounds of a histogram that lie a quarter apart at \
             most below 10 ms.</p>\n",
        );
        let rows: Vec<Vec<String>> = parts
            .iter()
            .map(|part| {
                let mut row = vec![escape(&part.name)];
                let expected = self.by_service.get(&part.name);
                row.push(expected.map_or_else(|| "–".to_owned(), |n| format!("{n:.2}")));
                row.extend(two(part, "mean_us", duration));
                row.push(added(part, "mean_us"));
                row.extend(two(part, "p50_us", duration));
                row.extend(two(part, "p99_us", duration));
                row.extend(two(part, "cpu_us", micro));
                row.push(one(part.figure("sidecar_cpu_us").with, micro));
                row.push(one(part.figure("sidecar_rss_bytes").with, bytes));
                row
            })
            .collect();
        table(
            page,
            &[
                "service",
                "requests for one at the entry",
                "mean without",
                "mean with",
                "added",
                "p50 without",
                "p50 with",
                "p99 without",
                "p99 with",
                "CPU/request without, µs",
                "CPU/request with, µs",
                "CPU/request of its sidecar, µs",
                "RSS of its sidecar",
            ],
            &rows,
        );
    }

    fn calls_table(&self, page: &mut String) {
        let parts = self.edge_parts();
        if parts.is_empty() {
            return;
        }
        page.push_str(
            "<h2>Every call</h2>\n<p class=\"soft\">From the call to the end of its answer, connecting included, as measured by the calling service.</p>\n",
        );
        let rows: Vec<Vec<String>> = parts
            .iter()
            .map(|part| {
                let mut row = vec![escape(&part.name)];
                row.extend(two(part, "mean_us", duration));
                row.push(added(part, "mean_us"));
                row.extend(two(part, "p50_us", duration));
                row.extend(two(part, "p99_us", duration));
                let failed = part.figure("failed");
                let count = |side: Option<Estimate>| side.map_or(0.0, |side| side.median);
                row.push(format!(
                    "{:.0}, {:.0}",
                    count(failed.without),
                    count(failed.with)
                ));
                row
            })
            .collect();
        table(
            page,
            &[
                "call",
                "mean without",
                "mean with",
                "added",
                "p50 without",
                "p50 with",
                "p99 without",
                "p99 with",
                "failed in a slice, without and with",
            ],
            &rows,
        );
    }

    fn evidence(&self, page: &mut String) {
        page.push_str("<h2>Slices that do not count</h2>\n");
        let invalid: Vec<Vec<String>> = self
            .slices
            .iter()
            .filter(|slice| !slice.invalid_reasons.is_empty())
            .map(|slice| {
                let side = if slice.mesh { "with" } else { "without" };
                vec![
                    format!("{side} the mesh"),
                    slice.round.to_string(),
                    format!(
                        "<span class=\"bad\">{}</span>",
                        escape(&slice.invalid_reasons.join("; "))
                    ),
                ]
            })
            .collect();
        if invalid.is_empty() {
            page.push_str("<p>None.</p>\n");
        } else {
            table(page, &["side", "round", "why"], &invalid);
        }
        page.push_str("<h2>Proof of path</h2>\n<p class=\"soft\">A round is valid only if the sidecars accepted as many calls over mutual TLS as the graph makes for the answered requests.</p>\n");
        let rows: Vec<Vec<String>> = self
            .slices
            .iter()
            .filter_map(|slice| {
                let counted = slice.by_mutual_tls?;
                let expected = slice.ok as f64 * (self.requests - 1.0);
                Some(vec![
                    slice.round.to_string(),
                    slice.ok.to_string(),
                    format!("{expected:.0}"),
                    counted.to_string(),
                ])
            })
            .collect();
        table(
            page,
            &[
                "round",
                "requests at the entry",
                "calls the graph makes of them",
                "calls counted by mutual TLS",
            ],
            &rows,
        );
    }
}

/// Both sides of a figure.
fn two(part: &GraphFigures, figure: &str, show: fn(f64) -> String) -> [String; 2] {
    let PairedFigure { without, with, .. } = part.figure(figure);
    [one(without, show), one(with, show)]
}

fn added(part: &GraphFigures, figure: &str) -> String {
    one(part.figure(figure).added, duration)
}

fn one(estimate: Option<Estimate>, show: fn(f64) -> String) -> String {
    let Some(estimate) = estimate else {
        return "–".to_owned();
    };
    let middle = show(estimate.median);
    match range(&estimate, show) {
        Some(range) => format!("{middle}<small>{range}</small>"),
        None => middle,
    }
}

/// Escapes text for a `data:` address within an attribute.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 5 / 4);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => encoded.push(char::from(byte)),
            b' ' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' | b'=' | b',' | b';' | b'(' | b')' => {
                encoded.push(char::from(byte));
            }
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}
