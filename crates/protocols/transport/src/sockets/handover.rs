//! Handover: a new process takes the listening sockets of the old one. No connection, accepted or waiting in the
//! kernel, is lost when a proxy is restarted or replaced by another version.
//!
//! ```text
//! new                          old (serving)
//!  │ voile-handover/1 WHO ──────► refused REASON, or
//!  │ ◄─ take N, then N sockets    (goes on serving)
//!  │ configuration, certificate
//!  │ ready ────────────────────►  stops accepting
//!  │ ◄──────────────────── yours
//!  │ opens pages, offers itself
//!  │ serving ──────────────────►  drains and ends
//! ```
//! Any failure before `serving` leaves the old process serving. A successor that takes long to be ready makes room
//! for the next, and is told so (`refused`), however late it listens. A role and an address name each socket; the
//! [`IncumbentProcess`] serves there.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::limits::ACCEPT_PAUSE;
use crate::listener::bind;
use crate::packets::{AsyncPackets, PacketListener, Packets};

/// First message; the number changes with the meaning of any message after it.
const HELLO: &str = "voile-handover/1";

/// Time that a connecting process gets to say its name, which is its first message.
const HELLO_LIMIT: Duration = Duration::from_secs(2);

/// Time limit of each answer of the other process; both only look up what they hold.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Time that a successor gets to become ready before it gives up and leaves the old process serving.
pub const READY_LIMIT: Duration = Duration::from_secs(60);

/// Most sockets taken over: more than any Sidecar names, and six for each of the 4,096 pods that a node has at most.
const MAX_SOCKETS: usize = 32_768;

/// The running process did not hand over, or this one was not fit to take over.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HandoverError(String);

/// A listening socket that is handed over: its role, its address, and the descriptor.
pub type Lent = (String, SocketAddr, OwnedFd);

/// Listening sockets received and not yet asked for.
#[derive(Debug, Default)]
pub struct InheritedSockets(VecDeque<Lent>);

impl InheritedSockets {
    /// The socket that listens there already, or a new one. Port 0 means any.
    ///
    /// # Errors
    /// When there is none, and the kernel refuses a new one.
    pub fn bind(&mut self, role: &str, address: SocketAddr) -> io::Result<TcpListener> {
        match self.find(role, address) {
            Some(socket) => Ok(socket.into()),
            None => bind(address),
        }
    }

    /// The same for UDP.
    ///
    /// # Errors
    /// As of [`Self::bind`].
    pub fn bind_udp(&mut self, role: &str, address: SocketAddr) -> io::Result<UdpSocket> {
        match self.find(role, address) {
            Some(socket) => Ok(socket.into()),
            None => UdpSocket::bind(address),
        }
    }

    /// Every one whose role begins like that and that is for this address, by the rest of its role.
    pub fn take_all(&mut self, role: &str, address: SocketAddr) -> Vec<(String, OwnedFd)> {
        let mut taken = Vec::new();
        for (of, at, socket) in std::mem::take(&mut self.0) {
            match of.strip_prefix(role).filter(|_| at == address) {
                Some(rest) => taken.push((rest.to_owned(), socket)),
                None => self.0.push_back((of, at, socket)),
            }
        }
        taken
    }

    /// Closes sockets whose role begins like that: they are no longer needed.
    pub fn forget(&mut self, role: &str) {
        self.0.retain(|(of, ..)| !of.starts_with(role));
    }

    /// The one that is for that, if it was received.
    pub fn find(&mut self, role: &str, address: SocketAddr) -> Option<OwnedFd> {
        let fits = |(of, at, _): &Lent| {
            of == role
                && at.ip() == address.ip()
                && (at.port() == address.port() || address.port() == 0)
        };
        let index = self.0.iter().position(fits)?;
        self.0.remove(index).map(|(.., socket)| socket)
    }

    fn take(&mut self, text: &str, descriptor: Option<OwnedFd>) -> Result<(), HandoverError> {
        let parsed = text
            .split_once(' ')
            .and_then(|(role, address)| Some((role, address.parse().ok()?)));
        let (Some((role, address)), Some(descriptor)) = (parsed, descriptor) else {
            return Err(refused(format!("`{text}` is not a socket")));
        };
        self.0.push_back((role.to_owned(), address, descriptor));
        Ok(())
    }
}

/// The process whose sockets we took; it serves until we say that we do.
#[derive(Debug)]
pub struct Predecessor(Packets);

