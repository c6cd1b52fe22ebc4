//! Statuses and events on a real API server: what the control plane decides is written at the objects, once.

use std::path::PathBuf;

use serde_json::{Value, json};
use voile_testkit::cluster::{ApiServer, wait_for};

use crate::harness::{PATIENCE, Replica, SYSTEM, cluster};
use crate::stage::{Stage, release};

const SHOP: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: edge, namespace: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {istio.io/use-waypoint: nowhere}}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: edge, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: edge}}
spec: {type: LoadBalancer, selector: {app: edge}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: edge
  namespace: shop
  labels: {gateway.networking.k8s.io/gateway-name: edge}
  annotations: {inject.istio.io/templates: gateway}
spec: {serviceAccountName: edge, automountServiceAccountToken: false, containers: [{name: istio-proxy, image: proxy}]}
"#;

const RESOURCES: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: [web], http: [{route: [{destination: {hots: web}}]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: shop}
spec: {hosts: [a.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: voile, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}
"#;

/// A definition of a kind that accepts every field.
fn definition(group: &str, kind: &str, plural: &str) -> Value {
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}},
            }],
        },
    })
}

fn shop() -> Option<ApiServer> {
    let server = cluster()?;
    server.apply(SHOP).expect("the shop");
    for (group, kind, plural) in [
        ("networking.istio.io", "VirtualService", "virtualservices"),
        ("networking.istio.io", "ServiceEntry", "serviceentries"),
        ("gateway.networking.k8s.io", "Gateway", "gateways"),
        ("gateway.networking.k8s.io", "HTTPRoute", "httproutes"),
        (
            "security.istio.io",
            "AuthorizationPolicy",
            "authorizationpolicies",
        ),
    ] {
        let definition = definition(group, kind, plural);
        server.apply(&definition.to_string()).expect("a definition");
    }
    wait_for("the definitions are served", PATIENCE, || {
        server.apply(RESOURCES)
    });
    Some(server)
}

fn object(server: &ApiServer, what: &str) -> Value {
    let read = server.kubectl(&["-n", "shop", "get", what, "-o", "json"]);
    serde_json::from_str(&read.expect("an object")).expect("JSON")
}

fn patch_status(server: &ApiServer, what: &str, status: &Value) {
    let patch = json!({"status": status}).to_string();
    let arguments = [
        "-n",
        "shop",
        "patch",
        what,
        "--subresource=status",
        "--type=merge",
        "-p",
        &*patch,
    ];
    server.kubectl(&arguments).expect("a status");
}

/// The condition of a type, and its reason.
fn condition(conditions: &Value, kind: &str) -> (String, String) {
    let mut all = conditions.as_array().into_iter().flatten();
    let one = all.find(|one| one["type"] == kind).unwrap_or(&Value::Null);
    let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

/// Waits until a condition of an object is this one; returns the object.
fn until(server: &ApiServer, what: &str, kind: &str, status: &str, reason: &str) -> Value {
    wait_for(what, PATIENCE, || {
        let object = object(server, what);
        let found = condition(&object["status"]["conditions"], kind);
        let is_it = found == (status.to_owned(), reason.to_owned());
        is_it
            .then_some(object.clone())
            .ok_or(object["status"].to_string())
    })
}

#[test]
fn istio_s_resources_say_whether_they_are_in_force() {
    let Some(server) = shop() else {
        return;
    };
    let replica = Replica::start(&server, "one");
    let route = until(
        &server,
        "virtualservice/web",
        "Reconciled",
        "False",
        "Invalid",
    );
    let fault = &route["status"]["conditions"][0];
    let message = fault["message"].as_str().expect("a message");
    assert!(message.contains("did you mean `host`"), "{message}");
    assert_eq!(fault["observedGeneration"], route["metadata"]["generation"]);
    let messages = route["status"]["validationMessages"].as_array();
    let mut codes = messages
        .into_iter()
        .flatten()
        .map(|one| &one["type"]["code"]);
    assert!(codes.any(|code| code == "V0101"), "{messages:?}");
    let told = wait_for("an event", PATIENCE, || {
        let path = "jsonpath={range .items[*]}{.regarding.kind}/{.regarding.name} {.reason}: {.note}{\"\\n\"}{end}";
        let events = server.kubectl(&["-n", "shop", "get", "events.events.k8s.io", "-o", path])?;
        let of_route = events
            .lines()
            .find(|line| line.starts_with("VirtualService/web"));
        of_route.map(str::to_owned).ok_or(events.clone())
    });
    assert!(
        told.starts_with("VirtualService/web Invalid: V01"),
        "{told}"
    );
    let cure = r#"[{"op": "replace", "path": "/spec/http/0/route/0/destination", "value": {"host": "web"}}]"#;
    let arguments = [
        "-n",
        "shop",
        "patch",
        "virtualservice",
        "web",
        "--type=json",
        "-p",
        cure,
    ];
    server.kubectl(&arguments).expect("mended");
    let mended = until(
        &server,
        "virtualservice/web",
        "Reconciled",
        "True",
        "InForce",
    );
    assert_eq!(mended["status"]["conditions"][0]["observedGeneration"], 2);
    assert_eq!(mended["status"]["validationMessages"], Value::Null);
    replica.stop();
}

#[test]
fn services_have_their_addresses_and_waypoints() {
    let Some(server) = shop() else {
        return;
    };
    let replica = Replica::start(&server, "one");
    // A ServiceEntry without addresses has those that clients ask DNS for.
    let entry = until(
        &server,
        "serviceentry/outside",
        "Reconciled",
        "True",
        "InForce",
    );
    let given = &entry["status"]["addresses"][0];
    assert_eq!(given["host"], "a.example");
    let address = given["value"].as_str().expect("an address");
    assert!(address.starts_with("240.240."), "{address}");
    let bound = "istio.io/WaypointBound";
    until(&server, "service/web", bound, "False", "WaypointIsNotReady");
    let free = [
        "-n",
        "shop",
        "label",
        "service",
        "web",
        "istio.io/use-waypoint-",
    ];
    server.kubectl(&free).expect("freed");
    until(&server, "service/web", bound, "", "");
    replica.stop();
}

/// A policy for these services of the shop.
fn policy(services: &[&str]) -> String {
    let target = |name: &&str| json!({"group": "", "kind": "Service", "name": name});
    let targets: Vec<Value> = services.iter().map(target).collect();
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "aimed", "namespace": "shop"}, "spec": {"targetRefs": targets},
    })
    .to_string()
}

