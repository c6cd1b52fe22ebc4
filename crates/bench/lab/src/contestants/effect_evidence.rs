//! Evidence that an event has taken effect: the owners of listeners, certificates, pages.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use voile_host::netns::Namespace;
use voile_host::ready::{http_get, http_post};

use crate::agent::RemoteProcess;
use crate::contestants::contestant::CellRoute;
use crate::machine::socket_owners::{inside_owner, listener_owner};

/// Path of the readiness page of Voile's proxies.
pub(crate) const READY_PATH: &str = "/healthz/ready";
/// Time limit of one check.
const LOOK_BOUND: Duration = Duration::from_millis(500);
/// ALPN of sidecars, and ALPN of proxies that open tunnels.
pub(crate) const SIDECARS_ALPN: &[&str] = &["istio-http/1.1", "istio"];
pub(crate) const TUNNELS_ALPN: &[&str] = &["h2"];

/// Between the serial numbers of one proxy's certificates.
const SERIALS_BETWEEN: &str = ",";

/// By what the effect of something that was done is seen.
#[derive(Debug, Clone)]
pub(crate) enum EffectEvidence {
    /// The effect came with the order itself; in words.
    AtOnce(String),
    /// A request of ours in plaintext, straight to this address, is answered, or no longer is.
    Plaintext(SocketAddr, bool),
    /// The answers to such requests come from the server of this name; none: from the one without.
    From(Option<String>),
    /// By the way of the load one path is answered and another refused.
    Verdicts {
        /// Path that is answered.
        allowed: String,
        /// Path that is refused.
        denied: String,
    },
    /// A process says that it is ready.
    Ready(SocketAddr, String),
    /// A process at an agent's reports that it is ready; the agent asks it.
    ReadyThere(RemoteProcess),
    /// A process accepts connections.
    Listens(SocketAddr),
    /// A new process, which says that it is ready at the first, has what these held before, and they do not any more.
    TakenOver(SocketAddr, ListenerOwners),
    /// Proxies hold other certificates than before.
    Renewed(Vec<Renewal>),
}

/// Processes that hold a listener until another takes over from them.
#[derive(Debug, Clone)]
pub(crate) struct ListenerOwners {
    /// Network namespace of the listener, if not the processes' own.
    pub(crate) inside: Option<Namespace>,
    /// Port of the listener, on any address.
    pub(crate) port: u16,
    pub(crate) by: Vec<u32>,
}

impl ListenerOwners {
    /// Returns true if one of the processes still holds the listener. The sockets of a process that has ended cannot be read.
    fn still(&self) -> bool {
        let anywhere = SocketAddr::from(([0, 0, 0, 0], self.port));
        let owner = match &self.inside {
            Some(inside) => inside_owner(inside, anywhere, Some(self.port), &self.by),
            None => listener_owner(anywhere, Some(self.port), &self.by),
        };
        matches!(owner, Ok(Some(_)))
    }
}

/// Listener that shows a proxy's certificate. By these ALPN `protocols` the proxy takes the client for another sidecar, or for
/// the end of a tunnel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CertificateListener {
    pub(crate) address: SocketAddr,
    pub(crate) protocols: &'static [&'static str],
    /// Name of the proxy, in words.
    pub(crate) whose: &'static str,
}

/// A proxy's certificate before it got the order to renew it.
#[derive(Debug, Clone)]
pub(crate) struct Renewal {
    /// Page on which the proxy reports its certificate.
    page: Page,
    /// Serial number before the renewal.
    serial: String,
    /// Listener that shows the certificate, and the certificate before the renewal (DER). None for a proxy that takes no calls.
    shown: Option<(CertificateListener, Vec<u8>)>,
}

impl Renewal {
    /// Reads the proxy's current serial number and certificate.
    pub(crate) fn now(page: Page, door: Option<CertificateListener>) -> Result<Self, String> {
        let shown = |door: CertificateListener| {
            let leaf = voile_load::shown_certificate(door.address, door.protocols, LOOK_BOUND)?;
            Ok::<_, String>((door, leaf))
        };
        Ok(Self {
            serial: page.serial()?,
            page,
            shown: door.map(shown).transpose()?,
        })
    }

