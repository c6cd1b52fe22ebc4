//! Tests of the pages of `examples/canary`, `routing`, `resilience`, `locality` and `rate-limits`: run their commands and make
//! the edits that they name while the mesh serves.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::mesh::{Process, get, series, wait_until};
use crate::up::{Up, example};

/// Requests that the sidecars of a workload took.
fn taken(up: &Up, workload: &str) -> u32 {
    let of = format!("destination_workload=\"{workload}\"");
    let mut all = 0.0;
    for (_, at) in up.pods().iter().filter(|(name, _)| name == workload) {
        // A pod that ends at this moment has no page any more.
        let Ok(page) = get(*at, "/metrics") else {
            continue;
        };
        let page = String::from_utf8_lossy(&page.body).into_owned();
        let lines = page.lines().filter(|line| {
            line.starts_with("istio_requests_total{")
                && line.contains("reporter=\"destination\"")
                && line.contains(&of)
        });
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        all += values.sum::<f64>();
    }
    all as u32
}

/// Returns true if the sidecar of a workload's pod has counted requests with all of these labels.
fn counted(up: &Up, workload: &str, labels: &[&str]) -> bool {
    let pods = up.pods().into_iter();
    let mut pages = pods.filter(|(name, _)| name == workload).map(|(_, at)| {
        let page = get(at, "/metrics");
        page.map_or_else(
            |_| String::new(),
            |page| String::from_utf8_lossy(&page.body).into_owned(),
        )
    });
    pages.any(|page| series(&page, "istio_requests_total", labels) > Some(0.0))
}

/// The status of a request; 0 without an answer.
fn status(at: SocketAddr) -> u16 {
    get(at, "/").map_or(0, |answer| answer.status)
}

/// Sends so many requests. Returns the number answered 200, and the number that each workload took
/// meanwhile.
fn asked<const N: usize>(
    up: &Up,
    at: SocketAddr,
    times: u32,
    workloads: [&str; N],
) -> (u32, [u32; N]) {
    let before = workloads.map(|workload| taken(up, workload));
    let good = (0..times).filter(|_| status(at) == 200).count() as u32;
    let after = workloads.map(|workload| taken(up, workload));
    // Another pod in the place of one begins at nothing.
    (
        good,
        std::array::from_fn(|n| after[n].saturating_sub(before[n])),
    )
}

/// Counts of `voile load` by status, with the page's options except the duration.
fn load(rate: u32, duration: &str, at: SocketAddr) -> BTreeMap<String, u64> {
    let output = Process::output(|voile| {
        voile.args(["load", "--json", "--rate", &rate.to_string()]);
        voile.args(["--duration", duration, &format!("http://{at}/")]);
    });
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let by_status = result["status"].as_object().expect("counts by status");
    let count = |(status, count): (&String, &serde_json::Value)| {
        (status.clone(), count.as_u64().unwrap_or_default())
    };
    by_status.iter().map(count).collect()
}

