//! Certificates, keys and authorities in files of the proxy's own machine, written anew under its hands; by curl and openssl.

use std::net::SocketAddr;
use std::sync::Arc;

use super::origination::{LATER, rule};
use super::streams::{entry, tls_server};
use super::tls::{PORT, curl, https, path};
use super::{Asking, Edge, NETWORKING, TO_SERVER, body, http_server, routes, say, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::{Answer, application, exchange, get, wait_until};

/// TLS settings of a Gateway's server with certificate files of these names.
fn files(keys: &Keys, mode: &str) -> String {
    let at = |name: &str| keys.path(name).display().to_string();
    let shown = format!(
        "mode: {mode}, serverCertificate: {}, privateKey: {}",
        at("edge.crt"),
        at("edge.key")
    );
    match mode {
        "SIMPLE" => shown,
        _ => format!("{shown}, caCertificates: {}", at("clients.pem")),
    }
}

/// A certificate and its key take the place of those that are shown.
fn renew(keys: &Keys, name: &str) {
    keys.put(&format!("{name}.crt"), "edge.crt");
    keys.put(&format!("{name}.key"), "edge.key");
}

#[test]
fn a_certificate_of_a_file_is_renewed_without_a_lost_request_and_a_bad_one_leaves_the_last_good() {
    let keys = Keys::new();
    keys.own("first", "a.example");
    keys.own("second", "a.example");
    let all = servers(&https("a.example", &files(&keys, "SIMPLE")));
    let edge = Arc::new(Edge::start("", &(all + &routes("a.example", TO_SERVER))));
    application::reflect(edge.mesh.http_app());
    // Without a certificate no connection is accepted, and the log names the missing file.
    let certificate = keys.path("edge.crt").display().to_string();
    let key = keys.path("edge.key").display().to_string();
    let said = |what: &str| {
        wait_until(what, || edge.dump().contains(what));
        wait_until("a line in the log", || edge.gateway.log().contains(what));
    };
    said(&format!("{certificate}: No such file"));
    said("the server admits no client");
    assert!(curl(&edge, "a.example", &["-k"]).is_err());
    renew(&keys, "first");
    let [first, second] = ["first.crt", "second.crt"].map(|name| keys.path(name));
    let shows = |which: &std::path::Path| {
        curl(&edge, "a.example", &["--cacert", path(which)])
            .is_ok_and(|(status, _)| status == "200 2")
    };
    wait_until("the first certificate", || shows(&first));
    assert!(
        !edge.dump().contains("the server admits no client"),
        "{}",
        edge.dump()
    );
    let asking = Asking::start(&edge, |edge| {
        curl(edge, "a.example", &["-k"]).is_ok_and(|(status, _)| status == "200 2")
    });
    let kept = Kept::open(&keys, edge.at(PORT));
    renew(&keys, "second");
    wait_until("the second certificate", || shows(&second));
    // Wrong files leave the second certificate in use: another's key, no certificate, an empty
    // file, and no file.
    keys.put("first.key", "edge.key");
    said(&format!("{key}: the private key is not the certificate's"));
    said("the previous certificate stays in use");
    assert!(shows(&second));
    std::fs::write(keys.path("junk"), "junk\n").expect("written");
    keys.put("junk", "edge.crt");
    said(&format!("{certificate}: the certificate cannot be read"));
    assert!(shows(&second));
    std::fs::write(keys.path("empty"), "").expect("written");
    keys.put("empty", "edge.crt");
    said(&format!("{certificate} is empty"));
    std::fs::remove_file(keys.path("edge.key")).expect("removed");
    std::fs::remove_file(keys.path("edge.crt")).expect("removed");
    let gone = || edge.gateway.log().matches("No such file").count() >= 2;
    wait_until("the file to be missed", gone);
    assert!(shows(&second));
    renew(&keys, "first");
    wait_until("the first certificate again", || shows(&first));
    asking.lost_nothing();
    kept.still_answers();
    // The private key appears neither in the config dump nor in the log.
    let secret: String = keys.text("first.key").lines().skip(1).take(1).collect();
    for text in [edge.dump(), edge.gateway.log()] {
        assert!(!text.contains(&secret) && !text.contains("PRIVATE KEY"));
    }
}

/// A connection that stays open, by openssl's client.
struct Kept {
    child: std::process::Child,
    out: std::io::BufReader<std::process::ChildStdout>,
}

impl Kept {
    fn open(keys: &Keys, at: SocketAddr) -> Self {
        let child = std::process::Command::new("openssl")
            .args(["s_client", "-quiet", "-servername", "a.example"])
            .args(["-alpn", "http/1.1", "-connect", &at.to_string()])
            .arg("-CAfile")
            .arg(keys.path("first.crt"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn();
        let mut child = child.expect("openssl");
        let out = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let mut kept = Self { child, out };
        kept.ask();
        kept
    }

    fn ask(&mut self) {
        use std::io::{BufRead, Write};
        let request = b"HEAD /kept HTTP/1.1\r\nHost: a.example\r\n\r\n";
        let pipe = self.child.stdin.as_mut().expect("piped");
        pipe.write_all(request).expect("open");
        let (mut status, mut line) = (String::new(), String::new());
        self.out.read_line(&mut status).expect("an answer");
        assert!(status.contains("200"), "{status:?}");
        while line != "\r\n" {
            line.clear();
            assert!(self.out.read_line(&mut line).expect("a line") > 0);
        }
    }

    fn still_answers(mut self) {
        self.ask();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn whose_clients_are_believed_follows_the_file_even_while_the_certificate_beside_is_bad() {
    let keys = Keys::new();
    keys.own("server", "must.example");
    keys.own("known", "known");
    keys.own("others", "others");
    keys.client("friend", "known");
    keys.client("stranger", "others");
    renew(&keys, "server");
    keys.put("known.crt", "clients.pem");
    let all = servers(&https("must.example", &files(&keys, "MUTUAL")));
    let edge = Edge::start("", &(all + &routes("must.example", TO_SERVER)));
    application::reflect(edge.mesh.http_app());
    let welcome = |name: &str| {
        let [crt, key] = ["crt", "key"].map(|kind| keys.path(&format!("{name}.{kind}")));
        let shown = ["-k", "--cert", path(&crt), "--key", path(&key)];
        curl(&edge, "must.example", &shown).is_ok_and(|(status, _)| status == "200 2")
    };
    wait_until("a route", || welcome("friend"));
    assert!(!welcome("stranger"));
    assert!(curl(&edge, "must.example", &["-k"]).is_err());
    // An empty file of authorities does not mean that clients need no certificate.
    std::fs::write(keys.path("empty"), "").expect("written");
    keys.put("empty", "clients.pem");
    let authorities = keys.path("clients.pem").display().to_string();
    wait_until("the complaint", || {
        edge.dump().contains(&format!("{authorities} is empty"))
    });
    assert!(welcome("friend") && !welcome("stranger"));
    assert!(curl(&edge, "must.example", &["-k"]).is_err());
    // The certificate cannot be read, and the trusted authorities are others: the change of the
    // authorities holds.
    keys.put("empty", "edge.crt");
    keys.put("others.crt", "clients.pem");
    wait_until("the others", || welcome("stranger"));
    assert!(!welcome("friend"));
    assert!(curl(&edge, "must.example", &["-k"]).is_err());
}

/// A VirtualService by which callers of the mesh's server are led to one outside, and one by which the gateway's are.
fn ways(name: &str) -> String {
    format!(
        "{NETWORKING}VirtualService\nmetadata: {{name: way, namespace: shop}}\nspec:\n  hosts: [server, {name}.test]\n  gateways: [mesh, edge]\n  http: [{{route: [{{destination: {{host: {name}.test, port: {{number: 443}}}}}}]}}]\n---\n"
    )
}

/// The server's answers to a client of the gateway, and to an application of the mesh.
fn both(edge: &Edge) -> [Answer; 2] {
    let host = "server.shop.svc.cluster.local";
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let by_sidecar = exchange(edge.mesh.http(), request.as_bytes()).expect("an answer");
    [edge.ask("GET", "strict.test", "/", ""), by_sidecar]
}

/// Returns true if both requests get this status.
fn are(edge: &Edge, status: u16) -> bool {
    both(edge).iter().all(|answer| answer.status == status)
}

/// A key that is another's leaves what was there; the whole pair of another is shown, and is not believed.
fn what_is_shown_follows(edge: &Edge, keys: &Keys) {
    wait_until("a proof", || are(edge, 200));
    for answer in both(edge) {
        assert!(body(&answer).contains("TLSv1.3"), "{}", body(&answer));
    }
    keys.put("foreign.key", "own.key");
    let key = keys.path("own.key");
    let why = format!(
        "{}: the private key is not the certificate's",
        key.display()
    );
    wait_until("the complaint", || edge.gateway.log().contains(&why));
    assert!(are(edge, 200));
    keys.put("foreign.crt", "own.crt");
    wait_until("another's certificate", || {
        both(edge).iter().all(|answer| answer.status != 200)
    });
    keys.put("client.crt", "own.crt");
    keys.put("client.key", "own.key");
    wait_until("the proof again", || are(edge, 200));
}

/// A removed file leaves the last good certificates in use.
fn who_is_believed_follows(edge: &Edge, keys: &Keys) {
    keys.put("others.crt", "believed");
    wait_until("nobody to be believed", || are(edge, 503));
    for answer in both(edge) {
        let said = body(&answer);
        assert!(
            said.contains("its certificate is from an unknown authority"),
            "{said}"
        );
    }
    keys.put("authority.crt", "believed");
    wait_until("the one before", || are(edge, 200));
    let believed = keys.path("believed");
    std::fs::remove_file(&believed).expect("removed");
    let why = format!("{}: No such file", believed.display());
    wait_until("the complaint", || edge.gateway.log().contains(&why));
    assert!(are(edge, 200));
    let admin = edge.mesh.client_admin();
    let dump = || body(&get(admin, "/config_dump").expect("a dump"));
    wait_until("the sidecar's page", || dump().contains("No such file"));
    assert!(are(edge, 200));
}

#[test]
fn gateways_and_sidecars_make_tls_of_files_and_follow_them() {
    let keys = Keys::new();
    keys.own("authority", "authority");
    keys.own("others", "others");
    keys.server("strict", "strict.test", "authority", LATER);
    keys.client("client", "authority");
    keys.client("foreign", "others");
    for (from, to) in [
        ("authority.crt", "believed"),
        ("client.crt", "own.crt"),
        ("client.key", "own.key"),
    ] {
        keys.put(from, to);
    }
    let at = |name: &str| keys.path(name).display().to_string();
    let tls = format!(
        "mode: MUTUAL, clientCertificate: {}, privateKey: {}, caCertificates: {}",
        at("own.crt"),
        at("own.key"),
        at("believed")
    );
    let all = servers(&http_server("\"*.test\"")) + &ways("strict") + &rule("strict", &tls);
    let edge = Edge::start("", &all);
    let authority = keys.path("authority.crt");
    let demands = [
        "-Verify",
        "1",
        "-verify_return_error",
        "-CAfile",
        path(&authority),
    ];
    let to = edge.mesh.address(20, 14_443);
    let _server = tls_server(&keys, "strict", to, &demands);
    say(&edge.mesh, "entries.yaml", &entry("strict", to, "HTTP"));
    what_is_shown_follows(&edge, &keys);
    who_is_believed_follows(&edge, &keys);
}
