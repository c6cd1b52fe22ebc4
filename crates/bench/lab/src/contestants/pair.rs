//! Two processes of a peer, one as each sidecar, configured by files that the lab fills in. This module holds the shared part. A
//! [`SidecarProgram`] holds the rest: the start of a process, its readiness, and its counts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;

use voile_host::child::{SupervisedChild, stop_all};
use voile_host::ports::free_port;
use voile_host::ready::Probe;

use super::certificates;
use super::listeners::{CaptureMethod, Listeners};
use super::served_process;
use crate::agent::{AgentConnection, AgentProgram, PeerOrder};
use crate::contestants::contestant::{
    CellRoute, Contestant, Counts, IdentityProbe, RecordedOutput, peers_folder,
};
use crate::contestants::effect_evidence::EffectEvidence;
use crate::contestants::served_process::ServedProcess;
use crate::definition::EventAction;
use crate::machine::instance::{CLIENT, INGRESS, Instance, SERVER};
use crate::plan::{ContestantSetup, RequestPath};
use crate::process::Process;
use crate::shared_processes::{Lab, STOP_GRACE};

/// Side of a sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PairSide {
    Client,
    Server,
}

impl PairSide {
    /// Its word in names of files and processes.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// The name of its address in templates.
    pub(super) fn address(self) -> &'static str {
        match self {
            Self::Client => "CLIENT_ADDRESS",
            Self::Server => "SERVER_ADDRESS",
        }
    }

    /// Its role in records.
    pub(super) fn role(self) -> &'static str {
        match self {
            Self::Client => CLIENT,
            Self::Server => SERVER,
        }
    }

    /// Its role in records of that way.
    fn role_on(self, way: &RequestPath) -> &'static str {
        match way.mode.as_str() {
            INGRESS => INGRESS,
            _ => self.role(),
        }
    }

    /// Returns true if this side is on the path.
    pub(super) fn is_on(self, way: &RequestPath) -> bool {
        match way.mode.as_str() {
            "clientonly" | INGRESS => self == Self::Client,
            "serveronly" => self == Self::Server,
            _ => true,
        }
    }

    /// A way on which this side's first listener is, and that no experiment measures where it takes part alone.
    fn quiet_mode(self) -> &'static str {
        match self {
            Self::Client => "clientonly",
            Self::Server => "serveronly",
        }
    }
}

/// By this value processes of one sidecar that take over from each other know each other; a number below this.
pub(super) const BASE_ID: &str = "BASE_ID";
const BASE_IDS: u32 = 1_000_000;

/// Values of templates by name.
pub(super) type Values = Vec<(String, String)>;

/// A program that can be a sidecar.
pub(super) trait SidecarProgram {
    /// Its sidecars live on 127.NET.0.1 and 127.NET.0.2.
    const NET: u8;
    /// Way in which the program takes redirected calls.
    const TAKES: CaptureMethod = CaptureMethod::Turned;
    /// True if a new process can take over from a running one, where the lab is upgradable.
    const UPGRADES: bool = false;
    /// Page or socket on which a process reports its counts.
    type Page;

    /// Its name in records: the program's, and behind a plus the set of features that is on.
    fn name(&self) -> &str;

    /// Starts one from its template in the folder; of one that takes over from another, it is the process number `epoch`.
    fn launch(
        &self,
        lab: &Lab<'_>,
        folder: &Path,
        side: PairSide,
        values: &Values,
        epoch: u32,
    ) -> Result<(SupervisedChild, Self::Page), String>;

    /// Readiness probe of a process. `listener` is one of its own listeners whose connections no figure counts alone.
    fn probe(page: &Self::Page, listener: SocketAddr) -> Probe;

    /// Returns true if the program carries this protocol.
    fn carries(&self, protocol: &str) -> bool;

    /// Requests, or connections if the protocol is TCP, that a process has carried by its own count; none if it keeps no count.
    fn count(&self, page: &Self::Page, protocol: &str) -> Result<Option<u64>, String>;

    /// See [`Contestant::recorded`], of that side.
    fn recorded(
        &self,
        _folder: &Path,
        _side: PairSide,
        _page: &Self::Page,
        _protocol: &str,
    ) -> Vec<RecordedOutput> {
        Vec::new()
    }

    /// See [`Contestant::collects_there`].
    fn collects_there(&self) -> bool {
        false
    }

    /// See [`Contestant::version`].
    fn version(&self) -> String;

    /// See [`Contestant::terms`].
    fn terms(&self) -> Vec<String>;

    /// Removes what its processes leave behind that were started with these values.
    fn tidy(_values: &Values) {}

    /// See [`Contestant::tls_by_its_own_word`], of the server's sidecar.
    fn tls(_page: &Self::Page) -> Option<String> {
        None
    }
}

