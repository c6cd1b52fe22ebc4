//! The webhook server over real sockets: TLS, limits, and what an API server is answered.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use voile_control::RestedConfiguration;
use voile_kubernetes::inject::InjectorOptions;
use voile_kubernetes::webhooks::{
    InjectionSettings, MAX_BODY_BYTES, MAX_CONNECTIONS, MAX_VALIDATED_BODIES, MAX_VALIDATED_VALUES,
    MAX_VALUES, Validator, serve,
};
use voile_model::SourceFile;
use voile_model::mesh::MeshConfig;
use voile_testkit::cluster::{ApiServer, wait_for};
use voile_testkit::{TestAuthority, hostile_client_config, hostile_server_config};

/// No read of a test takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    client: Arc<ClientConfig>,
    /// The authority of its certificate.
    pub(crate) root_pem: String,
    settings: watch::Sender<Arc<InjectionSettings>>,
    configurations: watch::Sender<Arc<RestedConfiguration>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<std::io::Result<()>>>,
}

impl Server {
    fn start() -> Self {
        Self::beside(&[])
    }

    /// One that knows these resources.
    pub(crate) fn beside(files: &[SourceFile]) -> Self {
        let (configurations, configuration) = watch::channel(configuration_of(files));
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        let authority = TestAuthority::new();
        let certificate = authority.with_names(&[], &["localhost"]);
        let tls = hostile_server_config(&certificate);
        let (settings, receiver) = watch::channel(settings("voile:1"));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            let validator = Validator::new(configuration);
            runtime.block_on(serve(listener, tls, receiver, validator, async {
                let _ = stopped.await;
            }))
        });
        Self {
            address,
            client: hostile_client_config(None),
            root_pem: authority.authority().root_pem().to_owned(),
            settings,
            configurations,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Puts other resources in force.
    pub(crate) fn configure(&self, files: &[SourceFile]) {
        self.configurations.send_replace(configuration_of(files));
    }

    pub(crate) fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::clone(&self.client), name).expect("TLS");
        let stream = TcpStream::connect(self.address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("open");
        StreamOwned::new(connection, stream)
    }

    /// Sends a request on a connection of its own; returns the status and the body.
    pub(crate) fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String) {
        exchange(&mut self.connect(), method, path, kind, body)
    }

    pub(crate) fn review(&self, path: &str, review: &Value) -> Value {
        let body = review.to_string();
        let (status, body) = self.ask("POST", path, "application/json", body.as_bytes());
        assert_eq!(status, 200, "{body}");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["kind"], "AdmissionReview");
        answer["response"].clone()
    }

    pub(crate) fn stop(mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().expect("running").join();
        ended.expect("no panic").expect("served");
    }
}

fn configuration_of(files: &[SourceFile]) -> Arc<RestedConfiguration> {
    let (mesh, problems) = voile_model::check(files, None);
    assert_eq!(problems, []);
    Arc::new(RestedConfiguration {
        mesh: mesh.into(),
        ..RestedConfiguration::default()
    })
}

fn exchange(
    stream: &mut (impl Read + Write),
    method: &str,
    path: &str,
    kind: &str,
    body: &[u8],
) -> (u16, String) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: istiod\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    // A server that refuses a body may close before it has read all of it.
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
    let mut answer = Vec::new();
    let mut bytes = [0; 16 * 1024];
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        if let Some((head, rest)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.parse::<usize>().ok())?
            });
            if length.is_none_or(|length| rest.len() >= length) {
                let status = head.split(' ').nth(1).expect("a status");
                return (status.parse().expect("a number"), rest.to_owned());
            }
        }
        match stream.read(&mut bytes) {
            Ok(count @ 1..) => answer.extend_from_slice(&bytes[..count]),
            end => panic!("{end:?} after {text:?}"),
        }
    }
}

fn settings(image: &str) -> Arc<InjectionSettings> {
    Arc::new(InjectionSettings {
        options: InjectorOptions {
            image: image.to_owned(),
            ..InjectorOptions::default()
        },
        mesh: Arc::new(MeshConfig::default()),
    })
}

fn review(object: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5",
            "kind": {"group": "", "version": "v1", "kind": object["kind"]},
            "namespace": "shop",
            "operation": "CREATE",
            "object": object,
        },
    })
}

fn pod(annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "cart-", "annotations": annotations},
        "spec": {"containers": [{"name": "app", "image": "cart:1"}]},
    })
}