#[test]
fn the_canary_example_shares_requests_as_its_page_says_and_follows_its_edits() {
    let mut up = Up::start(|folder| example("canary", folder), &["--quiet"]);
    let published = up.ready();
    let door = published["canary/storefront"];
    let testers = published["canary/tester"];
    let both = ["reviews-v1", "reviews-v2"];
    assert_eq!(asked(&up, testers, 20, both), (20, [0, 20]));
    let answers = load(100, "3s", door);
    assert_eq!(answers.keys().collect::<Vec<_>>(), ["200"], "{answers:?}");
    let [old, new] = both.map(|workload| taken(&up, workload));
    // 300 requests, a tenth of them and five deviations; the testers' twenty were before.
    assert!((5..=60).contains(&(new - 20)), "{old} and {new}");
    // The load does not count requests in flight at its end.
    assert!(u64::from(old + new - 20) >= answers["200"]);

    let share =
        |version: &str, weight: u32| format!("subset: {version}\n          weight: {weight}\n");
    let weights = |up: &Up, version: &str, from: u32, to: u32| {
        up.edit("routes.yaml", &share(version, from), &share(version, to));
    };
    weights(&up, "v2", 10, 100);
    weights(&up, "v1", 90, 0);
    wait_until("all to go to v2", || {
        asked(&up, door, 20, both) == (20, [0, 20])
    });
    weights(&up, "v1", 0, 100);
    weights(&up, "v2", 100, 0);
    wait_until("all to go to v1", || {
        asked(&up, door, 20, both) == (20, [20, 0])
    });
    assert_eq!(asked(&up, testers, 10, both), (10, [0, 10]));

    up.edit("routes.yaml", &share("v1", 100), &share("v3", 100));
    wait_until("the mistake to be named with its place", || {
        let said = up.text("err");
        said.contains("routes.yaml:") && said.contains("v3")
    });
    assert_eq!(status(door), 200, "what was in force goes on for a while");
    wait_until("who would go there to be refused", || status(door) == 502);
    assert_eq!(status(testers), 200, "and no others");
    up.edit("routes.yaml", &share("v3", 100), &share("v2", 100));
    wait_until("it to be taken back", || {
        asked(&up, door, 10, both) == (10, [0, 10])
    });
    up.edit(
        "routes.yaml",
        "    - name: everybody\n",
        "    - name: everybody\n      retries: {attempts: 1, retryRemoteLocalities: true}\n",
    );
    wait_until("what is not there to be refused by name", || {
        up.text("err").contains("retryRemoteLocalities")
    });
    assert_eq!(asked(&up, door, 10, both), (10, [0, 10]));
}

/// A command of the page, run by a shell against what was published for its port; head and body.
fn run(command: &str, port: u16, at: SocketAddr) -> String {
    let here = command
        .replace(&format!("127.0.0.1:{port}"), &at.to_string())
        .replacen("curl ", "curl -s -i --max-time 20 ", 1);
    let ran = Command::new("sh").args(["-c", &here]).output();
    String::from_utf8_lossy(&ran.expect("a shell").stdout).replace('\r', "")
}

/// The command of a page that asks for this path.
pub(crate) fn command_for(example: &str, path: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let page = std::fs::read_to_string(page.join(example).join("README.md")).expect("its page");
    let mut commands = page.split('`').filter(|text| text.starts_with("curl "));
    let command = commands.find(|command| command.contains(path));
    command.expect("a command for it").to_owned()
}

/// Paths of the page's table, with the status, words that the answer has, and words that it has
/// not.
pub(crate) const ROUTED: [(&str, &str, &[&str], &[&str]); 6] = [
    (
        "/moved",
        "308",
        &["location: https://shop.example.com/moved/a?b=c"],
        &[],
    ),
    (
        "/hours",
        "200",
        &["\n\nopen from nine to five\n"],
        &["x-voile-echo"],
    ),
    (
        "/show",
        "200",
        &[
            "x-route: show",
            "GET /debug HTTP/1.1",
            "host: shop.internal",
            "x-shown-by: the route",
        ],
        &["x-secret"],
    ),
    ("/items", "200", &["GET /debug?item=7 HTTP/1.1"], &[]),
    ("/patience", "504", &[], &[]),
    (
        "/api",
        "200",
        &["access-control-allow-origin: https://www.example.com"],
        &[],
    ),
];

