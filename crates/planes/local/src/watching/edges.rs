//! Who calls whom: the edges of a mesh's traffic, from the metrics pages of its proxies. Pure: pages in, edges out.

use std::collections::{BTreeMap, BTreeSet};

use voile_pages::{Sample, samples};

use crate::scrape::{DENIED, TrafficCounters, is_flagged};

/// A caller and whom it calls, each as `namespace/workload`. Whoever no proxy knows is `unknown`; a service without an
/// endpoint is named by its host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EdgeEnds {
    /// The caller.
    pub source: String,
    /// Whom it calls.
    pub destination: String,
}

/// Traffic between two ends, as both of their proxies counted it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Edge {
    /// `http`, `grpc`, `tcp`.
    pub protocols: BTreeSet<String>,
    /// Verified identities of callers.
    pub source_identities: BTreeSet<String>,
    /// Verified identities of servers.
    pub destination_identities: BTreeSet<String>,
    /// Counted by the caller's proxy.
    at_source: TrafficCounters,
    /// Counted by the server's proxy, or a waypoint.
    at_destination: TrafficCounters,
}

/// The edges of a mesh.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Edges(pub BTreeMap<EdgeEnds, Edge>);

impl Edges {
    /// Adds a metrics page in Prometheus' text format.
    pub fn add(&mut self, page: &str) {
        for sample in samples(page) {
            let Some(reporter) = sample.label("reporter") else {
                continue;
            };
            let edge = self.0.entry(ends(&sample)).or_default();
            let protocol = sample.label("request_protocol").unwrap_or("tcp");
            edge.protocols.insert(protocol.to_owned());
            for (label, identities) in [
                ("source_principal", &mut edge.source_identities),
                ("destination_principal", &mut edge.destination_identities),
            ] {
                let known = sample.label(label).filter(|text| is_known(text));
                identities.extend(known.map(str::to_owned));
            }
            match reporter {
                "source" => edge.at_source.count(&sample),
                _ => edge.at_destination.count(&sample),
            }
        }
    }

    /// The traffic since `earlier`, without edges that had none.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut news = self.all_since(earlier);
        news.0.retain(|_, edge| edge.has_traffic());
        news
    }

    /// The traffic since `earlier`, with edges that had none.
    pub fn all_since(&self, earlier: &Self) -> Self {
        let nothing = Edge::default();
        let news = self.0.iter().map(|(ends, edge)| {
            let before = earlier.0.get(ends).unwrap_or(&nothing);
            let mut news = edge.clone();
            news.at_source = edge.at_source.since(&before.at_source);
            news.at_destination = edge.at_destination.since(&before.at_destination);
            (ends.clone(), news)
        });
        Self(news.collect())
    }
}

impl Edges {
    /// Adds the traffic that other proxies counted.
    pub fn merge(&mut self, other: Self) {
        for (ends, edge) in other.0 {
            self.0.entry(ends).or_default().merge(edge);
        }
    }

    /// The traffic of each workload: what it serves, and the requests that it sends.
    pub fn by_workload(&self) -> BTreeMap<&str, (TrafficCounters, f64)> {
        let mut all: BTreeMap<&str, (TrafficCounters, f64)> = BTreeMap::new();
        for (ends, edge) in &self.0 {
            let counters = edge.counters();
            all.entry(&ends.source).or_default().1 += counters.requests;
            all.entry(&ends.destination).or_default().0.add(&counters);
        }
        all
    }
}

impl Edge {
    /// Adds the traffic that other proxies counted.
    pub fn merge(&mut self, other: Self) {
        self.at_source.add(&other.at_source);
        self.at_destination.add(&other.at_destination);
        self.protocols.extend(other.protocols);
        self.source_identities.extend(other.source_identities);
        self.destination_identities
            .extend(other.destination_identities);
    }

    fn has_traffic(&self) -> bool {
        let counted = |counters: &TrafficCounters| counters.requests > 0.0 || counters.denied > 0.0;
        counted(&self.at_source) || counted(&self.at_destination)
    }

    /// What the caller saw where its proxy counted, else what the server's proxy counted. Denials, limits and mutual TLS are
    /// the server's proxy's to know.
    pub fn counters(&self) -> TrafficCounters {
        let (source, destination) = (&self.at_source, &self.at_destination);
        let mut both = match source.requests > 0.0 {
            true => source.clone(),
            false => destination.clone(),
        };
        both.denied = source.denied.max(destination.denied);
        both.limited = source.limited.max(destination.limited);
        if destination.requests > 0.0 {
            // As shares of the requests that are shown.
            let scale = both.requests / destination.requests;
            both.mutual_tls = destination.mutual_tls * scale;
            both.unknown_tls = destination.unknown_tls * scale;
        }
        both
    }
}

fn is_known(text: &str) -> bool {
    !matches!(text, "" | "unknown" | "-")
}

