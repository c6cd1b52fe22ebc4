//! Objects become the mesh, service accounts its identities, and one of the replicas has the duties.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::EncodingKey;
use serde_json::{Value, json};
use voile_testkit::cluster::{ApiServer, wait_for};

use crate::harness::{PATIENCE, Replica, SYSTEM, Way, cluster, openssl, root_of, token};

const SHOP: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
"#;

/// A definition of a kind that accepts every field.
pub(crate) const VIRTUAL_SERVICES: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: virtualservices.networking.istio.io}
spec:
  group: networking.istio.io
  names: {kind: VirtualService, plural: virtualservices}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"#;

/// A pod with a sidecar, and its status as a kubelet would write it.
fn pod(server: &ApiServer, name: &str, address: &str) {
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: web}}}}\n\
         spec: {{serviceAccountName: web, automountServiceAccountToken: false, containers: [{{name: app, image: app}}, \
         {{name: istio-proxy, image: proxy}}]}}\n"
    );
    server.apply(&manifest).expect("a pod");
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let is = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready});
    status(server, name, &is);
}

fn status(server: &ApiServer, name: &str, status: &Value) {
    let patch = json!({"status": status}).to_string();
    let arguments = [
        "-n",
        "shop",
        "patch",
        "pod",
        name,
        "--subresource=status",
        "--type=merge",
        "-p",
        &*patch,
    ];
    server.kubectl(&arguments).expect("a status");
}

#[test]
fn objects_become_the_mesh_and_what_changes_is_followed() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(SHOP).expect("the shop");
    pod(&server, "web-1", "10.1.2.3");
    let replica = Replica::start(&server, "one");
    replica.until_workloads(&[("shop/web-1", true)]);
    // Pods come, lose their readiness, end, and go.
    pod(&server, "web-2", "10.1.2.4");
    replica.until_workloads(&[("shop/web-1", true), ("shop/web-2", true)]);
    status(
        &server,
        "web-2",
        &json!({"conditions": [{"type": "Ready", "status": "False"}]}),
    );
    replica.until_workloads(&[("shop/web-1", true), ("shop/web-2", false)]);
    status(&server, "web-2", &json!({"phase": "Succeeded"}));
    replica.until_workloads(&[("shop/web-1", true)]);
    server
        .kubectl(&["-n", "shop", "delete", "pod", "web-1", "--force"])
        .expect("deleted");
    replica.until_workloads(&[]);
    // A definition that comes later is watched, a broken object of it is reported by its name, and both may go again.
    server.apply(VIRTUAL_SERVICES).expect("a definition");
    let broken = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
                  spec: {hosts: [web], http: [{route: [{destination: {hots: web}}]}]}\n";
    wait_for("the definition is served", PATIENCE, || {
        server.apply(broken)
    });
    replica.until_reported("virtualservices.networking.istio.io/shop/web:");
    server
        .kubectl(&["delete", "crd", "virtualservices.networking.istio.io"])
        .expect("deleted");
    replica.until_not_reported("virtualservices.networking.istio.io/shop/web:");
    replica.stop();
}

/// The settings of the mesh, with these selectors of namespaces.
fn select_namespaces(server: &ApiServer, selectors: &str) {
    let manifest = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: {SYSTEM}}}\n\
         data: {{mesh: 'discoverySelectors: {selectors}'}}\n"
    );
    server.apply(&manifest).expect("the settings");
}

#[test]
fn namespaces_belong_to_the_mesh_as_selectors_and_labels_say_at_the_moment() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(SHOP).expect("the shop");
    pod(&server, "web-1", "10.1.2.3");
    select_namespaces(&server, "[{matchLabels: {mesh: in}}]");
    let replica = Replica::start(&server, "one");
    replica.until_workloads(&[]);
    let label = |label: &str| {
        let arguments = ["label", "--overwrite", "namespace", "shop", label];
        server.kubectl(&arguments).expect("labelled");
    };
    label("mesh=in");
    replica.until_workloads(&[("shop/web-1", true)]);
    label("mesh-");
    replica.until_workloads(&[]);
    select_namespaces(
        &server,
        "[{matchExpressions: [{key: mesh, operator: DoesNotExist}]}]",
    );
    replica.until_workloads(&[("shop/web-1", true)]);
    select_namespaces(&server, "[{matchLabels: {mesh: in}}]");
    replica.until_workloads(&[]);
    // Selectors that cannot be used leave the last ones in force, as in Istio.
    select_namespaces(&server, "[{matchExpressions: [{key: mesh, operator: Is}]}]");
    label("mesh=in");
    replica.until_workloads(&[("shop/web-1", true)]);
    label("mesh-");
    replica.until_workloads(&[]);
    replica.until_not_reported("discoverySelectors");
    replica.stop();
}

