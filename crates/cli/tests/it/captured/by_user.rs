//! Sidecars without capabilities, as in a Kubernetes pod: user 1337, no marks. The rules recognise the sidecar by its user, and
//! its connections to the application by their source address.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;

use voile_host::netns::Namespace;
use voile_testkit::prerequisites::{Prerequisite, require, skip};

use super::{
    BY_USER, CLIENT, Captured, PROXY_USER, SERVER, VIP, WORLD, beside, connect, listen, local,
    redirect,
};
use crate::mesh::{Process, application, get, series, wait_until};
use crate::up::netns::is_root;

const REQUEST: &[u8] = b"GET /who HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";

/// Returns false, with the reason printed, if no process can be started as the proxy's user here.
fn starts_as_proxy_user() -> bool {
    if !is_root() {
        skip(Prerequisite::Root, "only root becomes another user");
        return false;
    }
    let started = Command::new("setpriv")
        .args(["--reuid", &PROXY_USER.to_string(), "--clear-groups"])
        .args([env!("CARGO_BIN_EXE_voile"), "--version"])
        .output()
        .map_err(|error| error.to_string())
        .and_then(|output| match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        });
    require(Prerequisite::OtherUsers, started).is_some()
}

/// Answers every request with the address of its connection's caller.
fn tell_caller(listener: TcpListener) {
    application::serve(listener, |stream| {
        let caller = stream.peer_addr().expect("connected");
        let caller = caller.ip().to_canonical().to_string();
        let mut reader = std::io::BufReader::new(stream);
        if application::read_request(&mut reader).is_some() {
            let length = caller.len();
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n");
            // A client that is gone reads nothing.
            let _ = write!(reader.get_mut(), "{head}\r\n{caller}");
        }
    });
}

fn ask(inside: &Namespace, to: impl Into<SocketAddr>) -> String {
    let mut stream: TcpStream = connect(inside, to);
    let mut answer = String::new();
    // A reset is an empty answer.
    let _ = stream
        .write_all(REQUEST)
        .and_then(|()| stream.read_to_string(&mut answer));
    answer
}

#[test]
fn a_sidecar_without_capabilities_carries_all_connections_of_its_pod() {
    if !starts_as_proxy_user() {
        return;
    }
    let policy = "outboundTrafficPolicy: {mode: ALLOW_ANY}";
    let Some(mut mesh) = Captured::start_as(BY_USER, "STRICT", policy) else {
        return;
    };
    let any: IpAddr = match mesh.v6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    tell_caller(listen(&mesh.server, (any, 8080)));
    tell_caller(listen(&mesh.client, (any, 8099)));
    tell_caller(listen(&mesh.world, (any, 8088)));
    // The path, and the address that the application sees.
    let mut cases: Vec<(&str, SocketAddr, IpAddr)> = vec![
        ("a service", (VIP, 80).into(), [127, 0, 0, 6].into()),
        ("a pod", (SERVER, 8080).into(), [127, 0, 0, 6].into()),
        ("the world", (WORLD, 8088).into(), CLIENT.into()),
        ("its own pod", (CLIENT, 8099).into(), [127, 0, 0, 6].into()),
        ("loopback", local(8099), Ipv4Addr::LOCALHOST.into()),
    ];
    if mesh.v6 {
        let inward = "::6".parse().expect("an address");
        let loopback = Ipv6Addr::LOCALHOST;
        cases.extend([
            ("a pod by IPv6", (beside(SERVER), 8080).into(), inward),
            ("its own pod by IPv6", (beside(CLIENT), 8099).into(), inward),
            (
                "the world by IPv6",
                (beside(WORLD), 8088).into(),
                beside(CLIENT).into(),
            ),
            ("loopback by IPv6", (loopback, 8099).into(), loopback.into()),
        ]);
    }
    for (name, to, caller) in cases {
        let answer = ask(&mesh.client, to);
        assert!(answer.starts_with("HTTP/1.1 200"), "{name}: {answer:?}");
        assert!(answer.ends_with(&caller.to_string()), "{name}: {answer:?}");
    }
    let secured = [
        "connection_security_policy=\"mutual_tls\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"",
        "destination_service_name=\"server\"",
    ];
    let metrics = mesh.metrics(&mesh.server);
    let counted = series(&metrics, "istio_requests_total", &secured);
    assert!(counted >= Some(1.0), "{metrics}");
    // A caller without a sidecar is refused at every port, and the sidecar does not relay to itself.
    for port in [8080, 7777, 15001, 15006] {
        assert_eq!(ask(&mesh.world, (SERVER, port)), "", "{port}");
    }
    for to in [
        (Ipv4Addr::LOCALHOST, 15001),
        (CLIENT, 15001),
        (CLIENT, 15006),
    ] {
        assert_eq!(ask(&mesh.client, to), "", "{to:?}");
    }
    // A kubelet is no member of the mesh: the sidecar asks its application for it, past the rules.
    let status = mesh.world.run(|| {
        let sidecar = (SERVER, 15020).into();
        get(sidecar, "/app-health/app/readyz").map_or(0, |answer| answer.status)
    });
    assert_eq!(status.expect("entered"), 200);
    // Without the rules a connection is the application's own.
    redirect(&mesh.client, &["--remove"]);
    let answer = ask(&mesh.client, (CLIENT, 8099));
    assert!(answer.ends_with(&CLIENT.to_string()), "{answer:?}");
    is_ready_only_with_the_rules(&mut mesh);
}

