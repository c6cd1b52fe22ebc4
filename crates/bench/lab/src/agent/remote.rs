//! The near end's side of an agent: processes that it started there, which the lab asks, measures and ends from here.

use std::cell::RefCell;
use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::rc::Rc;
use std::time::Duration;

use voile_host::cgroup::Throttling;
use voile_host::machine::CoreTime;
use voile_host::sampler::{ProcessResources, Usage};
use voile_report::profile::Flame;
use voile_report::record::{Calibration, Environment};

use super::link::{GREETING, Link, TimedSocket};
use super::messages::{
    AgentReply, AgentRequest, AgentWelcome, ClockReading, FRAME_BYTES, Hello, PROTOCOL,
    StartCommand, StartedProcess, boot, profile,
};
use super::token::Token;
use crate::machine::instance::Instance;
use crate::packet_capture::HopCapture;

/// Deadline of the connect to an agent.
const CONNECT: Duration = Duration::from_secs(5);
/// An answer takes no longer than a process may take to become ready, and a little.
const ANSWER: Duration = Duration::from_secs(40);
/// perf takes longer: it reads the programs' symbols.
const SAMPLED: Duration = Duration::from_secs(180);

/// Address of an agent and the secret to reach it.
#[derive(Debug, Clone)]
pub struct AgentAddress {
    /// HOST:PORT, as it was written.
    pub name: String,
    /// The shared secret.
    pub token: Token,
}

/// A session with an agent. Its end ends everything there.
#[derive(Clone)]
pub(crate) struct AgentConnection(Rc<RemoteSession>);

struct RemoteSession {
    name: String,
    link: RefCell<Link>,
    /// Reason why nothing more can be asked.
    lost: RefCell<Option<String>>,
    far: IpAddr,
    near: IpAddr,
    welcome: AgentWelcome,
    /// The machine's name in records.
    host: String,
    one_machine: bool,
}

/// The first of a name's addresses that takes the call.
fn connect(addresses: impl Iterator<Item = SocketAddr>) -> std::io::Result<TcpStream> {
    let mut why = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(e) => why = e,
        }
    }
    Err(why)
}

impl fmt::Debug for AgentConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent at {}", self.0.name)
    }
}

