//! Weights, subsets and services that move while `voile load` sends requests. For every order of their documents, the state in
//! force is whole, and no request fails. The load sends two hundred a second during all orders; `VOILE_MOVE_SECONDS=60` goes on
//! for a minute at two thousand.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{routes, rule, say, second_version, shares};
use crate::mesh::load::lost;
use crate::mesh::{HTTP_PORT, Mesh, exchange, get, series, wait_until};

/// Kinds of documents, each in a file of its own.
#[derive(Clone, Copy)]
enum Document {
    Service,
    Rule,
    Routes,
}

use Document::{Routes, Rule, Service};

/// Every order in which they can come.
const ORDERS: [[Document; 3]; 6] = [
    [Routes, Rule, Service],
    [Routes, Service, Rule],
    [Rule, Routes, Service],
    [Rule, Service, Routes],
    [Service, Routes, Rule],
    [Service, Rule, Routes],
];

/// A service of its own for each generation, with the same endpoints.
fn service(generation: usize) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: next-{generation}, namespace: shop}}\n\
         spec: {{selector: {{app: server}}, ports: [{{name: http, port: {HTTP_PORT}, targetPort: {HTTP_PORT}}}]}}\n"
    )
}

/// Routes of a generation, which its answers name.
fn led(generation: usize, turn: usize, weights: [u32; 3]) -> String {
    let [old, new, next] = weights;
    routes(&format!(
        "  - headers: {{response: {{set: {{x-generation: \"{generation}.{turn}\"}}}}}}\n    route:\n\
         \x20   - {{destination: {{host: server, subset: old-{generation}}}, weight: {old}}}\n\
         \x20   - {{destination: {{host: server, subset: new-{generation}}}, weight: {new}}}\n\
         \x20   - {{destination: {{host: next-{generation}}}, weight: {next}}}\n"
    ))
}

fn wait_for(to: SocketAddr, generation: usize, turn: usize) {
    let wanted = format!("x-generation: {generation}.{turn}\r\n");
    let request = b"GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
    wait_until(&wanted, || {
        let answer = exchange(to, request).expect("an answer");
        answer.head.to_ascii_lowercase().contains(&wanted)
    });
}

/// Writes a document, and waits until the control plane has read it and the proxies have what it told them: the next one does not
/// come together with it.
fn alone(mesh: &Mesh, name: &str, text: &str) {
    let figure = |name| {
        let page = get(mesh.monitoring(), "/metrics").expect("metrics");
        let page = String::from_utf8_lossy(&page.body).into_owned();
        series(&page, name, &[]).expect("a figure")
    };
    let before = figure("voile_control_reloads_total");
    say(mesh, name, text);
    wait_until("it is read and told", || {
        figure("voile_control_reloads_total") > before
            && figure("voile_control_proxies_behind") == 0.0
    });
}

/// Everything of a generation takes the place of the one before, one document at a time, and then its weights move.
fn turn(mesh: &Mesh, generation: usize, order: [Document; 3]) {
    let to = mesh.http();
    for document in order {
        match document {
            // The old service goes last, as in any mesh: a removed service has no endpoints.
            Service => {
                let both = service(generation.saturating_sub(1)) + &service(generation);
                alone(mesh, "next.yaml", &both);
            }
            Rule => {
                let (old, new) = (format!("old-{generation}"), format!("new-{generation}"));
                alone(mesh, "rule.yaml", &rule(&[(&old, "v1"), (&new, "v2")]));
            }
            Routes => alone(mesh, "routes.yaml", &led(generation, 0, [50, 30, 20])),
        }
        shares(to, 20);
    }
    wait_for(to, generation, 0);
    say(mesh, "next.yaml", &service(generation));
    for (number, weights) in [(1, [0, 100, 0]), (2, [100, 0, 0]), (3, [1, 1, 98])] {
        say(mesh, "routes.yaml", &led(generation, number, weights));
        wait_for(to, generation, number);
    }
}

fn load(to: SocketAddr, rate: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_voile"));
    command.args(["load", &format!("http://{to}/"), "--header", "Host: server"]);
    command.args(["--rate", rate, "--duration", "0", "--connections", "8"]);
    // A machine that is busy with something else is no failure of a request.
    command.args(["--timeout", "30s", "--json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}

#[test]
fn no_request_fails_while_weights_subsets_and_services_move_in_any_order() {
    let seconds = std::env::var("VOILE_MOVE_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse::<u64>().expect("seconds"));
    let rate = if seconds.is_some() { "2000" } else { "200" };
    let least = Duration::from_secs(seconds.unwrap_or(0));
    let mesh = Mesh::start("PERMISSIVE");
    second_version(&mesh);
    let to = mesh.http();
    wait_until("both versions", || shares(to, 40).len() == 2);
    turn(&mesh, 0, ORDERS[0]);
    let load = load(to, rate);
    let start = Instant::now();
    let mut generation = 0;
    while generation < ORDERS.len() || start.elapsed() < least {
        generation += 1;
        turn(&mesh, generation, ORDERS[generation % ORDERS.len()]);
    }
    let pid = rustix::process::Pid::from_child(&load);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("sent");
    let told = load.wait_with_output().expect("it ends");
    let told: Value = serde_json::from_slice(&told.stdout).expect("whole JSON");
    let (ok, errors) = (&told["ok"], &told["errors_total"]);
    println!("{generation} generations: {ok} requests, {errors} errors");
    assert!(ok.as_u64() > Some(100), "{ok}");
    assert_eq!(lost(&told), [], "{} {}", told["errors"], told["status"]);
}
