//! Contestants: whoever stands between client and server, started by command line and known by nothing else.

mod baseline;
mod captured;
pub(crate) mod certificates;
mod envoy;
mod generations;
mod haproxy;
mod ingress;
mod linkerd;
mod listeners;
mod nginx;
pub(crate) mod nodes;
mod pair;
mod pipy;
mod planes;
mod relay;
mod retired;
pub(crate) mod served;
mod voile;
mod ztunnel;

pub(crate) use voile::{counted, output};

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use voile_host::netns::Namespace;
use voile_host::place::Place;

use self::certificates::Leaf;
use self::nodes::waypoint::Before;
use self::nodes::{Nodes, Program};
use self::pair::Pair;
use self::planes::Planes;
use crate::definition::{Action, PeerFeatures, Variant, WAYPOINT_MODE};
use crate::events::Sign;
use crate::find::{ENVOY_XDS, Found};
use crate::impostor::TUNNEL_OPENING;
use crate::network::GATEWAY;
use crate::plan::{Outfit, Way};
use crate::target::Lab;

pub(crate) const CLIENT: &str = "client-sidecar";
pub(crate) const SERVER: &str = "server-sidecar";
pub(crate) const CLIENT_NODE: &str = "client-node";
pub(crate) const SERVER_NODE: &str = "server-node";
pub(crate) const WAYPOINT: &str = "waypoint";
pub(crate) const INGRESS: &str = "gateway";
pub(crate) const CONTROL: &str = "control";

/// Whether that role is a proxy's, on the way of requests.
pub(crate) fn is_proxy(role: &str) -> bool {
    [CLIENT, SERVER, CLIENT_NODE, SERVER_NODE, WAYPOINT, INGRESS].contains(&role)
}

/// Where ztunnel and its kind take tunnels.
pub(crate) const HBONE: u16 = 15008;

/// One instance of a program in the experiment; its processes count as one (a master and its workers, say).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) role: &'static str,
    pub(crate) pids: Vec<u32>,
    /// The agent's numbers for its processes, when it runs at the agent's; none here.
    pub(crate) far: Vec<u32>,
}

impl Instance {
    /// One on this machine.
    pub(crate) fn here(name: String, role: &'static str, pids: Vec<u32>) -> Self {
        Self {
            name,
            role,
            pids,
            far: Vec::new(),
        }
    }

    /// Its processes, as far as this machine knows them.
    pub(crate) fn pids_here(&self) -> &[u32] {
        if self.far.is_empty() { &self.pids } else { &[] }
    }
}

/// Where a hop can be watched, when that is not the loopback device that all share.
#[derive(Debug, Clone)]
pub(crate) struct Spot {
    pub(crate) namespace: Namespace,
    pub(crate) device: &'static CStr,
    /// The listener's port, where the kernel redirects to it.
    pub(crate) listener: Option<u16>,
}

impl Spot {
    pub(crate) const LOOPBACK: &'static CStr = c"lo";
    pub(crate) const ETHERNET: &'static CStr = c"eth0";
}

/// One connection's worth of path: who listens there, and whether what travels is mutual TLS.
#[derive(Debug, Clone)]
pub(crate) struct Hop {
    /// Role of the listener; `server` for the echo server.
    pub(crate) to: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) tls: bool,
    pub(crate) spot: Option<Spot>,
}

impl Hop {
    /// Whether many connections share one here.
    pub(crate) fn is_tunnel(&self) -> bool {
        self.tls && self.address.port() == HBONE
    }
}

/// How a cell's requests travel.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// Where the generator sends; the first hop's address.
    pub(crate) entry: SocketAddr,
    /// The Host field, where the contestant routes by it.
    pub(crate) host: Option<String>,
    /// The generator's source address.
    pub(crate) bind: Option<IpAddr>,
    /// Where the generator is, when not where we are.
    pub(crate) from: Option<Place>,
    /// Every hop in order, the last one to the echo server.
    pub(crate) hops: Vec<Hop>,
}

impl Route {
    /// A path through these hops.
    pub(crate) fn through(hops: Vec<Hop>) -> Self {
        Self {
            entry: hops[0].address,
            host: None,
            bind: None,
            from: None,
            hops,
        }
    }

    /// The proxies on the path, in order.
    pub(crate) fn proxies(&self) -> impl Iterator<Item = &'static str> {
        self.hops
            .iter()
            .map(|hop| hop.to)
            .filter(|role| *role != "server")
    }
}

/// A way through the client's sidecar that demands the server's identity at its far end, where nobody listens: there the
/// lab puts servers of its own.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    /// Where the client's sidecar takes requests for it.
    pub(crate) entry: SocketAddr,
    /// The Host field, where the contestant routes by it.
    pub(crate) host: Option<String>,
    /// Where the sidecar will look for the server.
    pub(crate) server: SocketAddr,
    /// A certificate with the server's identity.
    pub(crate) right: Leaf,
    /// One of the same root with another identity.
    pub(crate) wrong: Leaf,
    /// Where the client calls from and where the server is, in networks of their own; the server, where it is nowhere else,
    /// beside the lab.
    pub(crate) networks: Option<(Namespace, Option<Namespace>)>,
    /// What the server offers to speak (ALPN).
    pub(crate) speaks: &'static str,
    /// What shows that the sidecar took the server for the right one, where a request comes only after more than the
    /// lab's server can say.
    pub(crate) opening: Option<&'static str>,
}

