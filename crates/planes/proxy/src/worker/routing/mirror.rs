//! Mirrored copies of requests; their answers are thrown away. No request waits for its copy, and no result of a copy affects a
//! request. A copy is sent when all of the request was received, by the HTTP/1.1 engine, to which it is a client with one
//! request.
//!
//! ```text
//! request ─► engine ─► endpoint
//!      └ all of it, as it went on ─► Copy ─► engine ─► Shadow ─► mirror
//! ```

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::{
    ConnectFailure, Exchange, HttpHead, HttpRole, HttpWorker, Io, RequestRoute, ResponseFlag,
    RoleRefusal, UpstreamHttp, serve_connection,
};
use crate::worker::handlers::inbound_http::upstream;
use crate::worker::handlers::outbound_http::OutboundRole;
use crate::worker::upstream::balance::EndpointPreference;
use crate::worker::upstream::endpoint::{ConnectionManner, InFlight};
use crate::worker::upstream::service_state::ServiceState;
use crate::worker::upstream::upstream_connection::UpstreamLine;
use crate::worker::{Worker, count};

/// Copies under way at once, of one worker; each holds its request, at most 64 KiB of it body.
const MAX_COPIES: u32 = 256;

/// Timeout of a mirrored copy.
const PATIENCE: Duration = Duration::from_secs(30);

/// Suffix that Istio's proxies add to the host of a copy, so that the receiver can recognize it.
const SUFFIX: &[u8] = b"-shadow";

/// Destinations of one request's copies.
pub(crate) struct Mirrors {
    pub(crate) worker: Rc<Worker>,
    pub(crate) engine: Rc<HttpWorker<OutboundRole>>,
    pub(crate) to: Vec<Rc<ServiceState>>,
}

impl Mirrors {
    /// Sends the copies; none is the copy of a request that was too long to be kept.
    pub(crate) fn send(&self, request: Option<Vec<u8>>) {
        let request = request.and_then(|request| shadowed(&request));
        for service in &self.to {
            let under_way = self.worker.copies.get();
            let (Some(request), true) = (&request, under_way < MAX_COPIES) else {
                count(&self.worker.counters.mirrors_dropped);
                continue;
            };
            count(&self.worker.counters.mirrored);
            self.worker.copies.set(under_way + 1);
            let place = MirrorPermit(Rc::clone(&self.worker));
            let shadow = MirrorCopy {
                worker: Rc::clone(&self.worker),
                service: Rc::clone(service),
            };
            let (engine, request) = (self.engine.shared(), request.clone());
            tokio::task::spawn_local(async move {
                let sending = serve_connection(&engine, &shadow, Copy, &request);
                // The outcome of a copy is ignored.
                let _ = tokio::time::timeout(PATIENCE, sending).await;
                drop(place);
            });
        }
    }
}

/// One of the copies under way.
struct MirrorPermit(Rc<Worker>);

impl Drop for MirrorPermit {
    fn drop(&mut self) {
        self.0.copies.set(self.0.copies.get() - 1);
    }
}

/// A request of HTTP/1.1 with its host marked as that of a copy, the last of its connection. None if it has no host.
fn shadowed(request: &[u8]) -> Option<Vec<u8>> {
    const HOST: &[u8] = b"host:";
    let mut at = request.iter().position(|byte| *byte == b'\n')? + 1;
    loop {
        let rest = &request[at..];
        let end = rest.iter().position(|byte| *byte == b'\r')?;
        if end == 0 {
            return None;
        }
        if rest.len() > HOST.len() && rest[..HOST.len()].eq_ignore_ascii_case(HOST) {
            let line = &rest[..end];
            // An IPv6 address has colons of its own.
            let bracket = line.iter().rposition(|byte| *byte == b']').unwrap_or(0);
            let from = bracket.max(HOST.len());
            let port = line[from..].iter().position(|byte| *byte == b':');
            let host = at + port.map_or(end, |port| from + port);
            let line_end = at + end;
            return Some(
                [
                    &request[..host],
                    SUFFIX,
                    &request[host..line_end],
                    b"\r\nConnection: close",
                    &request[line_end..],
                ]
                .concat(),
            );
        }
        at += end + 2;
    }
}

/// The client of a copy: it said all, and reads nothing.
struct Copy;

impl AsyncRead for Copy {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Copy {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Io for Copy {
    fn poll_readable(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn abort(&mut self) {}
}

/// Role of one copy, with a single destination and no retry. Copies are not counted or logged as requests.
struct MirrorCopy {
    worker: Rc<Worker>,
    service: Rc<ServiceState>,
}

impl HttpRole for MirrorCopy {
    type Upstream = UpstreamLine;
    type Key = u32;
    type Ticket = InFlight;
    type Question = Infallible;

    /// The head that is copied has been through this proxy.
    fn serves_proxy(&self) -> bool {
        true
    }

    fn route(&self, head: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        let Some(to) = self
            .service
            .choose(&self.worker, EndpointPreference::default())
        else {
            let flag = ResponseFlag::NoHealthyUpstream;
            return Err(RoleRefusal::new(503, flag, "no healthy upstream"));
        };
        let (key, to_sidecar) = (to.endpoint.key, to.endpoint.plan.is_sidecar());
        let mut route = RequestRoute::new(key, to);
        route.connect_timeout =
            ConnectionManner::of(&self.worker, &self.service.plan.traffic).timeout;
        route.upstream = upstream(self.service.plan.protocol, head);
        if self.service.plan.http2_upgrade && to_sidecar && !head.wants_upgrade() {
            route.upstream = UpstreamHttp::Http2;
        }
        route.to_sidecar = to_sidecar;
        Ok(route)
    }

    async fn connect(&self, route: &RequestRoute<Self>) -> Result<UpstreamLine, ConnectFailure> {
        let inside = route.upstream.into();
        let endpoint = &route.ticket.endpoint;
        let manner = ConnectionManner::of(&self.worker, &self.service.plan.traffic);
        let connecting = Box::pin(endpoint.connect(&self.worker, inside, manner));
        let connected = connecting.await;
        let line = connected.map(|stream| UpstreamLine::new(stream, None, &endpoint.lines));
        line.map_err(|unreachable| ConnectFailure::new(unreachable.public))
    }

    fn record(&self, _: Exchange<'_, Self>) {}
}

#[cfg(test)]
mod tests {
    use super::shadowed;

    #[test]
    fn a_copy_says_by_its_host_that_it_is_one() {
        let table = [
            (
                "Host: a\r\nX: y\r\n",
                Some("Host: a-shadow\r\nConnection: close\r\nX: y\r\n"),
            ),
            (
                "x: y\r\nhOST: a:80\r\n",
                Some("x: y\r\nhOST: a-shadow:80\r\nConnection: close\r\n"),
            ),
            (
                "Host: [::1]\r\n",
                Some("Host: [::1]-shadow\r\nConnection: close\r\n"),
            ),
            (
                "Host: [::1]:80\r\n",
                Some("Host: [::1]-shadow:80\r\nConnection: close\r\n"),
            ),
            ("x: host:\r\n", None),
        ];
        for (fields, wanted) in table {
            let request = |fields| format!("POST / HTTP/1.1\r\n{fields}\r\nhost: body");
            let made = shadowed(request(fields).as_bytes());
            let made = made.map(|bytes| String::from_utf8(bytes).expect("text"));
            assert_eq!(made, wanted.map(request));
        }
    }
}
