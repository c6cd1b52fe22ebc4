//! Probes of containers under `voile up --isolation netns`: they pass a sidecar that takes mutual TLS only, decide who takes
//! traffic, and restart what hangs.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::process::Signal;
use rustls::sign::SingleCertAndKey;
use voile_testkit::TestAuthority;

use crate::mesh::{application, get, wait_until};
use crate::up::Up;
use crate::up::netns::{NOT_POSSIBLE, ask_inside, enters_namespaces, inside, is_refused, sidecars};

/// A server that is asked in all four ways, and its client, reached from outside.
const PROBED: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: probed, labels: {istio-injection: enabled}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: probed}
spec: {selector: {matchLabels: {app: server}}, mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: probed}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: probed, labels: {app: server}}
spec:
  containers:
  - name: app
    command: [sh, -c, 'rm -f out/dead; exec "$VOILE" echo --listen 0.0.0.0:8080']
    ports: [{name: health, containerPort: 8090}]
    startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}
    readinessProbe:
      httpGet: {path: /healthz, port: health, httpHeaders: [{name: X-Who, value: kubelet}]}
      periodSeconds: 1
      timeoutSeconds: 20
      failureThreshold: 1
    livenessProbe: {exec: {command: [test, "!", -e, out/dead]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 2}
  - name: side
    command: ["$(VOILE)", echo, --listen, "0.0.0.0:8081"]
    startupProbe: {httpGet: {path: /up, port: 8443, scheme: HTTPS}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 60}
    readinessProbe: {grpc: {port: 8081}, periodSeconds: 1, timeoutSeconds: 20}
---
apiVersion: v1
kind: Service
metadata: {name: client, namespace: probed}
spec: {type: LoadBalancer, selector: {app: client}, ports: [{name: http, port: 9000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: probed, labels: {app: client}}
spec:
  containers:
  - name: app
    command: ["$(VOILE)", echo, --listen, "0.0.0.0:9000", --call, "http://$(SERVER_SERVICE_HOST)/"]
"#;

fn probed(folder: &Path) {
    crate::up::rollout::make_outbox(folder);
    fs::write(folder.join("probed.yaml"), PROBED).expect("written");
}

/// Serves the health page inside the network of a process; its status is the stored one, 0 before the first
/// request.
fn health_page(pid: u32, status: &Arc<AtomicU16>) {
    let listener = inside(pid, || TcpListener::bind("0.0.0.0:8090")).expect("bound");
    let status = Arc::clone(status);
    application::serve(listener, move |stream| {
        use std::io::Write as _;
        let mut reader = std::io::BufReader::new(stream);
        if let Some((head, _)) = application::read_request(&mut reader) {
            let known = head.starts_with("GET /healthz HTTP/1.1\r\n")
                && head.contains("X-Who: kubelet\r\n")
                && head.contains("User-Agent: kube-probe/");
            let status = if known {
                status.load(Ordering::Relaxed)
            } else {
                404
            };
            let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
}

/// Serves another page by TLS, with a certificate that this machine does not trust.
fn secure_page(pid: u32) {
    let listener = inside(pid, || TcpListener::bind("0.0.0.0:8443")).expect("bound");
    let authority = TestAuthority::new();
    let certificate = authority.expired("elsewhere", "nobody");
    let resolver = SingleCertAndKey::from(Arc::clone(certificate.certified_key()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    let config = Arc::new(config);
    application::serve(listener, move |stream| {
        use std::io::Write as _;
        let connection = rustls::ServerConnection::new(Arc::clone(&config)).expect("made");
        let stream = rustls::StreamOwned::new(connection, stream);
        let mut reader = std::io::BufReader::new(stream);
        if let Some((head, _)) = application::read_request(&mut reader) {
            let good = head.starts_with("GET /up HTTP/1.1\r\n");
            let status = if good { 200 } else { 404 };
            let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
}

/// Asks the sidecar of the pod whose probe of that port and path has been told of, as a kubelet would on another machine:
/// from the network of the mesh, in plaintext.
fn kubelet(up: &Up, probe: &str, path: &str) -> Option<u16> {
    let said = up.text("err");
    let (before, _) = said.split_once(probe).expect("said before");
    let (_, address) = before.rsplit_once("http://").expect("a URL");
    let sidecar = SocketAddr::new(address.parse().expect("an address"), 15020);
    let family = up.family();
    let control = family
        .iter()
        .find(|line| line.contains(" control --config "));
    let control = control.and_then(|line| line.split(' ').next()?.parse().ok());
    let answer = ask_inside(control.expect("the control plane"), sidecar, path);
    answer.map(|(status, _)| status)
}

fn who_cannot_speak_mutual_tls_asks_the_sidecar(up: &Up, status: &AtomicU16) {
    let ask = |path: &str| kubelet(up, ":8090/healthz", path);
    for (path, expected) in [
        ("/app-health/app/readyz", 200),
        ("/app-health/app/startupz", 200),
        ("/app-health/side/readyz", 200),
        ("/app-health/side/startupz", 200),
        // Paths of a probe by `exec`, of an undeclared probe, or of no probe.
        ("/app-health/app/livez", 404),
        ("/app-health/side/livez", 404),
        ("/app-health/nobody/readyz", 404),
        ("/app-health/app/readyz/../livez", 404),
        ("/app-health/", 404),
    ] {
        assert_eq!(ask(path), Some(expected), "{path}");
    }
    status.store(418, Ordering::Relaxed);
    assert_eq!(ask("/app-health/app/readyz"), Some(418), "its own status");
    status.store(200, Ordering::Relaxed);
}

#[test]
fn probes_pass_strict_mutual_tls_decide_who_takes_traffic_and_restart_what_hangs() {
    if !enters_namespaces() {
        return;
    }
    let mut up = Up::start_as(probed, &["--isolation", "netns", "--quiet"], None);
    let mut server = None;
    wait_until(
        "the server's sidecar runs, or there are no namespaces",
        || {
            let found = sidecars(&up);
            server = found
                .iter()
                .find(|(pod, _)| pod.contains("server"))
                .map(|found| found.1);
            server.is_some() || up.text("err").contains(NOT_POSSIBLE)
        },
    );
    let Some(server) = server else {
        up.wait();
        assert!(is_refused(&up, None), "{}", up.text("err"));
        return;
    };
    let status = Arc::new(AtomicU16::new(503));
    health_page(server, &status);
    secure_page(server);
    wait_until("the mesh waits for who is not ready", || {
        up.text("err").contains("/healthz answers 503")
    });
    status.store(200, Ordering::Relaxed);
    let client: SocketAddr = up.ready()["probed/client"];
    who_cannot_speak_mutual_tls_asks_the_sidecar(&up, &status);
    let answered =
        |good: bool| move || get(client, "/").is_ok_and(|answer| (answer.status == 200) == good);
    wait_until("the server is called", answered(true));
    status.store(500, Ordering::Relaxed);
    wait_until(
        "endpoints that are not ready are not called",
        answered(false),
    );
    wait_until("that is said", || {
        up.text("err")
            .contains("probed.server-0.app is not ready: http://10.244.")
    });
    status.store(204, Ordering::Relaxed);
    wait_until("who is ready again is called again", answered(true));
    wait_until("that is said, too", || {
        up.text("err")
            .contains("probed.server-0.app is ready again")
    });
    fs::write(up.file("out/dead"), "").expect("written");
    wait_until("what hangs is restarted", || {
        let said = up.text("err");
        said.contains(
            "probed.server-0.app failed its liveness probe and is stopped: `test` ended with code 1",
        ) && said.contains("; starting it again at once")
    });
    wait_until("its cure is its restart", || !up.file("out/dead").exists());
    wait_until("the restarted server is called", answered(true));
    up.signal(Signal::TERM);
    assert!(up.wait().success(), "{}", up.text("err"));
}

/// A server whose probe is not rewritten, so it comes as a call without a sidecar does.
const NOT_REWRITTEN: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: probed, labels: {istio-injection: enabled}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: probed}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: probed}
spec: {type: LoadBalancer, selector: {app: server}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: server
  namespace: probed
  labels: {app: server}
  annotations: {sidecar.istio.io/rewriteAppHTTPProbers: "false"}
spec:
  containers:
  - name: app
    command: ["$(VOILE)", echo, --listen, "0.0.0.0:8080"]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, timeoutSeconds: 20}
"#;

#[test]
fn a_probe_that_is_not_rewritten_meets_mutual_tls_as_every_stranger_does() {
    let fill = |folder: &Path| {
        fs::write(folder.join("probed.yaml"), NOT_REWRITTEN).expect("written");
    };
    let mut up = Up::start_as(fill, &["--isolation", "netns", "--quiet"], None);
    wait_until("its probe fails, or there are no namespaces", || {
        let said = up.text("err");
        said.contains(NOT_POSSIBLE) || said.contains(":8080/healthz: ")
    });
    if is_refused(&up, None) {
        up.wait();
        return;
    }
    if enters_namespaces() {
        let asked = kubelet(&up, ":8080/healthz: ", "/app-health/app/readyz");
        assert_eq!(asked, Some(404), "nobody rewrote it");
    }
    up.edit("probed.yaml", "mode: STRICT", "mode: PERMISSIVE");
    let server = up.ready()["probed/server"];
    assert_eq!(get(server, "/").expect("an answer").status, 200);
    up.signal(Signal::TERM);
    assert!(up.wait().success(), "{}", up.text("err"));
}
