//! A stock Envoy with many sets of policies at once: each set is a route, picked by a header, with its own RBAC rules. The
//! connection's addresses come by the PROXY protocol, the peer's identity by a header that becomes filter state, the
//! client's address by X-Forwarded-For.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use voile_envoy::{Layer, Peer, TokenRule, Translation, token_filter};
use voile_policy::authorization::{Action, Policy};

/// Far more than Envoy takes to start on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An Envoy that runs.
pub(crate) struct Envoy {
    child: Child,
    address: SocketAddr,
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
    let named = env::var_os("ENVOY").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let mut all = named
        .into_iter()
        .chain(env::split_paths(&path).map(|folder| folder.join("envoy")));
    all.find(|program| program.is_file())
}

const RBAC: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";

/// The rules of one set at one layer, as a route's own.
fn overrides(set: &[Policy], layer: Layer) -> Value {
    let translation = Translation {
        layer,
        peer: Peer::FilterState,
    };
    let mut filters = json!({});
    for (name, action) in [("deny", Action::Deny), ("allow", Action::Allow)] {
        let Some(rules) = translation.rules(set, &action, false) else {
            continue;
        };
        filters[name] = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBACPerRoute",
            "rbac": { "rules": rules },
        });
    }
    filters
}

fn route(name: &str, filters: &Value) -> Value {
    json!({
        "match": { "prefix": "/", "headers": [{ "name": "x-set", "string_match": { "exact": name } }] },
        "direct_response": { "status": 200 },
        "typed_per_filter_config": filters,
    })
}

fn configuration(sets: &[Vec<Policy>], keys: &str, admin: &Path) -> Value {
    let mut routes = Vec::new();
    for (number, set) in sets.iter().enumerate() {
        routes.push(route(&format!("h{number}"), &overrides(set, Layer::Http)));
        routes.push(route(&format!("t{number}"), &overrides(set, Layer::Tcp)));
    }
    let any_issuer = TokenRule {
        issuer: String::new(),
        audiences: Vec::new(),
        keys: keys.to_owned(),
        forward: true,
        space_delimited: Vec::new(),
    };
    let principal = json!({
        "object_key": "io.istio.peer_principal",
        "factory_key": "envoy.string",
        "format_string": {
            "text_format_source": { "inline_string": "%REQ(x-principal)%" },
            "omit_empty_values": true,
        },
        "skip_if_empty": true,
    });
    let state = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config",
        "on_request_headers": [principal],
    });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "test",
        "use_remote_address": true,
        "xff_num_trusted_hops": 1,
        "normalize_path": true,
        "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes }] },
        "http_filters": [
            { "name": "state", "typed_config": state },
            token_filter(&[any_issuer]),
            { "name": "deny", "typed_config": { "@type": RBAC } },
            { "name": "allow", "typed_config": { "@type": RBAC } },
            { "name": "router", "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" } },
        ],
    });
    let proxy =
        "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol";
    let local = json!({ "socket_address": { "address": "127.0.0.1", "port_value": 0 } });
    json!({
        "admin": { "address": local },
        "static_resources": { "listeners": [{
            "name": "in",
            "address": local,
            "listener_filters": [{ "name": "proxy", "typed_config": { "@type": proxy } }],
            "filter_chains": [{ "filters": [{ "name": "http", "typed_config": manager }] }],
        }] },
        "node": { "id": admin.display().to_string(), "cluster": "test" },
    })
}

/// What the admin page says, once it says anything.
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
    /// Starts it with these sets of policies and waits until it serves.
    pub(crate) fn start(program: &Path, sets: &[Vec<Policy>], keys: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (admin, file) = (
            folder.path().join("admin"),
            folder.path().join("envoy.json"),
        );
        let configuration = configuration(sets, keys, &admin).to_string();
        std::fs::write(&file, configuration).expect("written");
        let log = folder.path().join("log");
        let child = Command::new(program)
            .arg("-c")
            .arg(&file)
            .arg("--admin-address-path")
            .arg(&admin)
            .args(["--use-dynamic-base-id", "--concurrency", "1", "-l", "error"])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("Envoy starts");
        let mut envoy = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            folder,
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ended = envoy.child.try_wait().expect("a child");
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "Envoy: {}",
                said()
            );
            let listeners = asked(&admin, "/listeners").unwrap_or_default();
            let line = listeners.lines().find_map(|line| line.strip_prefix("in::"));
            if let Some(address) = line.and_then(|line| line.trim().parse().ok()) {
                envoy.address = address;
                return envoy;
            }
            std::thread::yield_now();
        }
    }

    /// A connection from an address of ours, as if from `client` to `destination`.
    pub(crate) fn connect(&self, from: IpAddr, client: IpAddr, destination: SocketAddr) -> Asking {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
            .expect("a socket");
        socket
            .bind(&SocketAddr::new(from, 0).into())
            .expect("an address of ours");
        socket.connect(&self.address.into()).expect("connected");
        let mut stream = TcpStream::from(socket);
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("an open socket");
        let (to, port) = (destination.ip(), destination.port());
        write!(stream, "PROXY TCP4 {client} {to} 4321 {port}\r\n").expect("sent");
        Asking(BufReader::new(stream))
    }
}

/// One connection with two requests at a time.
pub(crate) struct Asking(BufReader<TcpStream>);

impl Asking {
    /// Sends both, then reads both answers: Envoy hangs up on whoever has three requests under way.
    pub(crate) fn ask(&mut self, requests: &[String; 2]) -> [u16; 2] {
        let all = requests.concat();
        self.0.get_mut().write_all(all.as_bytes()).expect("sent");
        let statuses = [self.answer(), self.answer()];
        assert!(statuses[1] != 0, "Envoy hung up: {all}");
        statuses
    }

    /// A status; 0 when there is none.
    fn answer(&mut self) -> u16 {
        let mut status = String::new();
        self.0.read_line(&mut status).expect("an answer");
        let status = status.split(' ').nth(1).and_then(|word| word.parse().ok());
        let Some(status) = status else { return 0 };
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a head");
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("a body");
        status
    }
}
