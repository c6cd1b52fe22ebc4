//! Messages between near end and agent: a greeting that every version understands, then a closed set of requests and answers. No
//! message carries a command line, a program or a path.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use voile_report::profile::Flame;
use voile_report::record::{Calibration, Environment};

use crate::network::Echo;
use crate::packet_capture::HopCapture;
use crate::process_bounds::ProcessBound;

/// Raised whenever the words below change.
pub(crate) const PROTOCOL: u32 = 2;
/// Bytes of a frame before the other end has proven itself, and after.
pub(crate) const GREETING_BYTES: usize = 4 << 10;
pub(crate) const FRAME_BYTES: usize = 1 << 20;

/// File in which the kernel identifies the current boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Identity of the current boot of the kernel.
pub(crate) fn boot() -> String {
    let text = std::fs::read_to_string(BOOT).unwrap_or_default();
    text.trim().to_owned()
}

pub(crate) fn profile() -> &'static str {
    if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    }
}

/// First frame of each end: proof that the end knows the token. Without an agent's proof it carries the reason of the refusal.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TokenProof {
    pub(crate) proof: Vec<u8>,
    pub(crate) refused: String,
}

/// Identity of the near end. Fields may be added, never renamed: an older end must be able to read a newer end's frame.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    pub(crate) version: String,
    pub(crate) profile: String,
}

/// Identity of the agent, or the reason why it refuses the session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AgentWelcome {
    pub(crate) protocol: u32,
    pub(crate) version: String,
    pub(crate) profile: String,
    pub(crate) refused: String,
    /// Environment of the agent's machine, with versions of the found programs.
    pub(crate) environment: Environment,
    /// Changes whenever a kernel is started: equal on both ends means one machine.
    pub(crate) boot: String,
}

/// The server's sidecar of a peer that is configured by files: the values for the agent's own templates.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PeerOrder {
    pub(crate) contestant: String,
    /// By their names in templates.
    pub(crate) ports: BTreeMap<String, u16>,
    pub(crate) root: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The server's sidecar of Voile.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VoileOrder {
    /// The contestant's name; of another build the one under which the agent was given it.
    pub(crate) contestant: String,
    pub(crate) other_build: bool,
    /// Address of the near end's control plane.
    pub(crate) control: SocketAddr,
    pub(crate) root: String,
    pub(crate) token: String,
}

/// A process that an agent can start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum AgentProgram {
    /// The server; its TCP port is a sink, or sends back what it gets. The second of two names itself in its answers.
    Echo {
        sink: bool,
        second: bool,
    },
    /// A bare relay before the server's HTTP or TCP port.
    Relay {
        tcp: bool,
    },
    Peer(Box<PeerOrder>),
    Voile(Box<VoileOrder>),
}

/// Request to start a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StartCommand {
    pub(crate) what: AgentProgram,
    /// The server that it leads to: one of the session's.
    pub(crate) echo: Option<Echo>,
    pub(crate) workers: u32,
    pub(crate) bound: ProcessBound,
}

/// Request of the near end. It names processes by the numbers in [`StartedProcess`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum AgentRequest {
    /// Measures the speed of the machine: four seconds of work.
    Calibrate,
    /// So many free ports on the agent's address.
    Ports(u16),
    Start(Box<StartCommand>),
    /// Waits until it answers.
    Ready(u32),
    /// Asks if the process would answer now.
    Answers(u32),
    /// Asks if the process still runs.
    Alive(u32),
    /// Asks for the serial number of the process's certificate.
    Serial(u32),
    /// Orders the process to fetch another certificate for another key.
    Renew(u32),
    /// Asks for the requests (connections over TCP) that the process has carried by its own count.
    Count(u32, String),
    /// Asks for the TLS parameters that the process reports.
    Tls(u32),
    /// The processes of its group.
    Pids(u32),
    /// Clocks of these instances and of the machine.
    Look(Vec<Vec<u32>>),
    /// Memory of these instances.
    Hold(Vec<Vec<u32>>),
    /// Asks for the process among these that listens there.
    Owner(SocketAddr, Vec<u32>),
    /// Begins to watch these listeners; whether each is called from outside.
    Watch(Vec<(SocketAddr, bool)>, String),
    /// Ends the capture, and returns its counts.
    Seen,
    /// Begins to sample where the CPU time of these instances goes, each under its role, for so many seconds.
    Sample(Vec<(String, Vec<u32>)>, f64),
    /// Waits for the end of the sampling, and returns the samples.
    Sampled,
    Stop(Vec<u32>),
}

/// A process that was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StartedProcess {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) command: String,
    /// Addresses on which the process listens, if the agent chose them.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// Clocks at one moment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ClockReading {
    /// The agent's own clock, of which only differences say something.
    pub(crate) at_ns: u64,
    /// Cores × time, and how much of it was idle.
    pub(crate) machine: Option<(u64, u64)>,
    /// CPU, user, system, voluntary and involuntary switches of each instance.
    pub(crate) usage: Vec<[u64; 5]>,
    /// Periods, those it was held back in, and nanoseconds it was, where its CPU is limited.
    pub(crate) throttling: Vec<Option<[u64; 3]>>,
}

/// Answer to a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum AgentReply {
    Done,
    /// That request failed; the session goes on.
    Failed(String),
    Calibrated(Box<Calibration>),
    Ports(Vec<u16>),
    Started(StartedProcess),
    Answers(bool),
    Serial(String),
    Count(Option<u64>),
    Tls(Option<String>),
    Pids(Vec<u32>),
    Looked(ClockReading),
    /// RSS, PSS, anonymous bytes, threads and descriptors of each instance.
    Held(Vec<[u64; 5]>),
    Owner(Option<u32>),
    Seen(Vec<HopCapture>, u64),
    Sampled(Vec<Flame>),
}
