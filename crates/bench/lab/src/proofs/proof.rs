//! Proof of path. Before anything is measured, marked requests walk each cell's path once. The lab checks them from outside (a
//! capture, the owners of sockets, strangers' attempts) and from inside (the proxies' own counts).

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use voile_report::record::{Check, CheckVerdict, PathProof};

use crate::checks::{check, pace};
use crate::contestants::contestant::{
    CellRoute, Contestant, Counts, ExpectedOutput, GeneratorTraffic, RecordedOutput,
};
use crate::definition::{RefusalKind, WAYPOINT_MODE};
use crate::generator::{BrokenSlice, Generated, GeneratorRequest, finish_load, start_load};
use crate::identity_proof::impostor;
use crate::machine::instance::{Hop, Instance, SERVER};
use crate::machine::socket_owners::{inside_owner, listener_owner};
use crate::origin_servers::endpoints;
use crate::packet_capture::{Hello, HopCapture, PacketCapture};
use crate::plan::RequestPath;
use crate::shared_processes::Lab;
use crate::unrouted_proof::strays;

/// Time for proxies to show an answered request in their counters.
const COUNT_BOUND: Duration = Duration::from_secs(2);
/// Time for proxies to write the records of their features: Envoy sends spans every five seconds.
const RECORD_BOUND: Duration = Duration::from_secs(8);
/// Time that a stranger waits for an answer that must not come.
const STRANGER_BOUND: Duration = Duration::from_secs(2);

/// First bytes of HTTP/2, with empty settings (RFC 9113 section 3.4). Every HTTP/2 server answers them.
const TUNNEL_BEGINS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Result of a proof.
pub(crate) struct ProofResult {
    pub(crate) proof: PathProof,
    /// Negotiated between the sidecars, seen on the wire.
    pub(crate) hello: Option<Hello>,
}

/// Walks the path once and looks.
pub(crate) fn prove(
    lab: &Lab<'_>,
    contestant: &mut dyn Contestant,
    way: &RequestPath,
    route: &CellRoute,
    order: &GeneratorRequest,
) -> Result<ProofResult, BrokenSlice> {
    let marker = format!("lab{:016x}", fastrand::u64(..));
    let order = GeneratorRequest {
        marker: Some(marker.clone()),
        warmup: Duration::ZERO,
        ..order.clone()
    };
    let before = contestant.counts(way);
    let recorded = contestant.recorded(lab, way);
    let capture = Captures::start(lab, route, &marker);
    let (mut load, out) = start_load(lab, route, &order).map_err(BrokenSlice::Failed)?;
    let generated = finish_load(
        &mut load,
        &out,
        order.duration + Duration::from_secs(8),
        lab,
    )?;
    let sent = generated.sent;
    let carried = GeneratorTraffic {
        requests: sent,
        connections: order.connections.into(),
    };
    let expected = match contestant.counts_requests(way) {
        true => carried.requests,
        false => carried.connections,
    };
    let mut checks = vec![answers(&generated, &order)];
    checks.push(counted(contestant, way, route, before, carried));
    let owners = contestant.instances(way);
    checks.extend(
        route
            .hops
            .iter()
            .filter(|hop| hop.to != "server")
            .map(|hop| owned(lab, hop, &owners)),
    );
    let mut hello = None;
    match capture.and_then(|capture| capture.finish(lab)) {
        Ok((seen, lost)) => {
            let (seen, spread) = endpoints::as_one_hop(lab, seen);
            checks.extend(spread);
            for (hop, seen) in route.hops.iter().zip(&seen) {
                let exactly = !(hop.to == "server" && contestant.collects_there());
                let shared = hop.is_tunnel() || contestant.shares_connections();
                checks.extend(looked_at(hop, seen, (sent, exactly, shared), lost, &order));
                hello = hello.or_else(|| seen.hello.clone().filter(|_| hop.tls));
            }
        }
        Err(why) => checks.push(Check {
            claim: "a capture on each hop shows the requests, encrypted where they should be"
                .to_owned(),
            verdict: CheckVerdict::NotProven,
            evidence: match lab.far {
                Some(_) => format!("needs CAP_NET_RAW, at the agent's too: {why}"),
                None => format!("needs CAP_NET_RAW: {why}"),
            },
        }),
    }
    checks.extend(features_on(lab, contestant, way, recorded, expected));
    checks.extend(
        route
            .hops
            .iter()
            .filter(|hop| hop.tls)
            .flat_map(|hop| strangers(hop, lab.folder)),
    );
    checks.extend(strays(lab, way, route, &order)?);
    checks.extend(no_impostor(lab, contestant, way).map_err(BrokenSlice::Failed)?);
    let proof = of_way(contestant.name(), way, checks);
    Ok(ProofResult { proof, hello })
}