#[test]
fn callers_prove_themselves_by_tokens_of_live_accounts_and_pods() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(SHOP).expect("the shop");
    pod(&server, "web-1", "10.1.2.3");
    let replica = Replica::start(&server, "one");
    let root = root_of(&server, "shop");
    let audience = ["--audience", "istio-ca"];
    let right = token(&server, "shop", "web", &audience);
    let identity = replica.certify(&root, &right);
    assert_eq!(
        identity.as_deref(),
        Ok("spiffe://cluster.local/ns/shop/sa/web")
    );
    let other = token(&server, "shop", "web", &["--audience", "api"]);
    let refused = replica
        .certify(&root, &other)
        .expect_err("of another audience");
    assert!(refused.contains("InvalidAudience"), "{refused}");
    // A signature that is not the cluster's: the last character but one has other bits.
    let (head, tail) = right.trim().split_at(right.trim().len() - 8);
    let forged = format!(
        "{head}{}",
        if tail.starts_with('A') {
            tail.replacen('A', "B", 1)
        } else {
            format!("A{}", &tail[1..])
        }
    );
    let refused = replica.certify(&root, &forged).expect_err("a forged one");
    assert!(refused.contains("InvalidSignature"), "{refused}");
    // A pod's token ends with its pod, also if another pod takes its name.
    let bound = [
        &audience[..],
        &["--bound-object-kind", "Pod", "--bound-object-name", "web-1"],
    ]
    .concat();
    let of_pod = token(&server, "shop", "web", &bound);
    replica.certify(&root, &of_pod).expect("the pod lives");
    server
        .kubectl(&["-n", "shop", "delete", "pod", "web-1", "--force"])
        .expect("deleted");
    replica.until_workloads(&[]);
    let refused = replica
        .certify(&root, &of_pod)
        .expect_err("the pod is gone");
    assert!(
        refused.contains("pods/shop/web-1, which is not there"),
        "{refused}"
    );
    pod(&server, "web-1", "10.1.2.4");
    replica.until_workloads(&[("shop/web-1", true)]);
    let refused = replica.certify(&root, &of_pod).expect_err("another pod");
    assert!(
        refused.contains("is another object of the same name now"),
        "{refused}"
    );
    replica.stop();
}

#[test]
fn replicas_have_one_root_and_another_takes_over_the_duties_of_one_that_stops() {
    let Some(server) = cluster() else {
        return;
    };
    let (first, second) = std::thread::scope(|scope| {
        let [first, second] =
            ["first", "second"].map(|name| scope.spawn(|| Replica::start(&server, name)));
        (
            first.join().expect("the first"),
            second.join().expect("the second"),
        )
    });
    let root = root_of(&server, SYSTEM);
    let holder = || {
        let path = "jsonpath={.spec.holderIdentity}";
        server.kubectl(&["-n", SYSTEM, "get", "lease", "voile-leader", "-o", path])
    };
    let named = |holder: Result<String, String>| {
        holder.and_then(|name| (!name.is_empty()).then_some(name.clone()).ok_or(name))
    };
    let leader = wait_for("a leader", PATIENCE, || named(holder()));
    // A ConfigMap that somebody changes or deletes is right again soon, and a new namespace has one.
    let wrong = r#"{"data": {"root-cert.pem": "wrong"}}"#;
    server
        .kubectl(&[
            "-n",
            SYSTEM,
            "patch",
            "configmap",
            "istio-ca-root-cert",
            "--type=merge",
            "-p",
            wrong,
        ])
        .expect("changed");
    let is_right = |namespace: &str| {
        wait_for("the root is right", PATIENCE, || {
            let found = root_of(&server, namespace);
            (found == root).then_some(()).ok_or(found)
        });
    };
    is_right(SYSTEM);
    let (ends, stays) = if leader == "first" {
        (first, second)
    } else {
        (second, first)
    };
    ends.stop();
    wait_for("the other leads", PATIENCE, || {
        named(holder()).and_then(|name| (name != leader).then_some(()).ok_or(name))
    });
    server.apply(SHOP).expect("the shop");
    is_right("shop");
    let right = token(&server, "shop", "web", &["--audience", "istio-ca"]);
    stays.certify(&root, &right).expect("under the same root");
    stays.stop();
    // A clean stop leaves the Lease free.
    assert_eq!(holder().as_deref(), Ok(""));
}

