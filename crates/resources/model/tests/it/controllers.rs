//! Controllers of Pods other than Deployments, and the gateways of Istio's installation that Gateways ask for.

use std::sync::Arc;

use voile_model::check::CheckOutcome;
use voile_model::mesh::{Deployment, Mesh, PodNumbering, Restart, Strategy};
use voile_model::{Diagnostic, Namespace, ResourceName, Severity, SourceFile};

fn check(text: &str) -> (Mesh, Vec<Diagnostic>) {
    voile_model::check(&[SourceFile::new("mesh.yaml", text)], None)
}

fn controller(kind: &str, spec: &str, policy: &str) -> String {
    let api = match kind {
        "Job" | "CronJob" => "batch/v1",
        _ => "apps/v1",
    };
    format!(
        "apiVersion: {api}\nkind: {kind}\nmetadata: {{name: web, namespace: shop}}\nspec:\n  {spec}\n  template:\n    \
         metadata: {{labels: {{app: web}}}}\n    spec: {{{policy}containers: [{{name: app, command: [run]}}]}}\n"
    )
}

const SELECTOR: &str = "selector: {matchLabels: {app: web}}";

const NUMBERING: PodNumbering = PodNumbering {
    first: 0,
    kept_below: 0,
    in_order: false,
    in_turn: true,
    at_once: u32::MAX,
};

#[test]
fn stateful_sets_and_daemon_sets_are_read_with_their_numbers() {
    let in_order = PodNumbering {
        in_order: true,
        ..NUMBERING
    };
    for (kind, spec, replicas, expected) in [
        ("StatefulSet", "replicas: 2", 2, in_order),
        (
            "StatefulSet",
            "serviceName: web, podManagementPolicy: Parallel, ordinals: {start: 3}, updateStrategy: {type: OnDelete}",
            1,
            PodNumbering {
                first: 3,
                kept_below: u32::MAX,
                ..NUMBERING
            },
        ),
        (
            "StatefulSet",
            "volumeClaimTemplates: [], updateStrategy: {rollingUpdate: {partition: 1}}",
            1,
            PodNumbering {
                kept_below: 1,
                ..in_order
            },
        ),
        (
            "DaemonSet",
            "updateStrategy: {rollingUpdate: {maxUnavailable: 1}}",
            1,
            NUMBERING,
        ),
    ] {
        let one = read(kind, spec, "");
        assert_eq!(one.replicas, replicas, "{spec}");
        assert_eq!(one.strategy, Strategy::Numbered(expected), "{spec}");
        assert_eq!(one.template.restart, Restart::Always, "{spec}");
    }
}

#[test]
fn jobs_are_read_with_their_completions_and_retries() {
    let expected = PodNumbering {
        in_turn: false,
        at_once: 2,
        ..NUMBERING
    };
    for (spec, replicas, retries) in [
        ("completions: 5, parallelism: 2", 5, 6),
        ("parallelism: 2, backoffLimit: 0, selector: {}", 2, 0),
        ("parallelism: 2, suspend: true, completions: 9", 0, 6),
    ] {
        let one = read("Job", spec, "restartPolicy: Never, ");
        assert_eq!(one.replicas, replicas, "{spec}");
        assert_eq!(one.strategy, Strategy::Numbered(expected), "{spec}");
        assert_eq!(one.template.restart, Restart::Times(retries), "{spec}");
    }
}

/// The controller of this kind and with these fields, about which nothing worse than a note is said.
fn read(kind: &str, spec: &str, policy: &str) -> Arc<Deployment> {
    let selector = if kind == "Job" { "" } else { SELECTOR };
    let spec = format!("{selector}\n  {}", spec.replace(", ", "\n  "));
    let (mesh, problems) = check(&controller(kind, &spec, policy));
    let bad: Vec<_> = problems
        .iter()
        .filter(|one| one.severity != Severity::Note)
        .collect();
    assert!(bad.is_empty(), "{spec}: {bad:?}");
    let one = mesh.deployments.values().next().expect("it is there");
    assert_eq!(one.kind.to_string(), kind, "{spec}");
    one.clone()
}

#[test]
fn what_a_controller_cannot_be_is_refused_by_name_and_a_cron_job_is_a_note() {
    for (text, severity, word) in [
        (
            controller("Job", "completions: 1", ""),
            Severity::Error,
            "OnFailure or Never",
        ),
        (
            controller("Job", "backoffLimit: -1", "restartPolicy: Never, "),
            Severity::Error,
            "-1",
        ),
        (
            controller("StatefulSet", SELECTOR, "restartPolicy: Never, "),
            Severity::Error,
            "a StatefulSet's Pods",
        ),
        (
            controller(
                "StatefulSet",
                &format!("{SELECTOR}\n  podManagementPolicy: Random"),
                "",
            ),
            Severity::Error,
            "Parallel",
        ),
        (
            controller("DaemonSet", "selector: {matchLabels: {app: other}}", ""),
            Severity::Error,
            "selector",
        ),
        (
            controller("CronJob", "schedule: \"* * * * *\"", ""),
            Severity::Note,
            "is not run here",
        ),
    ] {
        let (_, problems) = check(&text);
        let said = |one: &Diagnostic| one.severity == severity && one.to_string().contains(word);
        assert!(problems.iter().any(said), "{word}: {problems:?}");
        assert!(
            problems.iter().all(|one| one.severity == severity),
            "{problems:?}"
        );
    }
}