#[test]
fn a_policy_says_whether_waypoints_apply_its_targets_in_the_words_of_istio() {
    let Some(server) = shop() else {
        return;
    };
    server.apply(&policy(&["web"])).expect("a policy");
    let replica = Replica::start(&server, "one");
    let accepted = |status: &str, reason: &str, message: &str| {
        let kind = "WaypointAccepted";
        let policy = until(&server, "authorizationpolicy/aimed", kind, status, reason);
        let mut conditions = policy["status"]["conditions"]
            .as_array()
            .expect("a list")
            .iter();
        let condition = conditions.find(|one| one["type"] == kind);
        assert_eq!(condition.expect("a condition")["message"], message);
    };
    accepted(
        "False",
        "AncestorNotBound",
        "Service shop/web is not bound to a waypoint",
    );
    let waypoint = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: nowhere, namespace: shop}\n\
                    spec: {gatewayClassName: voile-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}\n";
    server.apply(waypoint).expect("a waypoint");
    accepted("True", "Accepted", "bound to shop/nowhere");
    server
        .apply(&policy(&["web", "gone"]))
        .expect("two targets");
    let message = "Invalid targetRefs: Service.core:shop/gone";
    accepted("True", "PartiallyInvalid", message);
    server.apply(&policy(&["gone"])).expect("another target");
    accepted("False", "TargetNotFound", "Service shop/gone was not found");
    // Without targets the condition goes.
    server.apply(&policy(&[])).expect("no target");
    let policy = "authorizationpolicy/aimed";
    until(&server, policy, "WaypointAccepted", "", "");
    replica.stop();
}

#[test]
fn a_gateway_is_programmed_once_its_service_has_an_address() {
    let Some(server) = shop() else {
        return;
    };
    let replica = Replica::start(&server, "one");
    let pending = until(&server, "gateway/edge", "Programmed", "False", "Pending");
    assert_eq!(
        condition(&pending["status"]["conditions"], "Accepted").0,
        "True"
    );
    let listener = &pending["status"]["listeners"][0];
    assert_eq!(
        (&listener["name"], &listener["attachedRoutes"]),
        (&json!("http"), &json!(1))
    );
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let running = json!({"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}], "conditions": ready});
    patch_status(&server, "pod/edge", &running);
    until(
        &server,
        "gateway/edge",
        "Programmed",
        "False",
        "AddressNotAssigned",
    );
    let given = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}});
    patch_status(&server, "service/edge", &given);
    let programmed = until(&server, "gateway/edge", "Programmed", "True", "Programmed");
    let address = json!([{"type": "IPAddress", "value": "192.0.2.7"}]);
    assert_eq!(programmed["status"]["addresses"], address);
    // An address that it asks for must be among them.
    let ask = |value: &str| {
        let patch = json!({"spec": {"addresses": [{"type": "IPAddress", "value": value}]}});
        let patch = patch.to_string();
        let gateway = "gateways.gateway.networking.k8s.io/edge";
        let arguments = ["-n", "shop", "patch", gateway, "--type=merge", "-p", &patch];
        server.kubectl(&arguments).expect("patched");
    };
    ask("192.0.2.8");
    until(
        &server,
        "gateway/edge",
        "Programmed",
        "False",
        "AddressNotUsable",
    );
    ask("192.0.2.7");
    until(&server, "gateway/edge", "Programmed", "True", "Programmed");
    replica.stop();
}

