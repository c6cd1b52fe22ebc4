//! TLS that ends at a gateway, by curl and openssl, which share no code with us.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use super::streams::shown;
use super::{Asking, Edge, TO_SERVER, body, routes, say, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::{application, exchange, get, wait_until};

/// Port of the gateway's TLS listener.
pub(crate) const PORT: u16 = 8443;

pub(crate) fn https(hosts: &str, tls: &str) -> String {
    format!(
        "{{port: {{number: {PORT}, name: https, protocol: HTTPS}}, hosts: [{hosts}], tls: {{{tls}}}}}"
    )
}

/// Status and body, or why there is none.
pub(super) fn curl(
    edge: &Edge,
    host: &str,
    arguments: &[&str],
) -> Result<(String, String), String> {
    curl_at(edge.at(PORT), host, arguments)
}

/// The same for any address.
pub(crate) fn curl_at(
    to: SocketAddr,
    host: &str,
    arguments: &[&str],
) -> Result<(String, String), String> {
    let ran = Command::new("curl")
        .args([
            "-sS",
            "--max-time",
            "20",
            "-w",
            "\n%{http_code} %{http_version}",
        ])
        .arg("--connect-to")
        .arg(format!("{host}:443:{}:{}", to.ip(), to.port()))
        .args(arguments)
        .arg(format!("https://{host}/a"))
        .output()
        .expect("curl");
    if !ran.status.success() {
        return Err(String::from_utf8_lossy(&ran.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').expect("a status");
    Ok((status.to_owned(), body.to_owned()))
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().expect("a path")
}

#[test]
fn each_name_has_its_own_certificate_and_its_own_hosts() {
    let keys = Keys::new();
    keys.own("first", "a.example");
    keys.own("second", "*.b.example");
    let all = servers(&format!(
        "{}, {}",
        https("a.example", "mode: SIMPLE, credentialName: first"),
        https(
            "\"*.b.example\"",
            "mode: SIMPLE, credentialName: second, minProtocolVersion: TLSV1_3"
        ),
    ));
    let edge = Edge::start(
        "",
        &(keys.pair("first") + &keys.pair("second") + &all + &routes("\"*\"", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    let [first, second] = ["first.crt", "second.crt"].map(|name| keys.path(name));
    wait_until("a route", || {
        curl(&edge, "a.example", &["--cacert", path(&first)])
            .is_ok_and(|(status, _)| status == "200 2")
    });
    let (status, seen) =
        curl(&edge, "a.example", &["--cacert", path(&first), "--http1.1"]).expect("an answer");
    assert_eq!(status, "200 1.1");
    assert!(
        seen.to_ascii_lowercase()
            .contains("x-forwarded-proto: https\r\n"),
        "{seen}"
    );
    let second = ["--cacert", path(&second)];
    assert_eq!(
        curl(&edge, "x.b.example", &second).expect("an answer").0,
        "200 2"
    );
    // A connection by one certificate does not reach the hosts of another.
    let (status, _) = curl(
        &edge,
        "x.b.example",
        &[&second[..], &["-H", "Host: a.example"]].concat(),
    )
    .expect("an answer");
    assert_eq!(status, "421 2");
    for (host, arguments) in [
        ("x.b.example", vec!["--cacert", path(&first)]),
        ("b.example", vec!["-k"]),
        ("nobody.example", vec!["-k"]),
        // The older version is spoken for the first only.
        ("x.b.example", vec!["-k", "--tls-max", "1.2"]),
    ] {
        let refused = curl(&edge, host, &arguments);
        assert!(refused.is_err(), "{host} {arguments:?}: {refused:?}");
    }
    let older = curl(
        &edge,
        "a.example",
        &["--cacert", path(&first), "--tls-max", "1.2"],
    );
    assert_eq!(older.expect("an answer").0, "200 2");
    // The port refuses plaintext.
    let plain = exchange(edge.at(PORT), b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert!(plain.is_err(), "{plain:?}");
}

#[test]
fn clients_show_a_certificate_where_one_is_demanded() {
    let keys = Keys::new();
    keys.own("server", "*.example");
    keys.own("clients", "clients");
    keys.own("others", "others");
    keys.client("known", "clients");
    keys.client("unknown", "others");
    let beside = keys.secret("shop", "server-cacert", &[("ca.crt", "clients.crt")]);
    let all = servers(&format!(
        "{}, {}",
        https("must.example", "mode: MUTUAL, credentialName: server"),
        https(
            "may.example",
            "mode: OPTIONAL_MUTUAL, credentialName: server"
        ),
    ));
    let edge = Edge::start(
        "",
        &(keys.pair("server") + &beside + &all + &routes("\"*\"", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    let show = |name: &str| {
        let [crt, key] = ["crt", "key"].map(|kind| keys.path(&format!("{name}.{kind}")));
        ["-k", "--cert", path(&crt), "--key", path(&key)]
            .map(ToOwned::to_owned)
            .to_vec()
    };
    let ask = |host: &str, arguments: &[String]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        curl(&edge, host, &arguments)
    };
    wait_until("a route", || {
        ask("must.example", &show("known")).is_ok_and(|(status, _)| status == "200 2")
    });
    let nobody = vec!["-k".to_owned()];
    for (host, arguments, welcome) in [
        ("must.example", &nobody, false),
        ("must.example", &show("unknown"), false),
        ("may.example", &nobody, true),
        ("may.example", &show("known"), true),
        ("may.example", &show("unknown"), false),
    ] {
        let answer = ask(host, arguments);
        assert_eq!(
            answer.is_ok_and(|(status, _)| status == "200 2"),
            welcome,
            "{host} {arguments:?}"
        );
    }
    // A host that demands one is not reached by the name of one that does not.
    let by_another = [
        &nobody[..],
        &["-H".to_owned(), "Host: must.example".to_owned()],
    ]
    .concat();
    assert_eq!(
        ask("may.example", &by_another).expect("an answer").0,
        "421 2"
    );
}

#[test]
fn a_certificate_is_renewed_without_a_lost_request_and_a_bad_one_leaves_the_last_good() {
    let keys = Keys::new();
    keys.own("first", "a.example");
    keys.own("second", "a.example");
    let server = https("a.example", "mode: SIMPLE, credentialName: edge");
    let all = servers(&server) + &routes("a.example", TO_SERVER);
    let secret = |name: &str| {
        let (crt, key) = (format!("{name}.crt"), format!("{name}.key"));
        keys.secret("shop", "edge", &[("tls.crt", &crt), ("tls.key", &key)])
    };
    let edge = Arc::new(Edge::start("", &all));
    application::reflect(edge.mesh.http_app());
    // Without a certificate no connection is accepted, and another namespace's is not shown.
    let (crt, key) = ("first.crt", "first.key");
    let foreign = keys.secret("other", "edge", &[("tls.crt", crt), ("tls.key", key)]);
    say(&edge.mesh, "secret.yaml", &foreign);
    assert!(curl(&edge, "a.example", &["-k"]).is_err());
    say(&edge.mesh, "secret.yaml", &secret("first"));
    let [first, second] = ["first.crt", "second.crt"].map(|name| keys.path(name));
    let shows = |which: &Path| {
        curl(&edge, "a.example", &["--cacert", path(which)])
            .is_ok_and(|(status, _)| status == "200 2")
    };
    wait_until("the first certificate", || shows(&first));
    let asking = Asking::start(&edge, |edge| {
        curl(edge, "a.example", &["-k"]).is_ok_and(|(status, _)| status == "200 2")
    });
    say(&edge.mesh, "secret.yaml", &secret("second"));
    wait_until("the second certificate", || shows(&second));
    // A key that is not the certificate's, and a file that is no certificate.
    let status = || body(&get(edge.mesh.monitoring(), "/debug/status").expect("an answer"));
    let mixed = keys.secret(
        "shop",
        "edge",
        &[("tls.crt", "second.crt"), ("tls.key", "first.key")],
    );
    say(&edge.mesh, "secret.yaml", &mixed);
    wait_until("the refusal", || {
        status().contains("the private key is not the certificate's")
    });
    std::fs::write(keys.path("junk"), "junk\n").expect("written");
    let junk = keys.secret(
        "shop",
        "edge",
        &[("tls.crt", "junk"), ("tls.key", "first.key")],
    );
    say(&edge.mesh, "secret.yaml", &junk);
    wait_until("the refusal", || {
        status().contains("the certificate cannot be read")
    });
    assert!(status().contains("shop/edge"), "{}", status());
    assert!(shows(&second));
    say(&edge.mesh, "secret.yaml", &secret("first"));
    wait_until("the first certificate again", || shows(&first));
    asking.lost_nothing();
    // The private key appears neither in the config dump nor on the status page.
    let dump = edge.dump();
    let secret: String = keys.text("first.key").lines().skip(1).take(1).collect();
    for text in [dump, status()] {
        assert!(
            !text.contains(&secret) && !text.contains("PRIVATE KEY"),
            "{text}"
        );
    }
    // One that is taken away is shown no longer.
    std::fs::remove_file(edge.mesh.config().join("secret.yaml")).expect("removed");
    wait_until("nobody to be let in", || {
        curl(&edge, "a.example", &["-k"]).is_err()
    });
}

#[test]
fn of_several_certificates_a_client_is_shown_one_that_it_can_verify() {
    let keys = Keys::new();
    keys.own("ecdsa", "a.example");
    keys.own_rsa("rsa", "a.example");
    let servers = |names: &str| {
        let tls = format!("mode: SIMPLE, credentialNames: [{names}]");
        servers(&https("a.example", &tls)) + &routes("a.example", TO_SERVER)
    };
    let both = keys.pair("ecdsa") + &keys.pair("rsa");
    let edge = Edge::start("", &(both + &servers("rsa, ecdsa")));
    application::reflect(edge.mesh.http_app());
    let asked = |more: &str| {
        let mut arguments = vec!["-servername", "a.example"];
        arguments.extend(more.split_whitespace());
        shown(edge.at(PORT), &arguments)
    };
    wait_until("a route", || {
        curl(&edge, "a.example", &["-k"]).is_ok_and(|(status, _)| status == "200 2")
    });
    let table = [
        ("", "ecdsa"),
        ("-sigalgs RSA-PSS+SHA256", "rsa"),
        ("-sigalgs ECDSA+SHA256", "ecdsa"),
        ("-tls1_2", "ecdsa"),
        // It would verify either, and speaks no suite for one.
        ("-tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256", "rsa"),
        ("-tls1_2 -cipher ECDHE-ECDSA-AES128-GCM-SHA256", "ecdsa"),
        ("-tls1_2 -sigalgs RSA-PSS+SHA256", "rsa"),
    ];
    for (arguments, expected) in table {
        assert_eq!(asked(arguments).as_deref(), Some(expected), "{arguments}");
    }
    // One that is not there is missed, and the other serves.
    say(
        &edge.mesh,
        "edge.yaml",
        &(keys.pair("rsa") + &servers("ecdsa, rsa")),
    );
    wait_until("the one that is left", || {
        asked("").as_deref() == Some("rsa")
    });
    wait_until("a line in the log", || {
        let log = edge.mesh.control.log();
        log.contains("the Secret shop/ecdsa does not exist")
    });
}

#[test]
fn a_gateway_keeps_its_certificate_beside_a_control_plane_that_starts_without_its_folder() {
    let keys = Keys::new();
    keys.own("own", "a.example");
    keys.own("new", "a.example");
    let server = servers(&https("a.example", "mode: SIMPLE, credentialName: own"));
    let rest = server + &routes("\"*\"", TO_SERVER);
    let mut edge = Edge::start("", &(keys.pair("own") + &rest));
    application::reflect(edge.mesh.http_app());
    let is_served = |edge: &Edge, certificate: &str| {
        let believed = keys.path(certificate);
        curl(edge, "a.example", &["--cacert", path(&believed)])
            .is_ok_and(|(status, _)| status == "200 2")
    };
    wait_until("a route", || is_served(&edge, "own.crt"));
    let kept = edge.mesh.state().join("last-good.json");
    let read = || std::fs::read_to_string(&kept).unwrap_or_default();
    wait_until("what is good is kept", || read().contains("a.example"));
    assert!(!read().contains("PRIVATE KEY"), "{}", read());
    let (here, away) = (
        edge.mesh.config(),
        edge.mesh.config().with_extension("away"),
    );
    edge.mesh.kill_control();
    std::fs::rename(&here, &away).expect("away");
    edge.mesh.restart_control();
    let stays = "the previous certificate stays in use";
    wait_until("the gateway is told", || edge.dump().contains(stays));
    assert!(is_served(&edge, "own.crt"));
    let renewed = [("tls.crt", "new.crt"), ("tls.key", "new.key")];
    let renewed = keys.secret("shop", "own", &renewed) + &rest;
    std::fs::write(away.join("edge.yaml"), renewed).expect("written");
    std::fs::rename(&away, &here).expect("back");
    wait_until("the new one", || is_served(&edge, "new.crt"));
}