impl AgentConnection {
    /// Calls an agent and begins a session.
    pub(crate) fn call(agent: &AgentAddress, here: &Environment) -> Result<Self, String> {
        let name = &agent.name;
        let failed = |what: &str, e: std::io::Error| format!("the agent at {name}: {what}{e}");
        let addresses = name
            .to_socket_addrs()
            .map_err(|e| failed("not an address, HOST:PORT: ", e))?;
        let stream = connect(addresses).map_err(|e| {
            let hint = match e.kind() {
                std::io::ErrorKind::ConnectionRefused => {
                    " (is `voile bench agent` running there, with --listen for this address?)"
                }
                _ => "",
            };
            format!("the agent at {name}: {e}{hint}")
        })?;
        let (near, far) = (
            stream.local_addr().map_err(|e| failed("", e))?.ip(),
            stream.peer_addr().map_err(|e| failed("", e))?.ip(),
        );
        let socket = TimedSocket::new(stream, || false).map_err(|e| failed("", e))?;
        let mut link =
            Link::call(socket).map_err(|e| failed("it is not a `voile bench agent`: ", e))?;
        link.prove(&agent.token)
            .map_err(|why| format!("the agent at {name} refuses this end: {why}"))?;
        link.send(&Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            profile: profile().to_owned(),
        })
        .map_err(|e| failed("", e))?;
        link.allow(FRAME_BYTES);
        link.within(Some(GREETING));
        let welcome: Option<AgentWelcome> = link.receive().map_err(|e| failed("", e))?;
        let welcome =
            welcome.ok_or_else(|| format!("the agent at {name} closed the connection"))?;
        if !welcome.refused.is_empty() {
            return Err(format!(
                "the agent at {name} refuses this end: {}",
                welcome.refused
            ));
        }
        let there = &welcome.environment.host;
        let host = if *there == here.host {
            format!("{there} (agent)")
        } else {
            there.clone()
        };
        Ok(Self(Rc::new(RemoteSession {
            name: name.clone(),
            link: RefCell::new(link),
            lost: RefCell::new(None),
            far,
            near,
            one_machine: welcome.boot == boot() && !welcome.boot.is_empty(),
            welcome,
            host,
        })))
    }

    /// Address of the servers and of the server's sidecars.
    pub(crate) fn address(&self) -> IpAddr {
        self.0.far
    }

    /// Our address, as the agent sees it.
    pub(crate) fn near(&self) -> IpAddr {
        self.0.near
    }

    /// The machine's name in records.
    pub(crate) fn host(&self) -> &str {
        &self.0.host
    }

    /// Reports if the agent runs on this very machine, whose cores must not be counted twice.
    pub(crate) fn one_machine(&self) -> bool {
        self.0.one_machine
    }

    /// The machine, as records tell it.
    pub(crate) fn environment(&self) -> Environment {
        Environment {
            host: self.0.host.clone(),
            ..self.0.welcome.environment.clone()
        }
    }

    /// Reason why nothing more can be asked of the agent.
    pub(crate) fn lost(&self) -> Option<String> {
        self.0.lost.borrow().clone()
    }

    /// Reports if the hop is at the agent.
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        address.ip() == self.0.far
    }

    fn ask(&self, request: &AgentRequest) -> Result<AgentReply, String> {
        self.ask_within(request, ANSWER)
    }

    fn ask_within(&self, request: &AgentRequest, bound: Duration) -> Result<AgentReply, String> {
        if let Some(why) = self.lost() {
            return Err(why);
        }
        let mut link = self.0.link.borrow_mut();
        link.within(Some(bound));
        let answer = link
            .send(request)
            .and_then(|()| link.receive::<AgentReply>());
        let why = match answer {
            Ok(Some(AgentReply::Failed(why))) => return Err(why),
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => "it closed the connection".to_owned(),
            Err(e) => e.to_string(),
        };
        let why = format!("the agent at {} is gone: {why}", self.0.name);
        *self.0.lost.borrow_mut() = Some(why.clone());
        Err(why)
    }

    fn strange(&self) -> String {
        format!("unexpected answer from the agent at {}", self.0.name)
    }

    /// Measures the speed of the agent's machine.
    pub(crate) fn calibrate(&self) -> Result<Calibration, String> {
        match self.ask(&AgentRequest::Calibrate)? {
            AgentReply::Calibrated(calibration) => Ok(*calibration),
            _ => Err(self.strange()),
        }
    }

    /// Free ports there.
    pub(crate) fn ports(&self, number: u16) -> Result<Vec<u16>, String> {
        match self.ask(&AgentRequest::Ports(number))? {
            AgentReply::Ports(ports) if ports.len() == usize::from(number) => Ok(ports),
            _ => Err(self.strange()),
        }
    }

    /// Starts something there; where it listens, if the agent chose that.
    pub(crate) fn start(
        &self,
        start: StartCommand,
    ) -> Result<(FarProcess, Vec<SocketAddr>), String> {
        match self.ask(&AgentRequest::Start(Box::new(start)))? {
            AgentReply::Started(StartedProcess {
                number,
                name,
                command,
                addresses,
            }) => {
                let process = FarProcess {
                    far: self.clone(),
                    number,
                    name,
                    command,
                };
                Ok((process, addresses))
            }
            _ => Err(self.strange()),
        }
    }

    /// Clocks of these instances, those that are there.
    pub(crate) fn look(&self, instances: &[Instance]) -> Result<FarLook, String> {
        let numbers = instances.iter().map(|instance| instance.far.clone());
        match self.ask(&AgentRequest::Look(numbers.collect()))? {
            AgentReply::Looked(look) if look.usage.len() == instances.len() => Ok(FarLook(look)),
            _ => Err(self.strange()),
        }
    }

    /// Memory of an instance there.
    pub(crate) fn hold(&self, instance: &Instance) -> Result<ProcessResources, String> {
        match self.ask(&AgentRequest::Hold(vec![instance.far.clone()]))? {
            AgentReply::Held(held) if held.len() == 1 => {
                let [rss_bytes, pss_bytes, anonymous_bytes, threads, descriptors] = held[0];
                Ok(ProcessResources {
                    rss_bytes,
                    pss_bytes,
                    anonymous_bytes,
                    threads,
                    descriptors,
                })
            }
            _ => Err(self.strange()),
        }
    }

    /// The process among these that listens at that address there.
    pub(crate) fn owner(
        &self,
        address: SocketAddr,
        numbers: &[u32],
    ) -> Result<Option<u32>, String> {
        match self.ask(&AgentRequest::Owner(address, numbers.to_vec()))? {
            AgentReply::Owner(owner) => Ok(owner),
            _ => Err(self.strange()),
        }
    }

    /// Begins to capture the traffic of these listeners there; the first is called from here.
    pub(crate) fn watch(&self, listeners: &[SocketAddr], marker: &str) -> Result<(), String> {
        let hops = listeners.iter().enumerate();
        let hops = hops.map(|(at, address)| (*address, at == 0)).collect();
        self.ask(&AgentRequest::Watch(hops, marker.to_owned()))
            .map(drop)
    }

    /// Has the agent sample where the CPU time of those goes that are there.
    pub(crate) fn sample(&self, instances: &[Instance], seconds: f64) -> Result<(), String> {
        let there = instances.iter().filter(|instance| !instance.far.is_empty());
        let there = there.map(|instance| (instance.role.to_owned(), instance.far.clone()));
        let request = AgentRequest::Sample(there.collect(), seconds);
        self.ask(&request).map(drop)
    }

    /// Samples of the agent's processes, by role.
    pub(crate) fn sampled(&self) -> Result<Vec<Flame>, String> {
        match self.ask_within(&AgentRequest::Sampled, SAMPLED)? {
            AgentReply::Sampled(flames) => Ok(flames),
            _ => Err(self.strange()),
        }
    }

    /// Packets seen on each hop, and the number of packets that the capture lost.
    pub(crate) fn seen(&self) -> Result<(Vec<HopCapture>, u64), String> {
        match self.ask(&AgentRequest::Seen)? {
            AgentReply::Seen(seen, lost) => Ok((seen, lost)),
            _ => Err(self.strange()),
        }
    }
}

