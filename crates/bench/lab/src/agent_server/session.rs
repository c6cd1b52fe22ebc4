//! One session of an agent: starts, asks, measures and captures what the near end requests, within bounds. All of it ends with
//! the session.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use voile_host::child::{SupervisedChild, stop_all};
use voile_host::machine::{CoreTime, cores_here};
use voile_host::ports::{forget, free_port};
use voile_host::sampler::{ProcessResources, Usage};
use voile_report::profile::Flame;

use crate::agent::link::{Link, hung_up};
use crate::agent::messages::{
    AgentProgram, AgentReply, AgentRequest, ClockReading, FRAME_BYTES, StartCommand, StartedProcess,
};
use crate::agent::token::Token;
use crate::calibration::calibrate;
use crate::contestants::agent_services;
use crate::contestants::effect_evidence::Page;
use crate::contestants::served_process::ServedProcess;
use crate::find::FoundPeers;
use crate::machine::instance::Instance;
use crate::machine::socket_owners::listener_owner;
use crate::network::Echo;
use crate::packet_capture::PacketCapture;
use crate::process_bounds::{ProcessBound, ProcessBounds};
use crate::run::profile::perf::{self, Sampling};
use crate::shared_processes::{Lab, STOP_GRACE};

/// A near end that asks nothing for so long has been forgotten: longer than any slice.
const SILENCE: Duration = Duration::from_secs(2 * 3600);
/// Processes of one session, ended ones included: more than any experiment has at once, fewer than would harm a machine.
const MAX_STARTS: u32 = 10_000;
const MAX_PROCESSES: usize = 256;
/// Threads that a proxy may be asked to have.
const MAX_WORKERS: u32 = 256;
/// Ports that one question may ask for.
const MAX_PORTS: u16 = 256;
/// Instances that one question may name, and processes of one.
const MAX_INSTANCES: usize = 256;
/// Hops of a path, and letters of the word that marks its requests.
const MAX_HOPS: usize = 8;
const MAX_MARKER: usize = 64;

/// No slice is looked at for longer.
const MAX_SAMPLED_SECONDS: f64 = 600.0;

/// Settings of an agent.
pub struct AgentSettings {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Secret that the near end must know.
    pub token: Token,
    /// True if the agent ends after one session.
    pub once: bool,
    /// The `voile` program to measure, which is also server and relay.
    pub voile: PathBuf,
    /// Peers on this machine.
    pub found: FoundPeers,
    /// Other builds of `voile`, by the names that the near end gives them, too.
    pub builds: Vec<(String, PathBuf)>,
}

/// A process and its properties.
struct AgentProcess {
    served: ServedProcess,
    folder: PathBuf,
    bounds: ProcessBounds,
}

/// A session: everything that the near end has on this machine.
pub(super) struct AgentSession<'a> {
    settings: &'a AgentSettings,
    /// The address that the near end called: servers and sidecars listen on it.
    at: IpAddr,
    near: IpAddr,
    processes: BTreeMap<u32, AgentProcess>,
    /// Addresses of the session's servers.
    echos: Vec<Echo>,
    capture: Option<PacketCapture>,
    sampling: Option<Sampling>,
    started: u32,
    /// Removed last.
    folder: TempDir,
}

impl Drop for AgentSession<'_> {
    fn drop(&mut self) {
        self.end(|_| true);
        if let Some(capture) = self.capture.take() {
            let _ = capture.finish();
        }
        self.sampling = None;
        // The next session may use the ports of this one.
        forget(self.at);
    }
}

impl<'a> AgentSession<'a> {
    pub(super) fn begin(
        settings: &'a AgentSettings,
        at: SocketAddr,
        near: IpAddr,
    ) -> Result<Self, String> {
        let folder = tempfile::Builder::new()
            .prefix("voile-agent-")
            .tempdir()
            .map_err(|e| format!("a temporary folder: {e}"))?;
        Ok(Self {
            settings,
            at: at.ip(),
            near,
            processes: BTreeMap::new(),
            echos: Vec::new(),
            capture: None,
            sampling: None,
            started: 0,
            folder,
        })
    }

    /// Answers until the other end hangs up; an error says why it was ended before.
    pub(super) fn serve(mut self, mut link: Link) -> Result<(), String> {
        let failed = |e: std::io::Error| e.to_string();
        let socket = link.watcher().map_err(failed)?;
        loop {
            link.within(Some(SILENCE));
            let Some(request) = link.receive::<AgentRequest>().map_err(failed)? else {
                return Ok(());
            };
            let answer = self.answer(request, &socket);
            let answer = answer.unwrap_or_else(AgentReply::Failed);
            link.send(&answer).map_err(failed)?;
        }
    }

