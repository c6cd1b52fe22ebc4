//! The servers that know the rest of the world: those of resolv.conf, or one that was named. A question goes to one after
//! the other until one answers; the one that did is asked first next time.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use domain::base::Message;
use domain::base::iana::Rcode;

use crate::exchange::{DnsTransport, ExchangeError, SocketFactory, Within, exchange};
use crate::watched::Watched;

/// Time limit of one server, if there are several.
pub(crate) const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of all servers together. Clients wait 5 s (glibc, musl), and shall hear of the failure from here.
const ALL_TIMEOUT: Duration = Duration::from_secs(4);
/// Unanswered questions in a row after which the next ones are not kept waiting. One may be a lost datagram; a
/// client's A and AAAA together are two.
const SILENT_AFTER: u32 = 2;
/// Time for which they fail at once; then one question tries again.
const SILENT_FOR: Duration = Duration::from_secs(2);
/// Servers that are asked; glibc reads no more of resolv.conf.
const MAX_SERVERS: usize = 3;
/// Port of DNS.
const PORT: u16 = 53;

/// No server answered.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// There is no one to ask.
    #[error("no resolver is configured")]
    NoServer,
    /// The last questions were not answered, moments ago.
    #[error("no resolver has answered recently")]
    Silent,
    /// Each said why.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    All(Vec<ExchangeError>),
}

/// See the module.
#[derive(Debug)]
pub struct Upstreams {
    source: Source,
    /// Addresses on which we answer ourselves; to ask them would go round for ever.
    own: RefCell<Vec<SocketAddr>>,
    outset: RefCell<SocketFactory>,
    /// Index of the server that answered last.
    preferred: Cell<usize>,
    /// Number of answers. A question without any answer since it was sent cannot tell if a server is alive.
    answered: Cell<u64>,
    /// Unanswered questions in a row, and the time of the next attempt.
    unanswered: Cell<u32>,
    again: Cell<Option<Instant>>,
}

#[derive(Debug)]
enum Source {
    Nobody,
    Fixed(SocketAddr),
    File(RefCell<Watched<Vec<SocketAddr>>>),
}

impl Upstreams {
    /// No servers, on purpose.
    pub fn nobody() -> Self {
        Self::new(Source::Nobody)
    }

    /// Returns true if there is no server on purpose, so that an unknown name does not exist.
    pub fn is_nobody(&self) -> bool {
        matches!(self.source, Source::Nobody)
    }

    /// One server.
    pub fn fixed(server: SocketAddr) -> Self {
        Self::new(Source::Fixed(server))
    }

    /// Those that a resolv.conf names.
    pub fn of_file(path: &Path) -> Self {
        Self::new(Source::File(RefCell::new(Watched::new(path, servers))))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            own: RefCell::default(),
            outset: RefCell::default(),
            preferred: Cell::new(0),
            answered: Cell::new(0),
            unanswered: Cell::new(0),
            again: Cell::new(None),
        }
    }

    /// Never asks this address.
    pub fn avoid(&self, own: SocketAddr) {
        self.own.borrow_mut().push(own);
    }

    /// Marks every socket from now on, so that capture lets it pass.
    pub fn set_mark(&self, mark: Option<u32>) {
        self.outset.borrow_mut().mark = mark;
    }

    /// Makes every socket from now on in another network.
    pub fn ask_within(&self, within: Within) {
        self.outset.borrow_mut().within = Some(within);
    }

    /// Runs `make` in the network from which servers are asked, and returns its result.
    pub(crate) fn there<T>(&self, make: impl Fn() -> T) -> std::io::Result<T> {
        // Cloned: `make` may access these settings.
        let outset = self.outset.borrow().clone();
        outset.there(make)
    }

    fn servers(&self) -> Vec<SocketAddr> {
        let mut servers = match &self.source {
            Source::Nobody => Vec::new(),
            Source::Fixed(server) => vec![*server],
            Source::File(file) => file.borrow_mut().get(Instant::now()).clone(),
        };
        let own = self.own.borrow();
        servers.retain(|server| !own.contains(server));
        let preferred = self.preferred.get();
        if preferred < servers.len() {
            servers.rotate_left(preferred);
        }
        servers
    }

    /// Passes a question on as it is and returns the answer as it came, but for the id. After a server that fails or
    /// refuses, the next is asked; if none does better, the first refusal is the answer.
    ///
    /// # Errors
    /// When no server answers at all.
    pub async fn forward(&self, query: &[u8], over: DnsTransport) -> Result<Vec<u8>, ForwardError> {
        if self.is_silent(Instant::now()) {
            return Err(ForwardError::Silent);
        }
        let answered = self.answered.get();
        let answer = self.ask_each(query, over).await;
        match answer {
            Ok(_) => {
                self.answered.set(self.answered.get().wrapping_add(1));
                self.unanswered.set(0);
            }
            // An unanswered name says nothing about a resolver that answered others meanwhile.
            Err(_) if self.answered.get() != answered => {}
            Err(_) => {
                self.unanswered.set(self.unanswered.get().saturating_add(1));
                self.again.set(Some(Instant::now() + SILENT_FOR));
            }
        }
        answer
    }

    /// Returns true if a question must fail at once. Returns false for one question after each pause.
    fn is_silent(&self, now: Instant) -> bool {
        if self.unanswered.get() < SILENT_AFTER {
            return false;
        }
        let silent = self.again.get().is_some_and(|again| now < again);
        if !silent {
            self.again.set(Some(now + ALL_TIMEOUT));
        }
        silent
    }

    async fn ask_each(&self, query: &[u8], over: DnsTransport) -> Result<Vec<u8>, ForwardError> {
        let servers = self.servers();
        let count = servers.len();
        let each = ALL_TIMEOUT / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let limit = each.min(SERVER_TIMEOUT);
        let mut errors = Vec::new();
        let mut unhelpful = None;
        for (index, server) in servers.into_iter().enumerate() {
            match self.ask(server, query, over, limit).await {
                Ok(answer) if is_unhelpful(&answer) => unhelpful = Some(answer),
                Ok(answer) => {
                    self.preferred.set((self.preferred.get() + index) % count);
                    return Ok(answer);
                }
                Err(error) => errors.push(error),
            }
        }
        match unhelpful {
            Some(answer) => Ok(answer),
            None if count == 0 => Err(ForwardError::NoServer),
            None => Err(ForwardError::All(errors)),
        }
    }

    async fn ask(
        &self,
        server: SocketAddr,
        query: &[u8],
        over: DnsTransport,
        limit: Duration,
    ) -> Result<Vec<u8>, ExchangeError> {
        let outset = self.outset.borrow().clone();
        let first = exchange(server, query, over, &outset, limit).await;
        match (over, first) {
            // Some resolvers speak no TCP, or another server does on that port; an answer that fits a datagram is
            // better than none.
            (DnsTransport::Tcp, Err(ExchangeError::Io { .. } | ExchangeError::Mismatch { .. })) => {
                exchange(server, query, DnsTransport::Udp, &outset, limit).await
            }
            (_, result) => result,
        }
    }
}

