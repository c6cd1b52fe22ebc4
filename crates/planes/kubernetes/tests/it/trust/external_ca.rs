//! Certificates of workloads signed by a signer of CertificateSigningRequests.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use voile_identity::{Authority, Identity, WorkloadCertificate};
use voile_testkit::cluster::{ApiServer, wait_for};

use crate::harness::{PATIENCE, Replica, SYSTEM, cluster, token};
use crate::trust::rotation::{ACCOUNT, authority, is_believed, until_root, web};

/// Requests of one caller that wait at once.
const SHARE: usize = 8;
const SIGNER: &str = "example.com/mesh";
const LIST: [&str; 4] = ["get", "certificatesigningrequests", "-o", "json"];

fn requests(server: &ApiServer) -> Result<Vec<Value>, String> {
    let all: Value = serde_json::from_str(&server.kubectl(&LIST)?).expect("JSON");
    Ok(all["items"].as_array().cloned().unwrap_or_default())
}

/// Writes the status of the next approved request, as the signer.
fn answer(server: &ApiServer, status: impl FnOnce(&str, &Value) -> Value) {
    let request = wait_for("an approved request", PATIENCE, || {
        let all = requests(server)?;
        let approved = |one: &&Value| one["status"]["conditions"][0]["type"] == "Approved";
        all.iter().find(approved).cloned().ok_or(format!("{all:?}"))
    });
    let spec = &request["spec"];
    assert_eq!(spec["signerName"], SIGNER);
    assert_eq!(spec["expirationSeconds"], 86400);
    let csr = STANDARD.decode(spec["request"].as_str().expect("a request"));
    let csr = String::from_utf8(csr.expect("base64")).expect("PEM");
    let status = json!({"status": status(&csr, &request["status"]["conditions"][0])}).to_string();
    let name = request["metadata"]["name"].as_str().expect("a name");
    let patch = [
        "patch",
        "certificatesigningrequest",
        name,
        "--subresource=status",
        "--type=merge",
    ];
    server
        .kubectl(&[&patch[..], &["-p", &*status]].concat())
        .expect("answered");
}

/// Asks for a certificate while the signer answers.
fn ask(
    (server, replica): (&ApiServer, &Replica),
    root: &str,
    status: impl FnOnce(&str, &Value) -> Value,
) -> Result<WorkloadCertificate, String> {
    let token = web(server);
    let certificate = std::thread::scope(|scope| {
        let asked = scope.spawn(|| replica.certificate(root, &token));
        answer(server, status);
        asked.join().expect("it ends")
    });
    assert_eq!(
        requests(server).expect("a list"),
        Vec::<Value>::new(),
        "nothing is left"
    );
    certificate
}

#[test]
fn a_signer_of_the_cluster_signs_the_certificates_of_workloads() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(ACCOUNT).expect("an account");
    server
        .apply(&ACCOUNT.replace("name: web", "name: other"))
        .expect("another account");
    let files = authority(SystemTime::now());
    let signer = Authority::from_files(&files, SystemTime::now()).expect("an authority");
    let roots = format!("--from-literal=root-cert.pem={}", files.roots);
    let secret = [
        "-n",
        SYSTEM,
        "create",
        "secret",
        "generic",
        "external-ca-cert",
        &*roots,
    ];
    server.kubectl(&secret).expect("a secret");
    let replica = Replica::signed_by(&server, "one", SIGNER);
    let root = until_root(&server, "both roots", |root| {
        root.contains(files.roots.trim()) && root.matches("BEGIN").count() == 2
    });
    let owner: Identity = "spiffe://cluster.local/ns/istio-system/sa/web"
        .parse()
        .expect("an identity");
    let sign = |csr: &str, _: &Value| {
        let issued = signer.issue(csr, &owner, None, SystemTime::now());
        let chain = issued.expect("it names its owner").chain;
        json!({"certificate": STANDARD.encode(&chain[0])})
    };
    let certificate = ask((&server, &replica), &root, sign).expect("certified");
    assert_eq!(*certificate.identity(), owner);
    assert!(is_believed(&certificate, &files.roots));
    assert_eq!(certificate.roots().len(), 2);

    let fail = |_: &str, approved: &Value| json!({"conditions": [approved, {"type": "Failed", "status": "True", "message": "not today"}]});
    let refused = ask((&server, &replica), &root, fail).expect_err("no certificate");
    assert!(refused.contains("Failed: not today"), "{refused}");

    // A caller that asks without end leaves room for others.
    let own = web(&server);
    let stranger = token(&server, SYSTEM, "other", &["--audience", "istio-ca"]);
    let waiting = |wanted: usize| {
        wait_for("requests that wait", PATIENCE, || {
            let waiting = requests(&server)?.len();
            (waiting == wanted).then_some(()).ok_or(waiting.to_string())
        });
    };
    std::thread::scope(|scope| {
        let ask = || replica.certificate(&root, &own).map(drop);
        let asked: Vec<_> = (0..=SHARE).map(|_| scope.spawn(ask)).collect();
        waiting(SHARE);
        let other = scope.spawn(|| replica.certificate(&root, &stranger).map(drop));
        waiting(SHARE + 1);
        let answers = asked
            .into_iter()
            .map(|one| one.join().expect("it ends").expect_err("unsigned"));
        let answers: Vec<_> = answers.collect();
        let refused = |one: &&String| one.contains("8 others of this caller wait");
        assert_eq!(answers.iter().filter(refused).count(), 1, "{answers:?}");
        drop(other.join());
    });

    let other = Authority::from_files(&authority(SystemTime::now()), SystemTime::now());
    let other = other.expect("an authority");
    let forge = |csr: &str, _: &Value| {
        let issued = other.issue(csr, &owner, None, SystemTime::now());
        json!({"certificate": STANDARD.encode(&issued.expect("signed").chain[0])})
    };
    let refused = ask((&server, &replica), &root, forge).expect_err("another root");
    assert!(refused.contains("not trusted"), "{refused}");
    replica.stop();
}
