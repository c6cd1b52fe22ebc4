//! A request that one endpoint cannot take goes to another, within the destination's budget; one that may have been
//! served does not.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use voile_telemetry::{PeerLabels, ServiceLabels};
use voile_traffic::{Conditions, RetryBudget, RetryPolicy};
use voile_xds::wire::WireProtocol;

use super::{Stage, listen, play};
use crate::plan::{EndpointPlan, ListenerId, OutboundPlan, PassthroughMode, ServicePlan, Settings};

const POST: &[u8] =
    b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";

/// Behaviour of an endpoint on a connection.
#[derive(Debug, Clone, Copy)]
enum Endpoint {
    /// No socket listens.
    Absent,
    /// Reads the request and answers with this status.
    Answers(u16),
    /// Reads the request and closes.
    ReadsAndCloses,
}

async fn endpoint(kind: Endpoint) -> SocketAddr {
    let listener = listen().await;
    let address = listener.local_addr().expect("an address");
    tokio::task::spawn_local(async move {
        let status = match kind {
            Endpoint::Absent => return,
            Endpoint::Answers(status) => Some(status),
            Endpoint::ReadsAndCloses => None,
        };
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut seen = Vec::new();
            while !seen.ends_with(b"\r\n\r\nhi") {
                match stream.read_buf(&mut seen).await {
                    Ok(count) if count > 0 => {}
                    _ => break,
                }
            }
            if let Some(status) = status {
                let answer = format!("HTTP/1.1 {status} S\r\nContent-Length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        }
    });
    // The listener of an absent endpoint is dropped by its task before a client can connect.
    tokio::task::yield_now().await;
    address
}

async fn listener(
    stage: &Stage,
    kinds: &[Endpoint],
    retry: RetryPolicy,
    retry_budget: RetryBudget,
) -> SocketAddr {
    let mut endpoints = Vec::new();
    for kind in kinds {
        endpoints.push(EndpointPlan {
            name: None,
            address: endpoint(*kind).await,
            expected: None,
            weight: 1,
            available: true,
            origination: None,
            rank: Default::default(),
            peer: PeerLabels::default(),
        });
    }
    let listener = listen().await;
    let bind = listener.local_addr().expect("an address");
    let mut plan = stage.plan();
    plan.outbound.push(OutboundPlan {
        name: "out".into(),
        bind,
        protocol: WireProtocol::Http,
        services: vec![ServicePlan {
            subset: None,
            routes: None,
            retry,
            http2_upgrade: false,
            client_protocol: false,
            retry_budget,
            traffic: Default::default(),
            service: ServiceLabels::default(),
            port: 80,
            protocol: WireProtocol::Http,
            authorities: vec!["a".into()],
            endpoints,
        }],
        otherwise: PassthroughMode::NoRoute,
        by_name: false,
    });
    stage.serve(listener, &plan, &[], &[ListenerId(1)]);
    bind
}

async fn status(bind: SocketAddr) -> String {
    let mut client = TcpStream::connect(bind).await.expect("connected");
    client.write_all(POST).await.expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("read");
    answer.get(9..12).unwrap_or_default().to_owned()
}

#[test]
fn what_nobody_processed_goes_to_another_endpoint() {
    use Endpoint::{Absent, Answers, ReadsAndCloses};
    let usual = RetryPolicy::default;
    let policy = |on| RetryPolicy { on, ..usual() };
    let none = RetryBudget {
        percent_thousandths: 0,
        min: 0,
    };
    let table: [(&[Endpoint], RetryPolicy, RetryBudget, &str); 8] = [
        (
            &[Absent, Answers(200)],
            usual(),
            RetryBudget::default(),
            "200",
        ),
        (
            &[Absent, Absent, Answers(200)],
            usual(),
            RetryBudget::default(),
            "200",
        ),
        (&[Absent, Absent], usual(), RetryBudget::default(), "503"),
        // A request that may have had an effect is repeated only if a policy allows it.
        (
            &[ReadsAndCloses, ReadsAndCloses],
            usual(),
            RetryBudget::default(),
            "503",
        ),
        (
            &[ReadsAndCloses, Answers(200)],
            policy(Conditions::RESET),
            RetryBudget::default(),
            "200",
        ),
        (
            &[Answers(503), Answers(503)],
            usual(),
            RetryBudget::default(),
            "503",
        ),
        (
            &[Answers(503), Answers(200)],
            policy(Conditions::GATEWAY_ERROR),
            RetryBudget::default(),
            "200",
        ),
        (&[Absent, Absent], usual(), none, "503"),
    ];
    for (kinds, retry, budget, expected) in table {
        play(|| async {
            let stage = Stage::new(Settings::default());
            let bind = listener(&stage, kinds, retry.clone(), budget).await;
            for _ in 0..20 {
                assert_eq!(status(bind).await, expected, "{kinds:?} {retry:?}");
            }
            let worker = Rc::clone(&stage.worker);
            let retries = worker.counters.retries.get();
            let over = worker.counters.retries_over_budget.get();
            match (expected, budget.min) {
                ("200", _) => assert!(retries > 0, "somebody was tried in vain: {kinds:?}"),
                (_, 0) => assert_eq!((retries, over), (0, 20)),
                _ => assert_eq!(over, 0),
            }
            let account = worker.seat.destination("", 80);
            assert_eq!((account.active(), account.retrying()), (0, 0));
        });
    }
}
