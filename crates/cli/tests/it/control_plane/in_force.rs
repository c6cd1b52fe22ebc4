//! Reports of the state in force, against the state at the proxies. The screen, `voile status` and the events report a lost state
//! folder, a proxy that refuses configuration and a certificate that no client takes. "ready" and "in force" count
//! acknowledgements alone.

use std::fs::Permissions;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::mesh::certificates::Keys;
use crate::mesh::{Mesh, Process, get, put, wait_until};
use crate::up::{Up, example};

/// A refusal is shown within two seconds; a machine on which everything runs at once is given three more.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);
/// The last words of a lost state folder.
const CURE: &str = "start with --new-root and give every proxy the new root certificate";

const WEB: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: pair}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: pair, labels: {app: web, sidecar.istio.io/inject: "true"}}
spec: {containers: [{name: app, command: ["$(VOILE)", echo, --listen, "$(POD_IP):18080"]}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: pair}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - {port: {number: 8080, protocol: HTTP, name: http}, captureMode: NONE, defaultEndpoint: "0.0.0.0:18080"}
"#;

/// A resource that every proxy of the namespace gets.
const MODE: &str = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: pair}\nspec: {mtls: {mode: STRICT}}\n";

fn web(folder: &Path) {
    std::fs::write(folder.join("web.yaml"), WEB).expect("written");
}

fn claims(up: &Up) -> usize {
    up.text("err").matches("the edit is in force").count()
}

/// The second octet of the addresses of a mesh on loopback addresses.
fn octet(up: &Up) -> u8 {
    let said = up.text("err");
    let (_, block) = said.split_once(" pods in 127.").expect("the block");
    let octet = block.split('.').next();
    octet
        .and_then(|octet| octet.parse().ok())
        .expect("an octet")
}

/// Address of its control plane's monitoring pages.
pub(crate) fn monitoring(up: &Up) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 21_004 + 10 * u16::from(octet(up))))
}

fn kill_control(up: &Up) {
    let family = up.family();
    let line = family
        .iter()
        .find(|line| line.contains(" control --config "));
    let pid = line.and_then(|line| line.split(' ').next()?.parse().ok());
    let pid = pid.and_then(Pid::from_raw).expect("the control plane");
    kill_process(pid, Signal::KILL).expect("killed");
}

#[test]
fn a_state_folder_lost_under_voile_up_is_an_error_and_no_other_root_is_made() {
    let own = tempfile::tempdir().expect("a folder");
    let state = own.path().join("state");
    let place = state.display().to_string();
    let mut up = Up::start(web, &["--state", &place]);
    up.ready();
    let kept = own.path().join("backup");
    std::fs::rename(&state, &kept).expect("lost");
    let lost = format!("{place}: ");
    let told = |text: &str| text.contains(&lost) && text.contains(CURE);
    wait_until("the loss to be told with its cure", || {
        told(&up.text("err"))
    });
    let (code, status) = ask(monitoring(&up), &["status"]);
    assert!(code == Some(1) && told(&status), "{code:?} {status}");
    let (_, events) = ask(monitoring(&up), &["events", "--past", "--for", "100ms"]);
    assert!(events.contains("STATE LOST"), "{events}");

    kill_control(&up);
    wait_until("nobody to count as ready", || {
        let said = up.text("err");
        said.contains("0 of 1 ready") && said.contains("control ended with code 1")
    });
    assert!(
        !state.join("root-key.pem").exists(),
        "another root was made"
    );
    let before = claims(&up);
    put(&up.file("mode.yaml"), MODE);
    wait_until("the edit to be told as one that waits", || {
        let waits = "the edit is not in force yet: waiting for the control plane to answer";
        up.text("err").contains(waits)
    });
    assert_eq!(claims(&up), before);

    // The folder may exist by now.
    std::fs::create_dir_all(&state).expect("made");
    std::fs::set_permissions(&state, Permissions::from_mode(0o700)).expect("closed");
    for name in ["token-key.pem", "root-cert.pem", "root-key.pem"] {
        std::fs::copy(kept.join(name), state.join(name)).expect("restored");
    }
    wait_until("the edit to be in force", || claims(&up) > before);
    let again = "no longer: ".to_owned() + &lost;
    wait_until("the loss to be over", || up.text("err").contains(&again));
    up.signal(Signal::INT);
    assert!(up.wait().success());

    std::fs::remove_dir_all(&state).expect("lost");
    let mut up = Up::start(web, &["--state", &place]);
    assert!(!up.wait().success());
    assert!(told(&up.text("err")), "{}", up.text("err"));
    let mut up = Up::start(web, &["--state", &place, "--new-root"]);
    up.ready();
}

