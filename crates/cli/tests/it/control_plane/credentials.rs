//! Credentials that are wrong, used up or mended: the proxy says why it is not ready, answers its pages, keeps trying.

use crate::mesh::{Mesh, Process, free_port, get, local, wait_until};

/// A second sidecar for the client's pod of `mesh`, whose own has ended: its readiness page and itself.
fn sidecar(mesh: &mut Mesh, credential: [&str; 2]) -> (std::net::SocketAddr, Process) {
    mesh.client.kill();
    let [admin, metrics, readiness] = [free_port(), free_port(), free_port()].map(local);
    let control = format!("https://{}", mesh.management()[0]);
    let root = mesh.state().join("root-cert.pem");
    let proxy = Process::start("second client", |voile| {
        voile.args(["proxy", "--workload", "shop/client", "--control", &control]);
        voile.arg("--root-cert").arg(root).args(credential);
        voile.args(["--admin", &admin.to_string()]);
        voile.args(["--metrics", &metrics.to_string()]);
        voile.args(["--readiness", &readiness.to_string()]);
    });
    (readiness, proxy)
}

fn token(mesh: &Mesh, kind: &str, account: &str) -> Vec<u8> {
    let state = mesh.state();
    let printed = Process::output(|voile| {
        voile.args(["token", kind, "--service-account", account, "--state"]);
        voile.arg(state);
    });
    assert!(printed.status.success());
    printed.stdout
}

fn says(readiness: std::net::SocketAddr, status: u16, part: &str) {
    wait_until(&format!("readiness says {part}"), || {
        get(readiness, "/healthz/ready").is_ok_and(|answer| {
            answer.status == status && String::from_utf8_lossy(&answer.body).contains(part)
        })
    });
}

#[test]
fn a_join_token_serves_once_and_its_second_use_is_said_on_the_readiness_page() {
    let mut mesh = Mesh::start("STRICT");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), token(&mesh, "join", "shop/client")).expect("written");
    let path = file.path().to_str().expect("a path of letters").to_owned();
    let (readiness, mut first) = sidecar(&mut mesh, ["--join-token-file", &path]);
    says(readiness, 200, "ready");
    first.kill();
    let (readiness, mut second) = sidecar(&mut mesh, ["--join-token-file", &path]);
    says(readiness, 503, "was used before");
    second.terminate();
    assert!(second.wait().success(), "{}", second.log());
}

#[test]
fn a_wrong_token_is_named_and_the_right_one_is_taken_without_a_restart() {
    let mut mesh = Mesh::start("STRICT");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "nonsense").expect("written");
    let path = file.path().to_str().expect("a path of letters").to_owned();
    let (readiness, _proxy) = sidecar(&mut mesh, ["--token-file", &path]);
    says(readiness, 503, "the token is refused");
    std::fs::write(file.path(), token(&mesh, "create", "shop/client")).expect("written");
    says(readiness, 200, "ready");
}

#[test]
fn the_token_of_another_account_gets_its_own_certificate_and_no_configuration() {
    let mut mesh = Mesh::start("STRICT");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), token(&mesh, "create", "shop/server")).expect("written");
    let path = file.path().to_str().expect("a path of letters").to_owned();
    let (readiness, _proxy) = sidecar(&mut mesh, ["--token-file", &path]);
    says(
        readiness,
        503,
        "the control plane does not send it to spiffe://cluster.local/ns/shop/sa/server",
    );
}

#[test]
fn a_token_that_others_can_read_is_warned_of_and_one_among_the_options_is_refused() {
    let mut mesh = Mesh::start("STRICT");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), token(&mesh, "create", "shop/client")).expect("written");
    let path = file.path().to_str().expect("a path of letters").to_owned();
    for (mode, warned) in [(0o600, false), (0o644, true)] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(file.path(), mode).expect("its mode");
        let (readiness, mut proxy) = sidecar(&mut mesh, ["--token-file", &path]);
        says(readiness, 200, "ready");
        proxy.terminate();
        assert!(proxy.wait().success());
        let said = proxy
            .log()
            .contains("every user of this machine can read this token");
        assert_eq!(said, warned, "{}", proxy.log());
    }
    let join = String::from_utf8(token(&mesh, "join", "shop/client")).expect("text");
    let (_, mut proxy) = sidecar(&mut mesh, ["--join-token-file", join.trim()]);
    assert_eq!(proxy.wait().code(), Some(2));
    assert!(proxy.log().contains("expects the name of a file"));
    assert!(!proxy.log().contains(join.trim()), "it is not repeated");
    // The file to which the shell redirected the token.
    let printed = std::fs::File::create(file.path()).expect("the file");
    let output = Process::output(|voile| {
        voile.args([
            "token",
            "create",
            "--service-account",
            "shop/client",
            "--state",
        ]);
        voile.arg(mesh.state()).stdout(printed);
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("has mode 644"), "{said}");
}