    fn answer(&mut self, request: AgentRequest, socket: &TcpStream) -> Result<AgentReply, String> {
        Ok(match request {
            AgentRequest::Calibrate => AgentReply::Calibrated(Box::new(calibrate())),
            AgentRequest::Ports(number) => AgentReply::Ports(self.ports(number)?),
            AgentRequest::Start(start) => AgentReply::Started(self.start(&start, socket)?),
            AgentRequest::Ready(number) => {
                self.with(number, socket, |running, lab| {
                    let ServedProcess { process, probe, .. } = &mut running.served;
                    lab.wait_ready(process, probe)
                })?;
                AgentReply::Done
            }
            AgentRequest::Answers(number) => {
                let probe = &self.running(number)?.served.probe;
                AgentReply::Answers(voile_host::ready::ask(probe).is_ok())
            }
            AgentRequest::Serial(number) => AgentReply::Serial(self.page(number)?.serial()?),
            AgentRequest::Renew(number) => {
                self.page(number)?.renew()?;
                AgentReply::Done
            }
            AgentRequest::Alive(number) => {
                self.with(number, socket, |running, lab| {
                    alive(&mut running.served.process, lab)
                })?;
                AgentReply::Done
            }
            AgentRequest::Count(number, protocol) => {
                AgentReply::Count((self.running(number)?.served.count)(&protocol)?)
            }
            AgentRequest::Tls(number) => AgentReply::Tls((self.running(number)?.served.tls)()),
            AgentRequest::Pids(number) => {
                AgentReply::Pids(self.running(number)?.served.process.group_pids())
            }
            AgentRequest::Look(instances) => AgentReply::Looked(self.look(&instances)?),
            AgentRequest::Hold(instances) => AgentReply::Held(self.hold(&instances)?),
            AgentRequest::Owner(address, numbers) => {
                let owner = listener_owner(address, None, &self.pids(&numbers)?);
                AgentReply::Owner(owner.map_err(|e| format!("cannot read /proc: {e}"))?)
            }
            AgentRequest::Watch(hops, marker) => {
                self.watch(&hops, &marker)?;
                AgentReply::Done
            }
            AgentRequest::Seen => {
                let capture = self.capture.take().ok_or("no capture is running")?;
                let (seen, lost) = capture.finish()?;
                AgentReply::Seen(seen, lost)
            }
            AgentRequest::Sample(instances, seconds) => {
                self.sample(&instances, seconds)?;
                AgentReply::Done
            }
            AgentRequest::Sampled => AgentReply::Sampled(self.sampled(socket)?),
            AgentRequest::Stop(numbers) => {
                self.end(|number| numbers.contains(number));
                AgentReply::Done
            }
        })
    }

    fn ports(&self, number: u16) -> Result<Vec<u16>, String> {
        if number > MAX_PORTS {
            return Err(format!("{number} ports; {MAX_PORTS} at once are allowed"));
        }
        let ports = (0..number).map(|_| free_port(self.at).map(|address| address.port()));
        let ports: std::io::Result<_> = ports.collect();
        ports.map_err(|e| format!("cannot get a port on the agent's machine: {e}"))
    }

    fn running(&self, number: u32) -> Result<&AgentProcess, String> {
        let running = self.processes.get(&number);
        running.ok_or_else(|| format!("the agent has no process {number}"))
    }

    /// Address of the page on which a process reports its certificate.
    fn page(&self, number: u32) -> Result<Page, String> {
        let page = self.running(number)?.served.certificates;
        let page = page.map(Page::Here);
        page.ok_or_else(|| format!("process {number} has no certificates page"))
    }

    /// Process ids of these processes. A process that has ended has none: an event replaced it during the measurement.
    fn pids(&self, numbers: &[u32]) -> Result<Vec<u32>, String> {
        let mut pids = Vec::new();
        for number in numbers {
            match self.processes.get(number) {
                Some(running) => pids.extend(running.served.process.group_pids()),
                None if (1..=self.started).contains(number) => {}
                None => return Err(format!("the agent has no process {number}")),
            }
        }
        Ok(pids)
    }

