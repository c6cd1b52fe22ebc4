//! Open connections and requests when a CUSTOM policy comes or names another service. An earlier yes holds as long as the same
//! service is asked. A request that is half done cannot wait for another service's answer.

use std::io::{BufRead as _, BufReader};

use super::authorizer::Authorizer;
use super::{custom, free, in_force, policy, provider, set};
use crate::mesh::{HTTP_PORT, Mesh, TCP_PORT, series};
use crate::policies::authorization::echo_application;
use crate::policies::live_connections::{UnderWay, connect, cut_in_time, greet};

const KIND: &str = "envoyExtAuthzGrpc";

/// A provider that is asked about requests and connections, and lets requests pass.
fn somebody() -> (Authorizer, String) {
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let rules =
        format!("rules: [{{to: [{{operation: {{ports: [\"{HTTP_PORT}\", \"{TCP_PORT}\"]}}}}]}}]");
    (
        Authorizer::start(listener),
        provider(KIND, at, "") + &custom(&rules),
    )
}

/// A marker whose refusal shows that the resources beside it are in force.
fn marker(number: u32) -> String {
    let rule = format!(
        "action: DENY, rules: [{{to: [{{operation: {{ports: [\"{HTTP_PORT}\"]}}}}], when: [{{key: \"request.headers[x-mark]\", values: [\"{number}\"]}}]}}]"
    );
    policy("marker", &rule)
}

/// Asks on two connections that are open at once, so that each worker is asked.
fn marked(mesh: &Mesh, number: u32) {
    let request = format!("GET /quick HTTP/1.1\r\nHost: server\r\nx-mark: {number}\r\n\r\n");
    in_force("the policies are in force", || {
        let both = [(); 2].map(|()| {
            let stream = connect(mesh.inbound(HTTP_PORT), request.as_bytes());
            let mut line = String::new();
            let read = BufReader::new(&stream).read_line(&mut line);
            (stream, read.is_ok() && line.contains(" 403 "))
        });
        both.iter().all(|(_, refused)| *refused)
    });
}

fn start() -> Mesh {
    let mesh = Mesh::start("PERMISSIVE");
    greet(&mesh);
    echo_application(&mesh);
    mesh
}

#[test]
fn what_nobody_was_asked_about_is_cut_when_somebody_must_be() {
    let mesh = start();
    let under_way = UnderWay::begin(&mesh);
    let count = under_way.count;
    let (authorizer, asks) = somebody();
    // A connection can wait for its word, which is no.
    authorizer.close();
    set(&mesh, &asks);
    under_way.end();
    cut_in_time(&mesh, count);
}

#[test]
fn a_yes_holds_as_long_as_the_same_service_is_asked() {
    let mesh = start();
    let (authorizer, asks) = somebody();
    set(&mesh, &(asks.clone() + &marker(1)));
    marked(&mesh, 1);
    let under_way = UnderWay::begin(&mesh);
    let count = under_way.count;
    let asked = authorizer.asked().len();
    assert!(asked >= 4, "{asked}");
    // The service's present answer does not matter for connections that it let in before.
    authorizer.close();
    set(&mesh, &(asks + &marker(2)));
    marked(&mesh, 2);
    let revoked = || {
        let label = ["verdict=\"revoked\""];
        let metrics = mesh.server_metrics();
        series(&metrics, "voile_authorization_total", &label).unwrap_or_default()
    };
    // A request with a mark may have been under way when it became a refusal; of the four none may be missing among those cut now.
    let before = revoked();
    let (other, asks) = somebody();
    other.close();
    set(&mesh, &asks);
    under_way.end();
    cut_in_time(&mesh, before + count);
}