fn refused(reason: impl Into<String>) -> HandoverError {
    HandoverError(reason.into())
}

/// Asks the process at `path`, if there is one, for its sockets, as `who`.
///
/// # Errors
/// When there is one that does not give them.
pub fn take_over(
    path: &Path,
    who: &str,
) -> Result<(Option<Predecessor>, InheritedSockets), HandoverError> {
    let said = |error: io::Error| refused(format!("{}: {error}", path.display()));
    let mut inherited = InheritedSockets::default();
    let Some(packets) = Packets::connect(path, ANSWER_LIMIT).map_err(said)? else {
        return Ok((None, inherited));
    };
    packets
        .send(&format!("{HELLO} {who}"), None)
        .map_err(said)?;
    let next = || match packets.receive().map_err(said)? {
        Some(packet) => Ok(packet),
        None => Err(refused(format!(
            "the process at {} closed the connection",
            path.display()
        ))),
    };
    let answer = next()?.text;
    let count = match answer.split_once(' ') {
        Some(("take", count)) => count.parse().ok().filter(|count| *count <= MAX_SOCKETS),
        Some(("refused", reason)) => {
            return Err(refused(format!("the running proxy refuses: {reason}")));
        }
        _ => None,
    };
    let Some(count) = count else {
        return Err(refused(format!(
            "the running proxy does not support {HELLO}: it answered `{answer}`"
        )));
    };
    for _ in 0..count {
        let packet = next()?;
        inherited.take(&packet.text, packet.descriptor)?;
    }
    tracing::info!(sockets = count, "listening sockets taken over");
    Ok((Some(Predecessor(packets)), inherited))
}

impl Predecessor {
    /// Tells the old process to stop accepting. When it is gone already, so much the better; when it has given our place to
    /// another, we are not to serve.
    ///
    /// # Errors
    /// When it refuses.
    pub async fn relieve(self) -> Result<Option<RelievedProcess>, HandoverError> {
        let Ok(packets) = self.0.into_async() else {
            return Ok(None);
        };
        let asked = async {
            // A message that the old process sent before it hung up can still be read.
            let _ = packets.send("ready", None).await;
            packets.receive().await
        };
        let answer = tokio::time::timeout(ANSWER_LIMIT, asked).await;
        let text = match &answer {
            Ok(Ok(Some(packet))) => packet.text.as_str(),
            _ => "",
        };
        match (text.split_once(' '), &answer) {
            (Some(("refused", reason)), _) => {
                return Err(refused(format!("the running proxy refuses: {reason}")));
            }
            _ if text == "yours" => return Ok(Some(RelievedProcess(packets))),
            (_, Ok(answer)) => tracing::warn!(?answer, "the old process exited without confirming"),
            (_, Err(_)) => tracing::warn!("the old process does not answer; it may still accept"),
        }
        Ok(None)
    }
}

/// A process that stopped accepting and waits to hear that we serve.
#[derive(Debug)]
pub struct RelievedProcess(AsyncPackets);

impl RelievedProcess {
    /// Lets it go.
    pub async fn dismiss(self) {
        // Gone is as good.
        let _ = self.0.send("serving", None).await;
    }
}

/// Serving process that may be succeeded.
pub trait IncumbentProcess {
    /// Name under which it asked, or would ask, the process before it.
    fn who(&self) -> String;
    /// Returns true if a process of this name may follow.
    fn admits(&self, who: &str) -> bool {
        who == self.who()
    }
    /// Everything that listens.
    ///
    /// # Errors
    /// When descriptors run out.
    fn sockets(&self) -> io::Result<Vec<Lent>>;
    /// Accepts no more; connections in the kernel's queue stay there.
    fn stop(&self);
    /// Accepts again: the handover failed.
    fn resume(&self);
    /// The process that was admitted is gone before it was ready, or does not serve after all.
    fn abandoned(&self) {}
    /// Another process serves in our place.
    fn succeeded(&self);
}

/// Reason why the handover failed.
enum NoSuccessor {
    /// This happened.
    Reason(String),
    /// Another successor came meanwhile.
    Displaced(AsyncPackets),
}