    /// Tells each of these to fetch another certificate for another key.
    pub(crate) fn ask(
        all: Vec<(Page, Option<CertificateListener>)>,
    ) -> Result<EffectEvidence, String> {
        let mut renewals = Vec::new();
        for (page, door) in all {
            renewals.push(Self::now(page, door)?);
        }
        for one in &renewals {
            one.page.renew()?;
        }
        Ok(EffectEvidence::Renewed(renewals))
    }

    /// Its own word costs it nothing, so it is asked first; a handshake then shows whether it is true.
    fn done(&self) -> bool {
        let other = |serial: String| all_others(&self.serial, &serial);
        if !self.page.serial().is_ok_and(other) {
            return false;
        }
        let door = self.shown.as_ref().map(|(door, _)| *door);
        Self::now(self.page.clone(), door).is_ok_and(|now| {
            let other = match (&self.shown, &now.shown) {
                (Some((_, before)), Some((_, now))) => before != now,
                (None, _) => true,
                (Some(_), None) => false,
            };
            other && all_others(&self.serial, &now.serial)
        })
    }
}

/// Page on which a proxy reports its certificate: on this machine, or read by the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Page {
    Here(SocketAddr),
    There(RemoteProcess),
}

impl Page {
    /// The serial number that it names.
    pub(crate) fn serial(&self) -> Result<String, String> {
        match self {
            Self::Here(page) => serial(*page),
            Self::There(proxy) => proxy.serial(),
        }
    }

    /// Has its proxy fetch another certificate for another key.
    pub(crate) fn renew(&self) -> Result<(), String> {
        let page = match self {
            Self::Here(page) => *page,
            Self::There(proxy) => return proxy.renew(),
        };
        match http_post(page, "/certs/renew") {
            Ok((202, _)) => Ok(()),
            Ok((status, _)) => Err(format!("http://{page} answers the command with {status}")),
            Err(e) => Err(e.to_string()),
        }
    }
}

/// A node proxy holds several certificates; this reads the serial numbers of all.
fn serial(page: SocketAddr) -> Result<String, String> {
    let (status, body) = http_get(page, "/certs").map_err(|e| e.to_string())?;
    let told: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let one = std::slice::from_ref(&told["certificate"]);
    let all = told["certificates"].as_array().map_or(one, Vec::as_slice);
    let serials: Option<Vec<&str>> = all.iter().map(|one| one["serial"].as_str()).collect();
    match serials.as_deref() {
        Some(serials @ [_, ..]) => Ok(serials.join(SERIALS_BETWEEN)),
        _ => Err(format!(
            "http://{page}/certs has no serial number ({status})"
        )),
    }
}

/// Returns true if all serial numbers differ from those before.
fn all_others(before: &str, now: &str) -> bool {
    let mut now = now.split(SERIALS_BETWEEN);
    !now.any(|serial| before.split(SERIALS_BETWEEN).any(|held| held == serial))
}

impl EffectEvidence {
    /// In words, for the record.
    pub(crate) fn observed(&self) -> String {
        let every = LOOK_EVERY.as_millis();
        match self {
            Self::AtOnce(words) => words.clone(),
            Self::Plaintext(_, open) => format!(
                "a plaintext request of the lab, straight to the server's proxy every {every} ms, until it is {}",
                if *open { "answered" } else { "refused" }
            ),
            Self::From(name) => format!(
                "a request of the lab every {every} ms, on the path of the load, until it is answered by {}",
                match name {
                    Some(_) => "the other server",
                    None => "the first server",
                }
            ),
            Self::Verdicts { .. } => format!(
                "two requests of the lab every {every} ms, on the path of the load, until the one that only the new policies deny is refused and the one that only the old policies denied is answered"
            ),
            Self::Listens(_) => {
                format!("a connection to the new process, tried every {every} ms")
            }
            Self::Ready(..) => format!("the new process's readiness, read every {every} ms"),
            Self::ReadyThere(_) => {
                format!("the new process's readiness, read every {every} ms through the agent")
            }
            Self::TakenOver(..) => format!(
                "the new process's readiness, and that it no longer shares the listener with the old one, checked every {every} ms"
            ),
            Self::Renewed(all) => {
                let doors = all.iter().filter_map(|one| one.shown.as_ref());
                let shown: Vec<String> = doors
                    .map(|(door, _)| {
                        format!(
                            ", and then a handshake with {} that shows another",
                            door.whose
                        )
                    })
                    .collect();
                format!(
                    "each proxy's certificates page, read every {every} ms until it shows another{}",
                    shown.concat()
                )
            }
        }
    }