fn of_way(contestant: &str, way: &RequestPath, checks: Vec<Check>) -> PathProof {
    PathProof {
        contestant: contestant.to_owned(),
        mode: way.mode.clone(),
        tls: way.tls,
        protocol: way.protocol.clone(),
        verdict: way.outfit.verdict.clone(),
        hit: way.outfit.hit.clone(),
        token: way.outfit.token.clone(),
        checks,
    }
}

/// Captures of one path: of the hops here, and of those at the agent's.
struct Captures {
    here: PacketCapture,
    /// Hops at the agent; none without an agent.
    there: Vec<usize>,
    hops: usize,
}

impl Captures {
    fn start(lab: &Lab<'_>, route: &CellRoute, marker: &str) -> Result<Self, String> {
        let hops = &endpoints::all_hops(lab, route);
        let is_there = |hop: &Hop| lab.far.is_some_and(|far| far.has(hop.address));
        let (there, here): (Vec<usize>, Vec<usize>) =
            (0..hops.len()).partition(|at| is_there(&hops[*at]));
        let near: Vec<Hop> = here.iter().map(|at| hops[*at].clone()).collect();
        let here = PacketCapture::start(&near, marker).map_err(|e| e.to_string())?;
        if let Some(far) = lab.far.filter(|_| !there.is_empty()) {
            let listeners: Vec<SocketAddr> = there.iter().map(|at| hops[*at].address).collect();
            far.watch(&listeners, marker)?;
        }
        Ok(Self {
            here,
            there,
            hops: hops.len(),
        })
    }

    /// Packets seen on each hop in order, and the number of packets that a capture lost.
    fn finish(self, lab: &Lab<'_>) -> Result<(Vec<HopCapture>, u64), String> {
        let (here, mut lost) = self.here.finish()?;
        let mut there = Vec::new();
        if let Some(far) = lab.far.filter(|_| !self.there.is_empty()) {
            let (seen, lost_there) = far.seen()?;
            (there, lost) = (seen, lost + lost_there);
        }
        let (mut here, mut seen_there) = (here.into_iter(), there.into_iter());
        let all = (0..self.hops).map(|at| {
            let next = if self.there.contains(&at) {
                seen_there.next()
            } else {
                here.next()
            };
            next.ok_or_else(|| "a hop was not captured".to_owned())
        });
        Ok((all.collect::<Result<_, _>>()?, lost))
    }
}

/// A server of another identity, put in the endpoint's place, must get nothing.
fn no_impostor(
    lab: &Lab<'_>,
    contestant: &dyn Contestant,
    way: &RequestPath,
) -> Result<Option<Check>, String> {
    if !way.tls || !["both", "node", WAYPOINT_MODE].contains(&way.mode.as_str()) {
        return Ok(None);
    }
    Ok(Some(match contestant.stage(lab, way)? {
        Some(stage) => impostor(&stage, lab.folder),
        None => Check {
            claim: "a server of the right root with another identity gets no byte of a request"
                .to_owned(),
            verdict: CheckVerdict::NotProven,
            evidence: if lab.far.is_some() {
                "tried on one machine only".to_owned()
            } else {
                format!(
                    "the lab cannot put its own server into the path of {}",
                    contestant.name()
                )
            },
        },
    }))
}

fn answers(generated: &Generated, order: &GeneratorRequest) -> Check {
    let claim = if let Some(refusal) = order.refused {
        let by = match refusal {
            RefusalKind::Unknown => "for its token",
            RefusalKind::Forbidden => "by policy",
        };
        format!("every request is refused {by}, none answered otherwise")
    } else if order.protocol == "http1" {
        format!("every answer is good and carries {} bytes", order.size)
    } else {
        "every answer is good".to_owned()
    };
    let good = generated.ok > 0 && generated.errors_total == 0;
    let evidence = if good {
        format!("{} of {} answers", generated.ok, generated.scheduled)
    } else {
        format!(
            "{} of {} answers; errors {:?}",
            generated.ok, generated.scheduled, generated.errors
        )
    };
    check(claim, good, evidence)
}