#[test]
fn a_control_plane_makes_no_second_root_beside_proxies_that_trust_the_first() {
    let mut mesh = Mesh::start("STRICT");
    mesh.wait_ready();
    mesh.kill_control();
    std::fs::remove_dir_all(mesh.state()).expect("lost");
    let start = |more: &[&str]| {
        Process::start("control", |voile| {
            voile.args([
                "control",
                "--listen",
                "127.0.0.1:0",
                "--monitoring",
                "127.0.0.1:0",
            ]);
            voile.arg("--config").arg(mesh.config());
            voile.arg("--state").arg(mesh.state()).args(more);
        })
    };
    let mut control = start(&[]);
    assert!(!control.wait().success());
    let said = control.log();
    let place = mesh.state().display().to_string();
    assert!(said.contains(&place) && said.contains(CURE), "{said}");
    assert!(!mesh.state().exists(), "something was made");
    let control = start(&["--new-root"]);
    wait_until("it to serve another root", || {
        control.log().contains("discovery and certificates on")
    });
    drop(control);
    // From now on that is the root.
    let mut fingerprint = mesh.state();
    fingerprint.set_extension("root");
    let recorded = std::fs::read_to_string(fingerprint).expect("the record");
    let root = recorded.lines().last().expect("a line").to_owned();
    let control = start(&["--expect-root", &root]);
    wait_until("it to serve the same", || {
        control.log().contains("discovery and certificates on")
    });
    drop(control);
    let other = "sha256:".to_owned() + &"0".repeat(64);
    let mut control = start(&["--expect-root", &other]);
    assert!(!control.wait().success());
    assert!(control.log().contains(&root), "{}", control.log());
}

