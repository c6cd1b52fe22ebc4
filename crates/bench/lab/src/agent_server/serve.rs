//! `voile bench agent`: listens, accepts near ends that know the token, one session at a time, and ends each session with its
//! connection.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::ServerConfig;

use super::session::{AgentSession, AgentSettings};
use crate::agent::link::{Link, TimedSocket, server_config};
use crate::agent::messages::{AgentWelcome, FRAME_BYTES, Hello, PROTOCOL, boot, profile};
use crate::environment::environment;
use crate::find::voile_version;

/// Connections that have not proven anything yet; more are closed at once.
const STRANGERS: usize = 16;
/// Interval at which the agent checks if it must end.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Longest time for the end of a session. The agent asks its processes to end, and kills those that do not.
const HAND_OVER: Duration = Duration::from_secs(5);

/// Listens until `stopped`. `listening` gets the address, `say` gets lines for people.
///
/// # Errors
/// When it cannot listen there.
pub fn serve_agent(
    settings: &AgentSettings,
    listening: &mut dyn FnMut(SocketAddr),
    say: &(dyn Fn(&str) + Sync),
    stopped: fn() -> bool,
) -> Result<(), String> {
    voile_host::machine::raise_descriptor_limit();
    let failed = |e: std::io::Error| format!("cannot listen on {}: {e}", settings.listen);
    let listener = TcpListener::bind(settings.listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    listening(listener.local_addr().map_err(failed)?);
    let agent = Agent {
        settings,
        tls: server_config()?,
        welcome: welcome(settings),
        say,
        stopped,
        strangers: AtomicUsize::new(0),
        seat: SessionPermit::default(),
        served: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        while !agent.ended() {
            match listener.accept() {
                Ok((stream, from)) => {
                    if agent.strangers.fetch_add(1, Ordering::AcqRel) >= STRANGERS {
                        agent.strangers.fetch_sub(1, Ordering::AcqRel);
                        continue;
                    }
                    let agent = &agent;
                    scope.spawn(move || agent.greet(stream, from));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => wait(Some(&listener)),
                // A connection that was gone again, or no free descriptors: neither ends an agent, nor keeps it busy.
                Err(_) => wait(None),
            }
        }
    });
    Ok(())
}

/// Waits for a call, or a little while.
fn wait(listener: Option<&TcpListener>) {
    let bound = Timespec {
        tv_sec: 0,
        tv_nsec: LOOK_EVERY.subsec_nanos().into(),
    };
    let polled = listener.map(|listener| PollFd::new(listener, PollFlags::IN));
    let _ = poll(&mut polled.into_iter().collect::<Vec<_>>(), Some(&bound));
}

/// Returns the agent's versions, and those of the programs that it found.
fn welcome(settings: &AgentSettings) -> AgentWelcome {
    let mut environment = environment(&settings.voile);
    let found = settings.found.all().into_iter();
    let mut versions: BTreeMap<String, String> = found
        .filter_map(|(name, peer)| Some((name.to_owned(), peer.ok()?.version.clone())))
        .collect();
    for (name, path) in &settings.builds {
        versions.insert(name.clone(), voile_version(path));
    }
    environment.versions.extend(versions);
    AgentWelcome {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        profile: environment.profile.clone(),
        environment,
        boot: boot(),
        ..AgentWelcome::default()
    }
}

/// Reason why this agent cannot serve a near end of that kind.
pub(super) fn unlike(hello: &Hello) -> Option<String> {
    let ours = env!("CARGO_PKG_VERSION");
    if hello.protocol != PROTOCOL || hello.version != ours {
        return Some(format!(
            "the agent is voile {ours} (protocol {PROTOCOL}), the near end voile {} (protocol {}): both must be the same",
            hello.version, hello.protocol
        ));
    }
    let profile = profile();
    (hello.profile != profile).then(|| {
        format!(
            "the agent is a {profile} build of voile, the near end a {} build: their figures are not comparable",
            hello.profile
        )
    })
}

/// Allows one session at a time. A near end that calls while the last session is ending waits for its end.
#[derive(Default)]
struct SessionPermit {
    taken: Mutex<bool>,
    left: Condvar,
}

impl SessionPermit {
    /// None when it is taken for longer than that.
    fn take(&self, patience: Duration) -> Option<HeldSessionPermit<'_>> {
        let taken = self.taken.lock().ok()?;
        let (mut taken, _) = self
            .left
            .wait_timeout_while(taken, patience, |taken| *taken)
            .ok()?;
        if *taken {
            return None;
        }
        *taken = true;
        Some(HeldSessionPermit(self))
    }
}

