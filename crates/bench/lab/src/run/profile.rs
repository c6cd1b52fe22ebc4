//! Looks at a cell's path more closely, in slices of their own after all rounds: a capture times each hop and counts what
//! travels, perf counts system calls and samples stacks. Looking costs, so nothing of it becomes a figure; each tool has a
//! slice to itself, so that it sees the path and not the other tool.

pub(crate) mod perf;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use voile_host::child::SupervisedChild;
use voile_report::profile::{HopSeen, Profile};
use voile_report::record::{SliceRun, ValueKind};

use crate::contestants::contestant::CellRoute;
use crate::generator::{BrokenSlice, GeneratorRequest, wait_until};
use crate::machine::instance::{Hop, Instance};
use crate::packet_capture::{HopCapture, MAX_ANSWERS, PacketCapture, Window};
use crate::shared_processes::Lab;
use crate::slice::measure;
use voile_report::record::CellKey as Cell;

/// A hop with less traffic carries no requests, only a keep-alive or a health check.
const FEW_PACKETS: f64 = 0.05;
/// Nothing is counted so shortly after the measured part began, or before it ends.
const MARGIN: Duration = Duration::from_millis(50);

/// A cell and all that stands on its path.
pub(crate) struct ProfiledCell<'a> {
    pub(crate) lab: &'a Lab<'a>,
    pub(crate) cell: &'a Cell,
    pub(crate) route: &'a CellRoute,
    pub(crate) order: &'a GeneratorRequest,
    pub(crate) instances: &'a [Instance],
    pub(crate) host: &'a str,
}

/// Work on the generator's process while it measures, until the given moment.
type Look<'a> = dyn FnMut(&mut SupervisedChild, Instant) -> Result<(), BrokenSlice> + 'a;

impl ProfiledCell<'_> {
    /// One slice under the cell's load.
    fn under_load(&self, look: &mut Look<'_>) -> Result<SliceRun, BrokenSlice> {
        let mut meanwhile = |load: &mut SupervisedChild, (_, ends): (Instant, Instant)| {
            look(load, ends - MARGIN)?;
            Ok(Vec::new())
        };
        let (run, _) = measure(
            self.lab,
            self.cell,
            self.route,
            self.order,
            self.instances,
            self.host,
            &mut meanwhile,
        )?;
        Ok(run)
    }

    /// Each instance on the path, the generator included.
    fn all(&self, load: &SupervisedChild) -> Vec<Instance> {
        let mut all = self.instances.to_vec();
        let pids = vec![load.pid()];
        all.push(Instance::here("load".to_owned(), "load", pids));
        all
    }
}

/// Packets that a capture saw on each hop, the number of packets that it lost, and its window.
type Watched = (Vec<HopCapture>, u64, Window);

/// Profiles one cell with every tool that is here, and names the missing ones.
pub(crate) fn look(scene: &ProfiledCell<'_>) -> Result<Profile, BrokenSlice> {
    let mut profile = Profile {
        cell: scene.cell.clone(),
        ..Profile::default()
    };
    match scene.lab.far {
        None => hops(scene, &mut profile)?,
        // On a path over two machines, a capture here sees only the beginning.
        Some(_) => profile.missing.push(
            "hops, and the system calls of the server's sidecar and of the server, are profiled on one machine only"
                .to_owned(),
        ),
    }
    if perf::is_here() {
        perf::syscalls(scene, &mut profile)?;
        perf::flames(scene, &mut profile)?;
    } else {
        profile.missing.push(
            "perf is not found (Debian: linux-perf): system calls are not counted, and there are no flame graphs"
                .to_owned(),
        );
    }
    Ok(profile)
}

/// Times each hop and counts what travels.
fn hops(scene: &ProfiledCell<'_>, profile: &mut Profile) -> Result<(), BrokenSlice> {
    let mut seen: Option<Result<Watched, String>> = None;
    let run = scene.under_load(&mut |load: &mut SupervisedChild, until: Instant| {
        let from = SystemTime::now() + MARGIN;
        let left = until.saturating_duration_since(Instant::now());
        let window = (unix_ns(from), unix_ns(SystemTime::now() + left));
        let shared = ["http2", "grpc"].contains(&scene.cell.protocol.as_str());
        let capture = match PacketCapture::timed(&scene.route.hops, window, shared) {
            Ok(capture) => capture,
            Err(why) => {
                seen = Some(Err(format!("a capture needs CAP_NET_RAW: {why}")));
                return Ok(());
            }
        };
        wait_until(load, until, scene.lab)?;
        seen = Some(capture.finish().map(|(seen, lost)| (seen, lost, window)));
        Ok(())
    })?;
    match seen {
        Some(Ok((seen, lost, window))) => {
            if lost > 0 {
                let words =
                    format!("the capture lost {lost} packets: bytes and packets are too few");
                profile.missing.push(words);
            }
            let seconds = window.1.saturating_sub(window.0) as f64 / 1e9;
            let requests = requests_within(&seen, run.achieved_rps * seconds);
            let answered = scene.cell.kind != ValueKind::Bulk;
            if answered {
                profile.service_p50_us = run.service_us.p50;
            } else {
                let words = "hops are not timed: bulk has no responses";
                profile.missing.push(words.to_owned());
            }
            let hops = scene.route.hops.iter().zip(&seen);
            profile.hops = hops
                .map(|(hop, seen)| hop_seen(hop, seen, requests, answered))
                .collect();
            for hop in profile.hops.iter().filter(|_| answered) {
                if hop.answers == 0 && hop.packets_per_request < FEW_PACKETS {
                    let words = format!("there is no traffic on the hop to the {}", hop.to);
                    profile.missing.push(words);
                } else if hop.answers == 0 {
                    profile.missing.push(format!(
                        "the hop to the {} is not timed: over {} requests share its connections, and {}",
                        hop.to,
                        scene.cell.protocol,
                        if hop.tls { "the traffic is encrypted" } else { "none was captured from its start" },
                    ));
                }
            }
        }
        Some(Err(why)) => profile
            .missing
            .push(format!("hops are not captured: {why}")),
        None => profile.missing.push("hops are not captured".to_owned()),
    }
    Ok(())
}

/// Number of requests within the window: the most answers that any hop saw. If most answers could not be told apart, the number
/// follows from the run's rate, which counts too many when the load stalls.
fn requests_within(seen: &[HopCapture], by_rate: f64) -> f64 {
    let counted = seen.iter().map(|seen| seen.timed.answers_ns.len()).max();
    match counted {
        Some(counted) if counted < MAX_ANSWERS && counted as f64 * 2.0 > by_rate => counted as f64,
        _ => by_rate,
    }
    .max(1.0)
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn hop_seen(hop: &Hop, seen: &HopCapture, requests: f64, answered: bool) -> HopSeen {
    let timed = &seen.timed;
    let mut times = timed.answers_ns.clone();
    times.sort_unstable();
    let quantile = |quantile: f64| {
        let at = (times.len() as f64 * quantile) as usize;
        let time = times.get(at.min(times.len().saturating_sub(1)));
        time.filter(|_| answered).map(|ns| *ns as f64 / 1000.0)
    };
    HopSeen {
        to: hop.to.to_owned(),
        tls: hop.tls,
        answers: if answered { times.len() as u64 } else { 0 },
        p50_us: quantile(0.5),
        p90_us: quantile(0.9),
        p99_us: quantile(0.99),
        wire_bytes_per_request: timed.wire_bytes as f64 / requests,
        packets_per_request: timed.packets as f64 / requests,
    }
}