pub(crate) fn ask(at: SocketAddr, words: &[&str]) -> (Option<i32>, String) {
    let at = at.to_string();
    let output = Process::output(|voile| {
        voile.args(words).args(["--monitoring", &at]);
    });
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// `voile status` and the events report the refusal of this port by the server's proxy.
fn told_by_status_and_events(up: &Up, port: u16) {
    let (code, status) = ask(monitoring(up), &["status"]);
    let rows = [
        "REFUSED BY",
        "ProxyConfiguration",
        "pair/web-0",
        &port.to_string(),
    ];
    assert_eq!(code, Some(1), "{status}");
    assert!(rows.iter().all(|word| status.contains(word)), "{status}");
    let (code, json) = ask(monitoring(up), &["status", "-o", "json"]);
    let page: Value = serde_json::from_str(&json).expect("JSON");
    let refused = &page["in_force"]["refused"][0];
    assert_eq!(code, Some(1));
    assert_eq!(page["in_force"]["everywhere"], false, "{page:#}");
    assert_eq!(refused["resource"], "pair/web-0", "{page:#}");
    let (_, events) = ask(monitoring(up), &["events", "--past", "--for", "100ms"]);
    assert!(events.contains("REFUSED"), "{events}");
}

#[test]
fn a_refusal_of_configuration_is_shown_by_the_screen_status_and_events_until_it_is_over() {
    let mut up = Up::start(web, &[]);
    up.ready();
    let sidecar = SocketAddr::from(([127, octet(&up), 0, 2], 8080));
    // Another program's listener on every address, so also on the pod's.
    let taken = TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let last = "defaultEndpoint: \"0.0.0.0:18080\"}\n";
    let more = format!(
        "{last}  - {{port: {{number: {port}, protocol: HTTP, name: http-more}}, captureMode: NONE, defaultEndpoint: \"0.0.0.0:18080\"}}\n"
    );
    let edited = Instant::now();
    up.edit("web.yaml", last, &more);
    wait_until("the screen to say who refuses what and why", || {
        let said = up.text("err");
        let mut lines = said.lines();
        lines.any(|line| {
            line.contains("the proxy of pair/web-0 refuses ProxyConfiguration `pair/web-0`")
                && line.contains(&port.to_string())
        })
    });
    let took = edited.elapsed();
    assert!(took < SHOWN_WITHIN, "{took:?}");
    wait_until("the edit to be told as refused", || {
        up.text("err")
            .contains("the edit is not in force: a proxy rejects it")
    });
    assert_eq!(claims(&up), 0, "{}", up.text("err"));
    wait_until("the pod not to count", || {
        let said = up.text("err");
        let mut lines = said.lines();
        lines.any(|line| line.contains("0 of 1 ready; wrong: the proxy of pair/web-0"))
    });
    assert_eq!(
        get(sidecar, "/").expect("the other listener serves").status,
        200
    );

    told_by_status_and_events(&up, port);

    // An edit of something else is acknowledged, and the refusal stays.
    let page = || -> Value {
        let (_, json) = ask(monitoring(&up), &["status", "--json"]);
        serde_json::from_str(&json).expect("JSON")
    };
    let before = page()["version"].clone();
    put(&up.file("mode.yaml"), MODE);
    wait_until("it to be published and answered", || {
        let page = page();
        page["version"] != before && page["in_force"]["on_its_way"] == false
    });
    assert_eq!(page()["in_force"]["refused"][0]["resource"], "pair/web-0");
    assert_eq!(claims(&up), 0, "{}", up.text("err"));

    up.edit("web.yaml", &more, last);
    wait_until("it to be in force", || claims(&up) == 1);
    wait_until("the refusal to be over", || {
        up.text("err")
            .contains("no longer: the proxy of pair/web-0")
    });
    wait_until("status to be well", || {
        ask(monitoring(&up), &["status"]).0 == Some(0)
    });
}

#[test]
fn a_gateways_wrong_key_is_no_edit_in_force_and_an_expired_certificate_is_told_without_an_edit() {
    let keys = Keys::new();
    keys.own("authority", "authority.example");
    keys.own("other", "shop.example");
    let pair = |name: &str, key: &str| {
        let (crt, key) = (format!("{name}.crt"), format!("{key}.key"));
        keys.secret("ingress", "cert", &[("tls.crt", &crt), ("tls.key", &key)])
    };
    keys.server("good", "shop.example", "authority", "20500101000000Z");
    let fill = |folder: &Path| {
        example("ingress", folder);
        let path = folder.join("gateway.yaml");
        let text = std::fs::read_to_string(&path).expect("the gateway");
        let server = "    - port: {number: 8443, name: https, protocol: HTTPS}\n      hosts: [shop.example]\n      tls: {mode: SIMPLE, credentialName: cert}\n";
        std::fs::write(path, text + server).expect("written");
        std::fs::write(folder.join("cert.yaml"), pair("good", "good")).expect("written");
    };
    let mut up = Up::start(fill, &["--quiet"]);
    up.ready();
    put(&up.file("cert.yaml"), &pair("good", "other"));
    wait_until("the key to be named", || up.text("err").contains("[V0411]"));
    put(&up.file("cert.yaml"), &pair("good", "good"));
    wait_until("the good pair to be in force", || claims(&up) > 0);
    assert_eq!(claims(&up), 1, "{}", up.text("err"));

    // The certificate lasts a few seconds more, and the folder does not change at its end.
    let end = Command::new("date")
        .args(["-u", "-d", "+12 seconds", "+%Y%m%d%H%M%SZ"])
        .output();
    let end = String::from_utf8(end.expect("date").stdout).expect("text");
    keys.server("short", "shop.example", "authority", end.trim());
    put(&up.file("cert.yaml"), &pair("short", "short"));
    wait_until("the short one to be in force", || claims(&up) == 2);
    let expired = |text: &str| text.contains("[V0441]") && text.contains("expired");
    assert!(!up.text("err").lines().any(expired), "{}", up.text("err"));
    wait_until("its end to be told", || up.text("err").lines().any(expired));
    wait_until("voile status to tell it", || {
        let (_, status) = ask(monitoring(&up), &["status"]);
        status.contains("V0441") && status.contains("expired at")
    });
    let folder = up.file("");
    let analyzed = Process::output(|voile| {
        voile.arg("analyze").arg(folder);
    });
    let said = [analyzed.stdout, analyzed.stderr].concat();
    assert!(expired(&String::from_utf8_lossy(&said)) && !analyzed.status.success());
}