#[test]
fn entries_of_other_controllers_stay_beside_ours() {
    let Some(server) = shop() else {
        return;
    };
    let accepted = json!({
        "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-11-28T12:00:00Z",
    });
    let others = json!({
        "parentRef": {"name": "theirs"}, "controllerName": "example.com/other", "conditions": [accepted],
    });
    patch_status(&server, "httproute/web", &json!({"parents": [others]}));
    let replica = Replica::start(&server, "one");
    until(&server, "gateway/edge", "Programmed", "False", "Pending");
    let written = |parents: &Value| parents.as_array().is_some_and(|all| all.len() == 2);
    wait_for("our entry", PATIENCE, || {
        let status = object(&server, "httproute/web")["status"].clone();
        written(&status["parents"])
            .then_some(())
            .ok_or(status.to_string())
    });
    let route = object(&server, "httproute/web");
    assert_eq!(route["status"]["parents"][0], others);
    let ours = &route["status"]["parents"][1];
    assert_eq!(ours["controllerName"], "voile.dev/gateway-controller");
    assert_eq!(ours["parentRef"]["name"], "edge");
    assert_eq!(condition(&ours["conditions"], "Accepted").0, "True");
    // A route whose Gateway is gone says so.
    let gone = ["-n", "shop", "delete", "gateway", "edge"];
    server.kubectl(&gone).expect("deleted");
    wait_for("the route has no parent", PATIENCE, || {
        let route = object(&server, "httproute/web");
        let ours = condition(&route["status"]["parents"][1]["conditions"], "Accepted");
        (ours.0 != "True")
            .then_some(())
            .ok_or(route["status"].to_string())
    });
    assert_eq!(
        object(&server, "httproute/web")["status"]["parents"][0],
        others
    );
    replica.stop();
}

#[test]
fn a_replica_that_takes_over_writes_what_is_news_and_nothing_else() {
    let Some(server) = shop() else {
        return;
    };
    let replica = Replica::start(&server, "one");
    until(&server, "gateway/edge", "Programmed", "False", "Pending");
    until(
        &server,
        "virtualservice/web",
        "Reconciled",
        "False",
        "Invalid",
    );
    replica.stop();
    let version = |what: &str| object(&server, what)["metadata"]["resourceVersion"].clone();
    let written = ["gateway/edge", "httproute/web", "serviceentry/outside"];
    let before = written.map(version);
    let cure = r#"[{"op": "replace", "path": "/spec/http/0/route/0/destination", "value": {"host": "web"}}]"#;
    let mend = [
        "-n",
        "shop",
        "patch",
        "virtualservice",
        "web",
        "--type=json",
        "-p",
        cure,
    ];
    server.kubectl(&mend).expect("mended");
    let replica = Replica::start(&server, "two");
    until(
        &server,
        "virtualservice/web",
        "Reconciled",
        "True",
        "InForce",
    );
    assert_eq!(written.map(version), before);
    replica.stop();
}

/// A kubeconfig of the control plane's account.
fn as_control_plane(stage: &Stage) -> PathBuf {
    let text = std::fs::read_to_string(stage.server.kubeconfig()).expect("a kubeconfig");
    let user = "\"user\": {";
    let account = format!("{user}\"as\": \"system:serviceaccount:{SYSTEM}:istiod\", ");
    let text = text.replace(user, &account);
    assert!(text.contains(&account), "{text}");
    let file = stage.server.folder().join("istiod");
    std::fs::write(&file, text).expect("written");
    file
}

