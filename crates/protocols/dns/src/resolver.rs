//! From a name to the addresses to connect to: the hosts file first, then A and AAAA of the resolver at once. Families
//! to which the network has no way from which is asked are left out where the other has one.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use domain::base::iana::{Rcode, Rtype};
use domain::base::name::Name;
use domain::base::{Message, MessageBuilder};
use domain::rdata::{A, Aaaa};

use crate::exchange::DnsTransport;
use crate::hosts::Hosts;
use crate::message::QueryKind;
use crate::upstream::{ForwardError, Upstreams};
use crate::watched::Watched;

/// Shortest time an answer is used, however soon it says it expires: a name with TTL 0 must not cost a query a request.
pub(crate) const MIN_TTL: Duration = Duration::from_secs(5);
/// Longest time, however long it says: a moved host is found again within it.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(300);
/// Time for which an entry of the hosts file is used before the file is looked at again.
const HOSTS_TTL: Duration = MIN_TTL;
/// Addresses used of one name; more are not needed to spread load, and an answer may hold thousands.
const MAX_ADDRESSES: usize = 128;
/// Largest UDP answer that the resolver accepts, in bytes (DNS flag day 2020).
const UDP_PAYLOAD: u16 = 1232;

/// Addresses of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedAddresses {
    /// Never empty, IPv4 first, otherwise in the order of the answer.
    pub addresses: Vec<IpAddr>,
    /// Time for which to use them, within [`MIN_TTL`] and [`MAX_TTL`].
    pub ttl: Duration,
}

/// Why a name leads nowhere.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The resolver says it does not exist.
    #[error("no such name (NXDOMAIN)")]
    NoSuchName,
    /// It exists without an address.
    #[error("the name has no address")]
    NoAddress,
    /// It is not one that DNS can hold.
    #[error("not a DNS name")]
    BadName,
    /// The resolver says it failed.
    #[error("the resolver answers {0}")]
    Refused(String),
    /// No server answered.
    #[error(transparent)]
    Unanswered(#[from] ForwardError),
    /// The answer cannot be read.
    #[error("the resolver's answer cannot be read")]
    Garbled,
}

/// See the module.
#[derive(Debug)]
pub struct Resolver {
    hosts: RefCell<Watched<Hosts>>,
    upstreams: Rc<Upstreams>,
}

/// Addresses of one family and the least TTL beside them.
pub type Family = (Vec<IpAddr>, Duration);

impl Resolver {
    /// Asks `hosts` (a hosts file), then the upstreams.
    pub fn new(hosts: &Path, upstreams: Rc<Upstreams>) -> Self {
        Self {
            hosts: RefCell::new(Watched::new(hosts, Hosts::parse)),
            upstreams,
        }
    }

    /// Looks a name up.
    ///
    /// # Errors
    /// When there is no address to be had; why is in the error.
    pub async fn lookup(&self, name: &str) -> Result<ResolvedAddresses, LookupError> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if let Ok(address) = name.parse() {
            return Ok(ResolvedAddresses {
                addresses: vec![address],
                ttl: MAX_TTL,
            });
        }
        let by_hand = self.hosts.borrow_mut().get(Instant::now()).get(&name);
        if let Some(addresses) = by_hand {
            return Ok(ResolvedAddresses {
                addresses: self.reachable(addresses),
                ttl: HOSTS_TTL,
            });
        }
        let (v4, v6) = both(
            self.ask(&name, QueryKind::A),
            self.ask(&name, QueryKind::Aaaa),
        )
        .await;
        let found = join(v4, v6)?;
        let mut addresses = self.reachable(found.addresses);
        addresses.truncate(MAX_ADDRESSES);
        Ok(ResolvedAddresses { addresses, ..found })
    }

    /// Without the addresses to which there is no route from where is asked, unless there is none to any.
    fn reachable(&self, addresses: Vec<IpAddr>) -> Vec<IpAddr> {
        let routed = self.upstreams.there(|| routed(&addresses));
        match routed {
            Ok(routed) if !routed.is_empty() => routed,
            _ => addresses,
        }
    }

    async fn ask(&self, name: &str, kind: QueryKind) -> Result<Family, LookupError> {
        let query = question(name, kind).ok_or(LookupError::BadName)?;
        let mut answer = self.upstreams.forward(&query, DnsTransport::Udp).await?;
        let cut = Message::from_slice(&answer).is_ok_and(|message| message.header().tc());
        if cut {
            answer = self.upstreams.forward(&query, DnsTransport::Tcp).await?;
        }
        addresses_in(&answer, kind)
    }
}