/// The image of the injected proxy, by the patch of a response.
fn injected_image(pod: &Value, response: &Value) -> String {
    assert_eq!(response["allowed"], true, "{response}");
    assert_eq!(response["patchType"], "JSONPatch");
    assert_eq!(response["uid"], "705ab4f5");
    let patch = response["patch"].as_str().expect("a patch");
    let patch = STANDARD.decode(patch).expect("base64");
    let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("a patch");
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).expect("a patch that fits");
    let proxy = &pod["spec"]["initContainers"][1];
    assert_eq!(proxy["name"], "istio-proxy");
    proxy["image"].as_str().expect("an image").to_owned()
}

#[test]
fn a_review_is_answered_by_the_settings_of_its_time() {
    let server = Server::start();
    let plain = pod(&json!({}));
    let response = server.review("/inject", &review(&plain));
    assert_eq!(injected_image(&plain, &response), "voile:1");
    assert_eq!(response["warnings"], Value::Null);
    server.settings.send_replace(settings("voile:2"));
    let response = server.review("/inject/cluster/east", &review(&plain));
    assert_eq!(injected_image(&plain, &response), "voile:2");
    let warned = pod(&json!({"sidecar.istio.io/proxyCpu": "1"}));
    let response = server.review("/inject/", &review(&warned));
    let warning = response["warnings"][0].as_str().expect("a warning");
    assert!(
        warning.contains("did you mean `sidecar.istio.io/proxyCPU`?"),
        "{warning}"
    );
    server.stop();
}

#[test]
fn pods_that_need_no_proxy_pass_and_unreadable_ones_are_refused() {
    let server = Server::start();
    for (what, object) in [
        (
            "a Pod that refuses",
            pod(&json!({"sidecar.istio.io/inject": "false"})),
        ),
        ("no Pod", json!({"kind": "Service", "spec": {}})),
    ] {
        let response = server.review("/inject", &review(&object));
        assert_eq!(
            response,
            json!({"uid": "705ab4f5", "allowed": true}),
            "{what}"
        );
    }
    let no_containers = json!({"kind": "Pod", "metadata": {}, "spec": {}});
    let bad = pod(&json!({"sidecar.istio.io/logLevel": "loud"}));
    let mut old = review(&bad);
    old["apiVersion"] = "admission.k8s.io/v1beta1".into();
    for (review, expected) in [
        (review(&bad), "`loud` is not allowed"),
        (review(&no_containers), "no `spec.containers`"),
        (old, "v1beta1"),
        (
            json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}),
            "request.uid",
        ),
        (json!(7), "instead of AdmissionReview"),
    ] {
        let response = server.review("/inject", &review);
        assert_eq!(response["allowed"], false, "{response}");
        let message = response["status"]["message"].as_str().expect("a reason");
        assert!(message.contains(expected), "{message}");
    }
    server.stop();
}

#[test]
fn requests_that_are_no_reviews_have_the_status_that_istio_answers() {
    let server = Server::start();
    let large = vec![b' '; MAX_BODY_BYTES + 1];
    // Each of these maps takes a hundred times its bytes once it is read.
    let maps = r#"{"":0},"#.repeat(MAX_VALIDATED_VALUES / 2);
    let many = format!("[{maps}0]").into_bytes();
    assert!(many.len() < MAX_BODY_BYTES);
    let json = "application/json";
    for (method, path, kind, body, status) in [
        ("GET", "/ready", "", &b""[..], 200),
        ("POST", "/ready", "", b"", 405),
        ("GET", "/inject", json, b"", 405),
        ("GET", "/", "", b"", 404),
        ("POST", "/injected", json, b"{}", 404),
        ("POST", "/inject", json, b"", 400),
        ("POST", "/inject", "text/plain", b"{}", 415),
        (
            "POST",
            "/inject",
            "application/json; charset=utf-8",
            b"{}",
            200,
        ),
        ("POST", "/inject", json, &large, 413),
        ("POST", "/inject", json, &many, 413),
        ("POST", "/validate", json, &many, 413),
    ] {
        let (found, body) = server.ask(method, path, kind, body);
        assert_eq!(found, status, "{method} {path}: {body}");
    }
    server.stop();
}