/// Leaves the seat when it is dropped.
struct HeldSessionPermit<'a>(&'a SessionPermit);

impl Drop for HeldSessionPermit<'_> {
    fn drop(&mut self) {
        if let Ok(mut taken) = self.0.taken.lock() {
            *taken = false;
        }
        self.0.left.notify_one();
    }
}

struct Agent<'a> {
    settings: &'a AgentSettings,
    tls: Arc<ServerConfig>,
    welcome: AgentWelcome,
    say: &'a (dyn Fn(&str) + Sync),
    stopped: fn() -> bool,
    strangers: AtomicUsize,
    seat: SessionPermit,
    served: AtomicBool,
}

impl Agent<'_> {
    fn ended(&self) -> bool {
        (self.stopped)() || (self.settings.once && self.served.load(Ordering::Acquire))
    }

    fn greet(&self, stream: TcpStream, from: SocketAddr) {
        let known = self.known(stream);
        self.strangers.fetch_sub(1, Ordering::AcqRel);
        match known.and_then(|(link, at)| self.serve(link, at, from)) {
            Ok(()) => {}
            Err(why) => (self.say)(&format!("{from} is refused: {why}")),
        }
    }

    /// The connection of a near end that knows the token and fits this agent, and the local address that it called.
    fn known(&self, stream: TcpStream) -> Result<(Link, SocketAddr), String> {
        let failed = |e: std::io::Error| e.to_string();
        let at = stream.local_addr().map_err(failed)?;
        let socket = TimedSocket::new(stream, self.stopped).map_err(failed)?;
        let mut link = Link::take(socket, &self.tls).map_err(failed)?;
        link.demand(&self.settings.token)?;
        let hello: Hello = link
            .receive()
            .map_err(failed)?
            .ok_or("it closed the connection")?;
        // Frames may now be larger than those of a stranger, who never gets one.
        link.allow(FRAME_BYTES);
        match unlike(&hello) {
            None => Ok((link, at)),
            Some(why) => Err(self.refuse(&mut link, why)),
        }
    }

    fn refuse(&self, link: &mut Link, why: String) -> String {
        let welcome = AgentWelcome {
            refused: why.clone(),
            ..self.welcome.clone()
        };
        // A near end that is already gone does not need the refusal.
        let _ = link.send(&welcome);
        why
    }

    /// Has a session with it, or refuses it one.
    fn serve(&self, mut link: Link, at: SocketAddr, from: SocketAddr) -> Result<(), String> {
        let Some(_seat) = self.seat.take(HAND_OVER) else {
            let why = "the agent is busy with another session".to_owned();
            return Err(self.refuse(&mut link, why));
        };
        let session = match AgentSession::begin(self.settings, at, from.ip()) {
            Ok(session) => session,
            Err(why) => return Err(self.refuse(&mut link, why)),
        };
        link.send(&self.welcome).map_err(|e| e.to_string())?;
        (self.say)(&format!("{from}: session started"));
        let ended = session.serve(link);
        let why = ended
            .err()
            .unwrap_or_else(|| "it closed the connection".to_owned());
        (self.say)(&format!(
            "{from}: session ended, all its processes are stopped: {why}"
        ));
        self.served.store(true, Ordering::Release);
        Ok(())
    }
}