fn ends(sample: &Sample<'_>) -> EdgeEnds {
    let known = |label: &str| sample.label(label).filter(|text| is_known(text));
    let workload = |side: &str| {
        let name = known(&format!("{side}_workload"))?;
        let namespace = known(&format!("{side}_workload_namespace"))?;
        Some(format!("{namespace}/{name}"))
    };
    let unknown = || "unknown".to_owned();
    let service = || known("destination_service").map(str::to_owned);
    let source = workload("source").unwrap_or_else(unknown);
    // A gateway counts as a caller. What its own policies denied was a call of the gateway.
    let denies = sample.label("reporter") == Some("source") && is_flagged(sample, DENIED);
    match workload("destination").or_else(service) {
        None if denies => EdgeEnds {
            source: unknown(),
            destination: source,
        },
        destination => EdgeEnds {
            source,
            destination: destination.unwrap_or_else(unknown),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A line of a page, as `web` calls `cart` in the namespace `shop`.
    fn line(name: &str, reporter: &str, more: &str, value: u32) -> String {
        let ends = r#"source_workload="web",source_workload_namespace="shop",destination_workload="cart",destination_workload_namespace="shop""#;
        format!("{name}{{reporter=\"{reporter}\",{ends},{more}}} {value}\n")
    }

    fn only(edges: &Edges) -> (String, String, Edge) {
        assert_eq!(edges.0.len(), 1, "{edges:?}");
        let (ends, edge) = edges.0.first_key_value().expect("one");
        (ends.source.clone(), ends.destination.clone(), edge.clone())
    }

    #[test]
    fn both_sides_of_a_call_are_one_edge_with_the_caller_s_counts_and_the_server_s_denials() {
        let code = |code: u16, flags: &str, policy: &str| {
            format!(
                r#"request_protocol="http",response_code="{code}",response_flags="{flags}",connection_security_policy="{policy}""#
            )
        };
        let of_caller = line(
            "istio_requests_total",
            "source",
            &code(200, "-", "unknown"),
            6,
        ) + &line(
            "istio_requests_total",
            "source",
            &code(403, "-", "unknown"),
            3,
        ) + &line(
            "istio_requests_total",
            "source",
            &code(503, "UF", "unknown"),
            1,
        );
        let principal = r#","source_principal="spiffe://td/ns/shop/sa/web""#.replacen('"', "", 1);
        let denied = code(403, "UAEX", "mutual_tls") + &principal;
        let of_server = line(
            "istio_requests_total",
            "destination",
            &code(200, "-", "mutual_tls"),
            6,
        ) + &line("istio_requests_total", "destination", &denied, 3);
        let mut edges = Edges::default();
        edges.add(&of_caller);
        let unseen = only(&edges).2.counters().over(Duration::from_secs(1));
        assert_eq!(unseen.mutual_tls, None, "a caller's proxy does not know");
        edges.add(&of_server);
        let (source, destination, edge) = only(&edges);
        assert_eq!((&*source, &*destination), ("shop/web", "shop/cart"));
        let rates = edge.counters().over(Duration::from_secs(1));
        let figures = (rates.rate, rates.errors, rates.denied, rates.mutual_tls);
        assert_eq!(figures, (10.0, 1.0, 3.0, Some(1.0)));
        assert!(edge.protocols.iter().eq(["http"]));
        assert!(
            edge.source_identities
                .iter()
                .eq(["spiffe://td/ns/shop/sa/web"])
        );
        // Nothing since.
        assert_eq!(edges.since(&edges), Edges::default());
        assert_eq!(edges.since(&Edges::default()), edges);
    }

    #[test]
    fn a_connection_that_was_denied_is_counted_where_the_server_s_proxy_closed_it() {
        let page = line(
            "istio_tcp_connections_opened_total",
            "destination",
            r#"response_flags="-""#,
            2,
        ) + &line(
            "istio_tcp_connections_closed_total",
            "destination",
            r#"response_flags="UAEX""#,
            1,
        );
        let mut edges = Edges::default();
        edges.add(&page);
        let counters = only(&edges).2.counters();
        assert_eq!((counters.requests, counters.denied), (2.0, 1.0));
    }

    #[test]
    fn ends_that_no_proxy_knows_are_named_by_the_host_or_not_at_all() {
        let mut edges = Edges::default();
        edges.add(
            r#"istio_requests_total{reporter="source",source_workload="unknown",source_workload_namespace="unknown",destination_workload="unknown",destination_service="away.example",response_code="404"} 1
istio_requests_total{reporter="source
voile_build_info{version="1"} 1
"#,
        );
        let (source, destination, _) = only(&edges);
        assert_eq!((&*source, &*destination), ("unknown", "away.example"));
    }

    #[test]
    fn what_a_gateway_denied_was_a_call_of_the_gateway() {
        let page = r#"istio_requests_total{reporter="source",source_workload="gate",source_workload_namespace="shop",destination_workload="unknown",destination_service="unknown",response_code="403",response_flags="UAEX"} 3
istio_requests_total{reporter="source",source_workload="gate",source_workload_namespace="shop",destination_workload="unknown",destination_service="unknown",response_code="404",response_flags="NR"} 2
"#;
        let mut edges = Edges::default();
        edges.add(page);
        let rows = edges.0.iter().map(|(ends, edge)| {
            let counters = edge.counters();
            let ends = (ends.source.as_str(), ends.destination.as_str());
            (ends, counters.requests, counters.denied)
        });
        let rows: Vec<_> = rows.collect();
        assert_eq!(
            rows,
            [
                (("shop/gate", "unknown"), 2.0, 0.0),
                (("unknown", "shop/gate"), 3.0, 3.0)
            ]
        );
    }
}
