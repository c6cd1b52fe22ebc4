//! Many sidecars at once: started as fast as they come into sync. Then measures their memory, their idle use, the delay until a
//! policy for all is in force at each, and light load through a sample of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use voile_host::child::{Output, Spec, SupervisedChild, stop_all};
use voile_host::machine::{available_memory_bytes, kernel_memory_bytes, room_for_threads};
use voile_host::ports::free_port;
use voile_host::ready::http_get;
use voile_host::sampler::{ProcessResources, cpu_ns};
use voile_report::record::Record;

use super::control::{Control, SidecarReport, port};
use super::mesh::{ACCOUNT, MAX_PODS, MeshSize, NAMESPACE};
use super::{SidecarSettings, megabytes, rest};
use crate::contestants::counted;
use crate::control_plane::{Progress, make_room};
use crate::network::Echo;
use crate::shared_processes::{HTTP, Lab, start_echo};

/// Estimated number of sidecars that come into sync in a second; used only to estimate the remaining time.
pub(super) const STARTED_A_SECOND: f64 = 25.0;
/// Sidecars that have been started and are not in sync yet, at most: more would only wait for each other.
const COMING: u64 = 32;
/// Time for one more sidecar to come into sync, and interval of the checks.
const COME_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// After the last came, until memory is read.
const SETTLE: Duration = Duration::from_secs(3);
/// Time for the sidecars to end by themselves.
const STOP_WITHIN: Duration = Duration::from_secs(30);
/// Threads of a sidecar, and its share of a machine's limits beside them.
const THREADS_EACH: u64 = 4;
/// Memory that a sidecar surely takes: with less for each it is not begun.
const LEAST_EACH: u64 = 4 << 20;
/// Memory of each Envoy in the article of 2019: 100 GB for 2,000.
const ENVOY_MB: f64 = 50.0;
/// Ports of a sidecar's own pages, on the address of its pod: Istio's ports.
const PAGES: [(&str, u16); 3] = [
    ("--admin", 15000),
    ("--metrics", METRICS),
    ("--readiness", READINESS),
];
const METRICS: u16 = 15020;
const READINESS: u16 = 15021;
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Blocks that meshes of the lab take in turn, so that two labs do not meet.
const BLOCKS: std::ops::Range<u32> = 100..200;

/// What runs.
struct RunningSidecars<'a> {
    settings: &'a SidecarSettings,
    progress: &'a Progress<'a>,
    stopped: &'a dyn Fn() -> bool,
    lab: Lab<'a>,
    layout: MeshSize,
    _held: UdpSocket,
    control: Control,
    sidecars: Vec<SupervisedChild>,
    /// The server behind all pods.
    _echo: SupervisedChild,
}

/// The generator's JSON, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Loaded {
    ok: u64,
    errors_total: u64,
    achieved_rps: f64,
    latency_us: Latency,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Latency {
    p50: f64,
    p99: f64,
}

pub(super) fn measure<'a>(
    settings: &'a SidecarSettings,
    scratch: &'a Path,
    record: &mut Record,
    (progress, stopped): (&'a Progress<'a>, &'a dyn Fn() -> bool),
) -> Result<(), String> {
    possible(settings.sidecars)?;
    let before = Machine::now()?;
    let mut many = RunningSidecars::prepare(settings, scratch, progress, stopped)?;
    let measured = many.all(record, before);
    let ended = many.end();
    measured?;
    let what = "the end";
    record.add(
        what,
        "until all sidecars were gone",
        (ended.as_secs_f64(), "s"),
        None,
    );
    Ok(())
}

/// Checks if this machine can run so many sidecars.
fn possible(sidecars: u32) -> Result<(), String> {
    let number = u64::from(sidecars);
    let what = format!("{sidecars} sidecars");
    if sidecars > MAX_PODS {
        return Err(format!(
            "{what} are more than a mesh on loopback has addresses for ({MAX_PODS})"
        ));
    }
    // The control plane has a connection of each.
    make_room(number + 500, &what)?;
    let (room, limit) = room_for_threads();
    if room < number * THREADS_EACH {
        return Err(format!(
            "{what} take {} threads, and {limit} leaves room for {room}",
            number * THREADS_EACH
        ));
    }
    let left = available_memory_bytes().map_err(|e| e.to_string())?;
    match left < number * LEAST_EACH {
        true => Err(format!("{what} do not fit into {:.0} MB", megabytes(left))),
        false => Ok(()),
    }
}

