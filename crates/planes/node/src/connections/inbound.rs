//! Inbound connections of a pod: tunnels of other proxies (15008) and plaintext (15006). The pod's policies are
//! checked at the start and again whenever they change. The proxy calls the application from the
//! client's own address where that is possible.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use voile_hbone::{CONFIG, NoTunnel, TunnelRequest, Wire, named, serve, target};
use voile_http2::{Connection, ErrorCode, Http2End, Link, source_number};
use voile_identity::Identity;
use voile_model::{Hostname, Namespace, Port, ServiceKey};
use voile_telemetry::{Reporter, Security};
use voile_transport::{
    TLS_HANDSHAKE_TIMEOUT, TcpIo, TransportStream, accept_tls, alpn, proxy_protocol, reset,
};

use crate::connections::close_reasons::CONNECT;
use crate::memory::CONNECTION_BYTES;
use crate::plaintext::{PlainArrival, call, carry};
use crate::pod::{Pod, PodLife};
use crate::records::{ConnectionParties, Record};
use crate::registry::{RegistryView, Resident};
use crate::route::OWN_PORTS;
use crate::tunnel::{self, TunnelEnd};
use crate::verified_peers::ProvenPeer;
use crate::worker::{ClosedReason, NodeWorker, Watched, own};

/// The peer proxy of one tunnel connection, and the workload that calls through it.
pub(crate) struct CallingProxy {
    pod: Arc<Pod>,
    proven: Rc<ProvenPeer>,
    peer: SocketAddr,
    local: SocketAddr,
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Serves the tunnels of one connection.
pub(crate) async fn tunnels(
    worker: &Rc<NodeWorker>,
    pod: &Arc<Pod>,
    tcp: TcpStream,
    peer: SocketAddr,
) {
    PlainArrival::prepare(&tcp);
    let arrival = PlainArrival {
        worker,
        pod,
        peer,
        direction: "inbound",
    };
    // Until there is HTTP/2 to say it in, a refused caller just finds the connection closed.
    let local = match tcp.local_addr() {
        Ok(local) => canonical(local),
        Err(error) => return arrival.note_refused(&error),
    };
    // Boxed: a handshake takes several times the memory of an open connection.
    let stream = match Box::pin(shake_hands(&arrival, tcp)).await {
        Ok(stream) => stream,
        Err(reason) => return arrival.note_unproven(&reason),
    };
    let proven = match prove(worker, &stream) {
        Ok(proven) => proven,
        Err(reason) => return arrival.note_refused(&reason),
    };
    let mut connection = Connection::server(&CONFIG, worker.pool.blocks().clone());
    connection.set_source(source_number(peer.ip(), &proven.identity.to_string()));
    let link = Link::new(connection);
    let calling = Rc::new(CallingProxy {
        pod: Arc::clone(pod),
        proven: Rc::new(proven),
        peer,
        local,
    });
    let mut wire = Wire::new(stream, link.clone());
    let begin = |request| tunnel(Rc::clone(worker), Rc::clone(&calling), request);
    let end = tokio::select! {
        end = serve(&mut wire, &link, pod.is_at(PodLife::Leaving), begin) => end,
        () = pod.is_at(PodLife::Gone) => {
            link.borrow().abort(ErrorCode::NO_ERROR);
            Http2End::Closed
        }
    };
    tracing::debug!(?end, %peer, "an HBONE connection ended");
    wire.close().await;
}

/// Does the handshake with a caller, within the limits of unproven ones. Returns why there is none.
async fn shake_hands(
    arrival: &PlainArrival<'_>,
    tcp: TcpStream,
) -> Result<TransportStream, String> {
    let (worker, pod) = (arrival.worker, arrival.pod);
    let unproven = worker.unproven.admit(arrival.peer.ip());
    let unproven = unproven.ok_or("too many callers show no certificate")?;
    let shaken = async {
        pod.badge.certified().await?;
        let _expected = worker.memory.ceiling.expect(CONNECTION_BYTES as u64);
        worker.pool.blocks().grew(CONNECTION_BYTES);
        if !worker.memory.takes_work() {
            reset(&tcp);
            return Err(NEAR_LIMIT.to_owned());
        }
        let config = Arc::clone(&pod.badge.server);
        let accepted = accept_tls(config, TcpIo::from(tcp), TLS_HANDSHAKE_TIMEOUT).await;
        accepted.map_err(|error| error.to_string())
    };
    unproven.within(shaken).await?
}

/// The caller by its certificate; or why it is refused.
fn prove(worker: &NodeWorker, stream: &TransportStream) -> Result<ProvenPeer, String> {
    if stream.alpn() != Some(alpn::PLAIN_HTTP2) {
        return Err("the client did not negotiate h2 (ALPN)".to_owned());
    }
    let proven = ProvenPeer::of(stream).map_err(|error| error.to_string())?;
    match proven.is_revoked(&worker.view().revocations) {
        true => Err(format!("the certificate of {} is revoked", proven.identity)),
        false => Ok(proven),
    }
}

const NEAR_LIMIT: &str = "the node proxy is near its memory limit";

/// One tunnel. Says whether it carried anything.
pub(crate) async fn tunnel(
    worker: Rc<NodeWorker>,
    calling: Rc<CallingProxy>,
    mut request: TunnelRequest,
) -> bool {
    let (worker, calling) = (&*worker, &*calling);
    let began = Instant::now();
    if !worker.memory.takes_work() {
        worker.refused.set(worker.refused.get() + 1);
        request.refuse(UNAVAILABLE);
        return false;
    }
    let called = match target(request.head(), calling.local, &OWN_PORTS) {
        Err(NoTunnel::NoAddress(text)) => {
            let called = named(request.head()).map(|(host, port)| CalledTarget::Named(host, port));
            called.ok_or(NoTunnel::NoAddress(text))
        }
        Err(NoTunnel::Foreign(to)) => Ok(CalledTarget::Elsewhere(to)),
        other => other.map(CalledTarget::At),
    };
    let called = match called {
        Ok(called) => called,
        Err(reason) => {
            worker.refused.set(worker.refused.get() + 1);
            tracing::info!(target: "access", direction = "inbound", src.addr = %calling.peer, src.identity = %calling.proven.identity, error = %reason, "tunnel refused (400)");
            request.refuse(400);
            return false;
        }
    };
    // A client that resets the tunnel early need not wait for this proxy, nor this proxy for the application. Boxed:
    // the start takes several times the memory of the relay, and tunnels stay open.
    let opened = tokio::select! {
        opened = Box::pin(admit(worker, calling, &called, began)) => opened,
        _ = request.taken_back() => return false,
    };
    let (watched, record, stream) = match opened {
        Ok(opened) => opened,
        Err(status) => {
            request.refuse(status);
            return false;
        }
    };
    let Some(halves) = request.accept() else {
        return false;
    };
    let down = TransportStream::Tcp(TcpIo::from(stream));
    let done = tunnel::carry(down, halves, pin!(watched.ended())).await;
    let error = (done.end != TunnelEnd::Finished).then(|| format!("{:?}", done.end));
    record.close(watched.flags(), (done.outward, done.inward), error);
    done.inward + done.outward > 0 || done.end == TunnelEnd::Finished
}

/// Target of a CONNECT request.
#[derive(Debug)]
enum CalledTarget {
    /// The workload's own address.
    At(SocketAddr),
    /// A service, by its host and port. Callers from other networks ask so, since addresses of this network mean
    /// nothing there.
    Named(String, u16),
    /// Another workload: a waypoint stands before others.
    Elsewhere(SocketAddr),
}

/// Resolved target of a tunnel.
#[derive(Debug, PartialEq, Eq)]
struct TunnelTarget {
    /// Destination as policies see it: at the pod's own address.
    judged: SocketAddr,
    /// Address at which the application is called.
    to: SocketAddr,
    /// Original destination, for the application, in a header of the PROXY protocol.
    told: Option<SocketAddr>,
}

/// Why it leads nowhere, with the status that says so.
type Nowhere = (u16, &'static str);

const BAD_REQUEST: u16 = 400;
const DENIED: u16 = 401;
const UNAVAILABLE: u16 = 503;

impl CalledTarget {
    /// The service that is meant where a waypoint of another program is asked for one by its name: of the namespace that the name
    /// says, or else of the waypoint's own.
    fn service(&self, own: &Resident) -> Option<ServiceKey> {
        let Self::Named(host, _) = self else {
            return None;
        };
        own.workload.application_tunnel?;
        let mut parts = host.split('.').skip(1);
        let namespace = match (parts.next(), parts.next()) {
            (Some(namespace), Some("svc")) => Namespace::new(namespace)?,
            _ => own.workload.namespace.clone(),
        };
        let hostname = Hostname::new(host).filter(|host| !host.is_wildcard())?;
        Some(ServiceKey {
            namespace,
            hostname,
        })
    }

    /// The address that is asked for, of a waypoint of another program: a PROXY header has no room for a name, so of a service that is
    /// asked for by its name it is the service's own.
    fn address(
        &self,
        own: &Resident,
        here: IpAddr,
        view: &RegistryView,
    ) -> Result<SocketAddr, Nowhere> {
        let number = match self {
            Self::At(asked) | Self::Elsewhere(asked) => return Ok(*asked),
            Self::Named(_, number) => *number,
        };
        let service = self.service(own).and_then(|key| view.service(&key));
        let Some(service) = service.map(|served| &served.service) else {
            return Err((UNAVAILABLE, "the service does not exist"));
        };
        if !service.ports.iter().any(|port| port.number.get() == number) {
            return Err((UNAVAILABLE, "the service has no such port"));
        }
        let alike = |address: &&IpAddr| address.is_ipv4() == here.is_ipv4();
        let found = service.addresses.iter().find(alike);
        let found = found.or(service.addresses.first());
        let why = "the service has no address to put into the PROXY header";
        let address = found.ok_or((UNAVAILABLE, why))?;
        Ok(SocketAddr::new(*address, number))
    }

    /// Resolves the target of a tunnel. A waypoint that takes no tunnels itself is called at its loopback address,
    /// which only this proxy can reach. A PROXY header tells it the client and the destination.
    fn way(
        &self,
        own: &Resident,
        here: IpAddr,
        view: &RegistryView,
    ) -> Result<TunnelTarget, Nowhere> {
        let Some(tunnel) = own.workload.application_tunnel else {
            if let Self::Elsewhere(_) = self {
                return Err((
                    BAD_REQUEST,
                    "the destination is not an address of this workload",
                ));
            }
            let to = self.at(own, here);
            let to = to.ok_or((UNAVAILABLE, "the pod is not an endpoint of the service"))?;
            return Ok(TunnelTarget {
                judged: to,
                to,
                told: None,
            });
        };
        let asked = self.address(own, here, view)?;
        let port = tunnel.port.map_or(asked.port(), Port::get);
        if OWN_PORTS.contains(&port) {
            return Err((BAD_REQUEST, "the port belongs to the node proxy"));
        }
        let at = match (tunnel.proxy, here) {
            (false, _) => here,
            (true, IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
            (true, IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
        };
        Ok(TunnelTarget {
            judged: SocketAddr::new(here, asked.port()),
            to: SocketAddr::new(at, port),
            told: tunnel.proxy.then_some(asked),
        })
    }

    /// The address of the application that is meant; none where the pod is not behind that service.
    fn at(&self, own: &Resident, here: IpAddr) -> Option<SocketAddr> {
        let (host, number) = match self {
            Self::At(to) => return Some(*to),
            Self::Named(host, number) => (host, Port::new(*number)?),
            Self::Elsewhere(_) => return None,
        };
        let meant = |(key, ports): (&ServiceKey, &BTreeMap<Port, Port>)| {
            let named = key.hostname.as_str() == host;
            let port = ports.get(&number).filter(|_| named)?;
            Some((key.namespace != own.workload.namespace, *port))
        };
        // Of several of that host the one of the pod's own namespace.
        let found = own.workload.services.iter().filter_map(meant).min();
        let (_, port) = found.filter(|(_, port)| !OWN_PORTS.contains(&port.get()))?;
        Some(SocketAddr::new(here, port.get()))
    }
}

type Admitted<'a> = (Watched<'a>, Record<'a>, TcpStream);

/// Judges a tunnel and calls the application; or the status that says why not.
async fn admit<'a>(
    worker: &'a NodeWorker,
    calling: &CallingProxy,
    called: &CalledTarget,
    began: Instant,
) -> Result<Admitted<'a>, u16> {
    let (pod, here) = (&calling.pod, calling.local.ip());
    let known = worker.known_both(here, calling.peer.ip()).await;
    let Some(view) = known else {
        return Err(UNAVAILABLE);
    };
    let meant = own(&view, pod, here).and_then(|own| called.service(own));
    let known = match &meant {
        Some(service) => worker.known_service(view, service).await,
        None => Some(view),
    };
    let Some(view) = known else {
        return Err(UNAVAILABLE);
    };
    let Some(own) = own(&view, pod, here) else {
        return Err(UNAVAILABLE);
    };
    let way = called.way(own, here, &view).and_then(|way| {
        let opens = pod.opens(way.to.port());
        opens.then_some(way).ok_or((
            BAD_REQUEST,
            "the node proxy's own pod serves only metrics and readiness",
        ))
    });
    let way = match way {
        Ok(way) => way,
        Err((status, error)) => {
            worker.refused.set(worker.refused.get() + 1);
            tracing::info!(target: "access", direction = "inbound", src.addr = %calling.peer, src.identity = %calling.proven.identity, ?called, error, "tunnel refused ({status})");
            return Err(status);
        }
    };
    let parties = ConnectionParties {
        reporter: Reporter::Destination,
        source: (
            source(&view, calling.peer.ip(), Some(&calling.proven.identity)),
            Some(&calling.proven.identity),
        ),
        destination: (Some(&**own), Some(&pod.badge.identity)),
        service: None,
        security: Security::MutualTls,
        client: calling.peer,
        server: calling.local,
        tunnelled: Some(way.told.unwrap_or(way.to)),
    };
    let record = Record::open(worker, &parties, began);
    let ends = (calling.peer.ip(), way.judged);
    let watched = match worker.admit(&view, pod, Some(&calling.proven), ends) {
        Ok(watched) => watched,
        Err(closed) => {
            record.close(closed.flags(), (0, 0), Some(closed.to_string()));
            return Err(match closed {
                ClosedReason::Denied(_) | ClosedReason::Revoked(_) | ClosedReason::Door(_) => {
                    DENIED
                }
                ClosedReason::Nobody(_) => UNAVAILABLE,
            });
        }
    };
    match reach(calling, &way).await {
        Ok(stream) => Ok((watched, record, stream)),
        Err(error) => {
            record.close(CONNECT, (0, 0), Some(error));
            Err(UNAVAILABLE)
        }
    }
}

/// Connects to the application, and names client and destination in a PROXY header where one is wanted.
async fn reach(calling: &CallingProxy, way: &TunnelTarget) -> Result<TcpStream, String> {
    let pod = &calling.pod;
    let kept = pod.keeps_source && way.told.is_none();
    let source = kept.then(|| calling.peer.ip());
    let connected = pod.connect(way.to, source).await;
    let mut stream = connected.map_err(|error| error.to_string())?;
    if let Some(asked) = way.told {
        let identity = calling.proven.identity.to_string();
        let header = proxy_protocol::header(calling.peer, asked, &identity);
        let said = stream.write_all(&header).await;
        said.map_err(|error| error.to_string())?;
    }
    Ok(stream)
}

/// The workload at the caller's address, if it is the caller: an address alone proves nothing.
fn source<'a>(
    view: &'a RegistryView,
    address: IpAddr,
    identity: Option<&Identity>,
) -> Option<&'a Resident> {
    let found = view.workload(address)?;
    let is_caller = identity.is_none() || found.workload.identity.as_ref() == identity;
    is_caller.then_some(&**found)
}