/// A process that an agent started. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct FarProcess {
    far: AgentConnection,
    number: u32,
    name: String,
    command: String,
}

impl FarProcess {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn command_line(&self) -> &str {
        &self.command
    }

    /// A handle to the process, for callers that do not own it.
    pub(crate) fn asked(&self) -> RemoteProcess {
        RemoteProcess {
            far: self.far.clone(),
            number: self.number,
        }
    }

    /// Ends it.
    pub(crate) fn stop(&self) {
        // If the agent is gone, so is its process.
        let _ = self.far.ask(&AgentRequest::Stop(vec![self.number]));
    }

    /// The process as an instance, which is charged for its work.
    pub(crate) fn instance(&self, role: &'static str) -> Instance {
        let pids = match self.far.ask(&AgentRequest::Pids(self.number)) {
            Ok(AgentReply::Pids(pids)) => pids,
            _ => Vec::new(),
        };
        Instance {
            name: self.name.clone(),
            role,
            pids,
            far: vec![self.number],
        }
    }

    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        self.far.ask(&AgentRequest::Ready(self.number)).map(drop)
    }

    pub(crate) fn alive(&self) -> Result<(), String> {
        self.far.ask(&AgentRequest::Alive(self.number)).map(drop)
    }

    /// Requests that the process has carried by its own count; none if it keeps no count.
    pub(crate) fn count(&self, protocol: &str) -> Result<Option<u64>, String> {
        match self
            .far
            .ask(&AgentRequest::Count(self.number, protocol.to_owned()))?
        {
            AgentReply::Count(count) => Ok(count),
            _ => Err(self.far.strange()),
        }
    }

    /// TLS parameters that the process reports.
    pub(crate) fn tls(&self) -> Option<String> {
        match self.far.ask(&AgentRequest::Tls(self.number)) {
            Ok(AgentReply::Tls(word)) => word,
            _ => None,
        }
    }
}

impl Drop for FarProcess {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Handle to a process at an agent's that another value owns.
#[derive(Debug, Clone)]
pub(crate) struct RemoteProcess {
    far: AgentConnection,
    number: u32,
}

impl PartialEq for RemoteProcess {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.far.0, &other.far.0) && self.number == other.number
    }
}

impl Eq for RemoteProcess {}

impl RemoteProcess {
    /// Reports if the process would answer now.
    pub(crate) fn answers(&self) -> bool {
        let answer = self.far.ask(&AgentRequest::Answers(self.number));
        matches!(answer, Ok(AgentReply::Answers(true)))
    }

    /// The serial number of its certificate.
    pub(crate) fn serial(&self) -> Result<String, String> {
        match self.far.ask(&AgentRequest::Serial(self.number))? {
            AgentReply::Serial(serial) => Ok(serial),
            _ => Err(self.far.strange()),
        }
    }

    /// Has it fetch another certificate.
    pub(crate) fn renew(&self) -> Result<(), String> {
        self.far.ask(&AgentRequest::Renew(self.number)).map(drop)
    }
}

/// Clocks of the agent's machine at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct FarLook(ClockReading);

impl FarLook {
    /// Usage of the instance at that position.
    pub(crate) fn usage(&self, at: usize) -> Usage {
        let [
            cpu_ns,
            user_ns,
            system_ns,
            voluntary_switches,
            involuntary_switches,
        ] = self.0.usage.get(at).copied().unwrap_or_default();
        Usage {
            cpu_ns,
            user_ns,
            system_ns,
            voluntary_switches,
            involuntary_switches,
        }
    }

    pub(crate) fn throttling(&self, at: usize) -> Option<Throttling> {
        let [periods, throttled, throttled_ns] = self.0.throttling.get(at).copied().flatten()?;
        Some(Throttling {
            periods,
            throttled,
            throttled_ns,
        })
    }

    pub(crate) fn machine(&self) -> Option<CoreTime> {
        let (available_ns, idle_ns) = self.0.machine?;
        Some(CoreTime {
            available_ns,
            idle_ns,
        })
    }

    /// Time since an earlier look, by the agent's clock.
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        Duration::from_nanos(self.0.at_ns.saturating_sub(earlier.0.at_ns))
    }
}
