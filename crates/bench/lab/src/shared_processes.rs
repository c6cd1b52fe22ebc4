//! Processes that every contestant shares: the echo server, and the lab's own environment.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voile_host::child::{Output, Spec, SupervisedChild};
use voile_host::isolation::ProcessIsolation;
use voile_host::ports::free_port;
use voile_host::ready::{Probe, wait_ready};

use crate::agent::messages::StartCommand;
use crate::agent::{AgentConnection, AgentProgram, FarProcess};
use crate::machine::instance::{Hop, WatchPoint};
use crate::machine::socket_owners::listener_owner;
use crate::network::{Echo, Network, Pod};
pub(crate) use crate::network::{HTTP, TCP, TCP_SINK};
use crate::plan::{ContestantSetup, RequestPath};
use crate::process_bounds::ProcessBounds;

/// Deadline for any process of an experiment to become ready.
pub(crate) const READY_BOUND: Duration = Duration::from_secs(20);
/// Time for a process to end by itself after it was told.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(3);
/// Interval at which the lab checks if a process listens.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Lines of a failed process's log that are shown.
const LOG_LINES: usize = 6;
/// Characters of each line; some programs print their whole configuration.
const LOG_LINE_CHARS: usize = 300;

/// Environment in which contestants start.
pub(crate) struct Lab<'a> {
    /// The `voile` program under test; also generator, server and relay.
    pub(crate) voile: PathBuf,
    /// A folder for configuration and logs that is removed at the end.
    pub(crate) folder: &'a Path,
    /// Addresses of the echo servers.
    pub(crate) echo: Echo,
    /// Addresses of the servers that requests are balanced over, the first as in `echo`; empty if there is only one.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Threads of each proxy.
    pub(crate) workers: u32,
    /// Bounds of the processes.
    pub(crate) bounds: ProcessBounds,
    /// Networks of client and server; none on loopback.
    pub(crate) network: Option<&'a Network>,
    /// Agent of the servers and the server's sidecars; none if they are on this machine.
    pub(crate) far: Option<&'a AgentConnection>,
    /// True if proxies start in a way that a new process can take over from them.
    pub(crate) upgradable: bool,
    /// True if an event moves proxies to another server.
    pub(crate) moves: bool,
    /// Generated objects of the mesh by number, and their effect on requests.
    pub(crate) outfit: ContestantSetup,
    /// Paths of the outfit's cells in the experiment.
    pub(crate) ways: Vec<RequestPath>,
    /// Returns true if the user asked to end.
    pub(crate) stopped: &'a dyn Fn() -> bool,
}

impl<'a> Lab<'a> {
    /// Without proxies, bounds or networks.
    pub(crate) fn on_loopback(
        voile: &Path,
        folder: &'a Path,
        echo: Echo,
        stopped: &'a dyn Fn() -> bool,
    ) -> Self {
        Self {
            voile: voile.to_owned(),
            folder,
            echo,
            endpoints: Vec::new(),
            workers: 1,
            bounds: ProcessBounds::default(),
            network: None,
            far: None,
            upgradable: false,
            moves: false,
            outfit: ContestantSetup::default(),
            ways: Vec::new(),
            stopped,
        }
    }