/// Each proxy on the path counted exactly what was sent, and (soon) no more comes.
fn counted(
    contestant: &dyn Contestant,
    way: &RequestPath,
    route: &CellRoute,
    before: Counts,
    carried: GeneratorTraffic,
) -> Check {
    let expected: Vec<(&str, u64)> = contestant.expected(way, route, carried).collect();
    let all = |number: u64| expected.iter().all(|(_, wanted)| *wanted == number);
    let claim = if way.outfit.refusal().is_some() {
        "each proxy's own counter of refusals grew by the requests sent"
    } else if contestant.counts_requests(way) && all(carried.requests) {
        "each proxy's own counter of good answers grew by the requests sent"
    } else if all(carried.connections) {
        "each proxy's own counter grew by the connections opened"
    } else {
        "each proxy's own counter grew by the requests sent or the connections opened"
    };
    if route.proxies().next().is_none() {
        return check(
            "no proxy is on the path",
            route.hops.len() == 1,
            "the generator's URL is the server's address",
        );
    }
    let before = match before {
        Ok(Some(before)) => before,
        Ok(None) => {
            let evidence = "it keeps no count; see the capture on its hops".to_owned();
            return Check {
                claim: claim.to_owned(),
                verdict: CheckVerdict::NotProven,
                evidence,
            };
        }
        Err(why) => return check(claim, false, why),
    };
    let deadline = Instant::now() + COUNT_BOUND;
    loop {
        let grown: Vec<(&str, u64, u64)> = match contestant.counts(way) {
            Ok(Some(now)) => expected
                .iter()
                .map(|(role, wanted)| {
                    let of = |counts: &BTreeMap<&str, u64>| counts.get(role).copied().unwrap_or(0);
                    (*role, of(&now).saturating_sub(of(&before)), *wanted)
                })
                .collect(),
            Ok(None) => Vec::new(),
            Err(why) => return check(claim, false, why),
        };
        let right = grown.iter().all(|(_, count, wanted)| count == wanted);
        let all = !grown.is_empty() && right;
        if all || Instant::now() >= deadline {
            let seen = grown
                .iter()
                .map(|(role, count, _)| format!("{role} {count}"));
            let seen: Vec<String> = seen.collect();
            let sent = match contestant.counts_requests(way) {
                true => carried.requests,
                false => carried.connections,
            };
            return check(claim, all, format!("sent {sent}; {}", seen.join(", ")));
        }
        pace();
    }
}

/// Each feature that writes something about requests wrote it: a feature that is off costs nothing.
fn features_on(
    lab: &Lab<'_>,
    contestant: &dyn Contestant,
    way: &RequestPath,
    before: Result<Vec<RecordedOutput>, String>,
    sent: u64,
) -> Vec<Check> {
    let claim = "the enabled features produce output";
    let before = match before {
        Ok(before) if before.is_empty() => return Vec::new(),
        Ok(before) => before,
        Err(why) => return vec![check(claim, false, why)],
    };
    let deadline = Instant::now() + RECORD_BOUND;
    loop {
        let now = match contestant.recorded(lab, way) {
            Ok(now) => now,
            Err(why) => return vec![check(claim, false, why)],
        };
        let checks: Vec<Check> = before
            .iter()
            .zip(&now)
            .map(|(before, now)| written(before, now, sent))
            .collect();
        let all = checks
            .iter()
            .all(|check| check.verdict == CheckVerdict::Proven);
        if all || Instant::now() >= deadline || (lab.stopped)() {
            return checks;
        }
        pace();
    }
}

/// Checks that the feature wrote as many records as it should.
fn written(before: &RecordedOutput, now: &RecordedOutput, sent: u64) -> Check {
    let grown = now.count.saturating_sub(before.count);
    let claim = match now.expected {
        ExpectedOutput::Labelled => format!("by its own labels: {}", now.what),
        ExpectedOutput::OneOf(_) | ExpectedOutput::Some => format!("switched on: {}", now.what),
    };
    let evidence = format!("{grown} more after {sent} sent");
    match now.expected {
        ExpectedOutput::Some => check(claim, now.count > 0, format!("{} by now", now.count)),
        ExpectedOutput::OneOf(1) | ExpectedOutput::Labelled => {
            check(claim, grown >= sent, evidence)
        }
        // Few are not none; many are another feature.
        ExpectedOutput::OneOf(_) if grown > sent / 10 => check(claim, false, evidence),
        ExpectedOutput::OneOf(_) if grown > 0 => check(claim, true, evidence),
        ExpectedOutput::OneOf(_) => Check {
            claim,
            verdict: CheckVerdict::NotProven,
            evidence: format!("{evidence}: too few were sent to expect one"),
        },
    }
}

