//! Cost of a contestant when nothing happens. Its processes start anew for each slice, so that no earlier load left anything
//! behind. Memory is read before and after the lab opens connections, which then carry nothing. CPU is read over the slice by the
//! processes' own clocks.
//!
//! ```text
//! start ─ ready ─ settle ─ memory ┬ no connections ──────────────────────────────┬ CPU over the slice ─ memory ─ stop
//!                                 └ a few, closed again ─ memory ─ N ─ settle ─ memory ┘
//! ```

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use voile_host::isolation::ProcessIsolation;
use voile_host::sampler::{ProcessResources, Usage};
use voile_report::record::{CellKey as Cell, SliceRun};

use crate::contestants::contestant::{CellRoute, Contestant};
use crate::generator::BrokenSlice;
use crate::machine::instance::{CLIENT, CLIENT_NODE, Instance, WAYPOINT, is_proxy};
use crate::plan::{REST, RequestPath, SETTLE, possible};
use crate::shared_processes::Lab;

/// Connections that are opened and closed before the first reading. Costs of a process's first connection are then not charged to
/// the counted ones.
const FIRST: u32 = 64;

/// Threads that open connections: handshakes wait for each other's answers.
const OPENERS: u32 = 4;
/// Time for one connection to open and to answer once.
const ANSWER_BOUND: Duration = Duration::from_secs(10);
/// Interval at which the lab checks if the user asked to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Measures one slice with a contestant that is started for it and ended after it.
pub(crate) fn anew<T>(
    lab: &Lab<'_>,
    contestant: &mut dyn Contestant,
    slice: impl FnOnce(&mut dyn Contestant) -> Result<T, BrokenSlice>,
) -> Result<T, BrokenSlice> {
    contestant.start(lab).map_err(BrokenSlice::Failed)?;
    let ready = contestant.ready(lab).map_err(BrokenSlice::Failed);
    let taken = ready.and_then(|()| slice(contestant));
    contestant.stop();
    taken
}

/// One idle slice.
pub(crate) fn watch(
    lab: &Lab<'_>,
    contestant: &mut dyn Contestant,
    cell: &Cell,
    slice: Duration,
) -> Result<SliceRun, BrokenSlice> {
    let way = RequestPath::of(cell);
    let route = contestant
        .route(lab, &way)
        .ok_or_else(|| BrokenSlice::Failed(format!("it does not support {way}")))?;
    let instances = contestant.instances(&way);
    let mut run = SliceRun::of(cell);
    let mut open = Vec::new();
    if cell.connections == 0 {
        pause(lab, REST)?;
    } else {
        pause(lab, SETTLE)?;
        drop(connect(&route, cell, FIRST).map_err(BrokenSlice::Failed)?);
        pause(lab, SETTLE)?;
        let before = holdings(lab, &instances)?;
        let wanted = possible(cell.connections);
        open = connect(&route, cell, wanted).map_err(BrokenSlice::Failed)?;
        pause(lab, REST)?;
        let after = holdings(lab, &instances)?;
        compare(&mut run, &instances, (&before, &after), wanted);
    }
    let used = cpu(lab, &instances, slice)?;
    for (instance, held) in instances.iter().zip(holdings(lab, &instances)?) {
        for (name, value) in [
            ("idle_rss_bytes", held.rss_bytes),
            ("idle_pss_bytes", held.pss_bytes),
            ("idle_anonymous_bytes", held.anonymous_bytes),
        ] {
            run.idle
                .insert(format!("{}.{name}", instance.role), value as f64);
        }
    }
    for (instance, share) in instances.iter().zip(used) {
        run.idle
            .insert(format!("{}.idle_cpu", instance.role), share);
    }
    contestant.alive(lab).map_err(BrokenSlice::Failed)?;
    drop(open);
    run.seconds = slice.as_secs_f64();
    run.valid = run.invalid_reasons.is_empty();
    Ok(run)
}

/// Growth of each instance per connection, and a check that the connections are open.
fn compare(
    run: &mut SliceRun,
    instances: &[Instance],
    (before, after): (&[ProcessResources], &[ProcessResources]),
    opened: u32,
) {
    run.idle
        .insert("connections_open".to_owned(), f64::from(opened));
    for ((instance, before), after) in instances.iter().zip(before).zip(after) {
        if !is_proxy(instance.role) {
            continue;
        }
        let each = |before: u64, after: u64| (after as f64 - before as f64) / f64::from(opened);
        for (name, before, after) in [
            ("bytes_per_connection", before.pss_bytes, after.pss_bytes),
            (
                "anonymous_bytes_per_connection",
                before.anonymous_bytes,
                after.anonymous_bytes,
            ),
        ] {
            run.idle
                .insert(format!("{}.{name}", instance.role), each(before, after));
        }
        let sockets = after.descriptors.saturating_sub(before.descriptors);
        let first = run.mode == "serveronly" || [CLIENT, CLIENT_NODE].contains(&instance.role);
        // In tunnels many share a connection, and a waypoint has nothing else.
        let each_its_own = first || run.protocol == "tcp" && instance.role != WAYPOINT;
        if each_its_own && sockets < u64::from(opened) {
            run.invalid_reasons.push(format!(
                "{} connections were opened, but the {} has only {sockets} more descriptors",
                opened, instance.role
            ));
        }
    }
}