    /// Does something with a process, in the lab that it was started in.
    fn with(
        &mut self,
        number: u32,
        socket: &TcpStream,
        what: impl FnOnce(&mut AgentProcess, &Lab<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let voile = &self.settings.voile;
        let running = self.processes.get_mut(&number);
        let running = running.ok_or_else(|| format!("the agent has no process {number}"))?;
        let folder = running.folder.clone();
        let bounds = running.bounds.clone();
        let stopped = || hung_up(socket);
        let lab = lab(voile, &folder, Echo::NOWHERE, 1, bounds, &stopped);
        what(running, &lab)
    }

    /// Checks a request to start a process. Returns the server to which the process sends requests.
    fn admit(&self, start: &StartCommand) -> Result<Echo, String> {
        if self.started >= MAX_STARTS || self.processes.len() >= MAX_PROCESSES {
            return Err(format!(
                "the agent starts no more than {MAX_PROCESSES} processes at once, {MAX_STARTS} in all"
            ));
        }
        if !(1..=MAX_WORKERS).contains(&start.workers) {
            return Err(format!("{} workers: 1 to {MAX_WORKERS}", start.workers));
        }
        let here = cores_here();
        for (role, cores) in &start.bound.cores {
            if let Some(stranger) = cores.iter().find(|core| !here.contains(core)) {
                return Err(format!(
                    "the agent may not run {role} on core {stranger}: it has {here:?}"
                ));
            }
        }
        match start.echo {
            None => Ok(Echo::NOWHERE),
            Some(echo) if self.echos.contains(&echo) => Ok(echo),
            Some(echo) => Err(format!("{} is not a server of the agent", echo.http)),
        }
    }

    fn start(
        &mut self,
        start: &StartCommand,
        socket: &TcpStream,
    ) -> Result<StartedProcess, String> {
        let echo = self.admit(start)?;
        self.started += 1;
        let number = self.started;
        let folder = self.folder.path().join(number.to_string());
        std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let bounds = ProcessBounds::told(&start.bound);
        let stopped = || hung_up(socket);
        let voile = &self.settings.voile;
        let lab = lab(
            voile,
            &folder,
            echo,
            start.workers,
            bounds.clone(),
            &stopped,
        );
        let (mut served, addresses) = match &start.what {
            AgentProgram::Echo { sink, second } => {
                agent_services::echo(&lab, self.at, *sink, *second)?
            }
            AgentProgram::Relay { tcp } => agent_services::relay(&lab, self.at, *tcp)?,
            AgentProgram::Peer(order) => (
                agent_services::peer(&lab, self.at, order, &self.settings.found)?,
                Vec::new(),
            ),
            AgentProgram::Voile(order) => {
                if order.control.ip() != self.near {
                    return Err(format!(
                        "the control plane is said to be at {}, but the agent was called from {}: without address translation both must be the same",
                        order.control, self.near
                    ));
                }
                (
                    agent_services::voile(&lab, order, &self.settings.builds)?,
                    Vec::new(),
                )
            }
        };
        if let (AgentProgram::Echo { .. }, [http, tcp]) = (&start.what, addresses.as_slice()) {
            lab.wait_ready(&mut served.process, &served.probe)?;
            self.echos.push(Echo {
                http: *http,
                tcp: *tcp,
            });
        }
        let started = StartedProcess {
            number,
            name: served.process.name().to_owned(),
            command: served
                .process
                .command_line()
                .replace(&folder.display().to_string(), "FOLDER"),
            addresses,
        };
        let running = AgentProcess {
            served,
            folder,
            bounds,
        };
        self.processes.insert(number, running);
        Ok(started)
    }

    fn look(&self, instances: &[Vec<u32>]) -> Result<ClockReading, String> {
        let mut look = ClockReading::default();
        for (numbers, pids) in instances.iter().zip(self.instances(instances)?) {
            let used = Usage::of_all(&pids);
            look.usage.push([
                used.cpu_ns,
                used.user_ns,
                used.system_ns,
                used.voluntary_switches,
                used.involuntary_switches,
            ]);
            let throttled = numbers.first().and_then(|number| {
                let running = self.processes.get(number)?;
                let name = running.served.process.name().to_owned();
                let throttling =
                    running
                        .bounds
                        .throttling(&Instance::here(name, "", Vec::new()))?;
                Some([
                    throttling.periods,
                    throttling.throttled,
                    throttling.throttled_ns,
                ])
            });
            look.throttling.push(throttled);
        }
        let machine = CoreTime::now().ok();
        look.machine = machine.map(|time| (time.available_ns, time.idle_ns));
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        look.at_ns = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        Ok(look)
    }

    fn hold(&self, instances: &[Vec<u32>]) -> Result<Vec<[u64; 5]>, String> {
        let held = self.instances(instances)?.into_iter().map(|pids| {
            let held = ProcessResources::of_all(&pids);
            [
                held.rss_bytes,
                held.pss_bytes,
                held.anonymous_bytes,
                held.threads,
                held.descriptors,
            ]
        });
        Ok(held.collect())
    }

    /// The processes of each instance.
    fn instances(&self, instances: &[Vec<u32>]) -> Result<Vec<Vec<u32>>, String> {
        let named: usize = instances.iter().map(Vec::len).sum();
        if instances.len() > MAX_INSTANCES || named > MAX_INSTANCES {
            return Err(format!("{named} instances; {MAX_INSTANCES} are allowed"));
        }
        instances.iter().map(|numbers| self.pids(numbers)).collect()
    }

    fn watch(&mut self, hops: &[(SocketAddr, bool)], marker: &str) -> Result<(), String> {
        let strange = hops.iter().find(|(address, _)| address.ip() != self.at);
        if let Some((address, _)) = strange {
            return Err(format!(
                "{address} is not an address that the agent may capture"
            ));
        }
        if hops.len() > MAX_HOPS || marker.len() > MAX_MARKER || marker.is_empty() {
            return Err(format!("no more than {MAX_HOPS} hops can be captured"));
        }
        self.capture = None;
        let capture = PacketCapture::on_devices(hops, marker).map_err(|e| e.to_string())?;
        self.capture = Some(capture);
        Ok(())
    }

    /// Begins to sample the stacks of these instances.
    fn sample(&mut self, instances: &[(String, Vec<u32>)], seconds: f64) -> Result<(), String> {
        if !(0.0..=MAX_SAMPLED_SECONDS).contains(&seconds) {
            return Err(format!(
                "stacks are sampled for at most {MAX_SAMPLED_SECONDS} s"
            ));
        }
        if instances.iter().any(|(role, _)| role.len() > MAX_MARKER) {
            return Err("a role must be a single word".to_owned());
        }
        if !perf::is_here() {
            return Err("perf is not found on the agent's machine (Debian: linux-perf)".to_owned());
        }
        let numbers: Vec<Vec<u32>> = instances
            .iter()
            .map(|(_, numbers)| numbers.clone())
            .collect();
        let pids = self.instances(&numbers)?.into_iter().zip(instances);
        let roles =
            pids.flat_map(|(pids, (role, _))| pids.into_iter().map(move |pid| (pid, role.clone())));
        let never = || false;
        let lab = self.own_lab(&never);
        self.sampling = Some(Sampling::begin(&lab, roles.collect(), seconds)?);
        Ok(())
    }

    /// Returns the samples, cut to the size of a frame.
    fn sampled(&mut self, socket: &TcpStream) -> Result<Vec<Flame>, String> {
        let mut sampling = self.sampling.take().ok_or("no sampling is running")?;
        let stopped = || hung_up(socket);
        let lab = self.own_lab(&stopped);
        let broken = |_| "the near end closed the connection".to_owned();
        sampling.wait(&lab).map_err(broken)??;
        let flames = sampling.tell(&lab).map_err(broken)??;
        let each = FRAME_BYTES / 2 / flames.len().max(1);
        Ok(flames.into_iter().map(|flame| flame.within(each)).collect())
    }

    /// Lab of the session's own tools, with the folder to which they write.
    fn own_lab<'b>(&'b self, stopped: &'b dyn Fn() -> bool) -> Lab<'b> {
        let bounds = ProcessBounds::told(&ProcessBound::default());
        let voile = &self.settings.voile;
        lab(voile, self.folder.path(), Echo::NOWHERE, 1, bounds, stopped)
    }

    /// Ends these processes. All of them get the signal before the session waits for any.
    fn end(&mut self, which: impl Fn(&u32) -> bool) {
        let ended = self
            .processes
            .iter_mut()
            .filter(|(number, _)| which(number));
        stop_all(
            ended.map(|(_, running)| &mut running.served.process),
            STOP_GRACE,
        );
        let gone: Vec<u32> = self
            .processes
            .keys()
            .copied()
            .filter(|number| which(number))
            .collect();
        for number in gone {
            if let Some(running) = self.processes.remove(&number) {
                (running.served.tidy)();
                let _ = std::fs::remove_dir_all(&running.folder);
            }
        }
    }
}

fn alive(process: &mut SupervisedChild, lab: &Lab<'_>) -> Result<(), String> {
    match process.try_exit() {
        None => Ok(()),
        Some(exit) => {
            let name = process.name();
            Err(format!("{name} {exit}{}", lab.log_end(name)))
        }
    }
}

fn lab<'a>(
    voile: &Path,
    folder: &'a Path,
    echo: Echo,
    workers: u32,
    bounds: ProcessBounds,
    stopped: &'a dyn Fn() -> bool,
) -> Lab<'a> {
    Lab {
        workers,
        bounds,
        ..Lab::on_loopback(voile, folder, echo, stopped)
    }
}