/// The hop's listener belongs to the process that we charge for it.
fn owned(lab: &Lab<'_>, hop: &Hop, owners: &[Instance]) -> Check {
    let claim = match hop.spot.as_ref().and_then(|spot| spot.listener) {
        Some(port) if !hop.is_tunnel() && (hop.to != SERVER || hop.address.port() != port) => {
            format!(
                "{} is redirected to port {port}, a socket of the {}",
                hop.address, hop.to
            )
        }
        _ => format!("{} is a socket of the {}", hop.address, hop.to),
    };
    let owners = owners.iter().filter(|owner| owner.role == hop.to);
    let (mut pids, mut numbers) = (Vec::new(), Vec::new());
    for owner in owners {
        pids.extend(&owner.pids);
        numbers.extend(&owner.far);
    }
    let redirected = hop.spot.as_ref().and_then(|spot| spot.listener);
    let (owner, there) = match lab.far.filter(|far| far.has(hop.address)) {
        Some(far) => (
            far.owner(hop.address, &numbers).map_err(io::Error::other),
            format!(" on {}", far.host()),
        ),
        None => (
            match &hop.spot {
                // A node proxy listens where its pods are, and is elsewhere itself.
                Some(spot) => inside_owner(&spot.namespace, hop.address, redirected, &pids),
                None => listener_owner(hop.address, redirected, &pids),
            },
            String::new(),
        ),
    };
    match owner {
        Ok(Some(pid)) => check(
            claim,
            true,
            format!("listening descriptor held by process {pid}{there}"),
        ),
        Ok(None) => check(
            claim,
            false,
            format!("none of its processes {pids:?} holds it"),
        ),
        Err(e) => Check {
            claim,
            verdict: CheckVerdict::NotProven,
            evidence: format!("cannot read /proc: {e}"),
        },
    }
}

/// Checks of one hop by its capture.
///
/// If log entries and spans go the same way, they contain the requests' marker again. The capture then shows more than was sent.
fn looked_at(
    hop: &Hop,
    seen: &HopCapture,
    (sent, exactly, shared): (u64, bool, bool),
    lost: u64,
    order: &GeneratorRequest,
) -> Vec<Check> {
    let to = hop.to;
    if hop.tls {
        // Requests that share a connection may share a segment; each has its marker's bytes in its body all the same.
        let streams = ["http2", "grpc"].contains(&order.protocol.as_str()) || shared;
        let marker = order.marker.as_ref().map_or(0, String::len) as u64;
        let enough = seen.tls_records >= sent
            || (streams && seen.tls_records > 0 && seen.bytes >= sent * marker);
        let encrypted = seen.markers == 0 && enough;
        let evidence = format!(
            "{} bytes in {} segments of TLS application data; the requests' marker seen {} times",
            seen.bytes, seen.tls_records, seen.markers
        );
        let claim = format!("captured before the {to}: all encrypted");
        let handshake = match &seen.hello {
            Some(hello) => check(
                "TLS 1.3 was negotiated",
                hello.version == 0x0304,
                hello.in_words(),
            ),
            None => Check {
                claim: "TLS 1.3 was negotiated".to_owned(),
                verdict: CheckVerdict::NotProven,
                evidence: "no handshake during the capture: connections were open already"
                    .to_owned(),
            },
        };
        return vec![check(claim, encrypted, evidence), handshake];
    }
    let evidence = format!(
        "marker seen {} times for {sent} requests, {lost} packets lost to the capture",
        seen.markers_in
    );
    if order.refused.is_some() && to == "server" {
        let claim = "captured before the server: nothing of a refused request arrives";
        return vec![check(claim, seen.markers_in == 0, evidence)];
    }
    let claim = format!("captured before the {to}: every request passed, readable");
    if lost > 0 && seen.markers_in < sent {
        return vec![Check {
            claim,
            verdict: CheckVerdict::NotProven,
            evidence,
        }];
    }
    let all = seen.markers_in == sent || (!exactly && seen.markers_in > sent);
    vec![check(claim, all, evidence)]
}

