//! Voile as its users run it: a live control plane that reads a folder, two sidecars with tokens, everything else default. Stock
//! Envoys may stand in the sidecars' places, configured by the same control plane out of the same folder.

mod changes;
mod numbered_resources;
mod served;
mod sidecar_paths;
mod stock_envoy;
mod watched;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use voile_host::child::{SupervisedChild, stop_all};
use voile_host::ports::free_port;
use voile_host::ready::Probe;

use changes::SidecarChanges;
use numbered_resources::host;
use served::{asked, far_port};
use watched::PageWatcher;

use super::envoy;
use crate::agent::AgentConnection;
use crate::contestants::captured::{CapturedPods, Redirection};
use crate::contestants::contestant::{
    CellRoute, Contestant, Counts, ExpectedOutput, IdentityProbe, RecordedOutput, lines,
    peers_folder,
};
use crate::contestants::effect_evidence::{EffectEvidence, READY_PATH};
use crate::contestants::listeners::fill;
use crate::contestants::programs::command_output::output;
use crate::definition::{EventAction, Variant, WatchedPage};
use crate::find;
use crate::machine::instance::{CLIENT, CONTROL, Instance, SERVER};
use crate::network::Echo;
use crate::network::GATEWAY;
use crate::plan::{ContestantSetup, RequestPath};
use crate::process::Process;
use crate::shared_processes::{Lab, STOP_GRACE};
pub(crate) use changes::{kill, second};
pub(crate) use served::counted;
pub(crate) use served::{CONNECTIONS, serve};
pub(crate) use served::{SidecarSettings, metric, tell};

const TEMPLATE: &str = include_str!("../../../../../../benchmarks/voile/mesh.yaml");
const CAPTURED_TEMPLATE: &str = include_str!("../../../../../../benchmarks/voile/mesh-netns.yaml");
const CLIENT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 10, 0, 1));
const SERVER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 10, 0, 2));
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// In a variant's resources: where log entries and spans go, and the file of an access log.
const COLLECTOR: &str = "collector.lab.internal";
const ACCESS_LOG: &str = "accessLogFile: ${FOLDER}/access.log";
/// In a variant's resources: a service is asked about every request.
const ASKS: &str = "action: CUSTOM";
/// Deadline of `voile token create`.
const TOKEN_BOUND: Duration = Duration::from_secs(10);
/// Names of the services' ports in the mesh's template, and their protocols.
const PORTS: [(&str, &str); 11] = [
    ("MUTUAL_PORT", "http1"),
    ("PLAIN_PORT", "http1"),
    ("DIRECT_PORT", "http1"),
    ("TCP_MUTUAL_PORT", "tcp"),
    ("TCP_PLAIN_PORT", "tcp"),
    ("TCP_DIRECT_PORT", "tcp"),
    ("GRPC_MUTUAL_PORT", "grpc"),
    ("GRPC_PLAIN_PORT", "grpc"),
    ("GRPC_DIRECT_PORT", "grpc"),
    ("STAGE_PORT", "http1"),
    ("TCP_STAGE_PORT", "tcp"),
];

/// In networks of their own: the services' ports, which are the server's too, and where sidecars tell of themselves.
const CAPTURED_PORTS: [(&str, u16); 11] = [
    ("MUTUAL_PORT", 8080),
    ("PLAIN_PORT", 8081),
    ("DIRECT_PORT", 8080),
    ("GRPC_MUTUAL_PORT", 8082),
    ("GRPC_PLAIN_PORT", 8083),
    ("GRPC_DIRECT_PORT", 8082),
    ("TCP_MUTUAL_PORT", 9080),
    ("TCP_PLAIN_PORT", 9081),
    ("TCP_DIRECT_PORT", 9080),
    ("STAGE_PORT", 8084),
    ("TCP_STAGE_PORT", 9084),
];
const HTTP_PORTS: [u16; 4] = [8080, 8081, 8082, 8083];
const TCP_PORTS: [u16; 2] = [9080, 9081];
const ADMIN: u16 = 15000;
const METRICS: u16 = 15020;
const READINESS: u16 = 15021;
/// Virtual addresses of the services; each contestant has a mesh of its own.
const SERVER_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 1));
const DIRECT_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 2));

/// A control plane and two sidecars.
#[derive(Debug)]
pub(crate) struct Voile {
    variant: Variant,
    /// Outfit that Voile is started with.
    outfit: ContestantSetup,
    /// Stock Envoy as the sidecars' program; none if they are Voile's.
    stock: Option<find::PeerProgram>,
    running: Option<RunningVoile>,
}