#[test]
fn a_connection_that_is_idle_makes_room_for_a_new_one() {
    let server = Server::start();
    let mut idle: Vec<_> = (0..MAX_CONNECTIONS)
        .map(|_| TcpStream::connect(server.address).expect("connected"))
        .collect();
    let (status, _) = server.ask("GET", "/ready", "", b"");
    assert_eq!(status, 200);
    let mut oldest = idle.swap_remove(0);
    oldest.set_read_timeout(Some(PATIENCE)).expect("open");
    assert_eq!(oldest.read(&mut [0]).expect("closed"), 0);
    server.stop();
}

#[test]
fn slow_bodies_of_other_resources_do_not_delay_pods() {
    let server = Server::start();
    let head = "POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
    let slow: Vec<_> = (0..MAX_VALIDATED_BODIES)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).expect("sent");
            // Its body is waited for.
            stream.read_exact(&mut [0; 25]).expect("continue");
            stream
        })
        .collect();
    let plain = pod(&json!({}));
    let response = server.review("/inject", &review(&plain));
    assert_eq!(injected_image(&plain, &response), "voile:1");
    drop(slow);
    server.stop();
}

#[test]
fn bodies_of_many_values_are_answered_one_after_another() {
    let server = Server::start();
    let mut large = pod(&json!({}));
    large["spec"]["nodeSelector"] = json!(vec![0; MAX_VALUES * 3 / 4]);
    let body = review(&large).to_string();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (status, answer) =
                    server.ask("POST", "/inject", "application/json", body.as_bytes());
                assert_eq!(status, 200, "{answer}");
            });
        }
    });
    server.stop();
}

#[test]
fn an_open_request_is_finished_when_the_server_stops() {
    let mut server = Server::start();
    let plain = pod(&json!({}));
    let body = review(&plain).to_string();
    let mut stream = server.connect();
    let head = format!(
        "POST /inject HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = [0; 25];
    stream.read_exact(&mut answer).expect("the body is wanted");
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    drop(server.stop.take());
    stream.write_all(body.as_bytes()).expect("sent");
    let mut answer = String::new();
    // The server closes the connection without TLS' farewell.
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("JSONPatch"), "{answer}");
    let ended = server.thread.take().expect("running").join();
    ended.expect("no panic").expect("served");
    TcpStream::connect(server.address).expect_err("nobody listens");
}

/// The webhook at a real API server, which also accepts all fields of the injected Pod.
#[test]
fn an_api_server_creates_pods_with_their_proxies() {
    let Some(cluster) = ApiServer::shared() else {
        return;
    };
    let server = Server::start();
    let namespace = format!("webhook-{}", server.address.port());
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [{
            "name": "namespace.sidecar-injector.istio.io",
            "clientConfig": {
                "url": format!("https://localhost:{}/inject", server.address.port()),
                "caBundle": STANDARD.encode(&server.root_pem),
            },
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    let named = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}});
    let apply = |object: &Value| cluster.apply(&object.to_string());
    let mut own = named("Namespace", &namespace);
    own["metadata"]["namespace"] = Value::Null;
    for object in [&own, &named("ServiceAccount", "default"), &webhook] {
        apply(object).expect("created");
    }
    let created = |name: &str, annotations: &Value| {
        let mut object = pod(annotations);
        object["metadata"] =
            json!({"name": name, "namespace": namespace, "annotations": annotations});
        apply(&object)?;
        let read = cluster.kubectl(&["get", "pod", "-n", &namespace, name, "-o", "json"])?;
        serde_json::from_str::<Value>(&read).map_err(|error| error.to_string())
    };
    // The API server takes a moment to obey a new webhook.
    let mut count = 0;
    let injected = wait_for("a Pod is injected", PATIENCE, || {
        count += 1;
        let pod = created(&format!("cart-{count}"), &json!({}))?;
        let has_proxy = pod["spec"]["initContainers"][1]["name"] == "istio-proxy";
        has_proxy
            .then_some(pod)
            .ok_or_else(|| "no proxy".to_owned())
    });
    let proxy = &injected["spec"]["initContainers"][1];
    assert_eq!(proxy["restartPolicy"], "Always");
    assert_eq!(proxy["securityContext"]["runAsUser"], 1337);
    let refused = created("refused", &json!({"sidecar.istio.io/logLevel": "loud"}));
    let said = refused.expect_err("refused");
    assert!(said.contains("denied the request: annotation"), "{said}");
    assert!(said.contains("`loud` is not allowed"), "{said}");
    let deleted = ["delete", "mutatingwebhookconfiguration", &namespace];
    cluster.kubectl(&deleted).expect("deleted");
    server.stop();
}