    /// The same, where processes of these roles start in these places.
    pub(crate) fn with_places<const N: usize>(
        &self,
        places: [(&'static str, ProcessIsolation); N],
    ) -> Self {
        Lab {
            voile: self.voile.clone(),
            endpoints: self.endpoints.clone(),
            bounds: self.bounds.with_places(places),
            outfit: self.outfit.clone(),
            ways: self.ways.clone(),
            ..*self
        }
    }
}

impl Lab<'_> {
    /// A process of that role, whose output goes to `NAME.log` in the lab's folder.
    pub(crate) fn process(&self, role: &str, name: &str, program: &Path) -> Result<Spec, String> {
        self.bounds
            .bind(role, name, self.free_process(name, program))
    }

    /// The same, bound by nothing.
    pub(crate) fn free_process(&self, name: &str, program: &Path) -> Spec {
        let log = self.log(name);
        Spec::new(name, program)
            .stdout(Output::Append(log.clone()))
            .stderr(Output::Append(log))
    }

    /// The last hop of every path to the server that all share.
    pub(crate) fn server_hop(&self, protocol: &str) -> Hop {
        let spot = self.network.map(|network| WatchPoint {
            namespace: network.server.namespace.clone(),
            device: WatchPoint::ETHERNET,
            listener: None,
        });
        Hop {
            to: "server",
            address: if protocol == "tcp" {
                self.echo.tcp
            } else {
                self.echo.http
            },
            tls: false,
            spot,
        }
    }

    /// Log file of a process.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// Waits until the process answers. The error has the end of its log.
    pub(crate) fn wait_ready(
        &self,
        child: &mut SupervisedChild,
        probe: &Probe,
    ) -> Result<(), String> {
        wait_ready(child, probe, READY_BOUND, self.stopped)
            .map_err(|e| format!("{e}{}", self.log_end(child.name())))
    }

    /// Waits until the kernel shows that the process listens there: a call from outside might reach another process.
    pub(crate) fn wait_listening(
        &self,
        child: &mut SupervisedChild,
        address: SocketAddr,
    ) -> Result<(), String> {
        let deadline = Instant::now() + READY_BOUND;
        let listens = |child: &SupervisedChild| {
            matches!(
                listener_owner(address, None, &child.group_pids()),
                Ok(Some(_))
            )
        };
        while !listens(child) {
            if child.wait(LOOK_EVERY).is_some() || Instant::now() >= deadline || (self.stopped)() {
                let name = child.name();
                let log = self.log_end(name);
                return Err(format!("{name} does not listen on {address}{log}"));
            }
        }
        Ok(())
    }

    /// Starts the echo server of a pod on these ports (HTTP's and those of bytes), and waits until the kernel shows that it
    /// listens. A call from outside would be redirected to a sidecar.
    pub(crate) fn start_pod_echo(
        &self,
        network: &Network,
        pod: &Pod,
        name: &str,
        (http, tcp): (&[u16], &[u16]),
        arguments: &[&str],
    ) -> Result<SupervisedChild, String> {
        let addresses = |option: &str, ports: &[u16]| -> Vec<String> {
            let address = |port: &u16| SocketAddr::new(pod.address, *port).to_string();
            let one = |port: &u16| [option.to_owned(), address(port)];
            ports.iter().flat_map(one).collect()
        };
        let spec = self
            .process("server", name, &self.voile)?
            .arg("echo")
            .args(addresses(HTTP, http))
            .args(addresses(network.tcp, tcp))
            .args(arguments)
            .place(pod.for_application());
        let mut child = spec.start().map_err(|e| e.to_string())?;
        for port in http.iter().chain(tcp) {
            self.wait_listening(&mut child, SocketAddr::new(pod.address, *port))?;
        }
        Ok(child)
    }

    /// Starts something at the agent's; where it listens, if the agent chose that.
    pub(crate) fn start_there(
        &self,
        far: &AgentConnection,
        what: AgentProgram,
    ) -> Result<(FarProcess, Vec<SocketAddr>), String> {
        far.start(StartCommand {
            what,
            echo: (self.echo != Echo::NOWHERE).then_some(self.echo),
            workers: self.workers,
            bound: self.bounds.tell(),
        })
    }

    /// The end of a process's log, as a clause of an error message.
    pub(crate) fn log_end(&self, name: &str) -> String {
        let log = std::fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let cut = |line: &&str| line.chars().take(LOG_LINE_CHARS).collect::<String>();
        let end: Vec<String> = lines[lines.len().saturating_sub(LOG_LINES)..]
            .iter()
            .map(cut)
            .collect();
        let killed = self.bounds.killed(name);
        let killed = killed.map_or(String::new(), |why| format!(" ({why})"));
        if end.is_empty() {
            killed
        } else {
            format!("{killed}; it said:\n    {}", end.join("\n    "))
        }
    }
}

/// Starts an echo server (all contestants lead to the same one) with these arguments beside its address.
pub(crate) fn start_echo(
    voile: &Path,
    folder: &Path,
    serves: &str,
    arguments: &[&str],
    stopped: &dyn Fn() -> bool,
) -> Result<(SupervisedChild, SocketAddr), String> {
    start_echo_bound(
        voile,
        folder,
        serves,
        arguments,
        &ProcessBounds::default(),
        stopped,
    )
}

/// The same, where the server is kept to some cores.
pub(crate) fn start_echo_bound(
    voile: &Path,
    folder: &Path,
    serves: &str,
    arguments: &[&str],
    bounds: &ProcessBounds,
    stopped: &dyn Fn() -> bool,
) -> Result<(SupervisedChild, SocketAddr), String> {
    let address = free_port(IpAddr::V4(Ipv4Addr::LOCALHOST))
        .map_err(|e| format!("cannot get a port for the echo server: {e}"))?;
    let both = Echo {
        http: address,
        tcp: address,
    };
    let lab = Lab {
        bounds: bounds.clone(),
        ..Lab::on_loopback(voile, folder, both, stopped)
    };
    let tcp = serves != HTTP;
    let spec = lab
        .process("server", if tcp { "echo-tcp" } else { "echo" }, voile)?
        .args(["echo", serves, &address.to_string()])
        .args(arguments);
    let mut child = spec.start().map_err(|e| e.to_string())?;
    let probe = if tcp {
        Probe::Tcp(address)
    } else {
        Probe::Http(address, "/?size=1".to_owned())
    };
    lab.wait_ready(&mut child, &probe)?;
    Ok((child, address))
}
