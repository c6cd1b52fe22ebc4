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

const CUSTOM: &str = r#"apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: shop}
spec:
  action: CUSTOM
  provider: {name: opa}
  rules: [{}]
"#;

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
fn nothing_is_said_by_halves() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("policies.yaml");
    std::fs::write(&at, CUSTOM).expect("written");
    let (code, text, said) = export(folder.path(), &[]);
    assert_eq!((code, &*text), (Some(1), ""), "{said}");
    assert!(
        said.contains("shop/ask asks an authorization provider"),
        "{said}"
    );

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