impl Stage {
    /// Between sidecars that pass requests on as they are.
    pub(crate) const SPEAKS: &'static str = "istio-http/1.1,istio,http/1.1";

    /// Certificates of a mesh whose control plane keeps its state in that folder: the server's, and the impostor's.
    fn leaves(folder: &Path) -> Result<Option<(Leaf, Leaf)>, String> {
        let state = folder.join("state");
        let mut leaves = certificates::below(
            &state.join("root-cert.pem"),
            &state.join("root-key.pem"),
            folder,
            &[("server", listeners::SERVER_ID), IMPOSTOR],
        )?;
        let (wrong, right) = (leaves.pop(), leaves.pop());
        Ok(right.zip(wrong))
    }

    /// Of tunnels of a mesh whose control plane keeps its state in that folder: the lab's server stands beside the lab, where
    /// a further pod is said to be behind `entry`, and gets no more than the tunnel's opening.
    fn of_tunnel(
        folder: &Path,
        entry: SocketAddr,
        client: Namespace,
    ) -> Result<Option<Self>, String> {
        Ok(Self::leaves(folder)?.map(|(right, wrong)| Self {
            entry,
            host: None,
            server: (GATEWAY, HBONE).into(),
            right,
            wrong,
            networks: Some((client, None)),
            speaks: "h2",
            opening: Some(TUNNEL_OPENING),
        }))
    }
}

/// The identity that nobody expects, and the name in its certificate.
const IMPOSTOR: (&str, &str) = ("impostor", "spiffe://cluster.local/ns/lab/sa/impostor");

/// What proxies say they have carried, by role.
pub(crate) type Counts = Result<Option<BTreeMap<&'static str, u64>>, String>;

/// What a generator put through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) requests: u64,
    pub(crate) connections: u64,
}

/// What a set of features makes a proxy write about each request, and how much of it there is by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Where it is counted: `lines of the server-sidecar's access log`.
    pub(crate) what: String,
    /// How many there are since its process started.
    pub(crate) count: u64,
    /// How much there should be.
    pub(crate) expected: Expected,
}

/// How much of something a feature writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Of so many requests (connections, where the protocol is TCP) one.
    OneOf(u64),
    /// Some.
    Some,
    /// As many as there were requests, by a label of its own metrics and not by a feature.
    Labelled,
}

/// Who stands between client and server.
pub(crate) trait Contestant {
    /// Its name in records.
    fn name(&self) -> &str;

    /// Starts its processes. What was started before a failure is ended when the contestant is dropped.
    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String>;

    /// Waits until it would carry requests.
    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String>;