#[test]
fn controllers_of_one_name_and_different_kinds_are_two() {
    let job = controller("Job", "", "restartPolicy: Never, ");
    let both = [controller("DaemonSet", SELECTOR, ""), job].join("---\n");
    let (mesh, problems) = check(&both);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(mesh.deployments.len(), 2);
}

const GATEWAY: &str = r#"
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: shop}
spec:
  selector: {SELECTOR}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["shop.example"]}
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: ["shop.example"], tls: {mode: PASSTHROUGH}}
"#;

fn pod(labels: &str, annotations: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: edge, namespace: edge, labels: {{{labels}}}, annotations: {{{annotations}}}}}\n\
         spec: {{containers: [{{name: app}}]}}\n"
    )
}

#[test]
fn a_gateway_of_istios_installation_is_made_where_a_gateway_asks_for_it_and_nobody_is_it() {
    let whole = "app: istio-ingressgateway, istio: ingressgateway";
    for (selector, more, made) in [
        (
            "istio: ingressgateway",
            String::new(),
            Some("istio-ingressgateway"),
        ),
        (
            "app: istio-ingressgateway",
            String::new(),
            Some("istio-ingressgateway"),
        ),
        (whole, String::new(), Some("istio-ingressgateway")),
        (
            "istio: egressgateway",
            String::new(),
            Some("istio-egressgateway"),
        ),
        ("istio: other", String::new(), None),
        ("istio: ingressgateway, more: words", String::new(), None),
        (
            "istio: ingressgateway",
            pod("istio: ingressgateway", ""),
            None,
        ),
        (
            "istio: ingressgateway",
            pod("app: edge", ""),
            Some("istio-ingressgateway"),
        ),
        (
            "istio: ingressgateway",
            pod(
                whole,
                "voile.dev/generated-from: istio-system/istio-ingressgateway",
            ),
            Some("istio-ingressgateway"),
        ),
    ] {
        let text = GATEWAY.replace("SELECTOR", selector) + &more;
        let (mesh, problems) = check(&text);
        assert!(!problems.iter().any(Diagnostic::is_error), "{problems:?}");
        let found: Vec<_> = mesh.default_gateways();
        let names: Vec<_> = found.iter().map(|(name, _)| &*name.name).collect();
        assert_eq!(
            names,
            made.into_iter().collect::<Vec<_>>(),
            "{selector} {more}"
        );
        if let Some(made) = made {
            is_as_istio_makes_it(&mesh, made);
        }
    }
}

#[test]
fn in_a_cluster_no_gateway_of_istios_installation_is_made() {
    let gateway = GATEWAY.replace("SELECTOR", "istio: ingressgateway");
    let live = |name: &str, address: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, uid: {name}}}\n\
             spec: {{containers: [{{name: app}}]}}\nstatus: {{phase: Running, podIP: {address}}}\n"
        );
        Arc::new(SourceFile::new(name, text))
    };
    let gateway = Arc::new(SourceFile::new("gateway", gateway));
    let mut checker = voile_model::check::Checker::default();
    let before = [gateway, live("one", "10.0.0.1"), live("two", "10.0.0.2")];
    let CheckOutcome::Whole(mut mesh, problems) = checker.check(&before, None) else {
        panic!("there is no mesh to patch");
    };
    assert!(problems.is_empty(), "{problems:?}");
    assert!(mesh.default_gateways().is_empty() && mesh.services.is_empty());
    // The Pods of a cluster come and go: none of them is a reason to put the mesh together anew.
    let after = [
        before[0].clone(),
        before[1].clone(),
        live("two", "10.0.0.3"),
    ];
    let outcome = checker.check(&after, Some(&mut mesh));
    assert!(matches!(outcome, CheckOutcome::Patched(..)), "{outcome:?}");
    assert!(mesh.default_gateways().is_empty());
}

fn is_as_istio_makes_it(mesh: &Mesh, made: &str) {
    let root = Namespace::new("istio-system").expect("a name");
    let name = ResourceName::new(root, made);
    let deployment = &mesh.deployments[&name];
    assert!(deployment.template.is_gateway() && deployment.template.has_sidecar);
    assert_eq!(
        &*deployment.template.service_account,
        format!("{made}-service-account")
    );
    let service = mesh
        .services
        .values()
        .find(|one| &*one.name == made)
        .expect("its Service");
    let ports: Vec<_> = service
        .ports
        .iter()
        .map(|one| (one.number.get(), one.target.clone()))
        .collect();
    let target = |number| {
        voile_model::mesh::TargetPort::Number(voile_model::Port::new(number).expect("a port"))
    };
    assert_eq!(ports, [(80, target(8080)), (443, target(8443))]);
    assert_eq!(service.published, made == "istio-ingressgateway");
}

#[test]
fn a_pod_that_is_patched_in_takes_the_place_of_what_was_made_and_gives_it_back() {
    let gateway = GATEWAY.replace("SELECTOR", "istio: ingressgateway");
    let with_pod = gateway.clone() + &pod("istio: ingressgateway", "");
    let mut checker = voile_model::check::Checker::default();
    let mut mesh = None;
    for (text, made) in [(&gateway, 1), (&with_pod, 0), (&gateway, 1)] {
        let file = Arc::new(SourceFile::new("mesh.yaml", text.clone()));
        if let CheckOutcome::Whole(whole, _) = checker.check(&[file], mesh.as_mut()) {
            mesh = Some(*whole);
        }
        let mesh = mesh.as_ref().expect("a mesh");
        assert_eq!(mesh.default_gateways().len(), made, "{text}");
        assert_eq!(mesh.services.len(), made, "{text}");
    }
}
