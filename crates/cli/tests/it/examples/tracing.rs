//! The example of traces: its collector shows a request through all services, with a span of each sidecar.

use voile_testkit::prerequisites::{Prerequisite, program};

use crate::mesh::wait_until;
use crate::up::{Up, example};

/// A trace of the page, without figures: depth, service and side of each span.
const TRACE: &str = "\
traffic.tracing client
  storefront.tracing server
    storefront.tracing client
      books.tracing server
        books.tracing client
          reviews.tracing server
    storefront.tracing client
      stock.tracing server
";

/// A trace of the collector's log in the same form.
fn spans(trace: &str) -> String {
    let spans = trace.lines().filter_map(|line| line.strip_prefix("  "));
    let names = spans.filter_map(|line| {
        let indent = line.len() - line.trim_start().len();
        let mut words = line.split_whitespace();
        Some(format!(
            "{}{} {}\n",
            " ".repeat(indent),
            words.next()?,
            words.next()?
        ))
    });
    names.collect()
}

#[test]
fn the_collector_shows_a_request_through_all_services() {
    if program(Prerequisite::Python, "python3").is_none() {
        return;
    }
    let mut up = Up::start(|folder| example("tracing", folder), &[]);
    up.ready();
    wait_until("a whole trace is printed", || {
        let log = up.log("tracing.collector-0.collector");
        log.split("trace ").any(|trace| spans(trace) == TRACE)
    });
}
