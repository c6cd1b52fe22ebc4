//! No proxy at all: the cost of the same client and server by themselves.

use crate::contestants::contestant::{CellRoute, Contestant, Counts};
use crate::machine::instance::Instance;
use crate::plan::RequestPath;
use crate::shared_processes::Lab;

/// Load straight to the server.
#[derive(Debug)]
pub(crate) struct Baseline;

impl Contestant for Baseline {
    fn name(&self) -> &str {
        "baseline"
    }

    fn captures(&self) -> bool {
        true
    }

    fn start(&mut self, _lab: &Lab<'_>) -> Result<(), String> {
        Ok(())
    }

    fn ready(&mut self, _lab: &Lab<'_>) -> Result<(), String> {
        Ok(())
    }

    fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        let hop = lab.server_hop(&way.protocol);
        let mut route = CellRoute::through(vec![hop]);
        route.from = lab.network.map(|network| network.client.for_application());
        (way.mode == "baseline" && !way.tls).then_some(route)
    }

    fn instances(&self, _way: &RequestPath) -> Vec<Instance> {
        Vec::new()
    }

    fn counts(&self, _way: &RequestPath) -> Counts {
        Ok(None)
    }

    fn alive(&mut self, _lab: &Lab<'_>) -> Result<(), String> {
        Ok(())
    }

    fn version(&self) -> String {
        String::new()
    }

    fn commands(&self) -> Vec<String> {
        Vec::new()
    }

    fn terms(&self) -> Vec<String> {
        Vec::new()
    }

    fn stop(&mut self) {}
}
