//! The interface of a contestant: its processes, the path of its requests, its own counts and the events that it can undergo.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use voile_host::isolation::ProcessIsolation;
use voile_host::netns::Namespace;

use super::certificates::{self, Leaf};
use crate::contestants::effect_evidence::EffectEvidence;
use crate::definition::EventAction;
use crate::machine::instance::{HBONE, Hop, Instance};
use crate::network::GATEWAY;
use crate::plan::RequestPath;
use crate::shared_processes::Lab;

/// Path of a cell's requests.
#[derive(Debug, Clone)]
pub(crate) struct CellRoute {
    /// Address to which the generator sends: the first hop's.
    pub(crate) entry: SocketAddr,
    /// The Host field, where the contestant routes by it.
    pub(crate) host: Option<String>,
    /// The generator's source address.
    pub(crate) bind: Option<IpAddr>,
    /// Place of the generator, if not the lab's own.
    pub(crate) from: Option<ProcessIsolation>,
    /// Every hop in order, the last one to the echo server.
    pub(crate) hops: Vec<Hop>,
}

impl CellRoute {
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

/// A path through the client's sidecar that demands the server's identity at its far end. Nothing listens there until the lab
/// puts servers of its own in that place.
#[derive(Debug, Clone)]
pub(crate) struct IdentityProbe {
    /// Address at which the client's sidecar takes requests for the stage.
    pub(crate) entry: SocketAddr,
    /// The Host field, where the contestant routes by it.
    pub(crate) host: Option<String>,
    /// Address at which the sidecar expects the server.
    pub(crate) server: SocketAddr,
    /// A certificate with the server's identity.
    pub(crate) right: Leaf,
    /// A certificate of the same root with another identity.
    pub(crate) wrong: Leaf,
    /// Network namespaces of the client and of the server, if they have their own. The server's is none if the server is beside
    /// the lab.
    pub(crate) networks: Option<(Namespace, Option<Namespace>)>,
    /// ALPN that the server offers.
    pub(crate) speaks: &'static str,
    /// Evidence that the sidecar accepted the server. It is set if a request comes only after more than the lab's server can
    /// answer.
    pub(crate) opening: Option<&'static str>,
}

impl IdentityProbe {
    /// Between sidecars that pass requests on as they are.
    pub(crate) const SPEAKS: &'static str = "istio-http/1.1,istio,http/1.1";

    /// Certificates of a mesh whose control plane keeps its state in that folder: the server's, and the impostor's.
    pub(crate) fn leaves(folder: &Path) -> Result<Option<(Leaf, Leaf)>, String> {
        let state = folder.join("state");
        let mut leaves = certificates::below(
            &state.join("root-cert.pem"),
            &state.join("root-key.pem"),
            folder,
            &[("server", SERVER_ID), IMPOSTOR],
        )?;
        let (wrong, right) = (leaves.pop(), leaves.pop());
        Ok(right.zip(wrong))
    }

    /// Stage of tunnels in a mesh whose control plane keeps its state in that folder. A further pod is declared behind `entry`;
    /// the lab's server stands in its place, beside the lab, and gets no more than the tunnel's opening.
    pub(crate) fn of_tunnel(
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

/// Identities in the certificates of peers, as the mesh would give them.
pub(super) const CLIENT_ID: &str = "spiffe://cluster.local/ns/lab/sa/client";
pub(super) const SERVER_ID: &str = "spiffe://cluster.local/ns/lab/sa/server";
/// Identity that no proxy expects, and the name in its certificate.
pub(crate) const IMPOSTOR: (&str, &str) = ("impostor", "spiffe://cluster.local/ns/lab/sa/impostor");

/// Requests that proxies report to have carried, by role.
pub(crate) type Counts = Result<Option<BTreeMap<&'static str, u64>>, String>;

/// Requests and connections that a generator sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GeneratorTraffic {
    pub(crate) requests: u64,
    pub(crate) connections: u64,
}

/// Records that a feature set makes a proxy write about requests, and their number so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedOutput {
    /// Name of the counter: `lines of the server-sidecar's access log`.
    pub(crate) what: String,
    /// Number since the process started.
    pub(crate) count: u64,
    /// Expected number.
    pub(crate) expected: ExpectedOutput,
}

/// Expected number of records of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedOutput {
    /// One record for so many requests (connections, if the protocol is TCP).
    OneOf(u64),
    /// Some.
    Some,
    /// As many as requests, by a label of the proxy's own metrics and not by a feature.
    Labelled,
}