#[tokio::test]
async fn the_permissions_of_the_chart_are_enough() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    let server = &stage.server;
    stage.install(&release(&[])).await.expect("installed");
    for (kind, plural) in [("Gateway", "gateways"), ("HTTPRoute", "httproutes")] {
        let definition = definition("gateway.networking.k8s.io", kind, plural);
        server.apply(&definition.to_string()).expect("a definition");
    }
    let replica = Replica::over(as_control_plane(&stage), "one");
    for kind in ["mutating", "validating"] {
        let path = "jsonpath={.items[*].webhooks[*].clientConfig.caBundle}";
        let kind = format!("{kind}webhookconfigurations");
        wait_for(&kind, PATIENCE, || {
            let found = server.kubectl(&["get", &kind, "-o", path])?;
            (!found.is_empty()).then_some(()).ok_or(found)
        });
    }
    // Nothing serves them here.
    let webhooks = ["delete", "validatingwebhookconfigurations", "--all"];
    server.kubectl(&webhooks).expect("deleted");
    server.apply(SHOP).expect("the shop");
    wait_for("the definitions are served", PATIENCE, || {
        server.apply(RESOURCES)
    });
    let in_force = "Reconciled";
    until(server, "virtualservice/web", in_force, "False", "Invalid");
    until(server, "serviceentry/outside", in_force, "True", "InForce");
    until(server, "gateway/edge", "Programmed", "False", "Pending");
    let bound = "istio.io/WaypointBound";
    until(server, "service/web", bound, "False", "WaypointIsNotReady");
    wait_for("an event", PATIENCE, || {
        let events = server.kubectl(&["-n", "shop", "get", "events.events.k8s.io"])?;
        events.contains("Invalid").then_some(()).ok_or(events)
    });
    replica.stop();
}

/// Two routes of one fault: one in a namespace with a tag, and one in a namespace that says nothing.
const TAGGED: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: annex}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: annex}
spec: {hosts: [web], http: [{route: [{destination: {hots: web}}]}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: istio-revision-tag-prod, labels: {istio.io/tag: prod, istio.io/rev: one}}
"#;

#[test]
fn objects_of_a_tagged_namespace_have_statuses_and_those_of_nobody_have_none() {
    let Some(server) = shop() else {
        return;
    };
    let label = ["label", "namespace", "shop", "istio.io/rev=prod"];
    server.kubectl(&label).expect("labelled");
    server.apply(TAGGED).expect("a tag");
    let replica = Replica::of_revision(&server, "one");
    until(
        &server,
        "virtualservice/web",
        "Reconciled",
        "False",
        "Invalid",
    );
    // It comes first in the order of writes.
    let path = "jsonpath={.status}";
    let unnamed = ["-n", "annex", "get", "virtualservice/web", "-o", path];
    assert_eq!(server.kubectl(&unnamed).as_deref(), Ok(""));
    // The tag `default` gives them to the revision.
    let default = "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, \
        metadata: {name: istio-revision-tag-default, labels: {istio.io/tag: default, istio.io/rev: one}}}";
    server.apply(default).expect("a tag");
    wait_for("a status", PATIENCE, || {
        let status = server.kubectl(&unnamed)?;
        status.contains("Invalid").then_some(()).ok_or(status)
    });
    replica.stop();
}

const CLIENTS: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: tls, namespace: shop}
spec:
  gatewayClassName: voile
  tls:
    frontend:
      default: {validation: {mode: AllowInsecureFallback, caCertificateRefs: [{group: "", kind: ConfigMap, name: clients}]}}
    backend: {clientCertificateRef: {name: pair}}
  listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: pair}]}}]
"#;

const AUTHORITIES: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: clients, namespace: shop}
data: {ca.crt: "-----BEGIN CERTIFICATE-----"}
---
apiVersion: v1
kind: Secret
metadata: {name: pair, namespace: shop}
stringData: {tls.crt: "-----BEGIN CERTIFICATE-----", tls.key: "-----BEGIN PRIVATE KEY-----"}
"#;

#[test]
fn certificates_that_the_tls_of_a_gateway_names_are_read_when_they_come() {
    let Some(server) = shop() else {
        return;
    };
    server.apply(CLIENTS).expect("a Gateway");
    let replica = Replica::start(&server, "one");
    let of_listener = |kind: &str, reason: &str| {
        wait_for(reason, PATIENCE, || {
            let status = object(&server, "gateway/tls")["status"].take();
            let found = condition(&status["listeners"][0]["conditions"], kind);
            match found.1 == reason {
                true => Ok(()),
                false => Err(format!("{found:?}")),
            }
        });
    };
    let gateway = "gateway/tls";
    of_listener("Accepted", "NoValidCACertificate");
    let missing = "InvalidClientCertificateRef";
    until(&server, gateway, "ResolvedRefs", "False", missing);
    server.apply(AUTHORITIES).expect("certificates");
    of_listener("Accepted", "Accepted");
    until(&server, gateway, "ResolvedRefs", "True", "ResolvedRefs");
    let insecure = "InsecureFrontendValidationMode";
    until(&server, gateway, insecure, "True", "ConfigurationChanged");
    // Conditions that only `tls` asks for go with it.
    let gateways = "gateways.gateway.networking.k8s.io/tls";
    let patch = r#"[{"op": "remove", "path": "/spec/tls"}]"#;
    let arguments = ["-n", "shop", "patch", gateways, "--type=json", "-p", patch];
    server.kubectl(&arguments).expect("patched");
    until(&server, gateway, insecure, "", "");
    until(&server, gateway, "ResolvedRefs", "", "");
    replica.stop();
}