/// A pair of them.
pub(super) struct Pair<P: SidecarProgram> {
    peer: P,
    running: Option<RunningPair<P::Page>>,
}

struct RunningPair<Page> {
    sidecars: [PairSidecar<Page>; 2],
    listeners: Listeners,
    /// By which they were started, the client's first.
    values: [Values; 2],
}

struct PairSidecar<Page> {
    process: Process,
    side: PairSide,
    /// None of one at the agent's, which asks it there.
    page: Option<Page>,
    /// Processes that have taken over from it, and those that they took over from.
    epoch: u32,
    retired: Vec<Process>,
}

impl<Page> PairSidecar<Page> {
    fn first(process: Process, side: PairSide, page: Option<Page>) -> Self {
        Self {
            process,
            side,
            page,
            epoch: 0,
            retired: Vec::new(),
        }
    }
}

impl<P: SidecarProgram> Pair<P> {
    pub(super) fn new(peer: P) -> Self {
        Self {
            peer,
            running: None,
        }
    }

    /// Requests that the sidecar has carried by its own count.
    fn count(&self, sidecar: &PairSidecar<P::Page>, protocol: &str) -> Result<Option<u64>, String> {
        match (&sidecar.process, &sidecar.page) {
            (Process::There(process), _) => process.count(protocol),
            (Process::Here(_), Some(page)) => self.peer.count(page, protocol),
            (Process::Here(_), None) => Ok(None),
        }
    }

    fn running(&self) -> Result<&RunningPair<P::Page>, String> {
        let running = self.running.as_ref();
        running.ok_or_else(|| format!("{} does not run", self.peer.name()))
    }
}

impl<P: SidecarProgram> Contestant for Pair<P> {
    fn name(&self) -> &str {
        self.peer.name()
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let folder = peers_folder(lab, self.peer.name())?;
        let mut listeners = match lab.network {
            Some(network) => Listeners::captured(lab, network, self.peer.name(), P::TAKES)?,
            None => Listeners::choose(P::NET, lab.far)?,
        };
        let values = listeners.values(lab, &folder)?;
        let placed = listeners.lab(lab);
        let lab = placed.as_ref().unwrap_or(lab);
        let mut values = [values.clone(), values];
        for values in &mut values {
            let number = fastrand::u32(1..BASE_IDS).to_string();
            values.push((BASE_ID.to_owned(), number));
        }
        listeners.beside(PairSide::Client, &mut values[0]);
        listeners.beside(PairSide::Server, &mut values[1]);
        let launch = |side, values: &Values| {
            let (process, page) = self.peer.launch(lab, &folder, side, values, 0)?;
            Ok::<_, String>(PairSidecar::first(process.into(), side, Some(page)))
        };
        let client = launch(PairSide::Client, &values[0])?;
        let server = match lab.far {
            Some(far) => {
                let process = send(far, lab, self.peer.name(), &listeners)?;
                PairSidecar::first(process, PairSide::Server, None)
            }
            None => launch(PairSide::Server, &values[1])?,
        };
        let sidecars = [client, server];
        self.running = Some(RunningPair {
            sidecars,
            listeners,
            values,
        });
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let name = self.peer.name();
        let Some(running) = &mut self.running else {
            return Err(format!("{name} was not started"));
        };
        for sidecar in &mut running.sidecars {
            let way = RequestPath {
                contestant: name.to_owned(),
                mode: sidecar.side.quiet_mode().to_owned(),
                tls: false,
                protocol: "http1".to_owned(),
                outfit: ContestantSetup::default(),
            };
            let route = running.listeners.route(lab, &way);
            let route = route.ok_or_else(|| format!("{name} has no listener for HTTP"))?;
            let taken = route.hops[0].spot.as_ref().and_then(|spot| spot.listener);
            let probe = sidecar.page.as_ref();
            let probe = probe.map_or(Probe::Tcp(route.entry), |page| P::probe(page, route.entry));
            match (probe, taken, sidecar.process.here()) {
                // Only calls from the pod itself are redirected to this listener, so the lab asks the kernel if it listens.
                (Probe::Tcp(_), Some(port), Some(process)) => {
                    let address = SocketAddr::new(route.hops[0].address.ip(), port);
                    lab.wait_listening(process, address)?;
                }
                (probe, ..) => sidecar.process.wait_ready(lab, &probe)?,
            }
        }
        Ok(())
    }

    fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        let carries = self.peer.carries(&way.protocol);
        let running = self.running.as_ref().filter(|_| carries)?;
        if way.mode != INGRESS {
            return running.listeners.route(lab, way);
        }
        // The listener that leads straight to the server is a gateway for clients outside the mesh.
        let straight = RequestPath {
            mode: "clientonly".to_owned(),
            ..way.clone()
        };
        let mut route = running.listeners.route(lab, &straight)?;
        route.hops[0].to = INGRESS;
        Some(route)
    }

    fn act(
        &mut self,
        lab: &Lab<'_>,
        action: &EventAction,
        way: &RequestPath,
    ) -> Result<EffectEvidence, String> {
        let upgrade = *action == EventAction::UpgradeProxy && P::UPGRADES;
        if *action != EventAction::RestartProxy && !upgrade {
            let word = action.word();
            return Err(format!(
                "the lab does not support {word} for {}, which is configured by files",
                self.peer.name()
            ));
        }
        let side = match way.mode.as_str() {
            "clientonly" => return Err("this path has no sidecar at the server".to_owned()),
            INGRESS => PairSide::Client,
            _ => PairSide::Server,
        };
        let folder = peers_folder(lab, self.peer.name())?;
        let not = || format!("{} does not run", self.peer.name());
        let RunningPair {
            sidecars,
            listeners,
            values,
        } = self.running.as_mut().ok_or_else(not)?;
        let at = usize::from(side == PairSide::Server);
        let (sidecar, values) = (&mut sidecars[at], &values[at]);
        sidecar.epoch += 1;
        if !upgrade {
            let all = sidecar.retired.iter_mut().chain([&mut sidecar.process]);
            stop_all(all.filter_map(Process::here), STOP_GRACE);
            if let Some(process) = sidecar.process.there() {
                process.stop();
            }
            sidecar.retired.clear();
            sidecar.epoch = 0;
        }
        if let Some(far) = lab.far.filter(|_| side == PairSide::Server) {
            let process = send(far, lab, self.peer.name(), listeners)?;
            let sign = process
                .there()
                .map(|process| EffectEvidence::ReadyThere(process.asked()));
            sidecar.process = process;
            return sign.ok_or_else(not);
        }
        let placed = listeners.lab(lab);
        let inside = placed.as_ref().unwrap_or(lab);
        let (process, page) = self
            .peer
            .launch(inside, &folder, side, values, sidecar.epoch)?;
        let entry = listeners.route(
            lab,
            &RequestPath {
                mode: side.quiet_mode().to_owned(),
                tls: false,
                ..way.clone()
            },
        );
        let entry = entry
            .ok_or_else(|| format!("{} has no listener for this path", self.peer.name()))?
            .entry;
        let sign = match P::probe(&page, entry) {
            Probe::Http(address, path) => EffectEvidence::Ready(address, path),
            Probe::Tcp(address) | Probe::Direct(address) => EffectEvidence::Listens(address),
        };
        let old = std::mem::replace(&mut sidecar.process, process.into());
        sidecar.page = Some(page);
        sidecar.retired.push(old);
        Ok(sign)
    }

    fn settle(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        for sidecar in self.running.iter_mut().flat_map(|one| &mut one.sidecars) {
            // A process that was taken over from ends by itself soon.
            sidecar
                .retired
                .retain_mut(|old| old.here().is_some_and(|old| old.wait(STOP_GRACE).is_none()));
        }
        self.ready(lab)
    }

    fn captures(&self) -> bool {
        true
    }

    fn server(&self, way: &RequestPath) -> Option<Instance> {
        self.running.as_ref()?.listeners.server_instance(way)
    }

    fn instances(&self, way: &RequestPath) -> Vec<Instance> {
        let sidecars = self.running.iter().flat_map(|running| &running.sidecars);
        sidecars
            .filter(|sidecar| sidecar.side.is_on(way))
            .map(|sidecar| sidecar.process.instance(sidecar.side.role_on(way)))
            .collect()
    }

    fn counts(&self, way: &RequestPath) -> Counts {
        let mut counts = BTreeMap::new();
        for sidecar in &self.running()?.sidecars {
            let Some(count) = self.count(sidecar, &way.protocol)? else {
                return Ok(None);
            };
            counts.insert(sidecar.side.role(), count);
            if sidecar.side == PairSide::Client {
                counts.insert(INGRESS, count);
            }
        }
        Ok(Some(counts))
    }

    fn collects_there(&self) -> bool {
        self.peer.collects_there()
    }

    fn recorded(&self, lab: &Lab<'_>, way: &RequestPath) -> Result<Vec<RecordedOutput>, String> {
        let folder = peers_folder(lab, self.peer.name())?;
        let sidecars = self.running()?.sidecars.iter();
        let on_path = sidecars.filter(|sidecar| sidecar.side.is_on(way));
        let one = |sidecar: &PairSidecar<P::Page>| {
            // Records of a sidecar at an agent are not read.
            let page = sidecar.page.as_ref();
            page.map_or_else(Vec::new, |page| {
                self.peer
                    .recorded(&folder, sidecar.side, page, &way.protocol)
            })
        };
        Ok(on_path.flat_map(one).collect())
    }

    fn stage(&self, _lab: &Lab<'_>, way: &RequestPath) -> Result<Option<IdentityProbe>, String> {
        let running = self.running.as_ref();
        Ok(running.and_then(|running| running.listeners.stage(&way.protocol)))
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(running) = &mut self.running else {
            return Err(format!("{} does not run", self.peer.name()));
        };
        if let Some(pods) = running.listeners.pods() {
            pods.alive(lab)?;
        }
        for PairSidecar { process, .. } in &mut running.sidecars {
            process.alive(lab)?;
        }
        Ok(())
    }

    fn version(&self) -> String {
        self.peer.version()
    }

    fn commands(&self) -> Vec<String> {
        let sidecars = self.running.iter().flat_map(|running| &running.sidecars);
        sidecars
            .map(|sidecar| sidecar.process.command_line().to_owned())
            .collect()
    }

    fn terms(&self) -> Vec<String> {
        self.peer.terms()
    }

    fn tls_by_its_own_word(&self) -> Option<String> {
        let [_, server] = &self.running.as_ref()?.sidecars;
        match &server.process {
            Process::There(process) => process.tls(),
            Process::Here(_) => P::tls(server.page.as_ref()?),
        }
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let sidecars = running.sidecars.iter_mut();
            let all = sidecars.flat_map(|one| one.retired.iter_mut().chain([&mut one.process]));
            stop_all(all.filter_map(Process::here), STOP_GRACE);
            running.values.iter().for_each(P::tidy);
            if let Some(pods) = running.listeners.pods() {
                pods.stop();
            }
        }
    }
}

