//! Resources that stay in force after a bad edit.

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
            "kind: PeerAuthentication",
            "kind: PeerAuth",
            "a/p: app=x Strict []",
        ),
    ];
    for (right, wrong, expected) in cases {
        let text = POLICY.replace(right, wrong);
        assert_ne!(text, POLICY);
        let (mesh, diagnostics) = check_text(&text);
        assert_eq!(policies(&mesh), [*expected], "{wrong}");
        let said = render(&diagnostics);
        assert!(said.contains("V0114") && said.contains("STRICT"), "{said}");
        // A policy held as STRICT is not a last good version, and disappears with its text.
        let (mesh, diagnostics) = edited(&text, &mesh);
        assert_eq!(policies(&mesh), [*expected], "{wrong}");
        assert!(!render(&diagnostics).contains("last good"));
        assert_eq!(policies(&edited("", &mesh).0), [""; 0]);
    }
}

#[test]
fn what_may_be_any_policy_holds_those_of_its_kind_wherever_they_were_and_nothing_else() {
    let unreadable = "kind: PeerAuthentication\nmetadata: {name: q";
    let files = |first: &str, second: &str| {
        [
            SourceFile::new("a.yaml", first),
            SourceFile::new("b.yaml", second),
        ]
    };
    let before = check(&files(&format!("{POLICY}---\n{A}"), B), None).0;
    // The policy and a Service go from one file, and what cannot be read comes in the other.
    let (mesh, diagnostics) = check(&files("", unreadable), Some(&before));
    assert_eq!(policies(&mesh), ["a/p: app=x Permissive [8080]"]);
    assert_eq!(names(&mesh), ["b"]);
    assert!(render(&diagnostics).contains("it may be PeerAuthentication"));
    // Nothing is shut where nothing was.
    let (mesh, _) = check(&files(A, unreadable), None);
    assert_eq!((policies(&mesh), names(&mesh)), (Vec::new(), vec!["a"]));
}

/// Every field of metadata, with every wrong type, in every kind: the last good version stays, under its name and no
/// other.
#[test]
fn whatever_is_wrong_in_metadata_the_last_good_version_stays() {
    let documents = [
        ("v1", "Service", "spec: {ports: [{port: 80}]}"),
        ("v1", "ConfigMap", "data: {a: b}"),
        (
            "security.istio.io/v1",
            "PeerAuthentication",
            "spec: {mtls: {mode: STRICT}}",
        ),
        (
            "security.istio.io/v1",
            "AuthorizationPolicy",
            "spec: {action: DENY, rules: [{}]}",
        ),
        (
            "security.istio.io/v1",
            "RequestAuthentication",
            "spec: {jwtRules: [{issuer: \"https://a.example\"}]}",
        ),
    ];
    let wrong = [
        "5", "true", "[a]", "{a: [b]}", "1.5", "'A b'", "[{}]", "{{}: b}",
    ];
    let fields = [
        "name",
        "namespace",
        "labels",
        "annotations",
        "creationTimestamp",
        "ownerReferences",
        "nme",
    ];
    for (version, kind, rest) in documents {
        let text = |metadata: &str| {
            format!("apiVersion: {version}\nkind: {kind}\nmetadata: {metadata}\n{rest}\n")
        };
        let before = good(&format!("{A}---\n{}", text("{name: one, namespace: x}")));
        let mut broken: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        for field in fields {
            for value in wrong {
                let name = ["name: one, ", ""][usize::from(field == "name")];
                let namespace = ["namespace: x, ", ""][usize::from(field == "namespace")];
                broken.push(format!("{{{name}{namespace}{field}: {value}}}"));
            }
        }
        for metadata in broken {
            let after = format!("{}---\n{}", A.replace("80", "81"), text(&metadata));
            let (mesh, diagnostics) = edited(&after, &before);
            if !diagnostics.iter().any(Diagnostic::is_error) {
                continue; // a value that this field may have
            }
            let said = render(&diagnostics);
            let kept = format!("keeping the last good version of {kind} x/one");
            assert!(said.contains(&kept), "{kind} {metadata}: {said}");
            assert!(!said.contains("V0114"), "{kind} {metadata}: {said}");
            let (again, _) = edited(&after, &mesh);
            assert_eq!(mesh, again, "{kind} {metadata}");
            let (repaired, _) = edited(
                &format!("{A}---\n{}", text("{name: one, namespace: x}")),
                &mesh,
            );
            assert_eq!(repaired, before, "{kind} {metadata}");
        }
    }
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

#[test]
fn a_first_start_with_what_may_be_any_policy_is_an_error_and_a_template_is_not() {
    let cut = "kind: AuthorizationPolicy\nmetadata: {name: p, namespace: a\nspec: {}\n";
    let lost = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: [a]}\n";
    let no_policy = "kind: Service\nmetadata: {name: [a\n";
    let template = "{{- if .Values.on }}\nkind: AuthorizationPolicy\nmetadata: {name: {{ .Values.name }}}\n{{- end }}\n";
    for (text, kind) in [
        (cut, Some("AuthorizationPolicy")),
        (lost, Some("PeerAuthentication")),
        (no_policy, None),
        (template, None),
    ] {
        let (_, diagnostics) = check_text(text);
        let said = render(&diagnostics);
        let told = diagnostics.iter().find(|one| one.code == "V0124");
        assert_eq!(told.is_some(), kind.is_some(), "{said}");
        if let (Some(told), Some(kind)) = (told, kind) {
            assert!(told.is_error() && told.message.contains(kind), "{said}");
        }
        // With an earlier version, what it said stays.
        let (_, diagnostics) = edited(text, &good(POLICY));
        let said = render(&diagnostics);
        assert!(!said.contains("V0124"), "{said}");
        let holds = kind == Some("PeerAuthentication") || said.contains("AuthorizationPolicy");
        assert!(holds || kind.is_none(), "{said}");
    }
}