#[derive(Debug)]
struct RunningVoile {
    /// Networks of their own, when not on loopback.
    captured: Option<CapturedPods>,
    control: SupervisedChild,
    sidecars: Vec<VoileSidecar>,
    /// Of the variant's watched page, by the sidecars' roles.
    watchers: Vec<(&'static str, PageWatcher)>,
    ports: Ports,
    changes: SidecarChanges,
}

#[derive(Debug)]
struct VoileSidecar {
    process: Process,
    role: &'static str,
    /// Nowhere of one at the agent's, which asks it there.
    admin: SocketAddr,
    metrics: SocketAddr,
    readiness: SocketAddr,
    /// The page there.
    ready_path: &'static str,
}

impl VoileSidecar {
    /// Readiness probe of the sidecar.
    fn probe(&self) -> Probe {
        Probe::Http(self.readiness, self.ready_path.to_owned())
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Ports {
    control: SocketAddr,
    monitoring: SocketAddr,
    /// By their names in the template.
    services: BTreeMap<&'static str, u16>,
    client: IpAddr,
    server: IpAddr,
    captured: bool,
}

/// A port that is free on both pods' addresses: a service has the same on the client's listener and the server's.
fn service_port() -> Result<u16, String> {
    let failed = |e| format!("cannot get a port for a service: {e}");
    for _ in 0..100 {
        let port = free_port(CLIENT_ADDRESS).map_err(failed)?.port();
        if std::net::TcpListener::bind((SERVER_ADDRESS, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(format!(
        "no port is free on both {CLIENT_ADDRESS} and {SERVER_ADDRESS}"
    ))
}

/// Returns true if requests of the path pass the sidecar of this role.
fn is_on_path(way: &RequestPath, role: &str) -> bool {
    match &*way.mode {
        "clientonly" => role == CLIENT,
        "serveronly" => role == SERVER,
        _ => true,
    }
}

fn local_port() -> Result<SocketAddr, String> {
    free_port(LOCAL).map_err(|e| format!("cannot get a port for Voile: {e}"))
}

impl Ports {
    pub(crate) fn choose() -> Result<Self, String> {
        let mut services = BTreeMap::new();
        for (name, _) in PORTS {
            services.insert(name, service_port()?);
        }
        Ok(Self {
            control: local_port()?,
            monitoring: local_port()?,
            services,
            client: CLIENT_ADDRESS,
            server: SERVER_ADDRESS,
            captured: false,
        })
    }

    /// The server's pod is the agent's machine, and the client's is this one, by the addresses at which they see each
    /// other: sidecars call from the addresses of their pods.
    fn far(far: &AgentConnection) -> Result<Self, String> {
        let near = far.near();
        let client = match near {
            IpAddr::V4(v4) if v4.is_loopback() => CLIENT_ADDRESS,
            near => near,
        };
        if client == far.address() {
            return Err(format!(
                "both ends are {near}: its sidecars need different addresses"
            ));
        }
        let mut services = BTreeMap::new();
        for (name, _) in PORTS {
            services.insert(name, far_port(far, client)?);
        }
        let control =
            free_port(near).map_err(|e| format!("cannot get a port for the control plane: {e}"))?;
        Ok(Self {
            control,
            monitoring: local_port()?,
            services,
            client,
            server: far.address(),
            captured: false,
        })
    }

    /// Address of the sidecar's pod.
    fn pod(&self, role: &str) -> IpAddr {
        match role {
            CLIENT => self.client,
            _ => self.server,
        }
    }

    pub(crate) fn control(&self) -> SocketAddr {
        self.control
    }

    pub(crate) fn monitoring(&self) -> SocketAddr {
        self.monitoring
    }

    /// In network namespaces all ports are free: only control planes share an address.
    pub(crate) fn captured() -> Result<Self, String> {
        let control = || {
            free_port(GATEWAY.into())
                .map_err(|e| format!("cannot get a port for a control plane: {e}"))
        };
        Ok(Self {
            control: control()?,
            monitoring: control()?,
            services: CAPTURED_PORTS.into_iter().collect(),
            client: CLIENT_ADDRESS,
            server: SERVER_ADDRESS,
            captured: true,
        })
    }

    /// The mesh's resources; a variant's may write files into `folder`.
    fn resources(&self, echo: &Echo, variant: &Variant, folder: &Path) -> Result<String, String> {
        let mut values: Vec<(String, String)> = self
            .services
            .iter()
            .map(|(name, port)| ((*name).to_owned(), port.to_string()))
            .collect();
        for (name, value) in [
            ("CLIENT_ADDRESS", self.client.to_string()),
            ("SERVER_ADDRESS", self.server.to_string()),
            ("SERVER_VIRTUAL", SERVER_VIRTUAL.to_string()),
            ("DIRECT_VIRTUAL", DIRECT_VIRTUAL.to_string()),
            ("DIRECT_HOST", host("clientonly", self.captured).to_owned()),
            ("ECHO_ADDRESS", echo.http.ip().to_string()),
            ("ECHO_PORT", echo.http.port().to_string()),
            ("TCP_ECHO_PORT", echo.tcp.port().to_string()),
            ("FOLDER", folder.display().to_string()),
        ] {
            values.push((name.to_owned(), value));
        }
        let captured = self.captured;
        let mut text = if captured {
            CAPTURED_TEMPLATE
        } else {
            TEMPLATE
        }
        .to_owned();
        for (from, to) in &variant.replace {
            if !text.contains(from) {
                // Explicit listeners, which this mesh has not, are among what a set of features changes.
                if captured && TEMPLATE.contains(from) {
                    continue;
                }
                return Err(format!(
                    "variant {}: the mesh has no {from:?} to replace",
                    variant.name
                ));
            }
            text = text.replace(from, to);
        }
        if !captured && self.server != SERVER_ADDRESS {
            // The server at the agent's listens where the near end reaches it, too.
            text = text.replace("defaultEndpoint: 127.0.0.1:", "defaultEndpoint: 0.0.0.0:");
        }
        if !variant.append.is_empty() {
            text = format!("{}\n---\n{}", text.trim_end(), variant.append);
        }
        fill(&text, &values)
    }
}

impl Voile {
    /// Voile with a variant's changes; the plain variant changes nothing.
    pub(crate) fn variant(variant: Variant) -> Self {
        Self {
            variant,
            outfit: ContestantSetup::default(),
            stock: None,
            running: None,
        }
    }

    /// The same, with policies that do this to requests.
    pub(crate) fn fitted(self, outfit: &ContestantSetup) -> Self {
        Self {
            outfit: outfit.clone(),
            ..self
        }
    }

    /// The lab with the places of its pods, in networks of their own.
    fn placed<'a>(&self, lab: &Lab<'a>) -> Option<Lab<'a>> {
        let captured = self.running.as_ref()?.captured.as_ref()?;
        Some(captured.lab(lab))
    }

    /// The build that is measured.
    fn program<'a>(&'a self, lab: &'a Lab<'_>) -> &'a Path {
        self.variant.program.as_deref().unwrap_or(&lab.voile)
    }

    /// Name of a process of this contestant.
    fn process_name(&self, what: &str) -> String {
        format!("{}-{what}", self.variant.name)
    }

    pub(crate) fn start_control(
        &self,
        lab: &Lab<'_>,
        config: &Path,
        state: &Path,
        ports: &Ports,
        nodes: Option<&str>,
    ) -> Result<SupervisedChild, String> {
        let nodes = nodes.into_iter().flat_map(|who| ["--node-account", who]);
        let spec = lab
            .process(CONTROL, &self.process_name("control"), self.program(lab))?
            .arg("control")
            .arg("--config")
            .arg(config);
        spec.arg("--state")
            .arg(state)
            .args(["--listen", &ports.control.to_string(), "--plaintext", "off"])
            .args(["--monitoring", &ports.monitoring.to_string()])
            .args(nodes)
            .start()
            .map_err(|e| e.to_string())
    }

    /// A service-account token in a file.
    pub(crate) fn token(
        &self,
        lab: &Lab<'_>,
        state: &Path,
        account: &str,
        pod: &str,
    ) -> Result<PathBuf, String> {
        let token = lab
            .process(CONTROL, &self.process_name("token"), self.program(lab))?
            .args([
                "token",
                "create",
                "--service-account",
                account,
                "--pod",
                pod,
                "--state",
            ])
            .arg(state);
        let token = output(lab, token, TOKEN_BOUND)?;
        let token_file: PathBuf = lab
            .folder
            .join(&self.variant.name)
            .join(format!("{pod}.token"));
        std::fs::write(&token_file, token.trim())
            .map_err(|e| format!("{}: {e}", token_file.display()))?;
        Ok(token_file)
    }

    fn start_sidecar(
        &self,
        lab: &Lab<'_>,
        state: &Path,
        ports: &Ports,
        pod: &str,
        role: &'static str,
    ) -> Result<VoileSidecar, String> {
        let account = format!("lab/{pod}");
        let token_file = self.token(lab, state, &account, pod)?;
        if let (Some(far), SERVER) = (lab.far, role) {
            return self.send(lab, far, state, ports, &token_file);
        }
        if let Some(envoy) = &self.stock {
            return self.start_stock(lab, envoy, state, ports, (pod, role, &token_file));
        }
        let address = ports.pod(role);
        let captured = lab.network.is_some();
        let at = |port: u16| SocketAddr::new(address, port);
        let (admin, metrics, readiness) = if captured {
            (at(ADMIN), at(METRICS), at(READINESS))
        } else {
            (local_port()?, local_port()?, local_port()?)
        };
        let spec = lab.process(role, &self.process_name(pod), self.program(lab))?;
        let told = SidecarSettings {
            account: &account,
            control: ports.control,
            root: &state.join("root-cert.pem"),
            token: &token_file,
            pages: [admin, metrics, readiness],
            workers: lab.workers,
        };
        let spec = tell(spec, &told)
            .args(
                captured
                    .then_some(["--capture", "redirect"])
                    .into_iter()
                    .flatten(),
            )
            .args(&self.variant.arguments);
        let spec = if lab.upgradable {
            let socket = lab
                .folder
                .join(&self.variant.name)
                .join(format!("{pod}.sock"));
            spec.arg("--handover").arg(socket)
        } else {
            spec
        };
        let process = spec.start().map_err(|e| e.to_string())?;
        Ok(VoileSidecar {
            process: process.into(),
            role,
            admin,
            metrics,
            readiness,
            ready_path: READY_PATH,
        })
    }
}

impl Voile {
    /// Questions of the server's sidecar to an external authorizer, if its resources have one.
    fn asked(&self, way: &RequestPath) -> Result<Vec<RecordedOutput>, String> {
        let asks = self.variant.append.contains(ASKS);
        if !asks || way.mode == "clientonly" || way.protocol == "tcp" {
            return Ok(Vec::new());
        }
        let running = self.running.as_ref().ok_or("Voile does not run")?;
        let mut found = Vec::new();
        for sidecar in running.sidecars.iter().filter(|one| one.role == SERVER) {
            if let Process::Here(process) = &sidecar.process {
                found.push(RecordedOutput {
                    what: format!("external authorization calls of the {SERVER} that were allowed, by its metrics"),
                    count: asked(process.name(), sidecar.metrics)?,
                    expected: ExpectedOutput::OneOf(1),
                });
            }
        }
        Ok(found)
    }
}

impl Contestant for Voile {
    fn name(&self) -> &str {
        &self.variant.name
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        self.possible(lab)?;
        let folder = peers_folder(lab, &self.variant.name)?;
        let (config, state) = (folder.join("config"), folder.join("state"));
        std::fs::create_dir_all(&config).map_err(|e| format!("{}: {e}", config.display()))?;
        let (mut ports, mut captured) = (None, None);
        if let Some(network) = lab.network {
            let mut chosen = Ports::captured()?;
            let inbound: Vec<u16> = HTTP_PORTS.into_iter().chain(TCP_PORTS).collect();
            let redirection = Redirection::original(Some(chosen.control), inbound);
            let echo = (&HTTP_PORTS[..], &TCP_PORTS[..]);
            let pods = CapturedPods::prepare(lab, network, &self.variant.name, redirection, echo)?;
            (chosen.client, chosen.server) = (pods.client(), pods.server());
            (ports, captured) = (Some(chosen), Some(pods));
        }
        let ports = match ports {
            Some(ports) => ports,
            None => lab.far.map_or_else(Ports::choose, Ports::far)?,
        };
        let placed = captured.as_ref().map(|pods| pods.lab(lab));
        let lab = placed.as_ref().unwrap_or(lab);
        std::fs::write(
            config.join("mesh.yaml"),
            ports.resources(&lab.echo, &self.variant, &folder)?,
        )
        .map_err(|e| format!("mesh.yaml: {e}"))?;
        self.write_by_number(lab, &config, &ports)?;
        let control = self.start_control(lab, &config, &state, &ports, None)?;
        // `running` owns the processes from here on, so they end with it even if a later step fails.
        let mut running = RunningVoile {
            captured,
            control,
            sidecars: Vec::new(),
            watchers: Vec::new(),
            ports,
            changes: SidecarChanges::none(),
        };
        let monitoring = Probe::Http(running.ports.monitoring, "/ready".to_owned());
        lab.wait_ready(&mut running.control, &monitoring)?;
        for (pod, role) in [("client", CLIENT), ("server", SERVER)] {
            let sidecar = self.start_sidecar(lab, &state, &running.ports, pod, role)?;
            running.sidecars.push(sidecar);
        }
        self.running = Some(running);
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(running) = &mut self.running else {
            return Err("Voile was not started".to_owned());
        };
        for sidecar in &mut running.sidecars {
            let probe = sidecar.probe();
            sidecar.process.wait_ready(lab, &probe)?;
            if let Some(page) = self.variant.watched {
                let watcher = PageWatcher::start(page, sidecar.admin)?;
                running.watchers.push((sidecar.role, watcher));
            }
        }
        Ok(())
    }

    fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        self.running.as_ref()?.route(lab, way)
    }

    fn act(
        &mut self,
        lab: &Lab<'_>,
        action: &EventAction,
        way: &RequestPath,
    ) -> Result<EffectEvidence, String> {
        let placed = self.placed(lab);
        self.change(placed.as_ref().unwrap_or(lab), action, way)
    }

    fn settle(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let placed = self.placed(lab);
        self.make_good(placed.as_ref().unwrap_or(lab))
    }

    fn captures(&self) -> bool {
        true
    }

    fn server(&self, way: &RequestPath) -> Option<Instance> {
        self.running.as_ref()?.captured.as_ref()?.instance(way)
    }

    fn instances(&self, way: &RequestPath) -> Vec<Instance> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let on_path = |role: &str| is_on_path(way, role);
        let mut instances: Vec<Instance> = running
            .sidecars
            .iter()
            .filter(|sidecar| on_path(sidecar.role))
            .map(|sidecar| sidecar.process.instance(sidecar.role))
            .collect();
        let control = &running.control;
        instances.push(Instance::here(
            control.name().to_owned(),
            CONTROL,
            control.group_pids(),
        ));
        instances
    }

    fn counts(&self, way: &RequestPath) -> Counts {
        if !self.variant.counts {
            return Ok(None);
        }
        let running = self.running.as_ref().ok_or("Voile does not run")?;
        let mut counts = BTreeMap::new();
        for sidecar in &running.sidecars {
            let count = match &sidecar.process {
                Process::There(process) => process.count(&way.protocol)?.unwrap_or(0),
                Process::Here(_) if self.stock.is_some() => {
                    let refused = self.outfit.refusal().is_some();
                    envoy::carried(sidecar.admin, &way.protocol, refused)?
                }
                Process::Here(process) => {
                    let refused = self.outfit.refusal();
                    metric(process.name(), sidecar.metrics, &way.protocol, refused)?
                }
            };
            counts.insert(sidecar.role, count);
        }
        Ok(Some(counts))
    }

