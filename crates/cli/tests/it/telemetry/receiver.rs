//! A collector over gRPC for tests: Envoy's access log service and OTLP's trace service on one port, which can stop reading
//! or die. It knows HTTP/2 by a library and nothing of the proxy but the messages.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf as _, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use prost::Message;
use tokio::sync::watch;
use voile_proto::access_log::stream_access_logs_message::LogEntries;
use voile_proto::access_log::{HttpAccessLogEntry, StreamAccessLogsMessage};
use voile_proto::trace::{ExportTraceServiceRequest, Span};

use super::tag;
use crate::mesh::wait_until;

/// Behaviour of the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Takes it.
    Takes,
    /// Accepts connections and reads no byte of them.
    Stalls,
    /// Ends every call, and every connection after it.
    Dies,
}

#[derive(Default)]
struct Got {
    /// `node.id` and the entry.
    entries: Vec<(String, HttpAccessLogEntry)>,
    /// `service.name` and the span.
    spans: Vec<(String, Span)>,
}

/// See the module. It lives as long as the test process.
pub(crate) struct Receiver {
    got: Arc<Mutex<Got>>,
    manner: watch::Sender<Manner>,
    connections: Arc<AtomicU64>,
}

struct Here {
    got: Arc<Mutex<Got>>,
    manner: watch::Receiver<Manner>,
}

fn lock(got: &Mutex<Got>) -> MutexGuard<'_, Got> {
    got.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Receiver {
    pub(crate) fn start(listener: TcpListener, manner: Manner) -> Self {
        let (sender, manner) = watch::channel(manner);
        let connections = Arc::new(AtomicU64::new(0));
        let got: Arc<Mutex<Got>> = Arc::default();
        let (counted, kept) = (Arc::clone(&connections), Arc::clone(&got));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                listener.set_nonblocking(true).expect("a listener");
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                while let Ok((stream, _)) = listener.accept().await {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let here = Here {
                        got: Arc::clone(&kept),
                        manner: manner.clone(),
                    };
                    tokio::task::spawn_local(serve(stream, here));
                }
            });
        });
        Self {
            got,
            manner: sender,
            connections,
        }
    }

    pub(crate) fn become_one_that(&self, manner: Manner) {
        self.manner.send(manner).expect("it lives");
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Entries of requests for that path, once there are so many.
    pub(crate) fn entries(&self, path: &str, count: usize) -> Vec<(String, HttpAccessLogEntry)> {
        let mut found = Vec::new();
        wait_until(&format!("{count} entries of {path}"), || {
            let of_it = |entry: &HttpAccessLogEntry| {
                let request = entry.request.as_ref();
                request.is_some_and(|request| request.path == path)
            };
            let got = lock(&self.got);
            let all = got.entries.iter().filter(|(_, entry)| of_it(entry));
            found = all.cloned().collect();
            found.len() >= count
        });
        found
    }

    /// Spans of a trace, once there are so many.
    pub(crate) fn spans(&self, trace: &[u8], count: usize) -> Vec<(String, Span)> {
        let mut found = Vec::new();
        wait_until("the spans arrive", || {
            let got = lock(&self.got);
            let all = got.spans.iter().filter(|(_, span)| span.trace_id == trace);
            found = all.cloned().collect();
            found.len() >= count
        });
        found
    }

    /// All spans so far.
    pub(crate) fn all_spans(&self) -> Vec<(String, Span)> {
        lock(&self.got).spans.clone()
    }
}

async fn serve(stream: tokio::net::TcpStream, here: Here) {
    let mut manner = here.manner.clone();
    let taking = |now: &Manner| *now != Manner::Stalls;
    if manner.wait_for(taking).await.is_err() {
        return;
    }
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    let here = std::rc::Rc::new(here);
    while let Some(Ok((request, respond))) = connection.accept().await {
        if *here.manner.borrow() == Manner::Dies {
            return;
        }
        tokio::task::spawn_local(take(request, respond, std::rc::Rc::clone(&here)));
    }
}

/// Takes a call's messages as they come.
async fn take(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    here: std::rc::Rc<Here>,
) {
    let spans = request.uri().path().ends_with("TraceService/Export");
    assert!(
        spans
            || request
                .uri()
                .path()
                .ends_with("AccessLogService/StreamAccessLogs"),
        "{}",
        request.uri()
    );
    let head = Response::builder().header("content-type", "application/grpc");
    let head = head.body(()).expect("a head");
    let Ok(mut send) = respond.send_response(head, false) else {
        return;
    };
    let mut body = request.into_body();
    let mut bytes = BytesMut::new();
    let mut node = String::new();
    let mut manner = here.manner.clone();
    loop {
        let taking = |now: &Manner| *now != Manner::Stalls;
        let Ok(now) = manner.wait_for(taking).await.map(|now| *now) else {
            return;
        };
        if now == Manner::Dies {
            send.send_reset(h2::Reason::INTERNAL_ERROR);
            return;
        }
        let Some(Ok(chunk)) = body.data().await else {
            break;
        };
        bytes.extend_from_slice(&chunk);
        // Releases the window of the bytes read while the receiver does not stall.
        let _ = body.flow_control().release_capacity(chunk.len());
        while let Some(message) = next_message(&mut bytes) {
            keep(&here.got, &message, spans, &mut node);
        }
    }
    // An answer without a field; the client may have left meanwhile.
    let _ = send.send_data(Bytes::from_static(&[0; 5]), false);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    let _ = send.send_trailers(trailers);
}

/// The next whole message without its prefix.
fn next_message(bytes: &mut BytesMut) -> Option<BytesMut> {
    let length = bytes.get(1..5)?;
    let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
    if bytes.len() < 5 + length {
        return None;
    }
    bytes.advance(5);
    Some(bytes.split_to(length))
}

fn keep(got: &Mutex<Got>, message: &[u8], spans: bool, node: &mut String) {
    let mut got = lock(got);
    if spans {
        let request = ExportTraceServiceRequest::decode(message).expect("OTLP");
        for resource in request.resource_spans {
            let shared = resource.resource.expect("a resource");
            let service = tag(&shared.attributes, "service.name");
            let all = resource
                .scope_spans
                .into_iter()
                .flat_map(|scope| scope.spans);
            got.spans.extend(all.map(|span| (service.clone(), span)));
        }
        return;
    }
    let message = StreamAccessLogsMessage::decode(message).expect("access logs");
    if let Some(identifier) = message.identifier {
        assert!(!identifier.log_name.is_empty(), "{identifier:?}");
        *node = identifier.node.expect("a node").id;
    }
    assert!(!node.is_empty(), "the first message says who sends");
    if let Some(LogEntries::HttpLogs(logs)) = message.log_entries {
        let all = logs.log_entry.into_iter();
        got.entries.extend(all.map(|entry| (node.clone(), entry)));
    }
}