/// Port of the statistics in a network namespace of its own. The redirection leaves it alone.
pub(super) const STATUS_PORT: u16 = 15090;
/// The name of the value that says where a side's own pod is.
pub(super) const POD_ADDRESS: &str = "POD_ADDRESS";

/// Address for a sidecar's own page: a free port of loopback, or a port of its pod that the lab reaches.
pub(super) fn status_address(lab: &Lab<'_>, values: &Values) -> Result<SocketAddr, String> {
    if lab.network.is_none() {
        let free = free_port(IpAddr::V4(Ipv4Addr::LOCALHOST));
        return free.map_err(|e| format!("cannot get a port for a peer's statistics: {e}"));
    }
    let pod = values.iter().find(|(name, _)| name == POD_ADDRESS);
    let pod = pod.and_then(|(_, address)| address.parse::<IpAddr>().ok());
    let pod = pod.ok_or("a sidecar in its own network namespace has no address")?;
    Ok(SocketAddr::new(pod, STATUS_PORT))
}

/// Has the server's sidecar started at the agent's, from the same listeners.
fn send(
    far: &AgentConnection,
    lab: &Lab<'_>,
    name: &str,
    listeners: &Listeners,
) -> Result<Process, String> {
    let (root, leaf) = listeners.of_server()?;
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|e| format!("reading {}: {e}", path.display()))
    };
    let order = PeerOrder {
        contestant: name.to_owned(),
        ports: listeners.ports().clone(),
        root: read(root)?,
        certificate: read(&leaf.certificate)?,
        key: read(&leaf.key)?,
    };
    let (process, _) = lab.start_there(far, AgentProgram::Peer(Box::new(order)))?;
    Ok(Process::There(process))
}

/// At the agent's: starts the server's sidecar on that address from the checked values of a near end.
pub(super) fn serve<P: SidecarProgram + 'static>(
    peer: P,
    lab: &Lab<'_>,
    at: IpAddr,
    order: &PeerOrder,
) -> Result<ServedProcess, String> {
    let listeners = Listeners::sent(at, &order.ports)?;
    let root = served_process::place(lab.folder, "root.pem", &order.root)?;
    let leaf = certificates::place(lab.folder, "server", &order.certificate, &order.key)?;
    let mut values = listeners.fill_in(lab, lab.folder, &root, &[("SERVER", &leaf)]);
    let number = fastrand::u32(1..BASE_IDS).to_string();
    values.push((BASE_ID.to_owned(), number));
    let (process, page) = peer.launch(lab, lab.folder, PairSide::Server, &values, 0)?;
    let probe = P::probe(&page, listeners.quiet()?);
    let asked = Rc::new((peer, page));
    let other = Rc::clone(&asked);
    Ok(ServedProcess {
        process,
        probe,
        count: Box::new(move |protocol| asked.0.count(&asked.1, protocol)),
        tls: Box::new(move || P::tls(&other.1)),
        certificates: None,
        tidy: Box::new(move || P::tidy(&values)),
    })
}

/// Writes a peer's configuration and says where it is.
pub(super) fn write(
    folder: &Path,
    name: &str,
    configuration: &str,
) -> Result<std::path::PathBuf, String> {
    let path = folder.join(name);
    std::fs::write(&path, configuration).map_err(|e| format!("writing {}: {e}", path.display()))?;
    Ok(path)
}