/// Memory of the machine, to tell what came with the sidecars.
#[derive(Clone, Copy)]
struct Machine {
    kernel: u64,
    available: u64,
}

impl Machine {
    fn now() -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("the machine's memory: {e}");
        Ok(Self {
            kernel: kernel_memory_bytes().map_err(failed)?,
            available: available_memory_bytes().map_err(failed)?,
        })
    }
}

impl<'a> RunningSidecars<'a> {
    fn prepare(
        settings: &'a SidecarSettings,
        scratch: &'a Path,
        progress: &'a Progress<'a>,
        stopped: &'a dyn Fn() -> bool,
    ) -> Result<Self, String> {
        progress.say("writing the mesh");
        let (echo, address) = start_echo(&settings.voile, scratch, HTTP, &[], stopped)?;
        let lab = Lab::on_loopback(&settings.voile, scratch, Echo::NOWHERE, stopped);
        let (layout, held) = MeshSize::choose(settings, address.port())?;
        let config = scratch.join("config");
        layout.write(&config)?;
        let ttl = settings
            .certificate_ttl
            .map(|ttl| format!("{}s", ttl.as_secs()));
        let more = ttl.map_or_else(Vec::new, |ttl| vec!["--certificate-ttl".to_owned(), ttl]);
        let control = Control::start(&lab, "many-control", &config, port(LOCAL)?, None, &more)?;
        Ok(Self {
            settings,
            progress,
            stopped,
            lab,
            layout,
            _held: held,
            control,
            sidecars: Vec::new(),
            _echo: echo,
        })
    }

    fn all(&mut self, record: &mut Record, before: Machine) -> Result<(), String> {
        self.start(record)?;
        self.progress.next();
        self.memory(record, before)?;
        self.idle(record)?;
        self.policy(record)?;
        self.progress.next();
        self.load(record)?;
        let gone = self
            .sidecars
            .iter_mut()
            .filter_map(SupervisedChild::try_exit)
            .count();
        record.add(
            "the end",
            "sidecars that had ended before it",
            (gone as f64, ""),
            Some(0.0),
        );
        self.progress.next();
        Ok(())
    }

    /// Starts them, never many more than can come at once, and waits until all are in sync.
    fn start(&mut self, record: &mut Record) -> Result<(), String> {
        let all = self.settings.sidecars;
        let token = self.control.token(&self.lab, ACCOUNT)?;
        let (began, mut moved, mut came) = (Instant::now(), Instant::now(), 0);
        for pod in 0..all {
            while u64::from(pod) >= came + COMING {
                rest(LOOK_EVERY, self.stopped)?;
                self.progress
                    .say(&format!("starting sidecars, {came} of {all} are connected"));
                let now = self.control.connected()?;
                if now > came {
                    (came, moved) = (now, Instant::now());
                } else if moved.elapsed() > COME_WITHIN {
                    return Err(self.stuck(came, pod));
                }
            }
            let sidecar = self.sidecar(pod, &token);
            self.sidecars
                .push(sidecar.start().map_err(|e| e.to_string())?);
        }
        self.until(all, "in sync", &|known| known.synced)?;
        for pod in 0..all {
            self.until_ready(pod)?;
        }
        let took = began.elapsed().as_secs_f64();
        let what = format!("{all} sidecars start");
        record.add(&what, "until all are ready and in sync", (took, "s"), None);
        record.add(&what, "each", (took * 1e3 / f64::from(all), "ms"), None);
        let used = self.cpu()? as f64 / 1e6 / f64::from(all);
        record.add(&what, "CPU of each until then", (used, "ms"), None);
        Ok(())
    }