#[test]
fn the_webhooks_of_the_revision_get_the_authority_and_those_of_others_do_not() {
    let Some(server) = cluster() else {
        return;
    };
    let configuration = |kind: &str, app: &str, revision: &str| {
        let labels = json!({"app": app, "istio.io/rev": revision});
        let client = json!({"service": {"name": "istiod", "namespace": SYSTEM}});
        let webhook = json!({
            "name": "a.validation.istio.io", "clientConfig": client, "rules": [], "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        });
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": revision, "labels": labels},
            "webhooks": [webhook],
        })
    };
    for (kind, app) in [
        ("MutatingWebhookConfiguration", "sidecar-injector"),
        ("ValidatingWebhookConfiguration", "istiod"),
    ] {
        for revision in ["default", "other"] {
            let object = configuration(kind, app, revision);
            server.apply(&object.to_string()).expect("created");
        }
    }
    let replica = Replica::start(&server, "one");
    let bundle = |kind: &str, revision: &str| {
        let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
        server.kubectl(&["get", kind, revision, "-o", path])
    };
    let root = STANDARD.encode(root_of(&server, SYSTEM));
    for kind in [
        "mutatingwebhookconfiguration",
        "validatingwebhookconfiguration",
    ] {
        wait_for(kind, PATIENCE, || {
            let found = bundle(kind, "default")?;
            (found == root).then_some(()).ok_or(found)
        });
        assert_eq!(bundle(kind, "other").as_deref(), Ok(""));
    }
    replica.stop();
}

#[test]
fn what_is_known_stays_in_force_while_the_api_server_is_away() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(SHOP).expect("the shop");
    pod(&server, "web-1", "10.1.2.3");
    let way = Way::to(&server);
    let replica = Replica::over(way.kubeconfig.clone(), "one");
    let root = root_of(&server, "shop");
    replica.until_workloads(&[("shop/web-1", true)]);
    let right = token(&server, "shop", "web", &["--audience", "istio-ca"]);
    way.cut();
    // Meanwhile one pod goes and another comes.
    let delete = ["-n", "shop", "delete", "pod", "web-1", "--force"];
    server.kubectl(&delete).expect("deleted");
    pod(&server, "web-2", "10.1.2.4");
    let identity = replica.certify(&root, &right);
    assert_eq!(
        identity.as_deref(),
        Ok("spiffe://cluster.local/ns/shop/sa/web")
    );
    assert_eq!(replica.workloads(), [("shop/web-1".to_owned(), true)]);
    way.restore();
    replica.until_workloads(&[("shop/web-2", true)]);
    replica.stop();
}

/// Streaming lists of a kind that the API server has begun since its start, in the whole cluster.
fn lists_of(server: &ApiServer, kind: &str) -> u64 {
    let metrics = server.kubectl(&["get", "--raw", "/metrics"]);
    let metrics = metrics.expect("metrics");
    let series = format!(
        r#"apiserver_watch_list_duration_seconds_count{{group="",resource="{kind}",scope="cluster",version="v1"}} "#
    );
    let counts = metrics
        .lines()
        .filter_map(|line| line.strip_prefix(&series));
    counts
        .map(|count| count.parse::<u64>().expect("a number"))
        .sum()
}