    /// How it carries such requests; none when it cannot.
    fn route(&self, lab: &Lab<'_>, way: &Way) -> Option<Route>;

    /// Its instances on that way (and its control plane), with their processes now.
    fn instances(&self, way: &Way) -> Vec<Instance>;

    /// The server at the end of that way, where it is not the one that all share.
    fn server(&self, _way: &Way) -> Option<Instance> {
        None
    }

    /// Whether its counts are requests there; who does not look into bytes can only count connections.
    fn counts_requests(&self, way: &Way) -> bool {
        way.protocol != "tcp"
    }

    /// What that proxy's own count should grow by, where it counts something that the generator knows: connections that
    /// another proxy made are as many as that one needed.
    fn expected_of(&self, way: &Way, _role: &str, carried: Carried) -> Option<u64> {
        Some(match self.counts_requests(way) {
            true => carried.requests,
            false => carried.connections,
        })
    }

    /// The same of each proxy on a path.
    fn expected<'a>(
        &'a self,
        way: &'a Way,
        route: &'a Route,
        carried: Carried,
    ) -> Box<dyn Iterator<Item = (&'static str, u64)> + 'a> {
        let of_each = move |role| Some((role, self.expected_of(way, role, carried)?));
        Box::new(route.proxies().filter_map(of_each))
    }

    /// Whether its sidecars put requests of many clients on one connection between them, whatever the clients speak.
    fn shares_connections(&self) -> bool {
        false
    }

    /// Requests (or connections, see above) that each proxy says it has carried since it started, by role; of requests only
    /// those that were answered well, where it tells them apart.
    /// None when it keeps no count.
    fn counts(&self, way: &Way) -> Counts;

    /// Whether log entries or spans go to the server that the requests go to.
    fn collects_there(&self) -> bool {
        false
    }

    /// What its features have made it write about requests on that way.
    fn recorded(&self, _lab: &Lab<'_>, _way: &Way) -> Result<Vec<Recorded>, String> {
        Ok(Vec::new())
    }

    /// Where a server of the right root and the wrong identity can be put in its way over mutual TLS.
    fn stage(&self, _lab: &Lab<'_>, _way: &Way) -> Result<Option<Stage>, String> {
        Ok(None)
    }

    /// Does something of an experiment's events on that way; says by what its effect is seen, or why it cannot be done.
    fn act(&mut self, _lab: &Lab<'_>, action: &Action, _way: &Way) -> Result<Sign, String> {
        let name = self.name();
        Err(format!("the lab cannot do {} to {name}", action.word()))
    }

    /// Makes good what events did, before the next slice.
    fn settle(&mut self, _lab: &Lab<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Whether it can take what is redirected to it, in networks of their own.
    fn captures(&self) -> bool {
        false
    }

    /// Whether all its processes still run; if not, which ended and how.
    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String>;

    /// Its version.
    fn version(&self) -> String;

    /// Its command lines.
    fn commands(&self) -> Vec<String>;

    /// What it does more or less than the others.
    fn terms(&self) -> Vec<String>;

    /// Negotiated TLS parameters by its own statistics, to be laid beside what the capture saw.
    fn tls_by_its_own_word(&self) -> Option<String> {
        None
    }

    /// Ends its processes.
    fn stop(&mut self);
}

/// The contestant of that name; none when the lab does not know it.
pub(crate) fn named(
    name: &str,
    outfit: &Outfit,
    variants: &[Variant],
    found: &Found,
) -> Result<Box<dyn Contestant>, String> {
    if let Some(variant) = variants.iter().find(|variant| variant.name == name) {
        return Ok(Box::new(voile_planes(variant, outfit)));
    }
    let (program, features) = PeerFeatures::of(name)?;
    let configured = outfit.has_policies() || outfit.believes() || outfit.routes().is_some();
    if configured && !["baseline", "voile", "envoy", ENVOY_XDS].contains(&program) {
        return Err(format!("the lab has no policies and routes for {program}"));
    }
    match program {
        "baseline" => Ok(Box::new(baseline::Baseline)),
        "relay" => Ok(Box::new(relay::Relay::default())),
        "voile" => Ok(Box::new(voile_planes(&Variant::plain("voile"), outfit))),
        "envoy" => {
            let envoy = envoy::Envoy::new(found.envoy.clone()?, features);
            let sidecars = Pair::new(envoy.fitted(outfit));
            let waypoint = Before::Envoy(found.envoy.clone()?);
            let nodes = Nodes::around(waypoint, name);
            let planes = Planes::new(Box::new(sidecars)).and(&[WAYPOINT_MODE], Box::new(nodes));
            Ok(Box::new(planes))
        }
        ENVOY_XDS => {
            let told = voile::Voile::stock(found.envoy.clone()?);
            Ok(Box::new(told.fitted(outfit)))
        }
        "nginx" => Ok(Box::new(Pair::new(nginx::Nginx::new(
            found.nginx.clone()?,
            features,
        )))),
        "haproxy" => Ok(Box::new(Pair::new(haproxy::Haproxy::new(
            found.haproxy.clone()?,
            features,
        )))),
        "ztunnel" => {
            let found = found.other("ztunnel")?;
            let sidecars = ztunnel::Ztunnel::new(found.clone());
            let nodes = Nodes::new(Program::Ztunnel(found));
            let planes = Planes::new(Box::new(sidecars)).and(&["node"], Box::new(nodes));
            Ok(Box::new(planes))
        }
        "pipy" => Ok(Box::new(Pair::new(pipy::Pipy::new(found.other("pipy")?)))),
        linkerd::NAME => Ok(Box::new(linkerd::Linkerd::new(found.other(linkerd::NAME)?))),
        other => Err(format!("the lab does not know contestant {other}")),
    }
}

/// Voile with what a variant changes, in all its roles.
fn voile_planes(variant: &Variant, outfit: &Outfit) -> Planes {
    let sidecars = voile::Voile::variant(variant.clone()).fitted(outfit);
    let nodes = Nodes::new(Program::Voile(variant.clone()));
    let waypoint = Nodes::around(Before::Voile(variant.clone()), &variant.name);
    let gateway = ingress::Ingress::new(variant.clone());
    Planes::new(Box::new(sidecars))
        .and(&["node"], Box::new(nodes))
        .and(&[WAYPOINT_MODE], Box::new(waypoint))
        .and(&[INGRESS], Box::new(gateway))
}

/// Does something to what runs of a contestant that takes the contestant, too.
fn changed<C, R, T>(
    contestant: &mut C,
    running: fn(&mut C) -> &mut Option<R>,
    change: impl FnOnce(&C, &mut R) -> Result<T, String>,
) -> Result<T, String> {
    let mut taken = running(contestant).take().ok_or("it does not run")?;
    let done = change(contestant, &mut taken);
    *running(contestant) = Some(taken);
    done
}

/// A folder for a contestant's configuration.
fn peers_folder(lab: &Lab<'_>, name: &str) -> Result<PathBuf, String> {
    let folder = lab.folder.join(name);
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// Whole lines in a file by now; none where there is no file yet.
fn lines(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}
