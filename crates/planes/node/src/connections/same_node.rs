//! Direct connections between two pods of this node: no tunnel and no TLS, since nothing leaves the process.
//! Everything else is as with both. The certificates held here prove both identities; the destination's policies
//! decide, at the start and again when they change; both sides are counted and logged.

use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::net::TcpStream;
use voile_telemetry::{Reporter, Security};
use voile_transport::{RelayEnd, TcpIo, TransportStream, relay, reset};

use crate::connections::close_reasons::{CERT_REVOKED, CONNECT, IDENTITY_ERROR, NO_IDLE_LIMIT};
use crate::pod::{Pod, PodLife};
use crate::records::{ConnectionParties, Record};
use crate::registry::Resident;
use crate::route::RouteTarget;
use crate::verified_peers::{ProvenPeer, REVOKED};
use crate::worker::{NodeWorker, Watched, own};

/// Returns the destination pod if it is on this node, takes connections, and has an expected identity.
pub(crate) fn home(worker: &NodeWorker, target: &RouteTarget) -> Option<Arc<Pod>> {
    // A waypoint's policies must not be bypassed, and an address of another network is not on this node.
    let expected = target
        .expected
        .as_ref()
        .filter(|_| target.waypoint.is_none() && target.far.is_none())?;
    // The inbound side hands a connection on to a waypoint's own port.
    let called = target.resident.as_ref();
    if called.is_some_and(|one| one.workload.application_tunnel.is_some()) {
        return None;
    }
    let there = worker.home(target.to.ip())?;
    let stays = *there.life.borrow() < PodLife::Leaving;
    (stays && expected.contains(&there.badge.identity)).then_some(there)
}

/// A pod of ours by the certificate that is held for it.
fn proven(pod: &Pod) -> Option<ProvenPeer> {
    let held = pod.badge.store.current()?;
    Some(ProvenPeer::by(
        &pod.badge.identity,
        &held.certified_key().cert,
    ))
}

/// Carries a connection of one pod to the other.
pub(crate) async fn carry(
    worker: &NodeWorker,
    (from, source): (&Arc<Pod>, &Arc<Resident>),
    there: &Arc<Pod>,
    tcp: TcpStream,
    (client, to): (SocketAddr, SocketAddr),
    leaving: Record<'_>,
) {
    let view = worker.view();
    let parties = ConnectionParties {
        reporter: Reporter::Destination,
        source: (Some(&**source), Some(&from.badge.identity)),
        destination: (
            own(&view, there, to.ip()).map(|own| &**own),
            Some(&there.badge.identity),
        ),
        service: None,
        security: Security::MutualTls,
        client,
        server: to,
        tunnelled: None,
    };
    let arriving = Record::open(worker, &parties, Instant::now());
    let opened = Box::pin(open(worker, (from, there), (client, to))).await;
    let (watched, server) = match opened {
        Ok(opened) => opened,
        Err((flags, reason)) => {
            reset(&tcp);
            arriving.close(flags, (0, 0), Some(reason.clone()));
            return leaving.close(flags, (0, 0), Some(reason));
        }
    };
    let [down, up] = [tcp, server].map(|tcp| TransportStream::Tcp(TcpIo::from(tcp)));
    let ended = async {
        tokio::select! {
            () = watched.ended() => {}
            () = from.is_at(PodLife::Gone) => {}
        }
    };
    let done = relay(down, up, NO_IDLE_LIMIT, pin!(ended)).await;
    let error = match done.end {
        RelayEnd::Finished => None,
        other => Some(format!("{other:?}")),
    };
    let (moved, flags) = ((done.received, done.sent), watched.flags());
    arriving.close(flags, moved, error.clone());
    leaving.close(flags, moved, error);
}

/// Checks the destination's policies and connects to its application. Returns ztunnel's word for a failure, and the
/// reason. Both pods need certificates, and new pods' certificates are waited for. Without one, the authority has not
/// confirmed that this node speaks for the pod.
async fn open<'a>(
    worker: &'a NodeWorker,
    (from, there): (&Pod, &Arc<Pod>),
    (client, to): (SocketAddr, SocketAddr),
) -> Result<(Watched<'a>, TcpStream), (&'static str, String)> {
    for pod in [from, there] {
        let certified = pod.badge.certified().await;
        certified.map_err(|why| (IDENTITY_ERROR, why))?;
    }
    let view = worker.view();
    let (Some(caller), Some(called)) = (proven(from), proven(there)) else {
        return Err((IDENTITY_ERROR, "a pod has no certificate yet".to_owned()));
    };
    if called.is_revoked(&view.revocations) {
        return Err((CERT_REVOKED, REVOKED.to_owned()));
    }
    let ends = (client.ip(), to);
    let watched = worker.admit(&view, there, Some(&Rc::new(caller)), ends);
    let watched = watched.map_err(|closed| (closed.flags(), closed.to_string()))?;
    let kept = there.keeps_source.then(|| client.ip());
    let server = there.connect(to, kept).await;
    let server = server.map_err(|error| (CONNECT, error.to_string()))?;
    Ok((watched, server))
}