/// Strangers without a certificate of the mesh must get no answer from a hop that demands one.
fn strangers(hop: &Hop, folder: &Path) -> Vec<Check> {
    let plain = match answered_in_plaintext(hop.address) {
        Ok(answered) => check(
            "a stranger in plaintext gets no answer",
            !answered,
            if answered {
                "it got an HTTP answer"
            } else {
                "connection closed without an HTTP answer"
            },
        ),
        Err(e) => check(
            "a stranger in plaintext gets no answer",
            true,
            e.to_string(),
        ),
    };
    let mut checks = vec![plain];
    checks.push(tls_stranger(
        "a stranger without certificate gets no answer",
        hop,
        &[],
    ));
    checks.push(match foreign_certificate(folder) {
        Ok((certificate, key)) => {
            let arguments = ["-cert".to_owned(), certificate, "-key".to_owned(), key];
            tls_stranger(
                "a stranger with a foreign certificate gets no answer",
                hop,
                &arguments,
            )
        }
        Err(why) => Check {
            claim: "a stranger with a foreign certificate gets no answer".to_owned(),
            verdict: CheckVerdict::NotProven,
            evidence: why,
        },
    });
    checks
}

fn answered_in_plaintext(address: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, STRANGER_BOUND)?;
    stream.set_read_timeout(Some(STRANGER_BOUND))?;
    stream.write_all(b"GET /?size=1 HTTP/1.1\r\nHost: stranger\r\nConnection: close\r\n\r\n")?;
    let mut answer = [0; 64];
    let got = stream.read(&mut answer)?;
    Ok(is_answer(&answer[..got]))
}

/// Returns true if the service answered: with success over HTTP, or with our own words over TCP. A proxy's refusal is no answer.
fn is_answer(bytes: &[u8]) -> bool {
    [&b"HTTP/1.1 200"[..], b"GET /?size=1"]
        .iter()
        .any(|words| bytes.windows(words.len()).any(|window| window == *words))
}

/// A self-signed certificate that claims the client's identity.
fn foreign_certificate(folder: &Path) -> Result<(String, String), String> {
    let failed = |e: rcgen::Error| format!("making a certificate: {e}");
    let key = rcgen::KeyPair::generate().map_err(failed)?;
    let mut params = rcgen::CertificateParams::default();
    let id = "spiffe://cluster.local/ns/lab/sa/client";
    params.subject_alt_names = vec![rcgen::SanType::URI(id.try_into().map_err(failed)?)];
    let certificate = params.self_signed(&key).map_err(failed)?;
    let (certificate_path, key_path) = (folder.join("foreign.pem"), folder.join("foreign-key.pem"));
    for (path, text) in [
        (&certificate_path, certificate.pem()),
        (&key_path, key.serialize_pem()),
    ] {
        std::fs::write(path, text).map_err(|e| format!("writing {}: {e}", path.display()))?;
    }
    Ok((
        certificate_path.display().to_string(),
        key_path.display().to_string(),
    ))
}

/// Calls the hop over TLS with openssl, which is another TLS library than the proxies'. In TLS 1.3 the client's side of the
/// handshake succeeds before the server has judged its certificate, so only an HTTP answer proves access. A tunnel server gets
/// the first bytes of HTTP/2 and answers them only after it has accepted the certificate, so there any byte is an answer.
fn tls_stranger(claim: &str, hop: &Hop, arguments: &[String]) -> Check {
    let not_proven = |evidence: String| Check {
        claim: claim.to_owned(),
        verdict: CheckVerdict::NotProven,
        evidence,
    };
    let child = Command::new("openssl")
        .args([
            "s_client",
            "-quiet",
            "-alpn",
            match hop.is_tunnel() {
                true => "h2",
                false => "istio-http/1.1,istio,http/1.1",
            },
            "-connect",
            &hop.address.to_string(),
        ])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => return not_proven(format!("needs openssl: {e}")),
    };
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(match hop.is_tunnel() {
            true => TUNNEL_BEGINS,
            false => b"GET /?size=1 HTTP/1.1\r\nHost: stranger\r\nConnection: close\r\n\r\n",
        });
        let deadline = Instant::now() + STRANGER_BOUND;
        // `-quiet` keeps it open after our request's end, so it ends when the server closes; a server that does neither
        // answer nor close is given up on.
        while child.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < deadline {
            pace();
        }
        drop(stdin);
    }
    let _ = child.kill();
    let Ok(output) = child.wait_with_output() else {
        return not_proven("openssl's output was lost".to_owned());
    };
    let answered = match hop.is_tunnel() {
        true => !output.stdout.is_empty(),
        false => is_answer(&output.stdout),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let alert = said
        .lines()
        .find(|line| line.contains("alert") || line.contains("errno"))
        .unwrap_or("connection closed");
    let evidence = if answered {
        "it got an answer".to_owned()
    } else {
        alert.trim().to_owned()
    };
    check(claim, !answered, evidence)
}