    fn sidecar(&self, pod: u32, token: &Path) -> Spec {
        let name = self.layout.pod(pod);
        let address = self.layout.address(pod);
        let mut spec = Spec::new(name.clone(), &self.settings.voile)
            .args(["proxy", "--log-level", "warn"])
            .args(["--workload", &format!("{NAMESPACE}/{name}")])
            .args(["--control", &format!("https://{}", self.control.tls)])
            .arg("--root-cert")
            .arg(self.control.state.join("root-cert.pem"))
            .arg("--token-file")
            .arg(token)
            .stderr(Output::File(self.lab.log(&name)));
        for (option, port) in PAGES {
            spec = spec.args([option, &SocketAddr::new(address, port).to_string()]);
        }
        spec
    }

    /// Waits until the control plane says this of so many.
    fn until(
        &self,
        all: u32,
        what: &str,
        holds: &dyn Fn(&SidecarReport) -> bool,
    ) -> Result<Vec<SidecarReport>, String> {
        let (mut most, mut moved) = (0, Instant::now());
        loop {
            // The control plane may be too busy to answer in time.
            let known = self.control.sidecars().unwrap_or_default();
            let count = known.iter().filter(|one| holds(one)).count();
            self.progress
                .say(&format!("{count} of {all} sidecars are {what}"));
            if count >= all as usize {
                return Ok(known);
            }
            if count > most {
                (most, moved) = (count, Instant::now());
            } else if moved.elapsed() > COME_WITHIN {
                return Err(format!(
                    "only {most} of {all} sidecars are {what} after {COME_WITHIN:?} more"
                ));
            }
            rest(LOOK_EVERY, self.stopped)?;
        }
    }

    fn until_ready(&mut self, pod: u32) -> Result<(), String> {
        let page = SocketAddr::new(self.layout.address(pod), READINESS);
        let deadline = Instant::now() + COME_WITHIN;
        while !matches!(http_get(page, "/healthz/ready"), Ok((200, _))) {
            let sidecar = &mut self.sidecars[pod as usize];
            if let Some(exit) = sidecar.try_exit() {
                let name = sidecar.name();
                return Err(format!("{name} {exit}{}", self.lab.log_end(name)));
            }
            if Instant::now() > deadline {
                return Err(format!("{} is not ready", self.layout.pod(pod)));
            }
            rest(LOOK_EVERY, self.stopped)?;
        }
        Ok(())
    }

    /// Reason why no more sidecars came: the first that has ended, and its output.
    fn stuck(&mut self, came: u64, started: u32) -> String {
        let mut why = format!(
            "{came} of {started} sidecars are connected, and no more came in {COME_WITHIN:?}"
        );
        for sidecar in &mut self.sidecars {
            if let Some(exit) = sidecar.try_exit() {
                let name = sidecar.name();
                why += &format!("; {name} {exit}{}", self.lab.log_end(name));
                break;
            }
        }
        why
    }

    /// CPU of all sidecars since they began.
    fn cpu(&self) -> Result<u64, String> {
        let each = self.sidecars.iter().map(|sidecar| cpu_ns(sidecar.pid()));
        each.sum::<std::io::Result<u64>>()
            .map_err(|e| format!("a sidecar's CPU: {e}"))
    }

    fn memory(&self, record: &mut Record, before: Machine) -> Result<(), String> {
        self.progress.say("reading what they hold");
        rest(SETTLE, self.stopped)?;
        // The machine first: reading of thousands of processes makes the kernel remember them.
        let after = Machine::now()?;
        let (mut sum, mut most) = (ProcessResources::default(), ProcessResources::default());
        for sidecar in &self.sidecars {
            let held = ProcessResources::of(sidecar.pid())
                .map_err(|e| format!("the memory of {}: {e}", sidecar.name()))?;
            sum.pss_bytes += held.pss_bytes;
            sum.anonymous_bytes += held.anonymous_bytes;
            sum.descriptors += held.descriptors;
            most.rss_bytes = most.rss_bytes.max(held.rss_bytes);
            most.threads = most.threads.max(held.threads);
        }
        let all = self.sidecars.len().max(1) as f64;
        let kernel = after.kernel.saturating_sub(before.kernel);
        let what = format!("memory of {all} sidecars");
        let together = megabytes(sum.pss_bytes + kernel);
        record.add(
            &what,
            "PSS of all, and what the kernel has more for itself; at most what the article of 2019 counts for Envoy (50 MB each)",
            (together, "MB"),
            Some(ENVOY_MB * all),
        );
        let less = before.available.saturating_sub(after.available);
        for (measure, seen) in [
            ("PSS of all", megabytes(sum.pss_bytes)),
            ("PSS of each", megabytes(sum.pss_bytes) / all),
            (
                "anonymous memory of each",
                megabytes(sum.anonymous_bytes) / all,
            ),
            ("RSS of the largest", megabytes(most.rss_bytes)),
            (
                "what the kernel has more for itself (control plane, server and lab included)",
                megabytes(kernel),
            ),
            (
                "what the machine has less for others (control plane, server and lab included)",
                megabytes(less),
            ),
        ] {
            record.add(&what, measure, (seen, "MB"), None);
        }
        let each = "of a sidecar";
        record.add(
            each,
            "threads, at most",
            (most.threads as f64, ""),
            Some(THREADS_EACH as f64),
        );
        record.add(
            each,
            "descriptors",
            (sum.descriptors as f64 / all, ""),
            None,
        );
        let control = ProcessResources::of(self.control.child.pid()).map_err(|e| e.to_string())?;
        record.add(
            "the control plane",
            "RSS",
            (megabytes(control.rss_bytes), "MB"),
            None,
        );
        Ok(())
    }

