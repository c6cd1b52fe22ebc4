//! A stock Envoy as a child process: it is given listeners and clusters, says on which ports it listens, and ends with the
//! test.

mod call;

use std::collections::BTreeMap;
use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use voile_testkit::prerequisites::{Prerequisite, peer, require};

pub(crate) use call::{Answer, Call, Certificates, Handshake};

/// Far more than Envoy takes to start on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An Envoy that runs.
pub(crate) struct Envoy {
    child: Child,
    listeners: BTreeMap<String, SocketAddr>,
    folder: tempfile::TempDir,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let ended = self.child.try_wait();
            let said = std::fs::read_to_string(self.folder.path().join("log"));
            eprintln!("Envoy {ended:?}: {}", said.unwrap_or_default());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `$ENVOY`, or `envoy` on the path.
pub(crate) fn found() -> Option<PathBuf> {
    peer(Prerequisite::Envoy, "ENVOY", "envoy")
}

/// A number by which a run is made larger.
pub(crate) fn number(name: &str, usual: usize) -> usize {
    let given = env::var(name).ok();
    given.and_then(|given| given.parse().ok()).unwrap_or(usual)
}

/// Returns true if this machine has `::1`.
pub(crate) fn has_ipv6() -> bool {
    require(Prerequisite::Ipv6, TcpListener::bind("[::1]:0")).is_some()
}

/// A port of the kernel's choice on loopback.
pub(crate) fn loopback(ipv6: bool) -> Value {
    let address = if ipv6 { "::1" } else { "127.0.0.1" };
    json!({ "socket_address": { "address": address, "port_value": 0 } })
}

/// An extension's configuration by its short type.
pub(crate) fn typed(name: &str, kind: &str, mut config: Value) -> Value {
    config["@type"] = json!(format!("type.googleapis.com/envoy.{kind}"));
    json!({ "name": name, "typed_config": config })
}

/// A listener called `plain4` with this connection manager; the PROXY protocol says who is calling.
pub(crate) fn plain_listener(manager: &Value) -> Value {
    let proxy = typed(
        "proxy",
        "extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
        json!({}),
    );
    json!({
        "name": "plain4",
        "address": loopback(false),
        "listener_filters": [proxy],
        "filter_chains": [{ "filters": [manager] }],
    })
}

/// Text of an admin page, once it answers.
fn asked(admin: &Path, page: &str) -> Option<String> {
    let address = std::fs::read_to_string(admin).ok()?;
    let mut stream = TcpStream::connect(address.trim()).ok()?;
    write!(
        stream,
        "GET {page} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

impl Envoy {
    /// Starts it with these listeners and clusters and waits until it listens.
    pub(crate) fn start(program: &Path, listeners: &[Value], clusters: &[Value]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let (admin, file, log) = (at("admin"), at("envoy.json"), at("log"));
        let configuration = json!({
            "admin": { "address": loopback(false) },
            "static_resources": { "listeners": listeners, "clusters": clusters },
            "node": { "id": "test", "cluster": "test" },
        });
        std::fs::write(&file, configuration.to_string()).expect("written");
        let child = Command::new(program)
            .arg("-c")
            .arg(&file)
            .arg("--admin-address-path")
            .arg(&admin)
            .args([
                "--use-dynamic-base-id",
                "--concurrency",
                "1",
                "-l",
                &env::var("VOILE_LOG").unwrap_or("error".into()),
            ])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("Envoy starts");
        let mut envoy = Self {
            child,
            listeners: BTreeMap::new(),
            folder,
        };
        let deadline = Instant::now() + PATIENCE;
        while envoy.listeners.len() < listeners.len() {
            let ended = envoy.child.try_wait().expect("a child");
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "Envoy: {}",
                said()
            );
            let page = asked(&admin, "/listeners").unwrap_or_default();
            let named = page.lines().filter_map(|line| {
                let (name, address) = line.split_once("::")?;
                Some((name.to_owned(), address.trim().parse().ok()?))
            });
            envoy.listeners = named.collect();
            std::thread::yield_now();
        }
        envoy
    }

    /// Address of a listener.
    pub(crate) fn at(&self, listener: &str) -> SocketAddr {
        self.listeners[listener]
    }
}