/// Opens something again, until it opens: there may be no descriptors for a moment.
pub async fn until_it_opens<T>(what: &str, mut open: impl FnMut() -> io::Result<T>) -> T {
    let mut said = false;
    loop {
        match open() {
            Ok(opened) => return opened,
            Err(error) if !std::mem::replace(&mut said, true) => {
                tracing::warn!(what, %error, "cannot open it; trying again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Waits for a successor, again after each that failed; returns when one serves.
pub async fn offer<I: IncumbentProcess>(listener: PacketListener, incumbent: Rc<I>) {
    let holder = &*incumbent;
    let mut successor = next(&listener, holder).await;
    loop {
        match converse(&successor, &listener, holder).await {
            Ok(()) => {
                tracing::info!("handed over to a new process");
                holder.succeeded();
                return;
            }
            Err(NoSuccessor::Reason(reason)) => {
                tracing::warn!(reason, "handover failed; this process keeps serving");
                holder.abandoned();
                successor = next(&listener, holder).await;
            }
            Err(NoSuccessor::Displaced(newer)) => {
                tracing::warn!(
                    reason = DISPLACED,
                    "handover failed; this process keeps serving"
                );
                // The successor is refused, even if it never reads why.
                let _ = successor.send(&format!("refused {DISPLACED}"), None).await;
                successor = newer;
            }
        }
    }
}

/// Reason for a successor that made others wait.
const DISPLACED: &str = "another process requested the handover";

/// Returns the next successor that says its name and is admitted.
async fn next(listener: &PacketListener, holder: &impl IncumbentProcess) -> AsyncPackets {
    loop {
        let packets = match listener.accept().await {
            Ok(packets) => packets,
            // Descriptors may have run out for a moment. The successor waits in the kernel meanwhile.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a successor; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match greet(&packets, holder).await {
            Ok(()) => return packets,
            Err(reason) => {
                tracing::warn!(reason, "handover failed; this process keeps serving");
            }
        }
    }
}

async fn greet(packets: &AsyncPackets, holder: &impl IncumbentProcess) -> Result<(), String> {
    let hello = within(HELLO_LIMIT, packets).await?;
    let who = hello
        .strip_prefix(HELLO)
        .and_then(|who| who.strip_prefix(' '));
    if who.is_some_and(|who| holder.admits(who)) {
        return Ok(());
    }
    let reason = format!(
        "this process speaks `{HELLO} {}`, not `{hello}`",
        holder.who()
    );
    // The successor is refused, even if it never reads why.
    let _ = packets.send(&format!("refused {reason}"), None).await;
    Err(reason)
}

async fn converse(
    packets: &AsyncPackets,
    listener: &PacketListener,
    holder: &impl IncumbentProcess,
) -> Result<(), NoSuccessor> {
    lend(packets, holder).await.map_err(NoSuccessor::Reason)?;
    // The successor bounds its own patience. One that hangs must not keep others from coming, so a newer successor
    // takes its place.
    let ready = tokio::select! {
        biased;
        word = within(READY_LIMIT + ANSWER_LIMIT, packets) => word.map_err(NoSuccessor::Reason)?,
        newer = next(listener, holder) => return Err(NoSuccessor::Displaced(newer)),
    };
    if ready != "ready" {
        let reason = format!("expected `ready`, received `{ready}`");
        return Err(NoSuccessor::Reason(reason));
    }
    holder.stop();
    let over = give_way(packets).await;
    if over.is_err() {
        holder.resume();
    }
    over.map_err(NoSuccessor::Reason)
}

/// Gives our sockets; we go on accepting.
async fn lend(packets: &AsyncPackets, holder: &impl IncumbentProcess) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let sockets = holder.sockets().map_err(text)?;
    let count = format!("take {}", sockets.len());
    packets.send(&count, None).await.map_err(text)?;
    for (role, address, socket) in &sockets {
        let name = format!("{role} {address}");
        let sent = packets.send(&name, Some(socket.as_fd()));
        let sent = tokio::time::timeout(ANSWER_LIMIT, sent).await;
        sent.map_err(|_| "the new process does not accept the sockets")?
            .map_err(text)?;
    }
    Ok(())
}

async fn give_way(packets: &AsyncPackets) -> Result<(), String> {
    let sent = packets.send("yours", None).await;
    sent.map_err(|error| error.to_string())?;
    match within(ANSWER_LIMIT, packets).await? {
        word if word == "serving" => Ok(()),
        word => Err(format!("expected `serving`, received `{word}`")),
    }
}

async fn within(limit: Duration, packets: &AsyncPackets) -> Result<String, String> {
    match tokio::time::timeout(limit, packets.receive()).await {
        Ok(Ok(Some(packet))) => Ok(packet.text),
        Ok(Ok(None)) => Err("the new process closed the connection".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the new process does not answer".to_owned()),
    }
}
