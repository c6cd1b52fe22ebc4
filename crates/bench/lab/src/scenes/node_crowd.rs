//! Cost of a node proxy for a crowd of pods: memory with many workloads and connections, number of connections, thousands of new
//! connections a second from many addresses, and delay until a new workload is served. Measures Voile's proxy, and ztunnel's if
//! its program is given, one after the other in networks of their own.
//!
//! ```text
//! node one: client-1 … client-N, their proxy ═ HBONE over mutual TLS ═▶ node two: its proxy, one server        (root)
//! ```

mod calls;
mod scene;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use voile_report::record::Record;
use voile_report::record::scene::SceneKind;

use self::scene::NodeCrowdScene;
use crate::contestants::programs::nodes::Program;
use crate::control_plane::{Progress, conclude, make_room};
use crate::definition::Variant;
use crate::environment::{environment, scene_record, warnings};
use crate::find::FoundPeers;

/// Settings of the measurement.
#[derive(Debug, Clone)]
pub struct NodeCrowdSettings {
    /// The program.
    pub voile: PathBuf,
    /// Peers on this machine.
    pub found: FoundPeers,
    /// Pods of the first node.
    pub workloads: u32,
    /// Connections of each of them, open at once, for the figure of memory.
    pub each: u32,
    /// Connections through one proxy at once, as many as descriptors allow; 0: not tried.
    pub connections: u32,
    /// New connections a second, from all pods in turn.
    pub rate: u32,
    /// For how long; zero: not at all.
    pub rate_for: Duration,
    /// Pods that come while everything runs, one after the other.
    pub joins: u32,
    /// Threads of each proxy.
    pub workers: u32,
    /// The user's command line, for the record.
    pub command: String,
}

/// Descriptors that a proxy, the server and the lab need beside those of connections.
const OTHER_DESCRIPTORS: u64 = 500;
/// Those that a proxy needs for a pod: its doors, its sockets for names and its network, each for both families (Voile's has 17).
const OF_A_POD: u64 = 20;
/// Connections that share a tunnel's connection: ztunnel's number, and Voile's.
const STREAMS: u64 = 100;

impl NodeCrowdSettings {
    /// Expected length of each step, for one program.
    fn expected(&self) -> Vec<Duration> {
        let pods = f64::from(self.workloads + self.joins);
        let seconds = Duration::from_secs_f64;
        vec![
            seconds(5.0 + pods * 0.05),
            seconds(5.0 + f64::from(self.workloads * self.each) / 1000.0),
            seconds(3.0 + f64::from(self.connections) / 1000.0),
            self.rate_for + Duration::from_secs(2),
            seconds(f64::from(self.joins) * 0.1),
        ]
    }
}

/// As many of these connections as a process here may hold, with its pods and its tunnels.
fn possible(connections: u32, pods: u32, limit: u64) -> u32 {
    let others = OTHER_DESCRIPTORS + OF_A_POD * u64::from(pods);
    let room = limit.saturating_sub(others);
    let most = room - room / STREAMS;
    connections.min(u32::try_from(most).unwrap_or(u32::MAX))
}

/// Measures node proxies. `say` receives lines for people; `stopped` is asked often. If the measurement fails or is ended, the
/// record keeps the figures so far. The string beside it is the reason.
///
/// # Errors
/// If nothing could be measured at all.
pub fn measure_node_crowd(
    settings: &NodeCrowdSettings,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<(Record, Option<String>), String> {
    let began = Instant::now();
    voile_host::machine::raise_descriptor_limit();
    make_room(OTHER_DESCRIPTORS * 2, "a crowd of pods")?;
    let mut environment = environment(&settings.voile);
    let mut programs = vec![Program::Voile(Variant::plain("voile"))];
    let mut notes = warnings(&environment);
    match settings.found.other("ztunnel") {
        Ok(peer) => {
            environment
                .versions
                .insert("ztunnel".to_owned(), peer.version.clone());
            programs.push(Program::Ztunnel(peer));
        }
        Err(why) => notes.push(format!("ztunnel is left out: {why}.")),
    }
    notes.push(
        "Each program by itself, one after the other: generator, server, control plane and both proxies share this machine."
            .to_owned(),
    );
    let mut record = scene_record(SceneKind::Nodes, &settings.command, notes, environment);
    record.begin_mesh(&[("nodes", f64::from(settings.workloads))]);
    let expected = programs.iter().flat_map(|_| settings.expected());
    let progress = Progress::new(say, expected.collect());
    let measured = programs
        .iter()
        .try_for_each(|program| one(settings, program, &mut record, &progress, stopped));
    progress.end();
    record.experiment.took_seconds = began.elapsed().as_secs_f64();
    conclude(record, measured)
}

/// One program.
fn one(
    settings: &NodeCrowdSettings,
    program: &Program,
    record: &mut Record,
    progress: &Progress<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<(), String> {
    let scratch = tempfile::Builder::new()
        .prefix("voile-lab-")
        .tempdir()
        .map_err(|e| format!("a temporary folder: {e}"))?;
    let limit = voile_host::machine::descriptor_limit().unwrap_or(u64::MAX);
    let connections = possible(settings.connections, settings.workloads, limit);
    if connections < settings.connections {
        let asked = settings.connections;
        let note = format!(
            "Of {asked} connections at once {connections} are opened: a process here may hold {limit} descriptors."
        );
        if !record.notes.contains(&note) {
            record.notes.push(note);
        }
    }
    NodeCrowdScene::run(settings, program, scratch.path(), stopped, |scene| {
        progress.next();
        scene.memory(record, progress)?;
        progress.next();
        scene.many(record, connections, progress)?;
        progress.next();
        scene.new_ones(record, progress)?;
        progress.next();
        scene.joins(record, progress)?;
        progress.next();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_connections_are_opened_than_descriptors_allow_with_their_tunnels() {
        for (asked, pods, limit, wanted) in [
            (20_000, 100, 1 << 20, 20_000),
            (20_000, 10, 20_000, 19_107),
            // A hundred pods had 1,731 before the first connection.
            (20_000, 100, 20_000, 17_325),
            (20_000, 100, 1_000, 0),
            (0, 100, 20_000, 0),
        ] {
            let found = possible(asked, pods, limit);
            assert_eq!(found, wanted, "{asked} of {limit}, {pods} pods");
            let tunnels = u64::from(found).div_ceil(STREAMS);
            let all = u64::from(found) + tunnels + 17 * u64::from(pods);
            assert!(found == 0 || all <= limit);
        }
    }
}
