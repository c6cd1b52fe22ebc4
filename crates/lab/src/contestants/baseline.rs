//! No proxy at all: what the same client and server cost by themselves.

use std::collections::BTreeMap;

use super::{Contestant, Hop, Instance, Route};
use crate::target::Lab;

/// Load straight to the server.
#[derive(Debug)]
pub(super) struct Baseline;

impl Contestant for Baseline {
    fn name(&self) -> &'static str {
        "baseline"
    }

    fn start(&mut self, _lab: &Lab<'_>) -> Result<(), String> {
        Ok(())
    }

    fn ready(&mut self, _lab: &Lab<'_>) -> Result<(), String> {
        Ok(())
    }

    fn route(&self, lab: &Lab<'_>, mode: &str, tls: bool) -> Option<Route> {
        let hop = Hop {
            to: "server",
            address: lab.echo,
            tls: false,
        };
        (mode == "baseline" && !tls).then(|| Route::through(vec![hop]))
    }

    fn instances(&self, _mode: &str) -> Vec<Instance> {
        Vec::new()
    }

    fn requests(&self) -> Result<Option<BTreeMap<&'static str, u64>>, String> {
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
