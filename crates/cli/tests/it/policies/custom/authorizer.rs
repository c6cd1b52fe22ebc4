//! An external authorizer over gRPC for tests: tonic's server and Envoy's service. It decides by the request's `x-ask`
//! or path and keeps every question. It shares no code with the proxy but the messages.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use voile_proto::external_authorization as wire;
use voile_testkit::generated::authorization_service::authorization_server::{
    Authorization, AuthorizationServer,
};
use wire::check_response::HttpResponse;
use wire::{AttributeContext, CheckRequest, CheckResponse, HeaderValue, HeaderValueOption};

use crate::mesh::wait_until;

/// See the module. It lives as long as the test process.
#[derive(Clone, Default)]
pub(crate) struct Authorizer {
    asked: Arc<Mutex<Vec<AttributeContext>>>,
    /// Questions whose proxy no longer waits.
    given_up: Arc<Mutex<u32>>,
    /// If true, opaque connections are denied. They have no header that could carry a wish.
    closed: Arc<AtomicBool>,
    at: Option<SocketAddr>,
}

impl Authorizer {
    pub(crate) fn start(listener: TcpListener) -> Self {
        let authorizer = Self {
            at: listener.local_addr().ok(),
            ..Self::default()
        };
        let service = AuthorizationServer::new(authorizer.clone());
        serve(listener, move |server, incoming| async move {
            let served = server.serve_with_incoming(service, incoming);
            served.await.expect("served");
        });
        authorizer
    }

    /// Address of the authorizer.
    pub(crate) fn address(&self) -> SocketAddr {
        self.at.expect("it was started")
    }

    /// Questions so far.
    pub(crate) fn asked(&self) -> Vec<AttributeContext> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.clone()
    }

    /// The questions since this was called last.
    pub(crate) fn take(&self) -> Vec<AttributeContext> {
        std::mem::take(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The last question about a request for this path.
    pub(crate) fn about(&self, path: &str) -> AttributeContext {
        let asked = self.asked();
        let found = asked.iter().rev().find(|asked| http(asked).path == path);
        found.expect("asked about it").clone()
    }

    /// Says no to opaque connections from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn wait_given_up(&self) {
        wait_until("the question is taken back", || {
            *self.given_up.lock().unwrap_or_else(PoisonError::into_inner) > 0
        });
    }
}

/// Serves gRPC on a thread of its own, as long as the test process lives.
pub(crate) fn serve<F: Future<Output = ()>>(
    listener: TcpListener,
    serving: impl FnOnce(tonic::transport::Server, TcpIncoming) -> F + Send + 'static,
) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async move {
            listener.set_nonblocking(true).expect("a listener");
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            serving(tonic::transport::Server::builder(), incoming).await;
        });
    });
}

/// The request that a question is about.
pub(crate) fn http(asked: &AttributeContext) -> wire::HttpRequest {
    let request = asked.request.clone().unwrap_or_default();
    request.http.unwrap_or_default()
}

/// Counts a question that is dropped before it was answered.
struct Waiting(Arc<Mutex<u32>>, bool);

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.1 {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
    }
}

#[tonic::async_trait]
impl Authorization for Authorizer {
    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let attributes = request.into_inner().attributes.unwrap_or_default();
        let http = http(&attributes);
        let closed = attributes.request.is_none() && self.closed.load(Ordering::SeqCst);
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(attributes);
        let wish = http.headers.get("x-ask").cloned();
        let wish = wish.unwrap_or_else(|| http.path.trim_start_matches('/').to_owned());
        let wish = if closed { "deny".to_owned() } else { wish };
        if wish == "never" {
            let mut waiting = Waiting(Arc::clone(&self.given_up), false);
            tokio::time::sleep(Duration::from_secs(600)).await;
            waiting.1 = true;
        }
        answer(&wish).map(Response::new)
    }
}

fn field(key: &str, value: &str) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
            raw_value: Vec::new(),
        }),
        ..HeaderValueOption::default()
    }
}

fn no(status: i32, headers: Vec<HeaderValueOption>, body: String) -> CheckResponse {
    CheckResponse {
        status: Some(wire::Status {
            code: 7,
            message: "no".to_owned(),
        }),
        http_response: Some(HttpResponse::DeniedResponse(wire::DeniedHttpResponse {
            status: (status != 0).then_some(wire::HttpStatus { code: status }),
            headers,
            body,
        })),
    }
}

fn yes(ok: wire::OkHttpResponse) -> CheckResponse {
    CheckResponse {
        status: None,
        http_response: Some(HttpResponse::OkResponse(ok)),
    }
}

fn writes(key: &str, value: &str) -> CheckResponse {
    yes(wire::OkHttpResponse {
        headers: vec![field(key, value)],
        ..wire::OkHttpResponse::default()
    })
}

/// Answer to a wish, which the `x-ask` header or else the path carries.
fn answer(wish: &str) -> Result<CheckResponse, Status> {
    if let Some((name, value)) = wish
        .strip_prefix("write ")
        .and_then(|it| it.split_once('='))
    {
        return Ok(writes(name, value));
    }
    let wish = wish.split('?').next().unwrap_or_default();
    Ok(match wish {
        "deny" => no(0, Vec::new(), String::new()),
        "page" => no(
            302,
            vec![
                field("location", "https://login.test/"),
                field("Set-Cookie", "a=b"),
                field("content-length", "999"),
                field("x-split", "a\r\nx-forged: 1"),
            ],
            "<p>log in</p>".to_owned(),
        ),
        "change" => changes(),
        "fail" => return Err(Status::unavailable("not today")),
        "undecided" => CheckResponse {
            http_response: Some(HttpResponse::ErrorResponse(
                wire::DeniedHttpResponse::default(),
            )),
            ..no(0, Vec::new(), String::new())
        },
        "flood" => no(403, Vec::new(), "x".repeat(3_000_000)),
        "split" => writes("x-user", "a\r\nx-admin: 1"),
        "pseudo" => writes(":path", "/admin"),
        "host" => writes("Host", "elsewhere"),
        "hop" => writes("Transfer-Encoding", "chunked"),
        "length" => writes("content-length", "0"),
        "identity" => writes("x-forwarded-client-cert", "URI=spiffe://cluster.local/x"),
        "blank" => writes("x user", "a"),
        "swell" => writes("x-user", &"a".repeat(40_000)),
        _ => CheckResponse::default(),
    })
}

/// One change of each kind.
fn changes() -> CheckResponse {
    let append = |mut option: HeaderValueOption, append: bool| {
        option.append = Some(append);
        option
    };
    yes(wire::OkHttpResponse {
        headers: vec![
            field("X-User", "alice"),
            append(field("x-group", "two"), true),
            append(field("x-nobody", "lost"), true),
        ],
        headers_to_remove: vec![
            "Authorization".to_owned(),
            "host".to_owned(),
            ":path".to_owned(),
        ],
        response_headers_to_add: vec![
            field("x-seen", "yes"),
            append(field("content-type", "text/authorized"), false),
        ],
        query_parameters_to_set: vec![wire::QueryParameter {
            key: "who".to_owned(),
            value: "alice".to_owned(),
        }],
        query_parameters_to_remove: vec!["token".to_owned()],
    })
}
