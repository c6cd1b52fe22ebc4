//! A forecast as a page in one file that opens offline: the graph coloured by price, and the table.

use std::fmt::Write as _;

use voile_graph::{Graph, draw};
use voile_report::html;
use voile_report::words::escape;

use crate::predict::Forecast;
use crate::table;

/// The page of one choice, or of two beside each other.
#[must_use]
pub fn render(graph: &Graph, forecasts: &[&Forecast]) -> String {
    let mut page = html::head("Forecast of the mesh's cost");
    // Writing to a String cannot fail.
    let _ = writeln!(
        page,
        "<p>Predicted from measured curves, not measured. Colour: a service's share of the dearest service's CPU.</p>"
    );
    for forecast in forecasts {
        let cores = |of: &crate::Costs| of.vcpu.value;
        let services = forecast
            .services
            .iter()
            .map(|service| cores(&service.costs));
        let most = services.clone().fold(0.0, f64::max);
        let shares = services.map(|cores| if most > 0.0 { cores / most } else { 0.0 });
        let title = format!("{}: {:.3} vCPU", forecast.with, cores(&forecast.total));
        let _ = writeln!(
            page,
            "<h2>With {}</h2>\n{}\n<pre>{}</pre>",
            escape(&forecast.with),
            draw::tinted(graph, &title, &shares.collect::<Vec<f64>>()),
            escape(&table::forecast(forecast)),
        );
    }
    page.push_str("</body></html>\n");
    page
}