/// The data plane between client and server.
pub(crate) trait Contestant {
    /// Its name in records.
    fn name(&self) -> &str;

    /// Starts the contestant's processes. If a step fails, dropping the contestant ends the processes started before.
    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String>;

    /// Waits until it would carry requests.
    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String>;

    /// Returns the path of the requests; none if the contestant cannot carry them.
    fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute>;

    /// Its instances on that way (and its control plane), with their processes now.
    fn instances(&self, way: &RequestPath) -> Vec<Instance>;

    /// The server at the end of that way, where it is not the one that all share.
    fn server(&self, _way: &RequestPath) -> Option<Instance> {
        None
    }

    /// Returns true if the contestant counts requests there. A proxy that does not read the bytes can only count connections.
    fn counts_requests(&self, way: &RequestPath) -> bool {
        way.protocol != "tcp"
    }

    /// Expected growth of the proxy's own count; none if the generator does not know the counted thing. Connections that another
    /// proxy made count as many as that proxy needed.
    fn expected_of(
        &self,
        way: &RequestPath,
        _role: &str,
        carried: GeneratorTraffic,
    ) -> Option<u64> {
        Some(match self.counts_requests(way) {
            true => carried.requests,
            false => carried.connections,
        })
    }

    /// The same of each proxy on a path.
    fn expected<'a>(
        &'a self,
        way: &'a RequestPath,
        route: &'a CellRoute,
        carried: GeneratorTraffic,
    ) -> Box<dyn Iterator<Item = (&'static str, u64)> + 'a> {
        let of_each = move |role| Some((role, self.expected_of(way, role, carried)?));
        Box::new(route.proxies().filter_map(of_each))
    }

    /// Returns true if its sidecars carry requests of many clients on one connection between them, for any protocol of the
    /// clients.
    fn shares_connections(&self) -> bool {
        false
    }

    /// Requests (or connections, see above) that each proxy reports to have carried since it started, by role. Counts only
    /// well-answered requests if the proxy distinguishes them. None if the proxy keeps no count.
    fn counts(&self, way: &RequestPath) -> Counts;

    /// Returns true if log entries or spans go to the server of the requests.
    fn collects_there(&self) -> bool {
        false
    }

    /// Records that its features have written about requests on that path.
    fn recorded(&self, _lab: &Lab<'_>, _way: &RequestPath) -> Result<Vec<RecordedOutput>, String> {
        Ok(Vec::new())
    }

    /// Stage for a server of the right root and the wrong identity, in the path over mutual TLS.
    fn stage(&self, _lab: &Lab<'_>, _way: &RequestPath) -> Result<Option<IdentityProbe>, String> {
        Ok(None)
    }

    /// Makes an event of an experiment happen on that path. Returns the sign of its effect, or the reason why it cannot be done.
    fn act(
        &mut self,
        _lab: &Lab<'_>,
        action: &EventAction,
        _way: &RequestPath,
    ) -> Result<EffectEvidence, String> {
        let name = self.name();
        Err(format!(
            "the lab does not support {} for {name}",
            action.word()
        ))
    }

    /// Makes good what events did, before the next slice.
    fn settle(&mut self, _lab: &Lab<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Returns true if the contestant can take redirected calls, in network namespaces of its own.
    fn captures(&self) -> bool {
        false
    }

    /// Checks that all its processes still run. The error names the process that ended, and its exit.
    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String>;

    /// Its version.
    fn version(&self) -> String;

    /// Its command lines.
    fn commands(&self) -> Vec<String>;

    /// Differences of its work from the other contestants.
    fn terms(&self) -> Vec<String>;

    /// Negotiated TLS parameters by its own statistics, to be laid beside what the capture saw.
    fn tls_by_its_own_word(&self) -> Option<String> {
        None
    }

    /// Ends its processes.
    fn stop(&mut self);
}

/// Changes the running part of a contestant with a function that also takes the contestant.
pub(crate) fn changed<C, R, T>(
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
pub(crate) fn peers_folder(lab: &Lab<'_>, name: &str) -> Result<PathBuf, String> {
    let folder = lab.folder.join(name);
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// Whole lines in a file by now; none where there is no file yet.
pub(crate) fn lines(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// First bytes of HTTP/2 (RFC 9113 section 3.4), which a tunnel sends before anything else.
pub(crate) const TUNNEL_OPENING: &str = "PRI * HTTP/2.0";
