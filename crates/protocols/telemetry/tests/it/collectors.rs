//! Tests with real receivers: an access log service and an OTLP collector over gRPC, and one over HTTP. All records
//! arrive, in one stream. A record without a receiver is dropped and counted, and the writer never waits.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};
use voile_proto::{access_log as als_wire, trace as trace_wire};
use voile_telemetry::access_log::als::AlsHeaders;
use voile_telemetry::access_log::{AlsLog, Logger, Sink};
use voile_telemetry::export::{CollectorDialer, CollectorStream, Dialing, als, spans};
use voile_telemetry::generated::access_log_service::access_log_service_server::{
    AccessLogService, AccessLogServiceServer,
};
use voile_telemetry::generated::trace_service::trace_service_server::{
    TraceService, TraceServiceServer,
};
use voile_telemetry::outbox::{MAX_QUEUED_RECORDS, outbox};

use crate::lines::request;

const PATIENCE: Duration = Duration::from_secs(30);

struct To(SocketAddr);

impl CollectorDialer for To {
    fn dial(&self) -> Dialing {
        let address = self.0;
        Box::pin(async move {
            let stream: io::Result<TcpStream> = TcpStream::connect(address).await;
            stream.map(|stream| Box::new(stream) as Box<dyn CollectorStream>)
        })
    }

    fn authority(&self) -> &str {
        "collector.shop:4317"
    }
}

struct Receiver<T>(mpsc::UnboundedSender<T>);

#[tonic::async_trait]
impl AccessLogService for Receiver<als_wire::StreamAccessLogsMessage> {
    async fn stream_access_logs(
        &self,
        request: Request<Streaming<als_wire::StreamAccessLogsMessage>>,
    ) -> Result<Response<als_wire::StreamAccessLogsResponse>, Status> {
        let mut stream = request.into_inner();
        while let Some(message) = stream.next().await {
            self.0
                .send(message?)
                .map_err(|_| Status::cancelled("over"))?;
        }
        Ok(Response::new(als_wire::StreamAccessLogsResponse {}))
    }
}

type Exported = (Option<String>, trace_wire::ExportTraceServiceRequest);

