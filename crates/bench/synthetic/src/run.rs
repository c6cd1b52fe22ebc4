//! A whole graph without a mesh: every replica of every service is a process of its own on 127.0.0.1, calling the others
//! directly. The baseline that a mesh is compared with.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use voile_graph::Graph;
use voile_host::child::{ChildExit, Output, Spec, StartError, SupervisedChild};
use voile_host::ports::free_port;
use voile_host::ready::{NotReady, Probe, wait_ready};

/// Most processes: beyond it a machine only swaps.
const MAX_PROCESSES: usize = 2_000;
/// Time limit for each process to be ready: machines under load start slowly.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Time limit for a process to answer its requests in flight.
const GRACE: Duration = Duration::from_secs(12);
/// Interval between checks for processes that have ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Options of a run.
#[derive(Debug)]
pub struct RunOptions {
    /// The graph.
    pub graph: Graph,
    /// Its file, which every process reads.
    pub file: PathBuf,
    /// This program.
    pub voile: PathBuf,
    /// Threads of each process.
    pub threads: usize,
    /// Makes error rates and probabilities repeatable.
    pub seed: Option<u64>,
    /// A command for /bin/sh, run once all is ready, with the entry points in `URL` and `URL_NAME`; then all ends.
    pub once_ready: Option<String>,
}

/// Why it ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// More processes than sensible.
    #[error("{0} processes are more than the {MAX_PROCESSES} allowed; lower `numReplicas`")]
    TooMany(usize),
    /// No free port, or the program cannot wait for signals.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A process could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A process does not become ready.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// A process ended by itself.
    #[error("{0} {1}; all others are stopped")]
    Ended(String, ChildExit),
}

/// One process.
struct Process {
    child: SupervisedChild,
    address: SocketAddr,
}

/// Starts all processes, reports the addresses of the entry points, and waits for the end. Returns the exit code: 0, or that
/// of the command.
///
/// # Errors A process cannot be started or ends by itself. In every case all processes are stopped.
pub fn run(
    options: RunOptions,
    ready: impl FnOnce(&[(String, SocketAddr)]),
) -> Result<u8, RunError> {
    let services = &options.graph.services;
    let count: usize = services
        .iter()
        .map(|service| service.replicas as usize)
        .sum();
    if count > MAX_PROCESSES {
        return Err(RunError::TooMany(count));
    }
    voile_host::interrupt::watch()?;
    let mut places: Vec<Vec<SocketAddr>> = Vec::new();
    for service in services {
        let ports = (0..service.replicas).map(|_| free_port(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        places.push(ports.collect::<io::Result<_>>()?);
    }
    let mut processes = Vec::new();
    for (service, addresses) in places.iter().enumerate() {
        for (replica, &address) in addresses.iter().enumerate() {
            let child = spec(&options, &places, service, replica, address).start()?;
            processes.push(Process { child, address });
        }
    }
    let ended = wait_and_watch(&options, &places, &mut processes, ready);
    // All hear it before the first is waited for.
    for process in &processes {
        process.child.begin_stop();
    }
    for process in &mut processes {
        process.child.stop(GRACE);
    }
    ended
}

fn spec(
    options: &RunOptions,
    places: &[Vec<SocketAddr>],
    service: usize,
    replica: usize,
    address: SocketAddr,
) -> Spec {
    let own = &options.graph.services[service];
    let name = match own.replicas {
        1 => own.name.to_string(),
        _ => format!("{}/{replica}", own.name),
    };
    let mut spec = Spec::new(name.clone(), &options.voile)
        .args(["graph", "serve", "--graph"])
        .arg(&options.file)
        .args(["--service", &own.name])
        .args(["--listen", &address.to_string()])
        .args(["--replica", &replica.to_string()])
        .args(["--threads", &options.threads.to_string()])
        .arg("--quiet");
    if let Some(seed) = options.seed {
        spec = spec.args(["--seed", &seed.to_string()]);
    }
    let mut callees: BTreeMap<usize, ()> = BTreeMap::new();
    for call in own.calls() {
        if callees.insert(call.service, ()).is_none() {
            let addresses: Vec<String> = places[call.service]
                .iter()
                .map(ToString::to_string)
                .collect();
            let callee = &options.graph.services[call.service].name;
            spec = spec.args(["--at", &format!("{callee}={}", addresses.join(","))]);
        }
    }
    spec.stderr(Output::Lines(Box::new(move |line| {
        eprintln!("{name}: {line}");
    })))
}

fn wait_and_watch(
    options: &RunOptions,
    places: &[Vec<SocketAddr>],
    processes: &mut [Process],
    ready: impl FnOnce(&[(String, SocketAddr)]),
) -> Result<u8, RunError> {
    for process in processes.iter_mut() {
        let probe = Probe::Http(process.address, "/healthz".to_owned());
        let waited = wait_ready(
            &mut process.child,
            &probe,
            READY_WITHIN,
            &voile_host::interrupt::asked,
        );
        if let Err(NotReady::Stopped { .. }) = waited {
            return Ok(0);
        }
        waited?;
    }
    let entries: Vec<(String, SocketAddr)> = options
        .graph
        .entries()
        .into_iter()
        .flat_map(|entry| {
            let name = &options.graph.services[entry].name;
            places[entry]
                .iter()
                .map(move |address| (name.to_string(), *address))
        })
        .collect();
    ready(&entries);
    let mut command = match &options.once_ready {
        None => None,
        Some(command) => Some(once(command, &entries)?),
    };
    loop {
        if voile_host::interrupt::asked() {
            return Ok(0);
        }
        for process in processes.iter_mut() {
            if let Some(exit) = process.child.try_exit() {
                return Err(RunError::Ended(process.child.name().to_owned(), exit));
            }
        }
        let exit = match &mut command {
            Some(command) => command.wait(LOOK_EVERY),
            None => {
                pause();
                None
            }
        };
        match exit {
            Some(ChildExit::Code(code)) => return Ok(u8::try_from(code).unwrap_or(1)),
            Some(ChildExit::Signal(_)) => return Ok(1),
            None => {}
        }
    }
}

fn once(command: &str, entries: &[(String, SocketAddr)]) -> Result<SupervisedChild, StartError> {
    let mut spec = Spec::new("the command", "/bin/sh")
        .args(["-c", command])
        .stdout(Output::Inherit)
        .stderr(Output::Inherit);
    if let Some((_, address)) = entries.first() {
        spec = spec.env("URL", format!("http://{address}/"));
    }
    // Of several replicas the first.
    for (name, address) in entries.iter().rev() {
        let variable = name.to_ascii_uppercase().replace('-', "_");
        spec = spec.env(format!("URL_{variable}"), format!("http://{address}/"));
    }
    spec.start()
}

#[expect(
    clippy::disallowed_methods,
    reason = "paces a loop that looks whether a process has ended or we are to"
)]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}
