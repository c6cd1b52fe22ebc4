//! A program in several roles, as one contestant: its sidecars, its node proxies, its gateway. Each role is a contestant of its
//! own. It starts only if the experiment has cells of its modes, so no unmeasured processes share the machine.

use crate::contestants::contestant::{
    CellRoute, Contestant, Counts, GeneratorTraffic, IdentityProbe, RecordedOutput,
};
use crate::contestants::effect_evidence::EffectEvidence;
use crate::definition::EventAction;
use crate::machine::instance::Instance;
use crate::plan::RequestPath;
use crate::shared_processes::Lab;

/// See the module.
pub(super) struct Planes {
    /// The one that has all modes that no other has.
    first: Plane,
    others: Vec<(&'static [&'static str], Plane)>,
}

struct Plane {
    contestant: Box<dyn Contestant>,
    started: bool,
}

impl Plane {
    fn of(contestant: Box<dyn Contestant>) -> Self {
        Self {
            contestant,
            started: false,
        }
    }
}

impl Planes {
    pub(super) fn new(first: Box<dyn Contestant>) -> Self {
        Self {
            first: Plane::of(first),
            others: Vec::new(),
        }
    }

    /// With that one for these modes.
    pub(super) fn and(
        mut self,
        modes: &'static [&'static str],
        contestant: Box<dyn Contestant>,
    ) -> Self {
        self.others.push((modes, Plane::of(contestant)));
        self
    }

    fn of_mode(&self, mode: &str) -> &dyn Contestant {
        let other = self.others.iter().find(|(modes, _)| modes.contains(&mode));
        other
            .map_or(&self.first, |(_, plane)| plane)
            .contestant
            .as_ref()
    }

    fn of_mode_mut(&mut self, mode: &str) -> &mut Plane {
        let mut others = self.others.iter_mut();
        let other = others.find(|(modes, _)| modes.contains(&mode));
        other.map_or(&mut self.first, |(_, plane)| plane)
    }

    fn started(&self) -> impl Iterator<Item = &dyn Contestant> {
        let others = self.others.iter().map(|(_, plane)| plane);
        [&self.first]
            .into_iter()
            .chain(others)
            .filter(|plane| plane.started)
            .map(|plane| plane.contestant.as_ref())
    }

    fn started_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Contestant>> {
        let others = self.others.iter_mut().map(|(_, plane)| plane);
        [&mut self.first]
            .into_iter()
            .chain(others)
            .filter(|plane| plane.started)
            .map(|plane| &mut plane.contestant)
    }
}

impl Contestant for Planes {
    fn name(&self) -> &str {
        self.first.contestant.name()
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let own = lab.ways.iter();
        let own = own.filter(|way| way.contestant == self.name());
        let modes: Vec<String> = own.map(|way| way.mode.clone()).collect();
        for mode in modes {
            let plane = self.of_mode_mut(&mode);
            // `started` is set first: a contestant that fails to start is ended like the others.
            if !std::mem::replace(&mut plane.started, true) {
                plane.contestant.start(lab)?;
            }
        }
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        self.started_mut().try_for_each(|plane| plane.ready(lab))
    }

    fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        self.of_mode(&way.mode).route(lab, way)
    }

    fn instances(&self, way: &RequestPath) -> Vec<Instance> {
        self.of_mode(&way.mode).instances(way)
    }

    fn server(&self, way: &RequestPath) -> Option<Instance> {
        self.of_mode(&way.mode).server(way)
    }

    fn counts_requests(&self, way: &RequestPath) -> bool {
        self.of_mode(&way.mode).counts_requests(way)
    }

    fn expected_of(&self, way: &RequestPath, role: &str, carried: GeneratorTraffic) -> Option<u64> {
        self.of_mode(&way.mode).expected_of(way, role, carried)
    }

    fn shares_connections(&self) -> bool {
        self.started().any(Contestant::shares_connections)
    }

    /// Counts of that path's role alone: two roles may have proxies of the same name.
    fn counts(&self, way: &RequestPath) -> Counts {
        self.of_mode(&way.mode).counts(way)
    }

    fn collects_there(&self) -> bool {
        self.started().any(Contestant::collects_there)
    }

    fn recorded(&self, lab: &Lab<'_>, way: &RequestPath) -> Result<Vec<RecordedOutput>, String> {
        self.of_mode(&way.mode).recorded(lab, way)
    }

    fn stage(&self, lab: &Lab<'_>, way: &RequestPath) -> Result<Option<IdentityProbe>, String> {
        self.of_mode(&way.mode).stage(lab, way)
    }

    fn act(
        &mut self,
        lab: &Lab<'_>,
        action: &EventAction,
        way: &RequestPath,
    ) -> Result<EffectEvidence, String> {
        let plane = self.of_mode_mut(&way.mode);
        plane.contestant.act(lab, action, way)
    }

    fn settle(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        self.started_mut().try_for_each(|plane| plane.settle(lab))
    }

    fn captures(&self) -> bool {
        self.first.contestant.captures()
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        self.started_mut().try_for_each(|plane| plane.alive(lab))
    }

    fn version(&self) -> String {
        self.first.contestant.version()
    }

    fn commands(&self) -> Vec<String> {
        self.started().flat_map(Contestant::commands).collect()
    }

    fn terms(&self) -> Vec<String> {
        self.started().flat_map(Contestant::terms).collect()
    }

    fn tls_by_its_own_word(&self) -> Option<String> {
        self.started().find_map(Contestant::tls_by_its_own_word)
    }

    fn stop(&mut self) {
        for plane in self.started_mut() {
            plane.stop();
        }
        for (_, plane) in &mut self.others {
            plane.started = false;
        }
        self.first.started = false;
    }
}
