//! Processes that an agent starts for a near end: servers, relays, and the server's side of each contestant. They use the same
//! templates and the same code as on one machine. Received values are checked before they are written or run.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use voile_host::ports::free_port;
use voile_host::ready::Probe;

use super::{envoy, haproxy, nginx, pair, pipy, voile};
use crate::agent::{PeerOrder, VoileOrder};
use crate::contestants::served_process::{SECOND, ServedProcess};
use crate::definition::PeerFeatures;
use crate::find::FoundPeers;
use crate::machine::instance::SERVER;
use crate::shared_processes::{HTTP, Lab, TCP, TCP_SINK};

/// A certificate, a key, a token: nothing of that kind is longer.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Letters of a contestant's name, which names files, too.
const MAX_NAME: usize = 48;

fn port(at: IpAddr) -> Result<SocketAddr, String> {
    free_port(at).map_err(|e| format!("cannot get a port on the agent's machine: {e}"))
}

/// The server: HTTP in all its versions, and TCP.
pub(crate) fn echo(
    lab: &Lab<'_>,
    at: IpAddr,
    sink: bool,
    second: bool,
) -> Result<(ServedProcess, Vec<SocketAddr>), String> {
    let (http, tcp) = (port(at)?, port(at)?);
    let serves = if sink { TCP_SINK } else { TCP };
    let spec = lab.process("server", "echo", &lab.voile)?.args([
        "echo",
        HTTP,
        &http.to_string(),
        serves,
        &tcp.to_string(),
    ]);
    let spec = spec.args(second.then_some(["--name", SECOND]).into_iter().flatten());
    let process = spec.start().map_err(|e| e.to_string())?;
    let probe = Probe::Http(http, "/?size=1".to_owned());
    Ok((ServedProcess::silent(process, probe), vec![http, tcp]))
}

/// A bare relay before the server.
pub(crate) fn relay(
    lab: &Lab<'_>,
    at: IpAddr,
    tcp: bool,
) -> Result<(ServedProcess, Vec<SocketAddr>), String> {
    let listen = port(at)?;
    let (name, to) = if tcp {
        ("relay-tcp-server", lab.echo.tcp)
    } else {
        ("relay-server", lab.echo.http)
    };
    let spec = lab.process(SERVER, name, &lab.voile)?.args([
        "relay",
        "--listen",
        &listen.to_string(),
        "--to",
        &to.to_string(),
        "--workers",
        &lab.workers.to_string(),
    ]);
    let process = spec.start().map_err(|e| e.to_string())?;
    Ok((
        ServedProcess::silent(process, Probe::Tcp(listen)),
        vec![listen],
    ))
}

/// The server's sidecar of a peer that is configured by files.
pub(crate) fn peer(
    lab: &Lab<'_>,
    at: IpAddr,
    order: &PeerOrder,
    found: &FoundPeers,
) -> Result<ServedProcess, String> {
    for text in [&order.root, &order.certificate, &order.key] {
        pem(text)?;
    }
    let there = |how: String| format!("on the agent's machine: {how}");
    let (program, features) =
        PeerFeatures::of(&order.contestant).map_err(|_| "the agent has no such peer".to_owned())?;
    match program {
        "envoy" => {
            let found = found.envoy.clone().map_err(there)?;
            pair::serve(envoy::Envoy::new(found, features), lab, at, order)
        }
        "nginx" => {
            let found = found.nginx.clone().map_err(there)?;
            pair::serve(nginx::Nginx::new(found, features), lab, at, order)
        }
        "haproxy" => {
            let found = found.haproxy.clone().map_err(there)?;
            pair::serve(haproxy::Haproxy::new(found, features), lab, at, order)
        }
        "pipy" => {
            let found = found.other("pipy").map_err(there)?;
            pair::serve(pipy::Pipy::new(found), lab, at, order)
        }
        _ => Err("the agent has no such peer".to_owned()),
    }
}

/// Voile's sidecar, which gets its configuration from the near end's control plane.
pub(crate) fn voile(
    lab: &Lab<'_>,
    order: &VoileOrder,
    builds: &[(String, PathBuf)],
) -> Result<ServedProcess, String> {
    name(&order.contestant)?;
    pem(&order.root)?;
    let graphic = order.token.bytes().all(|byte| byte.is_ascii_graphic());
    if order.token.len() > MAX_TEXT_BYTES || !graphic {
        return Err("a workload's token must be one word of ASCII".to_owned());
    }
    let program = if order.other_build {
        let build = builds.iter().find(|(name, _)| *name == order.contestant);
        let (_, path) = build.ok_or_else(|| {
            format!(
                "the agent has no other build called {0}: start it with --contestant {0}=PATH",
                order.contestant
            )
        })?;
        path.as_path()
    } else {
        &lab.voile
    };
    voile::serve(lab, order, program)
}

/// Names of contestants become names of files.
fn name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '+';
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        return Err("a contestant's name may have letters, digits, '-' and '+'".to_owned());
    }
    Ok(())
}

/// Only what a certificate or key can be.
fn pem(text: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_graphic() || c == ' ' || c == '\n' || c == '\r';
    if text.len() > MAX_TEXT_BYTES || !text.starts_with("-----BEGIN ") || !text.chars().all(plain) {
        return Err("certificates and keys must be PEM".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_leave_the_folder_or_the_template_is_refused() {
        for wrong in ["", "../x", "a/b", "a b", "a\0", &"a".repeat(MAX_NAME + 1)] {
            assert!(name(wrong).is_err(), "{wrong:?}");
        }
        name("voile+no-metrics").expect("a contestant");
        for wrong in ["", "load_module /tmp/x.so;", "-----BEGIN X-----\n\0"] {
            assert!(pem(wrong).is_err(), "{wrong:?}");
        }
        assert!(pem(&format!("-----BEGIN {}", "a".repeat(MAX_TEXT_BYTES))).is_err());
    }
}