#[test]
fn the_routing_example_answers_as_its_page_says() {
    let mut up = Up::start(|folder| example("routing", folder), &["--quiet"]);
    let door = up.ready()["routing/door"];
    let ask = |path: &str| run(&command_for("routing", path), 30083, door);
    for (path, status, has, has_not) in ROUTED {
        let begun = Instant::now();
        let answer = ask(path);
        let lower = answer.to_lowercase();
        assert_eq!(answer.split(' ').nth(1), Some(status), "{path}: {answer}");
        for text in has {
            assert!(lower.contains(&text.to_lowercase()), "{text}: {answer}");
        }
        for text in has_not {
            assert!(!lower.contains(text), "{text}: {answer}");
        }
        let waited = begun.elapsed() >= Duration::from_millis(250);
        assert!(waited || path != "/patience", "it was not waited for");
    }
    let mut seen = BTreeMap::<String, u32>::new();
    wait_until("some trials to fail, and some not", || {
        let begun = Instant::now();
        let answer = ask("/trial");
        assert!(begun.elapsed() >= Duration::from_millis(500), "{answer}");
        let status = answer.split(' ').nth(1).unwrap_or_default();
        *seen.entry(status.to_owned()).or_default() += 1;
        seen.len() == 2
    });
    assert_eq!(seen.keys().collect::<Vec<_>>(), ["200", "503"]);
    // A delayed request may also have been aborted.
    for flag in ["response_flags=\"DI", "FI\"", "response_flags=\"UT\""] {
        let told = counted(&up, "door", &["reporter=\"source\"", flag]);
        assert!(told, "{flag}");
    }
    let answer = ask("/rehearsal").to_lowercase();
    assert!(answer.contains("x-voile-echo: shop-v1-0"), "{answer}");
    wait_until("the copy to come", || taken(&up, "shop-v2") == 1);

    up.edit("routes.yaml", "redirectCode: 308", "redirectCode: 200");
    wait_until("what cannot work to be named with its place", || {
        let said = up.text("err");
        said.contains("routes.yaml:") && said.contains("redirectCode")
    });
    assert!(ask("/moved").starts_with("HTTP/1.1 308 "));
    up.edit("routes.yaml", "redirectCode: 200", "redirectCode: 301");
    wait_until("the new route", || {
        ask("/moved").starts_with("HTTP/1.1 301 ")
    });
}

/// Longest wait until an endpoint that fails half of its requests fails two in a row. Fewer than one run in 100,000
/// takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn the_resilience_example_puts_out_who_answers_badly_as_its_page_says() {
    let mut up = Up::start(|folder| example("resilience", folder), &["--quiet"]);
    let door = up.ready()["resilience/storefront"];
    let ejected = |up: &Up| {
        let log = up.log("resilience.storefront-0.sidecar");
        log.contains("outlier ejected")
    };
    // After a 503 the endpoint gets no request for five seconds. Then it fails half of its requests.
    let begun = Instant::now();
    while !ejected(&up) {
        status(door);
        assert!(
            begun.elapsed() < PATIENCE,
            "who answers badly is not put out"
        );
    }
    let answers = load(50, "4s", door);
    let failed: u64 = answers
        .iter()
        .filter(|(status, _)| *status != "200")
        .map(|(_, n)| n)
        .sum();
    assert!(failed <= 6, "nearly all succeed: {answers:?}");
    let (_, at) = up
        .pods()
        .into_iter()
        .find(|(name, _)| name == "storefront")
        .expect("its sidecar");
    let page = get(at, "/metrics").expect("metrics");
    let page = String::from_utf8_lossy(&page.body).into_owned();
    let count = series(&page, "voile_outliers_ejected_total", &[]);
    assert!(count >= Some(1.0), "{count:?}");
    assert!(page.contains("\nvoile_outliers_out{"), "{page}");

    let outliers = "    outlierDetection:\n      consecutive5xxErrors: 2\n      interval: 5s\n      baseEjectionTime: 10s\n      maxEjectionPercent: 50\n";
    up.edit(
        "rule.yaml",
        outliers,
        "    loadBalancer: {simple: ROUND_ROBIN}\n",
    );
    wait_until("a sixth of all to fail", || {
        let failed = (0..120).filter(|_| status(door) == 502).count();
        (8..=34).contains(&failed)
    });
    up.edit("rule.yaml", "http2MaxRequests: 100", "http2MaxRequests: 1");
    // Of both versions: each Deployment names its pod once.
    for _ in 0..2 {
        up.edit(
            "reviews.yaml",
            "            - $(POD_NAME)\n",
            "            - $(POD_NAME)  # slow\n            - --delay\n            - 100ms\n",
        );
    }
    wait_until("what is too much to be refused", || {
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| status(door))));
        });
        let labels = ["reporter=\"source\"", "response_flags=\"UO\""];
        counted(&up, "storefront", &labels)
    });
}

