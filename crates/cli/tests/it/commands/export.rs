//! `voile export envoy-filters`, from its command line.

use std::path::Path;

use crate::mesh::Process;

const POLICIES: &str = r#"apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: readers, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  rules:
  - from: [{source: {principals: ["cluster.local/ns/shop/sa/client"]}}]
    to: [{operation: {paths: ["/a"]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: shop}
spec:
  action: DENY
  rules:
  - to: [{operation: {paths: ["*/admin"]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: trial, namespace: shop, annotations: {istio.io/dry-run: "true"}}
spec:
  action: DENY
  rules:
  - to: [{operation: {methods: [DELETE]}}]
"#;

/// Resources with external authorizers and token issuers.
const ASKING: &str = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - name: opa
      envoyExtAuthzGrpc: {service: shop/opa.shop.internal, port: 9000}
    - name: web
      envoyExtAuthzHttp: {service: shop/opa.shop.internal, port: 9001}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: opa, namespace: shop}
spec:
  hosts: [opa.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 9000, name: grpc-ask, protocol: GRPC}
  - {number: 9001, name: http-ask, protocol: HTTP}
  endpoints: [{address: 127.9.9.9}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: shop}
spec:
  action: CUSTOM
  provider: {name: opa}
  rules: [{to: [{operation: {ports: ["8080"]}}]}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: believed, namespace: shop}
spec:
  jwtRules:
  - issuer: https://z.example
    jwks: '{"keys": [KEY]}'
  - issuer: https://a.example
    jwks: '{"keys": [KEY]}'
    audiences: [shop]
"#;

/// A key of RFC 8037, appendix A.
const KEY: &str =
    r#"{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;

fn export(folder: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let output = Process::output(|voile| {
        voile.args(["export", "envoy-filters"]).arg(folder);
        if !more.contains(&"--namespace") {
            voile.args(["--namespace", "shop"]);
        }
        voile.args(more);
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_workloads_policies_are_filters_in_istios_order() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("policies.yaml"), POLICIES).expect("written");
    let (code, text, said) = export(folder.path(), &["--label", "app=web"]);
    assert_eq!(code, Some(0), "{said}");
    let filters: serde_json::Value = serde_json::from_str(&text).expect("JSON and nothing else");
    let config = |at: usize| &filters[at]["typed_config"];
    assert_eq!(filters.as_array().map(Vec::len), Some(2), "{text}");
    assert_eq!(filters[0]["name"], "envoy.filters.http.rbac");
    for (at, action, policy) in [(0, "DENY", "no-admin"), (1, "ALLOW", "readers")] {
        let rules = &config(at)["rules"];
        assert_eq!(rules["action"], action, "{text}");
        let name = format!("ns[shop]-policy[{policy}]-rule[0]");
        assert!(rules["policies"].get(&name).is_some(), "{rules}");
    }
    let shadow = &config(0)["shadow_rules"]["policies"];
    assert!(shadow.get("ns[shop]-policy[trial]-rule[0]").is_some());
    assert_eq!(config(0)["shadow_rules_stat_prefix"], "istio_dry_run_deny_");
    assert!(config(1).get("shadow_rules").is_none(), "{text}");

    // Another workload has what has no selector, and over TCP the filter is another.
    let more = [
        "--label",
        "app=other",
        "--layer",
        "tcp",
        "--peer",
        "filter-state",
    ];
    let (code, text, said) = export(folder.path(), &more);
    assert_eq!(code, Some(0), "{said}");
    assert!(text.contains("filters.network.rbac.v3") && !text.contains("readers"));
    let (code, text, _) = export(folder.path(), &["--namespace", "elsewhere"]);
    assert_eq!((code, text.trim()), (Some(0), "[]"));
}

#[test]
fn who_is_asked_and_whose_tokens_are_believed_are_filters_before_the_policies() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!("{}---\n{POLICIES}", ASKING.replace("KEY", KEY));
    std::fs::write(folder.path().join("all.yaml"), text).expect("written");
    let (code, text, said) = export(folder.path(), &["--label", "app=web"]);
    assert_eq!(code, Some(0), "{said}");
    let filters: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let names = filters.as_array().expect("a list").iter();
    let names: Vec<&str> = names.filter_map(|one| one["name"].as_str()).collect();
    let in_order = ["rbac", "ext_authz", "jwt_authn", "rbac", "rbac"];
    let in_order = in_order.map(|name| format!("envoy.filters.http.{name}"));
    assert_eq!(names, in_order);
    let config = |at: usize| &filters[at]["typed_config"];
    assert!(config(0).get("rules").is_none(), "it only marks");
    let prefix = &config(0)["shadow_rules_stat_prefix"];
    assert_eq!(prefix, "istio_ext_authz_");
    let service = &config(1)["grpc_service"]["envoy_grpc"];
    assert_eq!(service["cluster_name"], "outbound|9000||opa.shop.internal");
    let issuer = |number: u32| &config(2)["providers"][format!("origins-{number}")]["issuer"];
    let issuers = [issuer(0), issuer(1)];
    assert_eq!(issuers, ["https://a.example", "https://z.example"]);

    // On the connection level there are no tokens, and another filter asks the external service.
    let (code, text, said) = export(folder.path(), &["--layer", "tcp"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(text.contains("filters.network.ext_authz.v3") && !text.contains("jwt_authn"));
}

#[test]
fn what_cannot_be_translated_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("all.yaml");
    let asking = ASKING.replace("KEY", KEY);
    let inline = format!("jwks: '{{\"keys\": [{KEY}]}}'\n    audiences");
    let fetched = asking.replace(&inline, "jwksUri: https://a.example/keys\n    audiences");
    let found = asking.replace(&inline, "audiences");
    assert!(fetched != asking && found != asking);
    let second = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: ask-too, namespace: shop}\n\
                  spec: {action: CUSTOM, provider: {name: web}, rules: [{}]}\n";
    for (text, more, told) in [
        (
            fetched.clone(),
            &[][..],
            "all.yaml:39:5), issuer https://a.example: its keys are fetched (https://a.example/keys), which this command does not do: give them with --jwks https://a.example=FILE",
        ),
        (found, &[], "its keys are fetched (by OpenID discovery)"),
        (
            format!("{asking}{second}"),
            &[],
            "several authorization providers (opa, web)",
        ),
        (
            asking.replace("name: opa}\n  rules", "name: web}\n  rules"),
            &["--layer", "tcp"],
            "shop/ask calls the authorization provider `web` over HTTP",
        ),
    ] {
        std::fs::write(&at, text).expect("written");
        let (code, text, said) = export(folder.path(), more);
        assert_eq!((code, &*text), (Some(1), ""), "{said}");
        assert!(said.contains(told), "{told}: {said}");
    }
    // Keys that the mesh would fetch can be given by `--jwks`.
    std::fs::write(&at, fetched).expect("written");
    let beside = tempfile::tempdir().expect("a folder");
    let keys = beside.path().join("keys.json");
    std::fs::write(&keys, format!("{{\"keys\": [{KEY}]}}")).expect("written");
    let given = format!("https://a.example={}", keys.display());
    let (code, text, said) = export(folder.path(), &["--jwks", &given]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(text.matches("inline_string").count(), 2);
}

#[test]
fn nothing_is_said_by_halves() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("policies.yaml");
    std::fs::write(
        &at,
        POLICIES.replace("paths: [\"*/admin\"]", "pths: [\"*/admin\"]"),
    )
    .expect("written");
    let (code, text, said) = export(folder.path(), &[]);
    assert_eq!((code, &*text), (Some(1), ""), "{said}");
    assert!(said.contains("errors, of which the first is"), "{said}");

    for wrong in [
        &["--label", "app"][..],
        &["--namespace", "no namespace"],
        &["--layer", "ip"],
    ] {
        let (code, text, said) = export(folder.path(), wrong);
        assert_eq!((code, &*text), (Some(2), ""), "{wrong:?}: {said}");
    }
}

#[test]
fn a_stock_envoy_that_would_not_ask_says_so_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n---\n\
        apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop, labels: {app: web}}\nspec: {containers: [{name: app}]}\n\
        status: {phase: Running, podIP: 10.0.0.1}\n---\n\
        apiVersion: voile.dev/v1\nkind: HealthCheck\nmetadata: {name: books, namespace: shop}\n\
        spec: {host: books.test, tcp: {}, selector: {matchLabels: {app: web}}}\n";
    std::fs::write(folder.path().join("mesh.yaml"), text).expect("written");
    let output = Process::output(|voile| {
        voile.args(["export", "envoy"]).arg(folder.path());
        voile.args(["--workload", "shop/web"]);
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("health-check: HealthCheck shop/books: "),
        "{said}"
    );
}
