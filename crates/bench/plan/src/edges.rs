//! Counted calls between services to a graph: `voile edges -o json`, or a list of pairs with their rates.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use voile_graph::{Graph, GraphService, Probability, ServiceCall, ServiceProtocol, Step};

use voile_graph::ScriptStep;

/// Most pairs of one graph.
pub const MAX_EDGES: usize = 20_000;
/// Most calls that a request may make to one service: more is a service that calls without being called.
pub const MAX_CALLS: f64 = 1000.0;

/// A graph, and the requests per second that enter it from outside.
#[derive(Debug, Clone, PartialEq)]
pub struct CountedGraph {
    /// The services that are called, and their calls.
    pub graph: Graph,
    /// Entries with their rates.
    pub entries: Vec<(usize, f64)>,
}

#[derive(Debug, Deserialize)]
struct EdgesPage {
    /// Time of the count; without it `requests` are per second.
    #[serde(default = "one_second")]
    seconds: Option<f64>,
    rows: Vec<CountedEdge>,
}

fn one_second() -> Option<f64> {
    Some(1.0)
}

#[derive(Debug, Deserialize)]
struct CountedEdge {
    source: String,
    destination: String,
    requests: f64,
    #[serde(default)]
    protocols: BTreeSet<String>,
    #[serde(default)]
    bytes_to_server: f64,
    #[serde(default)]
    bytes_to_client: f64,
}

/// Reads edges. A source that nobody calls is outside of the mesh, and its calls are the load.
///
/// # Errors
/// If the text is not such a page, or its calls are of no traffic that can be predicted; with the cure.
pub fn read(text: &str) -> Result<CountedGraph, String> {
    let page: EdgesPage = serde_json::from_str(text).map_err(|why| {
        format!("no edges: {why}; cure: `voile edges -o json`, or {{\"rows\": [{{\"source\": …, \"destination\": …, \"requests\": PER SECOND}}]}}")
    })?;
    let seconds = page.seconds.ok_or(
        "these are counts since the proxies' start, without a time; cure: `voile edges -o json` without --total",
    )?;
    if !(seconds.is_finite() && seconds > 0.0) {
        return Err(format!(
            "`seconds` is {seconds}; cure: the time of the count, above 0"
        ));
    }
    if page.rows.len() > MAX_EDGES {
        return Err(format!(
            "{} edges, more than {MAX_EDGES}; cure: the edges of one namespace",
            page.rows.len()
        ));
    }
    for row in &page.rows {
        if !(row.requests.is_finite() && row.requests >= 0.0) {
            return Err(format!(
                "the edge from {} to {} has {} requests; cure: a number from 0",
                row.source, row.destination, row.requests
            ));
        }
    }
    let rows: Vec<CountedEdge> = page
        .rows
        .into_iter()
        .filter(|row| row.requests > 0.0)
        .collect();
    counted(&rows, seconds)
}

fn counted(rows: &[CountedEdge], seconds: f64) -> Result<CountedGraph, String> {
    let mut served: BTreeMap<&str, f64> = BTreeMap::new();
    for row in rows {
        *served.entry(&row.destination).or_default() += row.requests;
    }
    let places: BTreeMap<&str, usize> = served
        .keys()
        .enumerate()
        .map(|(n, &name)| (name, n))
        .collect();
    let mut services: Vec<GraphService> = served
        .keys()
        .map(|&name| GraphService::named(name))
        .collect();
    let mut entries: BTreeMap<usize, f64> = BTreeMap::new();
    let mut sizes = vec![0.0; services.len()];
    for row in rows {
        let place = places[row.destination.as_str()];
        sizes[place] += row.bytes_to_client;
        if row.protocols.contains("grpc") {
            services[place].protocol = ServiceProtocol::Grpc;
        }
        let Some(&caller) = places.get(row.source.as_str()) else {
            *entries.entry(place).or_default() += row.requests / seconds;
            continue;
        };
        let each = row.requests / served[row.source.as_str()];
        if each > MAX_CALLS {
            return Err(format!(
                "{} calls {} {each:.0} times for each request it serves, more than {MAX_CALLS}; cure: leave out the requests to {0}, so that it counts as outside",
                row.source, row.destination
            ));
        }
        let mut call = ServiceCall::to(place, (row.bytes_to_server / row.requests) as u64);
        let whole = each.floor() as usize;
        let script = &mut services[caller].script;
        script.extend(vec![Step::One(ScriptStep::Call(call.clone())); whole]);
        if let Some(rest) = Probability::new(each.fract()).filter(|rest| rest.get() > 0.0) {
            call.probability = rest;
            script.push(Step::One(ScriptStep::Call(call)));
        }
    }
    for (service, (requests, bytes)) in services.iter_mut().zip(served.values().zip(sizes)) {
        service.response_size = (bytes / requests) as u64;
    }
    for &entry in entries.keys() {
        services[entry].entry = true;
    }
    let graph = Graph { services };
    if entries.is_empty() {
        return Err("no edge comes from outside: each source is called, too; cure: add the edges of a gateway or of clients".to_owned());
    }
    let problems = voile_graph::check(&graph);
    if let Some(problem) = problems.iter().find(|problem| problem.is_error()) {
        return Err(format!("these edges are no traffic that ends: {problem}"));
    }
    Ok(CountedGraph {
        graph,
        entries: entries.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_become_a_graph_with_the_same_rates() {
        let text = r#"{"seconds": 2.0, "rows": [
            {"source": "ingress", "destination": "shop/front", "requests": 200, "protocols": ["http"]},
            {"source": "shop/front", "destination": "shop/cart", "requests": 300, "protocols": ["grpc"]},
            {"source": "shop/front", "destination": "shop/idle", "requests": 0}]}"#;
        let counted = read(text).expect("edges");
        assert_eq!(counted.graph.services.len(), 2);
        let front = counted.graph.find("shop/front").expect("front");
        let cart = counted.graph.find("shop/cart").expect("cart");
        assert_eq!(counted.entries, [(front, 100.0)]);
        let weights = voile_graph::weigh::weigh(&counted.graph, front);
        assert!((weights.requests[cart] - 1.5).abs() < 1e-9);
        assert_eq!(counted.graph.services[cart].protocol, ServiceProtocol::Grpc);
    }

    #[test]
    fn what_is_no_traffic_is_refused_with_its_cure() {
        for (text, words) in [
            ("[]", "cure: `voile edges -o json`"),
            (r#"{"seconds": null, "rows": []}"#, "without --total"),
            (r#"{"seconds": 0, "rows": []}"#, "above 0"),
            (r#"{"rows": []}"#, "comes from outside"),
            (
                r#"{"rows": [{"source": "a", "destination": "a", "requests": 3}]}"#,
                "comes from outside",
            ),
            (
                r#"{"rows": [{"source": "a", "destination": "b", "requests": -3}]}"#,
                "a number from 0",
            ),
            (
                r#"{"rows": [{"source": "x", "destination": "a", "requests": 1}, {"source": "a", "destination": "b", "requests": 5000}]}"#,
                "counts as outside",
            ),
            (
                r#"{"rows": [{"source": "x", "destination": "a", "requests": 0.001}, {"source": "a", "destination": "b", "requests": 5}, {"source": "b", "destination": "a", "requests": 5}]}"#,
                "no traffic that ends",
            ),
        ] {
            let why = read(text).expect_err(text);
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