#[test]
fn the_locality_example_keeps_to_its_zone_and_follows_the_edits_of_its_page() {
    let mut up = Up::start(|folder| example("locality", folder), &["--quiet"]);
    let door = up.ready()["locality/storefront"];
    let both = ["reviews-v1", "reviews-v2"];
    assert_eq!(asked(&up, door, 50, both), (50, [50, 0]));

    let name = "            - $(POD_NAME)\n";
    let ill = "            - $(POD_NAME)  # ill\n            - --query\n            - status=503\n";
    up.edit("reviews.yaml", name, ill);
    wait_until("the other zone to take everything", || {
        asked(&up, door, 20, both) == (20, [0, 20])
    });
    up.edit("reviews.yaml", ill, name);
    wait_until("its own zone to be asked again", || {
        asked(&up, door, 20, both) == (20, [20, 0])
    });

    let policy = "  trafficPolicy:\n";
    let with =
        |said: &str| format!("  trafficPolicy:\n    loadBalancer: {{localityLbSetting: {said}}}\n");
    let shares =
        with("{distribute: [{from: \"eu/eu-a/*\", to: {\"eu/eu-a/*\": 80, \"eu/eu-b/*\": 20}}]}");
    up.edit("rule.yaml", policy, &shares);
    wait_until("a fifth to go to the other zone", || {
        let (good, [near, far]) = asked(&up, door, 60, both);
        good == 60 && near + far == 60 && (3..=27).contains(&far)
    });
    // Endpoints with the storefront's version come first. When the storefront's version changes, so
    // do those endpoints.
    up.edit("rule.yaml", &shares, &with("{failoverPriority: [version]}"));
    wait_until("who has the same version to be asked", || {
        asked(&up, door, 20, both) == (20, [20, 0])
    });
    let of_template = "        app: storefront\n        version: v1\n        istio-locality";
    let other = of_template.replace("v1", "v2");
    up.edit(
        "storefront.yaml",
        "      version: v1\n  template:",
        "      version: v2\n  template:",
    );
    up.edit("storefront.yaml", of_template, &other);
    wait_until("who has the other version to be asked", || {
        asked(&up, door, 20, both) == (20, [0, 20])
    });
    up.edit(
        "rule.yaml",
        &with("{failoverPriority: [version]}"),
        &with("{enabled: false}"),
    );
    wait_until("both zones to be asked alike", || {
        let (good, [near, far]) = asked(&up, door, 60, both);
        good == 60 && near >= 10 && far >= 10
    });
    let rest = "    outlierDetection:\n      consecutive5xxErrors: 1\n      baseEjectionTime: 10s\n      maxEjectionPercent: 100\n";
    let whole = with("{enabled: false}") + rest;
    up.edit("rule.yaml", &whole, "  trafficPolicy: {}\n");
    let selector = "  selector:\n    app: reviews\n  ports:";
    let near = format!("  trafficDistribution: PreferClose\n{selector}");
    up.edit("reviews.yaml", selector, &near);
    wait_until("the near zone alone by the Service's word", || {
        asked(&up, door, 20, both) == (20, [20, 0])
    });
}

#[test]
fn the_rate_limits_example_lets_through_what_its_page_says() {
    let mut up = Up::start(|folder| example("rate-limits", folder), &["--quiet"]);
    let published = up.ready();
    let (storefront, robot) = (published["limits/storefront"], published["limits/robot"]);
    let (few, many) = std::thread::scope(|scope| {
        let few = scope.spawn(|| load(5, "4s", storefront));
        let many = load(100, "4s", robot);
        (few.join().expect("no panic"), many)
    });
    assert_eq!(few.keys().collect::<Vec<_>>(), ["200"], "all pass: {few:?}");
    // Twenty at once and ten a second, and some more while a slow machine sends late.
    assert!((40..=80).contains(&many["200"]), "{many:?}");
    assert_eq!(many.len(), 2, "{many:?}");
    assert!(many["502"] >= 100, "{many:?}");
    let labels = ["reporter=\"destination\"", "response_code=\"429\""];
    assert!(counted(&up, "prices", &labels), "its sidecar refused them");

    let passes = || (0..40).all(|_| status(robot) == 200);
    up.edit("limits.yaml", "requests: 10\n", "requests: 200\n");
    up.edit("limits.yaml", "burst: 20\n", "burst: 200\n");
    up.edit("limits.yaml", "requests: 50\n", "requests: 5000\n");
    wait_until("more to pass", passes);
    up.edit("limits.yaml", "requests: 200\n", "requests: 0\n");
    wait_until("the mistake to be named with its place", || {
        up.text("err").contains("limits.yaml:")
    });
    assert!(passes(), "the last good limits stay");
}
