//! Routes that move from one service to another that comes in the same edit, and the first one goes: a stock Envoy under load answers no
//! request by 503. And what stands behind a waypoint: it is refused, by name.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::process::Envoy;
use super::served::{bootstrap, both_ways, serve, status};
use super::stage::{HTTP, OURS, Stage, TCP, THEIRS};
use crate::mesh::{Process, application, get, read_to_end, wait_until};
use crate::policies::authorization::in_force;

/// Number of moves of the routes.
const MOVES: usize = 12;
/// Number of moves while the control plane is away.
const RESTARTS: usize = 2;
/// Number of clients that send requests all the while.
const CLIENTS: usize = 3;

fn place(number: usize) -> String {
    format!("place-{number}")
}

/// A service of its own for our pod, and routes that lead there and nowhere else.
fn moved_to(number: usize) -> String {
    let name = place(number);
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{selector: {{app: ours}}, ports: [{{name: http, port: {HTTP}, targetPort: {HTTP}}}]}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: ours, namespace: shop}}\n\
         spec: {{hosts: [ours], http: [{{name: {name}, route: [{{destination: {{host: {name}}}}}]}}]}}\n"
    )
}

fn moves(more: &[&str]) {
    let Some(program) = super::found() else {
        return;
    };
    let stage = Stage::new("STRICT");
    serve(&stage);
    stage.set("moved.yaml", &moved_to(0));
    let envoy = stage.envoy(&program, &bootstrap(&stage, more));
    both_ways(&stage);
    let answers = answers_while(stage.calls(THEIRS, HTTP), || {
        for number in 1..=MOVES {
            stage.set("moved.yaml", &moved_to(number));
            wait_until_moved(&envoy, number - 1, number);
        }
    });
    let good = answers.get(&200).copied().unwrap_or(0);
    assert!(good > MOVES * CLIENTS, "{answers:?}");
    assert_eq!(answers.len(), 1, "{answers:?} {}", envoy.said());
    assert_eq!(envoy.counted("update_rejected"), 0, "{}", envoy.said());
}

/// Waits until requests go to the new place, and the old one is gone.
fn wait_until_moved(envoy: &Envoy, old: usize, new: usize) {
    let [old, new] = [old, new].map(|one| format!("{}.shop", place(one)));
    wait_until("routes have moved, and the old place is gone", || {
        let page = envoy.page("/clusters");
        let asked = page.lines().any(|line| {
            line.contains(&new)
                && line.contains("::rq_success::")
                && !line.ends_with("::rq_success::0")
        });
        asked && !page.contains(&old)
    });
}

/// Counts answers by status, for clients that send requests all the while.
fn answers_while(at: SocketAddr, happening: impl FnOnce()) -> BTreeMap<u16, usize> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ask = || {
            let mut answers: BTreeMap<u16, usize> = BTreeMap::new();
            while !over.load(Ordering::Relaxed) {
                let status = get(at, "/a").map_or(0, |answer| answer.status);
                *answers.entry(status).or_default() += 1;
            }
            answers
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        happening();
        over.store(true, Ordering::Relaxed);
        let mut all: BTreeMap<u16, usize> = BTreeMap::new();
        for client in clients {
            for (status, times) in client.join().expect("a client") {
                *all.entry(status).or_default() += times;
            }
        }
        all
    })
}

/// In state of the world a request may be answered 503 for a moment then (decisions/0020).
#[test]
fn no_request_fails_at_envoy_that_missed_an_edit_while_the_control_plane_was_away() {
    let Some(program) = super::found() else {
        return;
    };
    let mut stage = Stage::new("STRICT");
    serve(&stage);
    stage.set("moved.yaml", &moved_to(0));
    let envoy = stage.envoy(&program, &bootstrap(&stage, &[]));
    both_ways(&stage);
    let connected = || envoy.counted("control_plane.connected_state") > 0;
    let answers = answers_while(stage.calls(THEIRS, HTTP), || {
        for number in 1..=RESTARTS {
            stage.stop_control();
            wait_until("Envoy is alone", || !connected());
            stage.set("moved.yaml", &moved_to(number));
            stage.start_control();
            wait_until_moved(&envoy, number - 1, number);
        }
    });
    let good = answers.get(&200).copied().unwrap_or(0);
    assert!(good > RESTARTS * CLIENTS, "{answers:?}");
    assert_eq!(answers.len(), 1, "{answers:?} {}", envoy.said());
    assert_eq!(envoy.counted("update_rejected"), 0, "{}", envoy.said());
}

#[test]
fn no_request_fails_at_envoy_while_routes_move_and_services_come_and_go_by_delta_ads() {
    moves(&[]);
}

#[test]
fn no_request_fails_at_envoy_while_routes_move_and_services_come_and_go_in_state_of_the_world() {
    moves(&["--state-of-the-world"]);
}

/// Output of `voile status`.
fn told(stage: &Stage) -> String {
    let monitoring = stage.monitoring().to_string();
    let output = Process::output(|voile| {
        voile.args(["status", "--monitoring", &monitoring]);
    });
    String::from_utf8(output.stdout).expect("text")
}

/// The mesh, in which our service names a waypoint.
fn behind_a_waypoint(stage: &Stage) -> String {
    let service = "kind: Service\nmetadata: {name: ours, namespace: shop";
    let behind = format!("{service}, labels: {{istio.io/use-waypoint: gate}}");
    let text = stage.resources().replacen(service, &behind, 1);
    assert!(text.contains(&behind), "{text}");
    text
}

#[test]
fn envoy_calls_nothing_past_a_waypoint_and_says_so_and_calls_it_when_it_stands_there_no_more() {
    let Some(program) = super::found() else {
        return;
    };
    let stage = Stage::new("STRICT");
    serve(&stage);
    application::serve(stage.application(OURS, TCP), |mut stream| {
        let mut word = [0; 4];
        if stream.read_exact(&mut word).is_ok() {
            word.reverse();
            // A client that is gone reads nothing.
            let _ = stream.write_all(&word);
        }
    });
    let envoy = stage.envoy(&program, &bootstrap(&stage, &[]));
    both_ways(&stage);
    let answered = || {
        let answer = read_to_end(stage.calls(THEIRS, TCP), b"abcd");
        answer.is_ok_and(|answer| answer == b"dcba")
    };
    wait_until("bytes get through", answered);

    stage.set("mesh.yaml", &behind_a_waypoint(&stage));
    in_force("requests are refused", || {
        stage.status(THEIRS, HTTP, "GET /a") == 503
    });
    wait_until("bytes go nowhere", || !answered());
    let limits = status(&stage)["translation_limits"]["shop/theirs"].to_string();
    let words = "waypoint: Service shop/ours.shop.svc.cluster.local: the service is behind the waypoint shop/gate";
    assert!(limits.contains(words), "{limits}");
    let page = told(&stage);
    assert!(
        page.lines()
            .any(|line| line.starts_with("shop/theirs ") && line.contains(words)),
        "{page}"
    );
    // The export reports the same limits, and prints nothing else.
    let (code, text, said) = stage.export(&["--capture", "none"]);
    assert_eq!((code, text.as_str()), (Some(1), ""), "{said}");
    assert!(said.contains(words), "{said}");

    stage.set("mesh.yaml", &stage.resources());
    in_force("it is called again", || {
        stage.status(THEIRS, HTTP, "GET /a") == 200
    });
    let page = told(&stage);
    assert!(!page.contains("NOT TOLD"), "{page}");
    assert_eq!(envoy.counted("update_rejected"), 0, "{}", envoy.said());
}