/// Serves one connection that came in plaintext.
pub(crate) async fn plaintext(
    worker: &Rc<NodeWorker>,
    pod: &Arc<Pod>,
    tcp: TcpStream,
    peer: SocketAddr,
) {
    // Boxed, as a tunnel's beginning is.
    let Some((watched, server, record)) = Box::pin(begin(worker, pod, &tcp, peer)).await else {
        return;
    };
    let noted = (record, || watched.flags());
    carry(tcp, server, pin!(watched.ended()), noted).await;
}

/// Authorizes a plaintext connection and connects to the application. Returns None after a failure, which it has
/// logged already.
async fn begin<'a>(
    worker: &'a NodeWorker,
    pod: &Arc<Pod>,
    tcp: &TcpStream,
    peer: SocketAddr,
) -> Option<(Watched<'a>, TcpStream, Record<'a>)> {
    let began = Instant::now();
    PlainArrival::prepare(tcp);
    let arrival = PlainArrival {
        worker,
        pod,
        peer,
        direction: "inbound",
    };
    let to = arrival.destination(tcp)?;
    let refused = |reason: &dyn std::fmt::Display| {
        arrival.refuse(tcp, reason);
        None
    };
    // A neighbour can send packets for any address. Forwarding them would make this proxy an open relay.
    let is_here = pod.has(to.ip())
        && tcp
            .local_addr()
            .is_ok_and(|at| pod.has(at.ip().to_canonical()));
    if !is_here || OWN_PORTS.contains(&to.port()) {
        return refused(&format_args!(
            "{to} is not an address and port of the application"
        ));
    }
    let Some(view) = worker.known_both(to.ip(), peer.ip()).await else {
        return refused(&"the control plane did not send the policies of this pod in time");
    };
    let parties = ConnectionParties {
        reporter: Reporter::Destination,
        source: (source(&view, peer.ip(), None), None),
        destination: (
            own(&view, pod, to.ip()).map(|own| &**own),
            Some(&pod.badge.identity),
        ),
        service: None,
        security: Security::None,
        client: peer,
        server: to,
        tunnelled: None,
    };
    let record = Record::open(worker, &parties, began);
    let watched = match worker.admit(&view, pod, None, (peer.ip(), to)) {
        Ok(watched) => watched,
        Err(closed) => {
            reset(tcp);
            record.close(closed.flags(), (0, 0), Some(closed.to_string()));
            return None;
        }
    };
    let source = pod.keeps_source.then(|| peer.ip());
    let (server, record) = call(pod, tcp, (to, source), record).await?;
    Some((watched, server, record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::tests::{Said, service, workload};
    use voile_proto::workload as proto;
    use voile_proto::workload::application_tunnel::Protocol;
    use voile_proto::workload::{ApplicationTunnel, Port as Sent, PortList, address::Type};

    #[test]
    fn a_tunnel_to_a_name_is_for_a_service_that_the_pod_is_behind_and_never_for_the_proxys_own_door()
     {
        let mut own = workload("web-1", 3);
        let mut list = |key: &str, ports: &[(u32, u32)]| {
            let ports = ports.iter().map(|(service_port, target_port)| Sent {
                service_port: *service_port,
                target_port: *target_port,
                app_protocol: 0,
            });
            let ports = ports.collect();
            own.services.insert(key.to_owned(), PortList { ports });
        };
        list("other/web.test", &[(80, 1), (83, 8083)]);
        list(
            "shop/web.test",
            &[(80, 8080), (81, 15008), (82, 15001), (84, 15006)],
        );
        let mut said = Said::asked(&[]);
        said.addresses(vec![("own", &[], Type::Workload(own))], &[]);
        let view = said.registry.view();
        let here = IpAddr::from([10, 244, 0, 3]);
        let own = view.workload(here).expect("the pod");
        for (host, port, expected) in [
            // Of two services of one host, the pod's own namespace's.
            ("web.test", 80, Some(8080)),
            ("web.test", 83, Some(8083)),
            ("web.test", 81, None),
            ("web.test", 82, None),
            ("web.test", 84, None),
            ("web.test", 85, None),
            ("web.test", 0, None),
            ("other.test", 80, None),
            ("", 80, None),
        ] {
            let found = CalledTarget::Named(host.to_owned(), port).at(own, here);
            let expected = expected.map(|port| SocketAddr::new(here, port));
            assert_eq!(found, expected, "{host}:{port}");
        }
    }

    const SERVICES: &[(&str, &str, &[&str])] = &[
        ("shop", "web.test", &["fd00::9", "10.96.0.9"]),
        ("bank", "web.bank.svc.cluster.local", &["fd00::8"]),
        ("shop", "bare.test", &[]),
        ("bank", "theirs.test", &["10.96.0.7"]),
        ("shop", "*.wild.test", &["10.96.0.6"]),
    ];

    /// The judged address, the address to call and the PROXY header; or the status of a refusal.
    type Shown = Result<(String, String, Option<String>), u16>;

    fn address(text: &&str) -> proto::NetworkAddress {
        proto::NetworkAddress {
            address: match text.parse::<IpAddr>().expect("an address") {
                IpAddr::V4(four) => four.octets().to_vec(),
                IpAddr::V6(six) => six.octets().to_vec(),
            },
            ..proto::NetworkAddress::default()
        }
    }

    /// The way to a waypoint that wants to be called like that.
    fn way(said: Wish, called: CalledTarget) -> Shown {
        let mut gate = workload("gate", 3);
        gate.application_tunnel = said.map(|(protocol, port)| ApplicationTunnel {
            protocol: protocol.into(),
            port,
        });
        let mut said = Said::asked(&[]);
        said.addresses(vec![("gate", &[], Type::Workload(gate))], &[]);
        for (namespace, host, addresses) in SERVICES {
            let service = proto::Service {
                namespace: (*namespace).to_owned(),
                hostname: (*host).to_owned(),
                addresses: addresses.iter().map(address).collect(),
                ..service()
            };
            let name = format!("{namespace}/{host}");
            said.addresses(vec![(&name, &[], Type::Service(service))], &[]);
        }
        let view = said.registry.view();
        let here = IpAddr::from([10, 244, 0, 3]);
        let gate = view.workload(here).expect("the pod");
        let way = called
            .way(gate, here, &view)
            .map_err(|(status, _)| status)?;
        let told = way.told.map(|told| told.to_string());
        Ok((way.judged.to_string(), way.to.to_string(), told))
    }

    fn is(judged: &str, to: &str, told: Option<&str>) -> Shown {
        Ok((judged.to_owned(), to.to_owned(), told.map(str::to_owned)))
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// Application tunnel that a waypoint asks for: protocol and port.
    type Wish = Option<(Protocol, u32)>;

    fn check(cases: Vec<(Wish, CalledTarget, Shown)>) {
        for (said, called, expected) in cases {
            let shown = format!("{said:?} {called:?}");
            assert_eq!(way(said, called), expected, "{shown}");
        }
    }

    fn proxy(port: u32) -> Wish {
        Some((Protocol::Proxy, port))
    }

    #[test]
    fn a_waypoint_is_called_where_nobody_else_calls_it_and_told_what_was_asked_for() {
        let (vip, own) = (at("10.96.0.1:80"), at("10.244.0.3:81"));
        check(vec![
            (
                None,
                CalledTarget::At(own),
                is("10.244.0.3:81", "10.244.0.3:81", None),
            ),
            (None, CalledTarget::Elsewhere(vip), Err(400)),
            (
                proxy(15088),
                CalledTarget::Elsewhere(vip),
                is("10.244.0.3:80", "127.0.0.1:15088", Some("10.96.0.1:80")),
            ),
            (
                proxy(15088),
                CalledTarget::At(own),
                is("10.244.0.3:81", "127.0.0.1:15088", Some("10.244.0.3:81")),
            ),
            (
                proxy(0),
                CalledTarget::Elsewhere(vip),
                is("10.244.0.3:80", "127.0.0.1:80", Some("10.96.0.1:80")),
            ),
            (proxy(15008), CalledTarget::Elsewhere(vip), Err(400)),
            (
                proxy(0),
                CalledTarget::Elsewhere(at("10.96.0.1:15001")),
                Err(400),
            ),
            (
                Some((Protocol::None, 8080)),
                CalledTarget::Elsewhere(vip),
                is("10.244.0.3:80", "10.244.0.3:8080", None),
            ),
        ]);
    }

    /// The service's address, one like our own if there is any.
    #[test]
    fn a_waypoint_that_is_asked_for_by_a_name_is_told_the_services_address() {
        let named = |host: &str, port| CalledTarget::Named(host.to_owned(), port);
        check(vec![
            (
                proxy(15088),
                named("web.test", 80),
                is("10.244.0.3:80", "127.0.0.1:15088", Some("10.96.0.9:80")),
            ),
            (
                proxy(15088),
                named("web.bank.svc.cluster.local", 80),
                is("10.244.0.3:80", "127.0.0.1:15088", Some("[fd00::8]:80")),
            ),
            (
                Some((Protocol::None, 8080)),
                named("web.test", 80),
                is("10.244.0.3:80", "10.244.0.3:8080", None),
            ),
            (proxy(15088), named("web.test", 81), Err(503)),
            (proxy(15088), named("bare.test", 80), Err(503)),
            (proxy(15088), named("theirs.test", 80), Err(503)),
            (
                proxy(15088),
                named("web.shop.svc.cluster.local", 80),
                Err(503),
            ),
            (proxy(15088), named("*.wild.test", 80), Err(503)),
            (proxy(15088), named("", 80), Err(503)),
        ]);
    }
}