    fn idle(&self, record: &mut Record) -> Result<(), String> {
        let time = self.settings.idle_for;
        if time.is_zero() {
            return Ok(());
        }
        self.progress.say("nothing happens");
        let (before, began) = (self.cpu()?, Instant::now());
        rest(time, self.stopped)?;
        let used = (self.cpu()?.saturating_sub(before)) as f64;
        let cores = used / began.elapsed().as_nanos() as f64;
        record.add(
            "nothing happens",
            "CPU of all sidecars",
            (cores, "cores"),
            None,
        );
        Ok(())
    }

    /// A policy for all, until each has it in force.
    fn policy(&self, record: &mut Record) -> Result<(), String> {
        let all = self.settings.sidecars;
        let before = self.until(all, "in sync", &|known| known.synced)?;
        let before: BTreeMap<u64, u64> = before
            .iter()
            .map(|known| (known.stream, known.propagation.changes))
            .collect();
        let text = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: all, namespace: istio-system}\n\
                    spec: {action: DENY, rules: [{to: [{operation: {methods: [TRACE]}}]}]}\n";
        let config = self.lab.folder.join("config");
        crate::record_folder::write(&config.join("policy.yaml"), text)?;
        let known = self.until(all, "obeying a new policy", &|known| {
            let heard = before.get(&known.stream).copied().unwrap_or(0);
            known.synced && known.propagation.changes > heard
        })?;
        let mut took: Vec<f64> = known
            .iter()
            .filter_map(|one| one.propagation.last_ms)
            .collect();
        took.sort_by(f64::total_cmp);
        let what = "a policy for all, until it was in force";
        for (measure, share) in [
            ("at half of them", 0.5),
            ("at 99 of 100", 0.99),
            ("at the last", 1.0),
        ] {
            let at = ((took.len() as f64 * share).ceil() as usize).clamp(1, took.len().max(1)) - 1;
            if let Some(seen) = took.get(at) {
                record.add(what, measure, (*seen, "ms"), None);
            }
        }
        Ok(())
    }

    /// Requests through a sample of the sidecars to the service that all use, and by the word of its own sidecars how many came.
    fn load(&mut self, record: &mut Record) -> Result<(), String> {
        let sample = self.settings.sample.clamp(1, self.settings.sidecars);
        let time = self.settings.load_for;
        if time.is_zero() {
            return Ok(());
        }
        self.progress
            .say(&format!("light load through {sample} sidecars"));
        let issued = self.control.counter(ISSUED)?;
        let taken = self.taken()?;
        let step = self.settings.sidecars / sample;
        let url = |at: u32| {
            let entry = SocketAddr::new(self.layout.address(at * step), self.layout.service);
            format!("http://{entry}/?size=100")
        };
        let out = self.lab.folder.join("load.json");
        let mut spec = self
            .lab
            .process("load", "load", &self.settings.voile)?
            .args(["load", &url(0), "--json", "--expect-size", "100"])
            .args(["--header", &format!("Host: {}", self.layout.host(0))])
            .args(["--connections", &sample.to_string()])
            .args(["--rate", &self.settings.rate.to_string()])
            .args(["--duration", &format!("{}ms", time.as_millis())])
            .stdout(Output::File(out.clone()));
        for at in 1..sample {
            spec = spec.args(["--target", &url(at)]);
        }
        let mut load = spec.start().map_err(|e| e.to_string())?;
        let deadline = Instant::now() + time + COME_WITHIN;
        while load.wait(LOOK_EVERY).is_none() {
            rest(Duration::ZERO, self.stopped)?;
            if Instant::now() > deadline {
                return Err("the generator does not end".to_owned());
            }
        }
        let text = std::fs::read_to_string(&out).unwrap_or_default();
        let found: Loaded = serde_json::from_str(&text)
            .map_err(|e| format!("the generator's answer: {e}{}", self.lab.log_end("load")))?;
        let what = format!("light load through {sample} sidecars");
        record.add(&what, "requests a second", (found.achieved_rps, ""), None);
        record.add(&what, "p50", (found.latency_us.p50 / 1e3, "ms"), None);
        record.add(&what, "p99", (found.latency_us.p99 / 1e3, "ms"), None);
        record.add(
            &what,
            "failed requests",
            (found.errors_total as f64, ""),
            Some(0.0),
        );
        let came = self.taken()?.saturating_sub(taken);
        let missed = found.ok.saturating_sub(came);
        let measure = "answers that no sidecar of the service counts as mutual TLS";
        record.add(&what, measure, (missed as f64, ""), Some(0.0));
        let issued = self.control.counter(ISSUED)?.saturating_sub(issued);
        record.add(
            &what,
            "certificates renewed meanwhile",
            (issued as f64, ""),
            None,
        );
        Ok(())
    }

    /// Requests that the sidecars behind the service of all have taken by mutual TLS.
    fn taken(&self) -> Result<u64, String> {
        let mut sum = 0;
        for pod in self.layout.behind(0) {
            let page = SocketAddr::new(self.layout.address(pod), METRICS);
            let (_, text) = http_get(page, "/metrics").map_err(|e| e.to_string())?;
            let text = String::from_utf8_lossy(&text);
            sum += counted(
                &text,
                "istio_requests_total",
                "connection_security_policy=\"mutual_tls\"",
            );
        }
        Ok(sum)
    }

    /// Ends all of it; how long the sidecars took.
    fn end(mut self) -> Duration {
        let began = Instant::now();
        stop_all(&mut self.sidecars, STOP_WITHIN);
        let took = began.elapsed();
        self.control.child.stop(STOP_WITHIN);
        took
    }
}

