//! HTTP/2 through capture, on declared and undeclared ports. Also services that only the host of each request tells apart,
//! because they share an address.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use http::Request;
use voile_testkit::prerequisites::{Prerequisite, program};

use super::{Captured, FAR, SERVER, VIP, WORLD, listen, local, resources};
use crate::mesh::resolver::ask;
use crate::mesh::{Process, application, wait_until};
use crate::traffic::http2::{connect, play};

/// Answers every request with who it is.
fn answer(listener: TcpListener, name: &'static str) {
    application::serve(listener, move |stream| {
        let mut reader = std::io::BufReader::new(stream);
        while application::read_request(&mut reader).is_some() {
            let length = name.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{name}");
            if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
}

fn entry(name: &str, target: u16) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: {name}\n  namespace: shop\nspec:\n  \
         hosts: [{name}.test, \"*.{name}.test\"]\n  location: MESH_EXTERNAL\n  resolution: STATIC\n  ports: [{{number: 8089, name: http, \
         protocol: HTTP}}]\n  endpoints: [{{address: {WORLD}, ports: {{http: {target}}}}}]\n---\n"
    )
}

#[test]
fn each_request_of_one_connection_goes_where_its_own_authority_says() {
    let Some(mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
    else {
        return;
    };
    answer(listen(&mesh.world, (WORLD, 8091)), "one");
    answer(listen(&mesh.world, (WORLD, 8092)), "two");
    mesh.write("entries.yaml", &(entry("one", 8091) + &entry("two", 8092)));
    let first = |host: &str| {
        let mut stream = super::connect(&mesh.client, (FAR, 8089));
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let answer = application::read_request(&mut std::io::BufReader::new(stream));
        answer.expect("an answer").0
    };
    wait_until("the hosts are known", || {
        first("two.test").starts_with("HTTP/1.1 200")
    });
    let asked = [
        ("one.test", 200, "one"),
        ("two.test:8089", 200, "two"),
        ("nobody.test", 502, ""),
        ("www.two.test", 200, "two"),
        ("ONE.test.", 200, "one"),
        ("192.0.2.77:8089", 502, ""),
        ("one.test", 200, "one"),
    ];
    let inside = || {
        play(|| async {
            let mut client = connect((FAR, 8089).into()).await;
            for (authority, status, who) in asked {
                let uri = format!("http://{authority}/");
                let request = Request::get(uri).body(()).expect("a request");
                client = client.ready().await.expect("room for a stream");
                let (answer, _) = client.send_request(request, true).expect("sent");
                let answer = answer.await.expect("an answer");
                assert_eq!(answer.status(), status, "{authority}");
                let mut body = answer.into_body();
                let mut text = Vec::new();
                while let Some(chunk) = body.data().await {
                    text.extend(chunk.expect("a body"));
                }
                if status == 200 {
                    assert_eq!(String::from_utf8_lossy(&text), who, "{authority}");
                }
            }
        });
    };
    mesh.client.run(inside).expect("entered");
    let mut stream = super::connect(&mesh.client, (FAR, 8089));
    for (authority, status, who) in asked {
        let request = format!("GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut reader = std::io::BufReader::new(stream.try_clone().expect("open"));
        let (head, body) = application::read_request(&mut reader).expect("an answer");
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        if status == 200 {
            assert_eq!(body, who, "{authority}");
        }
    }
}

#[test]
fn a_name_that_was_looked_up_is_told_to_connections_at_once_and_follows_the_policy() {
    let any = "outboundTrafficPolicy: {mode: ALLOW_ANY}";
    let Some(mesh) = Captured::start("STRICT", any) else {
        return;
    };
    answer(listen(&mesh.world, (FAR, 8089)), "far");
    let asked = |name: &'static str| {
        let asked = mesh.client.run(move || ask(local(15053), name, "A"));
        asked.expect("entered")
    };
    let call = |host: &str| {
        let mut stream = super::connect(&mesh.client, (FAR, 8089));
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let answer = application::read_request(&mut std::io::BufReader::new(stream));
        answer.expect("an answer").0
    };
    assert_eq!(asked("looked-up.test"), "NXDOMAIN");
    for host in ["looked-up.test", "called.test"] {
        assert!(call(host).starts_with("HTTP/1.1 200"), "{host}");
    }
    assert_eq!(asked("called.test"), "NXDOMAIN");
    mesh.write(
        "mesh.yaml",
        &resources(&any.replace("ALLOW_ANY", "REGISTRY_ONLY")),
    );
    for host in ["looked-up.test", "called.test"] {
        wait_until("strangers are refused", || {
            call(host).starts_with("HTTP/1.1 502")
        });
    }
    // Routing and the DNS proxy both follow the new owner of the name.
    let entry = entry("looked-up", 8089).replace(&WORLD.to_string(), &FAR.to_string());
    mesh.write("entry.yaml", &entry);
    wait_until("its entry is found", || {
        call("looked-up.test").starts_with("HTTP/1.1 200")
    });
    assert!(asked("looked-up.test").starts_with("NOERROR"));
    let log = mesh.client_log();
    assert!(!log.contains("decided without the control plane"), "{log}");
}

#[test]
fn a_strangers_http2_client_reaches_declared_undeclared_and_outside_ports() {
    let Some(h2load) = program(Prerequisite::H2load, "h2load") else {
        return;
    };
    let Some(mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: ALLOW_ANY}") else {
        return;
    };
    let echo = |name: &str, at: &[&str]| {
        Process::start(name, |voile| {
            voile.args(["echo", "--listen"]).args(at);
        })
    };
    let server = || echo("echo", &["0.0.0.0:8080", "0.0.0.0:8085"]);
    let _server = mesh.server.run(server).expect("entered");
    let outside = || echo("outside", &["0.0.0.0:8088"]);
    let _outside = mesh.world.run(outside).expect("entered");
    let cases: [(Ipv4Addr, u16); 4] = [(VIP, 80), (SERVER, 8080), (SERVER, 8085), (WORLD, 8088)];
    for (address, port) in cases {
        let said = |count: &str| {
            let load = || {
                let mut command = Command::new(&h2load);
                command.args(["-n", count, "-c", "4", "-m", "5"]);
                command.arg(format!("http://{address}:{port}/")).output()
            };
            let output = mesh.client.run(load).expect("entered").expect("it runs");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        wait_until("it is there", || {
            said("4").contains("4 succeeded, 0 failed")
        });
        let said = said("200");
        assert!(
            said.contains("200 succeeded, 0 failed") && said.contains("status codes: 200 2xx"),
            "{address}:{port}: {said}"
        );
    }
}
