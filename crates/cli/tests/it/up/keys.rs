//! `voile up --jwks-refresh`, `--jwks-ca` and `--jwks-block` do for its control plane what they do for `voile control`: keys come
//! over TLS that only the named authority certifies, come again when they turn, and from a blocked address never.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustls::{ServerConnection, StreamOwned};
use serde_json::json;
use voile_testkit::{ShownCertificate, TestAuthority, hostile_server_config};

use crate::mesh::issuer::Issuer;
use crate::mesh::{exchange, wait_until};
use crate::up::Up;

const ISSUER: &str = "https://issuer.example";

/// A published service that believes an issuer, whose keys are there.
fn mesh(uri: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: keys}}
spec: {{type: LoadBalancer, selector: {{app: web}}, ports: [{{name: http, port: 8080}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: keys, labels: {{app: web, sidecar.istio.io/inject: "true"}}}}
spec: {{containers: [{{name: app, command: ["$(VOILE)", echo, --listen, "$(POD_IP):18080"]}}]}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: web, namespace: keys}}
spec:
  workloadSelector: {{labels: {{app: web}}}}
  ingress: [{{port: {{number: 8080, protocol: HTTP, name: http}}, captureMode: NONE, defaultEndpoint: "0.0.0.0:18080"}}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: tokens, namespace: keys}}
spec: {{jwtRules: [{{issuer: "{ISSUER}", jwksUri: "{uri}"}}]}}
"#
    )
}

/// A key server over TLS, certified by this authority for `localhost`; what it says may be changed.
struct TlsKeys {
    address: SocketAddr,
    says: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl TlsKeys {
    fn start(authority: &TestAuthority, first: String) -> Self {
        let shown: ShownCertificate = authority.with_names(&[], &["localhost"]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let keys = Self {
            address: listener.local_addr().expect("an address"),
            says: Arc::new(Mutex::new(first)),
            asked: Arc::default(),
        };
        let (says, asked) = (Arc::clone(&keys.says), Arc::clone(&keys.asked));
        std::thread::spawn(move || {
            for tcp in listener.incoming().map_while(Result::ok) {
                asked.fetch_add(1, Ordering::SeqCst);
                let config = hostile_server_config(&shown);
                let connection = ServerConnection::new(config).expect("a server");
                let mut stream = StreamOwned::new(connection, tcp);
                let mut head = [0; 4096];
                let body = says.lock().expect("whole").clone();
                // A client that does not trust the certificate hangs up.
                if stream.read(&mut head).is_ok_and(|read| read > 0) {
                    let length = body.len();
                    let _ = write!(
                        stream,
                        "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                    );
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            }
        });
        keys
    }

    fn uri(&self) -> String {
        format!("https://localhost:{}/keys", self.address.port())
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn up(uri: &str, arguments: &[&str]) -> (Up, SocketAddr) {
    let fill = |folder: &Path| std::fs::write(folder.join("all.yaml"), mesh(uri)).expect("written");
    let mut up = Up::start(fill, arguments);
    let published = up.ready()["keys/web"];
    (up, published)
}

/// The status and the body of a request with this token.
fn bearer(to: SocketAddr, token: &str) -> (u16, String) {
    let head = format!(
        "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    exchange(to, head.as_bytes()).map_or((0, String::new()), |answer| {
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        (answer.status, body)
    })
}

#[test]
fn keys_come_over_tls_of_the_named_authority_and_turn_in_time() {
    let authority = TestAuthority::new();
    let (first, second) = (Issuer::new(ISSUER, "one"), Issuer::new(ISSUER, "two"));
    let server = TlsKeys::start(&authority, first.keys());
    let ca = authority.state().join("root-cert.pem");
    let ca = ca.display().to_string();
    let (_up, web) = up(
        &server.uri(),
        &["--jwks-ca", &ca, "--jwks-refresh", "200ms"],
    );
    let token = first.token("anna", json!({}));
    wait_until("the keys are here", || bearer(web, &token).0 == 200);
    *server.says.lock().expect("whole") = second.keys();
    wait_until("the keys turned", || bearer(web, &token).0 == 401);
    let token = second.token("anna", json!({}));
    wait_until("the new ones hold", || bearer(web, &token).0 == 200);
}

#[test]
fn a_key_server_of_an_unnamed_authority_is_not_believed() {
    let authority = TestAuthority::new();
    let issuer = Issuer::new(ISSUER, "one");
    let server = TlsKeys::start(&authority, issuer.keys());
    let (_up, web) = up(&server.uri(), &["--jwks-refresh", "200ms"]);
    // By the third fetch, keys from the first fetches would be in force.
    wait_until("it was asked again", || server.asked() > 2);
    let (status, why) = bearer(web, &issuer.token("anna", json!({})));
    assert_eq!((status, &*why), (401, "Jwks remote fetch is failed"));
}

#[test]
fn keys_are_never_fetched_from_a_blocked_address() {
    let authority = TestAuthority::new();
    let issuer = Issuer::new(ISSUER, "one");
    let server = TlsKeys::start(&authority, issuer.keys());
    let ca = authority.state().join("root-cert.pem");
    let ca = ca.display().to_string();
    let words = ["--jwks-ca", &*ca, "--jwks-refresh", "200ms"];
    let block = ["--jwks-block", "127.0.0.0/8", "--jwks-block", "::1"];
    let (up, web) = up(&server.uri(), &[&words[..], &block].concat());
    wait_until("it is said", || up.log("control").contains(&server.uri()));
    let (status, why) = bearer(web, &issuer.token("anna", json!({})));
    assert_eq!((status, &*why), (401, "Jwks remote fetch is failed"));
    assert_eq!(server.asked(), 0, "{}", up.log("control"));
}