#[tonic::async_trait]
impl TraceService for Receiver<Exported> {
    async fn export(
        &self,
        request: Request<trace_wire::ExportTraceServiceRequest>,
    ) -> Result<Response<trace_wire::ExportTraceServiceResponse>, Status> {
        let tenant = request.metadata().get("x-tenant");
        let tenant = tenant
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let sent = self.0.send((tenant, request.into_inner()));
        sent.map_err(|_| Status::cancelled("over"))?;
        Ok(Response::new(
            trace_wire::ExportTraceServiceResponse::default(),
        ))
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn span(number: u8) -> trace_wire::Span {
    trace_wire::Span {
        trace_id: vec![number; 16],
        ..trace_wire::Span::default()
    }
}

fn settings(http_path: Option<&str>) -> spans::Settings {
    spans::Settings {
        http_path: http_path.map(Arc::from),
        timeout: None,
        headers: vec![("x-tenant".into(), "shop".into())],
        resource: trace_wire::Resource::default(),
    }
}

fn spans_of(request: trace_wire::ExportTraceServiceRequest) -> Vec<u8> {
    let scopes = request
        .resource_spans
        .into_iter()
        .flat_map(|all| all.scope_spans);
    scopes
        .flat_map(|scope| scope.spans)
        .map(|span| span.trace_id[0])
        .collect()
}

#[tokio::test]
async fn every_entry_reaches_the_access_log_service() {
    let (listener, address) = listen().await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let service = AccessLogServiceServer::new(Receiver(sender));
    let server = tonic::transport::Server::builder()
        .serve_with_incoming(service, TcpListenerStream::new(listener));
    tokio::spawn(server);
    let (records, inbox) = outbox();
    let headers = AlsHeaders {
        request: vec!["user-agent".into()],
        ..AlsHeaders::default()
    };
    let logger = Logger::new(
        None,
        Sink::Grpc(AlsLog::new(records.clone(), true, headers)),
    );
    let who = als::Sender {
        node_id: "sidecar~a".to_owned(),
        cluster: "web.shop".to_owned(),
        log_name: "mine".to_owned(),
    };
    let sending = tokio::spawn(als::run(inbox, Arc::new(To(address)), who));
    for _ in 0..1000 {
        request(|entry| logger.log(entry));
    }
    drop(logger);
    let dropped = records.dropped();
    drop(records);
    tokio::time::timeout(PATIENCE, sending)
        .await
        .expect("in time")
        .expect("no panic");
    let (mut entries, mut identified) = (Vec::new(), 0);
    while let Ok(message) = received.try_recv() {
        if let Some(identifier) = message.identifier {
            identified += 1;
            assert_eq!(identifier.log_name, "mine");
            assert_eq!(identifier.node.expect("a node").id, "sidecar~a");
        }
        match message.log_entries {
            Some(als_wire::stream_access_logs_message::LogEntries::HttpLogs(logs)) => {
                entries.extend(logs.log_entry);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((entries.len(), identified, dropped), (1000, 1, 0));
    let entry = &entries[0];
    let (asked, answered) = (entry.request.as_ref(), entry.response.as_ref());
    assert_eq!(
        asked.map(|request| request.path.as_str()),
        Some("/books?id=7&empty=&id=8")
    );
    assert_eq!(asked.map(|request| request.request_headers.len()), Some(1));
    assert_eq!(
        answered.and_then(|response| response.response_code),
        Some(200)
    );
    let common = entry.common_properties.as_ref().expect("common properties");
    assert!(
        common
            .response_flags
            .as_ref()
            .is_some_and(|flags| flags.upstream_connection_failure)
    );
    let peer = common
        .tls_properties
        .as_ref()
        .and_then(|tls| tls.peer_certificate_properties.clone());
    assert_eq!(peer.map(|peer| peer.subject_alt_name.len()), Some(1));
}

#[tokio::test]
async fn every_span_reaches_an_otlp_collector_over_grpc() {
    let (listener, address) = listen().await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let service = TraceServiceServer::new(Receiver(sender));
    let server = tonic::transport::Server::builder()
        .serve_with_incoming(service, TcpListenerStream::new(listener));
    tokio::spawn(server);
    let (records, inbox) = outbox();
    (0..200).for_each(|number| records.send(span(number), 100));
    drop(records);
    let sending = spans::run(inbox, Arc::new(To(address)), settings(None));
    tokio::time::timeout(PATIENCE, sending)
        .await
        .expect("in time");
    let (tenant, request) = received.recv().await.expect("a batch");
    assert_eq!(tenant.as_deref(), Some("shop"));
    assert_eq!(spans_of(request), (0..200).collect::<Vec<u8>>());
}

#[tokio::test]
async fn spans_over_http_are_tried_again_when_the_collector_is_busy() {
    let (listener, address) = listen().await;
    let (sender, mut received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let answers = ["503 Service Unavailable", "200 OK"];
        for answer in answers {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            let (head, body) = read_request(&mut stream).await;
            let answer =
                format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.expect("answered");
            sender.send((head, body)).expect("the test listens");
        }
    });
    let (records, inbox) = outbox();
    records.send(span(7), 100);
    drop(records);
    let sending = spans::run(inbox, Arc::new(To(address)), settings(Some("/v1/traces")));
    tokio::time::timeout(PATIENCE, sending)
        .await
        .expect("in time");
    for _ in 0..2 {
        let (head, body): (String, Vec<u8>) = received.recv().await.expect("a request");
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
        assert!(
            head.contains("content-type: application/x-protobuf\r\n"),
            "{head}"
        );
        assert!(head.contains("x-tenant: shop\r\n"), "{head}");
        let request = trace_wire::ExportTraceServiceRequest::decode(&*body).expect("protobuf");
        assert_eq!(spans_of(request), [7]);
    }
}

async fn read_request(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.expect("readable");
        bytes.extend_from_slice(&chunk[..read]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8(bytes[..end + 4].to_vec()).expect("a head");
        let length = head.to_ascii_lowercase();
        let length = length
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next());
        let length: usize = length
            .and_then(|length| length.parse().ok())
            .expect("a length");
        if bytes.len() >= end + 4 + length {
            return (head, bytes.split_off(end + 4));
        }
    }
}

#[tokio::test]
async fn what_nobody_takes_is_dropped_and_counted_and_nobody_waits() {
    let (records, inbox) = outbox();
    let many = MAX_QUEUED_RECORDS as u64 + 100;
    (0..many).for_each(|_| records.send(span(1), 1));
    assert_eq!(records.dropped(), 100);
    drop(inbox);
    records.send(span(1), 1);
    assert_eq!(records.dropped(), 101);
    let (records, _inbox) = outbox();
    records.send(span(1), usize::MAX / 2);
    assert_eq!(records.dropped(), 1, "one record larger than all room");
    // A collector that is not there: everything in hand is counted, and the end comes.
    // The local end of a connection is a port that refuses connections and that no other test can get.
    let (_listener, elsewhere) = listen().await;
    let holder = TcpStream::connect(elsewhere).await.expect("a connection");
    let nobody = holder.local_addr().expect("its address");
    let (records, inbox) = outbox();
    (0..10).for_each(|number| records.send(span(number), 1));
    let seen = records.clone();
    drop(records);
    let mut settings = settings(None);
    settings.timeout = Some(Duration::from_millis(200));
    let sending = tokio::spawn(spans::run(inbox, Arc::new(To(nobody)), settings));
    let begun = std::time::Instant::now();
    while seen.dropped() < 10 {
        assert!(begun.elapsed() < PATIENCE, "{}", seen.dropped());
        tokio::task::yield_now().await;
    }
    drop(seen);
    tokio::time::timeout(PATIENCE, sending)
        .await
        .expect("in time")
        .expect("no panic");
}
