//! What stays in force when an edit goes wrong.

use voile_model::{Diagnostic, Mesh, SourceFile, check};

use crate::{check_text, good, render};

const A: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80}]}\n";
const B: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: {ports: [{port: 80}]}\n";

fn edited(text: &str, before: &Mesh) -> (Mesh, Vec<Diagnostic>) {
    check(&[SourceFile::new("mesh.yaml", text)], Some(before))
}

fn names(mesh: &Mesh) -> Vec<&str> {
    mesh.services.values().map(|s| &*s.name).collect()
}

#[test]
fn a_resource_that_becomes_bad_keeps_its_last_good_version_and_the_others_change() {
    let before = good(&format!("{A}---\n{B}"));
    let (mesh, diagnostics) = edited(
        &format!("{}---\n{}", A.replace("80", "0"), B.replace("80", "81")),
        &before,
    );
    let ports: Vec<u16> = mesh
        .services
        .values()
        .map(|s| s.ports[0].number.get())
        .collect();
    assert_eq!(ports, [80, 81]);
    let shown = render(&diagnostics);
    assert!(
        shown.contains("keeping the last good version of Service default/a"),
        "{shown}"
    );
    assert!(diagnostics.iter().any(Diagnostic::is_error));
}

#[test]
fn it_stays_over_any_number_of_bad_edits_and_goes_when_repaired() {
    let mut mesh = good(A);
    for _ in 0..3 {
        mesh = edited(&A.replace("80", "0"), &mesh).0;
        assert_eq!(names(&mesh), ["a"]);
    }
    let (repaired, diagnostics) = edited(&A.replace("80", "90"), &mesh);
    assert!(diagnostics.is_empty());
    assert_eq!(repaired, good(&A.replace("80", "90")));
}

#[test]
fn a_document_that_no_longer_parses_keeps_what_lost_its_name_but_not_what_moved_or_changed() {
    let before = good(&format!("{A}---\n{B}"));
    let (mesh, _) = edited(
        &format!("apiVersion: v1\nkind: [\n---\n{}", B.replace("80", "81")),
        &before,
    );
    assert_eq!(names(&mesh), ["a", "b"]);
    assert_eq!(
        mesh.services.values().next_back().unwrap().ports[0]
            .number
            .get(),
        81
    );
}

#[test]
fn a_file_that_cannot_be_read_keeps_everything_it_said() {
    let before = good(&format!("{A}---\n{B}"));
    let (mesh, diagnostics) = check(
        &[SourceFile::unreadable("mesh.yaml", "permission denied")],
        Some(&before),
    );
    assert_eq!(names(&mesh), ["a", "b"]);
    assert!(
        render(&diagnostics).contains("mesh.yaml:1:1: error[V0001]"),
        "{}",
        render(&diagnostics)
    );
}

#[test]
fn what_is_removed_is_gone() {
    let before = good(&format!("{A}---\n{B}"));
    let (mesh, diagnostics) = edited(B, &before);
    assert_eq!((names(&mesh), diagnostics.len()), (vec!["b"], 0));
    assert_eq!(check(&[], Some(&before)).0, Mesh::default());
}

#[test]
fn a_second_declaration_does_not_displace_the_first() {
    let (mesh, diagnostics) = check_text(&format!("{A}---\n{}", A.replace("80", "90")));
    assert_eq!(
        mesh.services.values().next().unwrap().ports[0].number.get(),
        80
    );
    assert_eq!(diagnostics.len(), 1);
}

#[test]
fn a_broken_policy_keeps_its_last_good_version() {
    let before = good(POLICY);
    for broken in [
        POLICY.replace("PERMISSIVE", "PERMISIVE"),
        POLICY.split_at(60).0.to_owned(),
    ] {
        let (mesh, diagnostics) = edited(&broken, &before);
        assert_eq!(
            policies(&mesh),
            ["a/p: app=x Permissive [8080]"],
            "{broken}"
        );
        assert!(!render(&diagnostics).contains("V0114"));
    }
}

#[test]
fn a_broken_policy_that_was_never_good_is_held_as_strict() {
    let cases: &[(&str, &str, &str)] = &[
        ("PERMISSIVE", "PERMISIVE", "a/p: app=x Strict []"),
        (
            "8080: {mode: DISABLE}",
            "http: {mode: DISABLE}",
            "a/p: app=x Strict []",
        ),
        ("app: x", "app: [x]", "a/p: everything Strict []"),
        (
            "selector: {matchLabels",
            "selektor: {matchLabels",
            "a/p: everything Strict []",
        ),
        (
            "namespace: a",
            "namespace: istio-system, label: x",
            "istio-system/p: everything Strict []",
        ),
        (
            "namespace: a",
            "namespace: 'A B'",
            "istio-system/unreadable: everything Strict []",
        ),
        (
            "kind: PeerAuthentication",
            "kind: PeerAuth",
            "istio-system/unreadable: everything Strict []",
        ),
        (
            "{mode: PERMISSIVE}",
            "{mode: PERM",
            "istio-system/unreadable: everything Strict []",
        ),
    ];
    for (right, wrong, expected) in cases {
        let text = POLICY.replace(right, wrong);
        assert_ne!(text, POLICY);
        let (mesh, diagnostics) = check_text(&text);
        assert_eq!(policies(&mesh), [*expected], "{wrong}");
        let said = render(&diagnostics);
        assert!(said.contains("V0114") && said.contains("STRICT"), "{said}");
        // What is held as STRICT is not a last good version, and goes with the text.
        let (mesh, diagnostics) = edited(&text, &mesh);
        assert_eq!(policies(&mesh), [*expected], "{wrong}");
        assert!(!render(&diagnostics).contains("last good"));
        assert_eq!(policies(&edited("", &mesh).0), [""; 0]);
    }
}

#[test]
fn a_good_neighbour_in_the_file_does_not_excuse_a_policy_that_cannot_be_read() {
    let (mesh, _) = check_text(&format!(
        "{POLICY}---\nkind: PeerAuthentication\nmetadata: {{name: q"
    ));
    assert_eq!(
        policies(&mesh),
        [
            "istio-system/unreadable: everything Strict []",
            "a/p: app=x Permissive [8080]"
        ]
    );
}

const POLICY: &str = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: a}\nspec:\n  mtls: {mode: PERMISSIVE}\n  selector: {matchLabels: {app: x}}\n  portLevelMtls:\n    8080: {mode: DISABLE}\n";

fn policies(mesh: &Mesh) -> Vec<String> {
    let one = |policy: &std::sync::Arc<voile_model::mesh::PeerAuthentication>| {
        let selector = policy.selector.as_ref().map_or_else(
            || "everything".to_owned(),
            |labels| {
                let labels = labels.iter().map(|(key, value)| format!("{key}={value}"));
                labels.collect()
            },
        );
        let ports: Vec<u16> = policy.port_modes.keys().map(|port| port.get()).collect();
        let mode = policy
            .mode
            .map_or("Unset".to_owned(), |mode| format!("{mode:?}"));
        format!("{}: {selector} {mode} {ports:?}", policy.name)
    };
    mesh.peer_authentications.iter().map(one).collect()
}