/// Both futures' results; the slower one decides when.
async fn both<T>(left: impl Future<Output = T>, right: impl Future<Output = T>) -> (T, T) {
    tokio::join!(left, right)
}

/// Joins the addresses of both families. A family that failed does not matter if the other did not.
fn join(
    v4: Result<Family, LookupError>,
    v6: Result<Family, LookupError>,
) -> Result<ResolvedAddresses, LookupError> {
    let (addresses, ttl) = match (v4, v6) {
        (Ok((mut v4, ttl4)), Ok((v6, ttl6))) => {
            let ttl = match (v4.is_empty(), v6.is_empty()) {
                (true, _) => ttl6,
                (_, true) => ttl4,
                _ => ttl4.min(ttl6),
            };
            v4.extend(v6);
            (v4, ttl)
        }
        // The other family is asked for again soon.
        (Ok((found, ttl)), Err(_)) | (Err(_), Ok((found, ttl))) if !found.is_empty() => {
            (found, ttl.min(MIN_TTL))
        }
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    if addresses.is_empty() {
        return Err(LookupError::NoAddress);
    }
    Ok(ResolvedAddresses {
        addresses,
        ttl: ttl.clamp(MIN_TTL, MAX_TTL),
    })
}

fn question(name: &str, kind: QueryKind) -> Option<Vec<u8>> {
    let kind = match kind {
        QueryKind::A => Rtype::A,
        QueryKind::Aaaa => Rtype::AAAA,
        QueryKind::Other(number) => Rtype::from_int(number),
    };
    let name = Name::<Vec<u8>>::from_chars(name.chars()).ok()?;
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_rd(true);
    let mut question = builder.question();
    question.push((name, kind)).ok()?;
    let mut additional = question.additional();
    additional
        .opt(|opt| {
            opt.set_udp_payload_size(UDP_PAYLOAD);
            Ok(())
        })
        .ok()?;
    Some(additional.finish())
}

/// Returns the addresses of one family that a server's answer gives to the name in question, aliases followed, and
/// how long to use them. The answer is not authenticated: any sender could have made it.
///
/// # Errors
/// The server says no, or its answer cannot be read.
pub fn addresses_in(answer: &[u8], kind: QueryKind) -> Result<Family, LookupError> {
    let garbled = |_| LookupError::Garbled;
    let message = Message::from_slice(answer).map_err(|_| LookupError::Garbled)?;
    match message.header().rcode() {
        Rcode::NOERROR => {}
        Rcode::NXDOMAIN => return Err(LookupError::NoSuchName),
        other => return Err(LookupError::Refused(other.to_string())),
    }
    let owner = message.canonical_name().ok_or(LookupError::Garbled)?;
    let section = message.answer().map_err(garbled)?;
    let mut ttl = MAX_TTL;
    let mut addresses = Vec::new();
    for record in section.flatten() {
        // Aliases on the way expire too.
        ttl = ttl.min(record.ttl().into_duration());
    }
    match kind {
        QueryKind::A => {
            for record in section.limit_to_in::<A>().flatten() {
                if *record.owner() == owner {
                    addresses.push(IpAddr::V4(record.data().addr()));
                }
            }
        }
        QueryKind::Aaaa | QueryKind::Other(_) => {
            for record in section.limit_to_in::<Aaaa>().flatten() {
                if *record.owner() == owner {
                    addresses.push(IpAddr::V6(record.data().addr()));
                }
            }
        }
    }
    Ok((addresses, ttl))
}

/// Those that the calling thread's network has a route to. Nothing is sent: a datagram socket that is connected only asks the
/// routing table.
fn routed(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let all = addresses.iter().copied();
    all.filter(|address| has_route(*address)).collect()
}

fn has_route(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind(SocketAddr::new(any, 0))
        .and_then(|socket| socket.connect(SocketAddr::new(address, 9)))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn routes_are_looked_for_in_the_network_from_which_is_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        let hosts = folder.path().join("hosts");
        std::fs::write(&hosts, "192.0.2.1 a.test\n").expect("a file");
        let (upstreams, entered) = (Upstreams::nobody(), Rc::new(Cell::new(0)));
        let counted = Rc::clone(&entered);
        upstreams.ask_within(Rc::new(move |make| {
            counted.set(counted.get() + 1);
            make();
            Ok(())
        }));
        let resolver = Resolver::new(&hosts, Rc::new(upstreams));
        let found = resolver.lookup("a.test").await.expect("by hand");
        assert_eq!(found.addresses, [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(entered.get(), 1);
    }
}