    fn collects_there(&self) -> bool {
        self.variant.append.contains(COLLECTOR)
    }

    /// Both sidecars write into one file; each line is a whole one.
    fn recorded(&self, lab: &Lab<'_>, way: &RequestPath) -> Result<Vec<RecordedOutput>, String> {
        let mut all = self.asked(way)?;
        if self.variant.append.contains(ACCESS_LOG) {
            let sidecars = self.instances(way).len().saturating_sub(1).max(1) as u64;
            let written = lines(&peers_folder(lab, &self.variant.name)?.join("access.log"));
            all.push(RecordedOutput {
                what: format!("lines of each of {sidecars} sidecars in their access log"),
                count: written / sidecars,
                expected: ExpectedOutput::OneOf(1),
            });
        }
        let on_path = |sidecar: &&VoileSidecar| is_on_path(way, sidecar.role);
        let watchers = self.running.iter().flat_map(|running| &running.watchers);
        all.extend(
            watchers
                .filter(|(role, _)| is_on_path(way, role))
                .map(|(role, watcher)| {
                    let (page, count) = watcher.shown();
                    let (what, expected) = match page {
                        WatchedPage::Figures => ("pages of metrics", ExpectedOutput::Some),
                        WatchedPage::Requests => ("records of requests", ExpectedOutput::OneOf(1)),
                    };
                    RecordedOutput {
                        what: format!("{what} that the {role} showed to a watcher"),
                        count,
                        expected,
                    }
                }),
        );
        let sidecars = self.running.iter().flat_map(|running| &running.sidecars);
        for sidecar in sidecars.filter(on_path) {
            all.extend(sidecar.sent(&self.variant.append, &way.protocol)?);
        }
        if self.variant.counts && way.mode != "clientonly" {
            let sidecars = self.running.iter().flat_map(|running| &running.sidecars);
            for sidecar in sidecars.filter(|sidecar| sidecar.role == SERVER) {
                all.extend(match &self.stock {
                    Some(_) => envoy::judged(&self.outfit, &envoy::statistics(sidecar.admin)?),
                    None => sidecar.judged(&self.outfit)?,
                });
            }
        }
        Ok(all)
    }