fn is_unhelpful(answer: &[u8]) -> bool {
    Message::from_slice(answer).is_ok_and(|answer| {
        matches!(
            answer.header().rcode(),
            Rcode::SERVFAIL | Rcode::REFUSED | Rcode::NOTIMP
        )
    })
}

/// The `nameserver` lines; this machine's own resolver when there is none, as in libc.
fn servers(text: &str) -> Vec<SocketAddr> {
    let mut servers: Vec<SocketAddr> = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("nameserver"))
        .filter(|rest| rest.starts_with([' ', '\t']))
        .filter_map(|rest| rest.split_ascii_whitespace().next()?.parse::<IpAddr>().ok())
        .map(|address| SocketAddr::new(address, PORT))
        .take(MAX_SERVERS)
        .collect();
    if servers.is_empty() {
        servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT));
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_read_as_libc_reads_it() {
        for (text, wanted) in [
            ("", "[127.0.0.1:53]"),
            (
                "search a.b\noptions ndots:5\nnameserver 10.0.0.2\n",
                "[10.0.0.2:53]",
            ),
            (
                "nameserver\t::1 # x\n nameserver 10.0.0.1",
                "[[::1]:53, 10.0.0.1:53]",
            ),
            (
                "#nameserver 10.0.0.1\nnameservers 10.0.0.2\nnameserver x\nnameserver 10.0.0.3",
                "[10.0.0.3:53]",
            ),
            (
                "nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\nnameserver 1.1.1.4",
                "[1.1.1.1:53, 1.1.1.2:53, 1.1.1.3:53]",
            ),
        ] {
            assert_eq!(format!("{:?}", servers(text)), wanted, "{text}");
        }
    }

    #[test]
    fn after_questions_without_answer_the_next_ones_fail_at_once_but_for_one_after_each_pause() {
        let upstreams = Upstreams::nobody();
        let now = Instant::now();
        let fail = |at: Instant| {
            upstreams.unanswered.set(upstreams.unanswered.get() + 1);
            upstreams.again.set(Some(at + SILENT_FOR));
        };
        fail(now);
        assert!(!upstreams.is_silent(now), "one may be a lost datagram");
        fail(now);
        assert!(upstreams.is_silent(now));
        let later = now + SILENT_FOR;
        assert!(!upstreams.is_silent(later), "one tries");
        assert!(upstreams.is_silent(later), "the others do not wait for it");
        fail(later);
        assert!(upstreams.is_silent(later));
        upstreams.unanswered.set(0);
        assert!(!upstreams.is_silent(later), "it was answered");
    }

    #[test]
    fn our_own_address_is_never_asked() {
        let own: SocketAddr = "127.0.0.1:53".parse().unwrap();
        let upstreams = Upstreams::fixed(own);
        upstreams.avoid(own);
        assert!(upstreams.servers().is_empty());
    }
}