    pub(crate) fn seen(&self, route: &CellRoute) -> bool {
        match self {
            Self::AtOnce(_) => true,
            Self::Plaintext(address, open) => {
                let host = route.host.as_deref();
                let head = head(*address, host, "/?size=0");
                head.is_some_and(|head| head.starts_with("HTTP/1.1 200")) == *open
            }
            Self::From(name) => by_the_load(route, "/?size=0").is_some_and(|head| {
                let head = head.to_ascii_lowercase();
                let server = head
                    .lines()
                    .find_map(|line| line.strip_prefix("x-voile-echo: "));
                head.starts_with("http/1.1 200") && server == name.as_deref()
            }),
            Self::Verdicts { allowed, denied } => {
                let answered = |path: &str| {
                    let head = by_the_load(route, path);
                    head.is_some_and(|head| head.starts_with("HTTP/1.1 200"))
                };
                answered(allowed) && !answered(denied)
            }
            Self::Listens(address) => TcpStream::connect_timeout(address, LOOK_BOUND).is_ok(),
            Self::Renewed(renewals) => renewals.iter().all(Renewal::done),
            Self::ReadyThere(process) => process.answers(),
            Self::TakenOver(page, held) => {
                !held.still() && http_get(*page, READY_PATH).is_ok_and(|(status, _)| status == 200)
            }
            Self::Ready(address, path) => {
                http_get(*address, path).is_ok_and(|(status, _)| status == 200)
            }
        }
    }
}

/// The head of an answer to a request that goes the load's way, from where the load is.
fn by_the_load(route: &CellRoute, path: &str) -> Option<String> {
    let ask = || head(route.entry, route.host.as_deref(), path);
    match &route.from {
        Some(place) => place.network().run(ask).ok().flatten(),
        None => ask(),
    }
}

/// The head of an answer to a request of our own.
fn head(to: SocketAddr, host: Option<&str>, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&to, LOOK_BOUND).ok()?;
    stream.set_read_timeout(Some(LOOK_BOUND)).ok()?;
    let host = host.map_or_else(|| to.to_string(), str::to_owned);
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 1024]);
    while !answer.windows(4).any(|window| window == b"\r\n\r\n") && answer.len() < 1 << 16 {
        match stream.read(&mut buffer).ok()? {
            0 => break,
            got => answer.extend_from_slice(&buffer[..got]),
        }
    }
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// Interval at which the lab checks for an effect.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_held_until_its_process_lets_go_of_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let held = ListenerOwners {
            inside: None,
            port: listener.local_addr().expect("an address").port(),
            by: vec![std::process::id()],
        };
        let elsewhere = ListenerOwners {
            inside: Some(Namespace::current().expect("we are somewhere")),
            ..held.clone()
        };
        assert!(held.still() && elsewhere.still());
        drop(listener);
        assert!(!held.still() && !elsewhere.still());
    }

    #[test]
    fn a_proxy_of_several_certificates_has_renewed_them_when_none_is_as_before() {
        assert!(all_others("a,b", "c,d"));
        assert!(!all_others("a,b", "c,b"), "one is missing");
        assert!(!all_others("a", "a"));
    }
}
