//! Limits that Envoy's reference service counts, with a Redis of its own: `github.com/envoyproxy/ratelimit`, whose program `go install`
//! calls `service_cmd` (`RATELIMIT`, else `ratelimit` on the path), and `redis-server` (`REDIS`, else on the path). Without them the
//! test says so and is skipped.

use std::net::TcpStream;
use std::path::Path;

use voile_testkit::prerequisites::{Prerequisite, peer};

use super::global::Place;
use super::{ask, field};
use crate::mesh::{Answer, Process, free_port, local, wait_until};

/// Limits of the service. Its windows begin at multiples of their length: only a year's does not end while a
/// test runs.
const LIMITS: &str = "domain: shop\ndescriptors:\n\
    - {key: all, value: together, rate_limit: {unit: year, requests_per_unit: 6}}\n\
    - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}\n\
    - {key: costly, rate_limit: {unit: year, requests_per_unit: 6}}\n\
    - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}\n\
    - {key: user, value: root, rate_limit: {unlimited: true}}\n";

/// The service and its database.
struct Reference {
    redis: Process,
    _service: Process,
    _folder: tempfile::TempDir,
    place: Place,
}

impl Reference {
    fn start() -> Option<Self> {
        let service = peer(Prerequisite::Ratelimit, "RATELIMIT", "ratelimit")?;
        let redis = peer(Prerequisite::Redis, "REDIS", "redis-server")?;
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("config");
        std::fs::create_dir(&config).expect("a folder");
        std::fs::write(config.join("shop.yaml"), LIMITS).expect("written");
        let store = free_port();
        let redis = Process::start_other("redis", &redis, |redis| {
            redis.args(["--bind", "127.0.0.1", "--port", &store.to_string()]);
            redis.args(["--save", "", "--appendonly", "no", "--dir"]);
            redis.arg(folder.path());
        });
        wait_until("Redis", || TcpStream::connect(local(store)).is_ok());
        let at = free_port();
        let service = serve(&service, folder.path(), store, at);
        wait_until("the service", || TcpStream::connect(local(at)).is_ok());
        Some(Self {
            redis,
            _service: service,
            _folder: folder,
            place: Place::of(local(at)),
        })
    }
}

fn serve(program: &Path, folder: &Path, store: u16, at: u16) -> Process {
    Process::start_other("ratelimit", program, |service| {
        let store = format!("127.0.0.1:{store}");
        service.envs([("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", store.as_str())]);
        for (name, port) in [("", free_port()), ("DEBUG_", free_port()), ("GRPC_", at)] {
            service.env(format!("{name}HOST"), "127.0.0.1");
            service.env(format!("{name}PORT"), port.to_string());
        }
        service.env("RUNTIME_ROOT", folder);
        service.envs([
            ("RUNTIME_SUBDIRECTORY", ""),
            ("RUNTIME_WATCH_ROOT", "false"),
        ]);
        service.envs([
            ("USE_STATSD", "false"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ]);
    })
}

/// The seconds that a field says.
fn seconds(answer: &Answer, name: &str) -> u64 {
    let said = field(answer, name);
    let number = said.parse();
    number.unwrap_or_else(|error| panic!("{name} {said:?}: {error}"))
}

#[test]
fn envoys_reference_service_counts_for_a_gateway_and_a_sidecar_together() {
    let Some(mut reference) = Reference::start() else {
        return;
    };
    let rule = |name: &str, more: &str, descriptors: &str| {
        format!(
            "{{name: {name}, match: [{{uri: {{prefix: /{name}}}}}], {more}descriptors: [{descriptors}]}}"
        )
    };
    let together = "{entries: [{key: all, value: together}]}";
    let user = "{entries: [{key: user, header: x-user}]}";
    let unknown = "{entries: [{key: nobody, value: knows}]}";
    let inner = [
        rule("mesh", "", together),
        rule("user", "", &format!("{unknown}, {user}")),
        rule(
            "costly",
            "hits: 3, ",
            "{entries: [{key: costly, value: sum}]}",
        ),
        rule("shadow", "", "{entries: [{key: shadow, value: sum}]}"),
        rule("unknown", "", unknown),
    ];
    let edge = rule("edge", "", together);
    let gate = reference
        .place
        .at_gateway_and_server(&edge, &inner.join(", "));
    let mesh = &gate.mesh;
    for left in [5, 3, 1] {
        let outside = gate.ask("GET", "shop.example", "/edge", "");
        let inside = ask(mesh, "/mesh", "");
        for (answer, name, left) in [(&outside, "edge", left), (&inside, "mesh", left - 1)] {
            assert_eq!(answer.status, 200, "{}", answer.head);
            let policy = format!("\"{name}\";q=6;w=31536000");
            assert_eq!(field(answer, "ratelimit-policy"), policy);
            let state = field(answer, "ratelimit");
            let expected = format!("\"{name}\";r={left};t=");
            assert!(state.starts_with(&expected), "{state}");
            // Header that the service itself adds for clients.
            assert_eq!(field(answer, "ratelimit-remaining"), left.to_string());
        }
    }
    let refused = [
        gate.ask("GET", "shop.example", "/edge", ""),
        ask(mesh, "/mesh", ""),
    ];
    for answer in &refused {
        assert_eq!(answer.status, 429, "{}", answer.head);
        let reset = seconds(answer, "retry-after");
        assert!((1..=31_536_000).contains(&reset), "{reset}");
        assert!(
            seconds(answer, "ratelimit-reset").abs_diff(reset) <= 5,
            "{}",
            answer.head
        );
    }
    // Each rule limits only the requests that its own descriptors match.
    let statuses = |path: &str, fields: &str, times: usize| {
        let all = (0..times).map(|_| ask(mesh, path, fields).status);
        all.collect::<Vec<_>>()
    };
    assert_eq!(statuses("/user", "x-user: a\r\n", 3), [200, 200, 429]);
    assert_eq!(statuses("/user", "x-user: b\r\n", 3), [200, 200, 429]);
    assert_eq!(statuses("/user", "x-user: root\r\n", 4), [200; 4]);
    assert_eq!(statuses("/costly", "", 3), [200, 200, 429]);
    assert_eq!(statuses("/shadow", "", 3), [200; 3]);
    assert_eq!(statuses("/unknown", "", 3), [200; 3]);
    // A service that cannot count returns no decision.
    reference.redis.kill();
    assert_eq!(statuses("/user", "x-user: c\r\n", 1), [500]);
    assert_eq!(statuses("/other", "", 1), [200]);
}