/// The client's sidecar starts again without rules, and gets them while it waits.
fn is_ready_only_with_the_rules(mesh: &mut Captured) {
    drop(mesh._sidecars.remove(0));
    let addresses = match mesh.v6 {
        true => format!("{CLIENT},{}", beside(CLIENT)),
        false => CLIENT.to_string(),
    };
    let arguments = ["--capture", BY_USER, "--capture-check", &addresses];
    let sidecar = mesh.proxy("client", &mesh.client, &arguments);
    let page = || {
        let ready = mesh.client.run(|| get(local(15021), "/healthz/ready"));
        let answer = ready.expect("entered").ok()?;
        Some((answer.status, String::from_utf8(answer.body).expect("text")))
    };
    let missing = format!("not ready: connections to this pod's address {CLIENT} are not");
    wait_until("nothing but the rules is missing", || {
        let Some((status, reason)) = page() else {
            return false;
        };
        assert_eq!(status, 503, "{reason}");
        reason.starts_with(&missing) && !reason.contains("; no")
    });
    redirect(&mesh.client, &[]);
    wait_until("the rules are noticed", || {
        page().is_some_and(|(status, _)| status == 200)
    });
    assert!(!sidecar.log().contains("ERROR"), "{}", sidecar.log());
}

/// Runs `voile redirect`, as another user than root if one is given; says whether it succeeded, and what it printed.
fn redirected(arguments: &[&str], user: Option<u32>) -> (bool, String) {
    let output = Process::output(|voile| {
        voile.arg("redirect").args(arguments);
        if let Some(user) = user {
            voile.uid(user);
        }
    });
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    (output.status.success(), printed)
}

#[test]
fn redirect_prints_the_rules_of_istios_annotations_and_names_bad_options() {
    let lists = [
        ["--exclude-inbound-ports", "22,8443"],
        ["--include-outbound-ip-ranges", "10.0.0.0/8"],
        ["--exclude-outbound-ports", "3306"],
        ["--proxy-uid", "2000"],
    ];
    let (done, rules) = redirected(&[&["--dry-run"], lists.as_flattened()].concat(), None);
    assert!(done, "{rules}");
    for rule in [
        "meta skuid 2000 return",
        "tcp dport 8443 return",
        "tcp dport 3306 return",
        "ip daddr 10.0.0.0/8 meta l4proto tcp redirect to :15001",
    ] {
        assert!(rules.contains(rule), "{rule}: {rules}");
    }
    for (options, expected) in [
        (
            ["--exclude-inbound-ports", "http"],
            "--exclude-inbound-ports: a port is a number",
        ),
        (
            ["--include-outbound-ip-ranges", "10.0.0/8"],
            "for --include-outbound-ip-ranges: write ranges",
        ),
        (
            ["--exclude-outbound-ports", "*"],
            "for --exclude-outbound-ports: write the ports out",
        ),
    ] {
        let (done, said) = redirected(&options, None);
        assert!(!done && said.contains(expected), "{options:?}: {said}");
    }
}

#[test]
fn redirect_without_the_capability_says_what_to_add() {
    if !starts_as_proxy_user() {
        return;
    }
    let (done, said) = redirected(&[], Some(PROXY_USER));
    assert!(
        !done && said.contains("lacks the capability NET_ADMIN"),
        "{said}"
    );
    assert!(said.contains("add: [NET_ADMIN]"), "{said}");
}