/// Certificates that the control plane has issued.
const ISSUED: &str = "voile_control_certificates_issued_total";

impl MeshSize {
    /// Chooses free addresses, and ports that are free on every address.
    /// The socket holds the block: another lab that begins at the same moment takes the next one.
    fn choose(settings: &SidecarSettings, echo: u16) -> Result<(Self, UdpSocket), String> {
        let mut layout = Self {
            sidecars: settings.sidecars,
            used: settings.used,
            block: 0,
            service: 0,
            pod: 0,
            echo,
        };
        let number = BLOCKS.end - BLOCKS.start;
        for turn in 0..number {
            let block = BLOCKS.start + (std::process::id() + turn) % number;
            layout.block = u8::try_from(block).unwrap_or(u8::MAX);
            let first = layout.address(0);
            let Ok(held) = UdpSocket::bind((first, METRICS)) else {
                continue;
            };
            let taken = |port: u16| TcpListener::bind((first, port)).is_err();
            if PAGES.iter().any(|(_, port)| taken(*port)) {
                continue;
            }
            let port =
                || free_port(first).map_err(|e| format!("cannot get a port for sidecars: {e}"));
            layout.service = port()?.port();
            layout.pod = port()?.port();
            return Ok((layout, held));
        }
        Err(format!(
            "no block 127.{}.0.0/16 to 127.{}.0.0/16 has the ports 15000, 15020 and 15021 free",
            BLOCKS.start,
            BLOCKS.end - 1
        ))
    }
}