#[test]
fn each_kind_is_listed_once_more_when_the_history_to_resume_from_is_gone() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(SHOP).expect("the shop");
    pod(&server, "web-1", "10.1.2.3");
    let way = Way::to(&server);
    let replica = Replica::over(way.kubeconfig.clone(), "one");
    replica.until_workloads(&[("shop/web-1", true)]);
    way.cut();
    // No watch sees that one pod goes and another comes: etcd forgets it, and an API server that starts has never known it.
    let delete = ["-n", "shop", "delete", "pod", "web-1", "--force"];
    server.kubectl(&delete).expect("deleted");
    pod(&server, "web-2", "10.1.2.4");
    server.compact_history();
    server.restart();
    // Lists of the API server's own.
    let before = ["pods", "services"].map(|kind| lists_of(&server, kind));
    way.restore();
    replica.until_workloads(&[("shop/web-2", true)]);
    pod(&server, "web-3", "10.1.2.5");
    replica.until_workloads(&[("shop/web-2", true), ("shop/web-3", true)]);
    // Each kind resumes after a pause of its own.
    let lists = || ["pods", "services"].map(|kind| lists_of(&server, kind));
    let once_more = before.map(|count| count + 1);
    wait_for("the lists of each kind", PATIENCE, || {
        let after = lists();
        let behind = after
            .iter()
            .zip(once_more)
            .any(|(count, want)| *count < want);
        (!behind)
            .then_some(())
            .ok_or_else(|| format!("{after:?} of {once_more:?}"))
    });
    assert_eq!(lists(), once_more);
    replica.stop();
}

/// A token as another one, but for the time of its end, signed with the cluster's own key.
fn token_until(server: &ApiServer, token: &str, end: SystemTime) -> String {
    let parts: Vec<&str> = token.trim().split('.').collect();
    let part = |at: usize| URL_SAFE_NO_PAD.decode(parts[at]).expect("Base64");
    let mut claims: Value = serde_json::from_slice(&part(1)).expect("claims");
    let seconds = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        Value::from(since.expect("a time").as_secs())
    };
    let begin = seconds(end - Duration::from_secs(600));
    for (claim, time) in [
        ("exp", seconds(end)),
        ("iat", begin.clone()),
        ("nbf", begin),
    ] {
        claims[claim] = time;
    }
    let pki = server.folder().join("pki");
    openssl(
        &pki,
        "pkcs8 -topk8 -nocrypt -in sa.key -outform DER -out sa.der",
    );
    let key = std::fs::read(pki.join("sa.der")).expect("a key");
    let header = serde_json::from_slice(&part(0)).expect("a header");
    jsonwebtoken::encode(&header, &claims, &EncodingKey::from_ec_der(&key)).expect("signed")
}

/// The API server's answer about a token, by a TokenReview.
fn review(server: &ApiServer, token: &str) -> String {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "metadata": {"name": "one"}, "spec": {"token": token, "audiences": ["istio-ca"]},
    });
    let file = server.folder().join("review.json");
    std::fs::write(&file, review.to_string()).expect("written");
    let file = file.to_str().expect("a path");
    let create = ["create", "-o", "jsonpath={.status}", "-f", file];
    server.kubectl(&create).expect("a review")
}

#[test]
fn a_token_is_refused_after_its_end_as_by_the_api_server() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(SHOP).expect("the shop");
    pod(&server, "web-1", "10.1.2.3");
    let replica = Replica::start(&server, "one");
    replica.until_workloads(&[("shop/web-1", true)]);
    let root = root_of(&server, "shop");
    let bound = "--audience istio-ca --bound-object-kind Pod --bound-object-name web-1";
    let bound: Vec<&str> = bound.split(' ').collect();
    let fresh = token(&server, "shop", "web", &bound);
    let minute = Duration::from_secs(60);
    let living = token_until(&server, &fresh, SystemTime::now() + minute);
    replica.certify(&root, &living).expect("a minute is left");
    let answer = review(&server, &living);
    assert!(answer.contains(r#""authenticated":true"#), "{answer}");
    let ended = token_until(&server, &fresh, SystemTime::now() - minute);
    let refused = replica.certify(&root, &ended).expect_err("it has ended");
    assert!(refused.contains("expired"), "{refused}");
    let answer = review(&server, &ended);
    assert!(
        answer.contains("expired") && !answer.contains("true"),
        "{answer}"
    );
    // A proxy reads the file for each question, and the kubelet has renewed it by then.
    replica.certify(&root, &fresh).expect("a new one");
    replica.stop();
}