    fn stage(&self, lab: &Lab<'_>, way: &RequestPath) -> Result<Option<IdentityProbe>, String> {
        let folder = lab.folder.join(&self.variant.name);
        match self.running.as_ref().filter(|_| lab.far.is_none()) {
            Some(running) => running.stage(&folder, way),
            None => Ok(None),
        }
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(running) = &mut self.running else {
            return Err("Voile does not run".to_owned());
        };
        if let Some(captured) = &mut running.captured {
            captured.alive(lab)?;
        }
        for sidecar in &mut running.sidecars {
            sidecar.process.alive(lab)?;
        }
        let control = &mut running.control;
        if let Some(exit) = control.try_exit() {
            let name = control.name();
            return Err(format!("{name} {exit}{}", lab.log_end(name)));
        }
        Ok(())
    }

    fn version(&self) -> String {
        if let Some(envoy) = &self.stock {
            return envoy.version.clone();
        }
        let other = self.variant.program.as_deref();
        other.map_or_else(|| env!("CARGO_PKG_VERSION").to_owned(), find::voile_version)
    }

    fn commands(&self) -> Vec<String> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let sidecars = running.sidecars.iter();
        let sidecars = sidecars.map(|sidecar| sidecar.process.command_line());
        let all = sidecars.chain([running.control.command_line()]);
        all.map(str::to_owned).collect()
    }

    fn terms(&self) -> Vec<String> {
        if self.stock.is_some() {
            return stock_envoy::TERMS.map(str::to_owned).into();
        }
        let mut terms = vec![
            "defaults: Istio's metrics on, configured and certified by a live control plane"
                .to_owned(),
        ];
        if !self.variant.title.is_empty() {
            terms.push(self.variant.title.clone());
        }
        terms
    }

    fn tls_by_its_own_word(&self) -> Option<String> {
        self.stock.as_ref()?;
        let mut sidecars = self.running.as_ref()?.sidecars.iter();
        let server = sidecars.find(|sidecar| sidecar.role == SERVER)?;
        envoy::negotiated(server.admin)
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.watchers.clear();
            let sidecars = running
                .sidecars
                .iter_mut()
                .filter_map(|sidecar| sidecar.process.here());
            stop_all(sidecars.chain([&mut running.control]), STOP_GRACE);
            if let Some(captured) = &mut running.captured {
                captured.stop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_of_the_mesh_has_a_value_and_what_a_variant_replaces_is_there() {
        let ports = Ports {
            control: SocketAddr::new(LOCAL, 1),
            monitoring: SocketAddr::new(LOCAL, 2),
            services: PORTS.iter().map(|(name, _)| (*name, 3)).collect(),
            client: CLIENT_ADDRESS,
            server: SERVER_ADDRESS,
            captured: false,
        };
        let echo = Echo {
            http: SocketAddr::new(LOCAL, 6),
            tcp: SocketAddr::new(LOCAL, 7),
        };
        let mut variant = Variant::plain("voile");
        let folder = Path::new("/folder");
        ports.resources(&echo, &variant, folder).expect("filled");
        let captured = Ports {
            client: LOCAL,
            captured: true,
            ..ports.clone()
        };
        captured
            .resources(&echo, &variant, folder)
            .expect("filled, too");
        variant.replace = vec![("no such words".to_owned(), String::new())];
        ports
            .resources(&echo, &variant, folder)
            .expect_err("nothing to replace");
    }
}