fn holdings(lab: &Lab<'_>, instances: &[Instance]) -> Result<Vec<ProcessResources>, BrokenSlice> {
    let held = instances.iter().map(|instance| match lab.far {
        Some(far) if !instance.far.is_empty() => far.hold(instance).map_err(BrokenSlice::Failed),
        _ => Ok(ProcessResources::of_all(&instance.pids)),
    });
    held.collect()
}

/// Share of a core that each instance uses over that time.
fn cpu(lab: &Lab<'_>, instances: &[Instance], slice: Duration) -> Result<Vec<f64>, BrokenSlice> {
    let usage = || -> Vec<Usage> {
        instances
            .iter()
            .map(|instance| Usage::of_all(instance.pids_here()))
            .collect()
    };
    let look = || {
        let look = lab.far.map(|far| far.look(instances));
        look.transpose().map_err(BrokenSlice::Failed)
    };
    let (before, far_before, began) = (usage(), look()?, Instant::now());
    pause(lab, slice)?;
    let (after, window, far_after) = (usage(), began.elapsed(), look()?);
    let far = far_before.as_ref().zip(far_after.as_ref());
    let share = |at: usize| {
        let (used, window) = match far.filter(|_| !instances[at].far.is_empty()) {
            Some((before, after)) => (after.usage(at).since(before.usage(at)), after.since(before)),
            None => (after[at].since(before[at]), window),
        };
        used.cpu_ns as f64 / window.as_nanos().max(1) as f64
    };
    Ok((0..instances.len()).map(share).collect())
}

/// Waits, unless the user asks to end.
#[expect(
    clippy::disallowed_methods,
    reason = "what is measured is that nothing happens for a while"
)]
fn pause(lab: &Lab<'_>, time: Duration) -> Result<(), BrokenSlice> {
    let until = Instant::now() + time;
    loop {
        if (lab.stopped)() {
            return Err(BrokenSlice::Stopped);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
}

/// Opens connections that each carry one exchange and then stay as they are.
fn connect(route: &CellRoute, cell: &Cell, number: u32) -> Result<Vec<TcpStream>, String> {
    let entry = route.entry;
    let (request, answer): (Vec<u8>, &[u8]) = if cell.protocol == "tcp" {
        (b"are you there?\n".to_vec(), b"there?\n")
    } else {
        let host = route.host.clone().unwrap_or_else(|| entry.to_string());
        let head = format!("GET /?size=0 HTTP/1.1\r\nHost: {host}\r\n\r\n");
        (head.into_bytes(), b"\r\n\r\n")
    };
    let (request, answer) = (&request, answer);
    thread::scope(|scope| {
        let openers: Vec<_> = (0..OPENERS)
            .map(|opener| {
                let share = number / OPENERS + u32::from(opener < number % OPENERS);
                let inside = route.from.as_ref().map(ProcessIsolation::network);
                scope.spawn(move || {
                    if let Some(network) = inside {
                        let failed = |e| format!("cannot enter a pod's network namespace: {e}");
                        network.enter().map_err(failed)?;
                    }
                    (0..share)
                        .map(|_| exchange(entry, request, answer))
                        .collect::<Result<Vec<_>, String>>()
                })
            })
            .collect();
        let mut open = Vec::new();
        for opener in openers {
            let streams = opener
                .join()
                .map_err(|_| "opening connections failed".to_owned())?;
            open.extend(streams?);
        }
        Ok(open)
    })
}

fn exchange(entry: SocketAddr, request: &[u8], answer: &[u8]) -> Result<TcpStream, String> {
    let failed = |e: std::io::Error| format!("a connection to {entry}: {e}");
    let mut stream = TcpStream::connect_timeout(&entry, ANSWER_BOUND).map_err(failed)?;
    stream
        .set_read_timeout(Some(ANSWER_BOUND))
        .map_err(failed)?;
    stream.write_all(request).map_err(failed)?;
    let (mut got, mut buffer) = (Vec::new(), [0; 1024]);
    while !got.ends_with(answer) {
        match stream.read(&mut buffer).map_err(failed)? {
            0 => return Err(format!("a connection to {entry} was closed at once")),
            read => got.extend_from_slice(&buffer[..read]),
        }
    }
    Ok(stream)
}
