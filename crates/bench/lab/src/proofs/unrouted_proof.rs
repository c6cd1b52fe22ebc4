//! Proof that routes are in force. Requests of routes that lead nowhere, and requests without a route, must be answered
//! accordingly. The experiment's own requests would reach the server without any routes, too.

use std::time::Duration;

use voile_report::record::Check;

use crate::checks::check;
use crate::contestants::contestant::CellRoute;
use crate::definition::Stray;
use crate::generator::{BrokenSlice, GeneratorRequest, finish_load, start_load};
use crate::plan::RequestPath;
use crate::shared_processes::Lab;

/// Length and rate of each kind of stray, over one connection.
const STRAYING: Duration = Duration::from_millis(100);
const RATE: u32 = 100;
/// Time that the generator may take beyond that.
const OVERTIME: Duration = Duration::from_secs(8);

/// Sends some of each kind, one after the other.
pub(crate) fn strays(
    lab: &Lab<'_>,
    way: &RequestPath,
    route: &CellRoute,
    order: &GeneratorRequest,
) -> Result<Vec<Check>, BrokenSlice> {
    let Some(routes) = way.outfit.routes() else {
        return Ok(Vec::new());
    };
    let all = routes.strays().into_iter();
    all.map(|stray| astray(lab, route, order, stray)).collect()
}

fn astray(
    lab: &Lab<'_>,
    route: &CellRoute,
    order: &GeneratorRequest,
    stray: Stray,
) -> Result<Check, BrokenSlice> {
    let order = GeneratorRequest {
        asks: stray.asks,
        marker: None,
        rate: RATE,
        connections: 1,
        duration: STRAYING,
        ..order.clone()
    };
    let (mut load, out) = start_load(lab, route, &order).map_err(BrokenSlice::Failed)?;
    let generated = finish_load(&mut load, &out, STRAYING + OVERTIME, lab)?;
    let shown = generated.ok > 0 && generated.errors_total == 0;
    let mut evidence = format!("{} of {}", generated.ok, generated.scheduled);
    if !shown {
        evidence = format!("{evidence}; otherwise {:?}", generated.errors);
    }
    Ok(check(stray.claim, shown, evidence))
}
