//! The commands of an installation, without a cluster. `voile-kubernetes` tests them on an API server.

use crate::mesh::Process;

fn voile(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Process::output(|voile| {
        // No cluster answers there.
        voile.env("KUBECONFIG", "/nonexistent").args(arguments);
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code();
    (code, text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_dry_run_prints_the_manifests_without_a_cluster() {
    let (code, yaml, _) = voile(&["install", "--dry-run", "--revision", "canary"]);
    assert_eq!(code, Some(0));
    assert!(
        yaml.starts_with("---\n# Source: voile/templates/crds.yaml\n"),
        "{yaml}"
    );
    assert!(
        yaml.contains("\n# Gateways and policies name Secrets"),
        "{yaml}"
    );
    assert!(yaml.contains("\nkind: Deployment\nmetadata:\n  name: istiod-canary\n"));
    let (code, json, _) = voile(&["install", "--dry-run=client", "-o", "json", "-n", "mesh"]);
    assert_eq!(code, Some(0));
    let list: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let items = list["items"].as_array().expect("items");
    assert_eq!(items.len(), yaml.matches("# Source: ").count());
    let last = items.last().expect("an object");
    assert_eq!(last["kind"], "ValidatingWebhookConfiguration");
}

#[test]
fn values_that_cannot_be_used_are_refused_before_anything_is_asked() {
    let (code, _, errors) = voile(&["install", "--set", "image.tga=1"]);
    assert_eq!(code, Some(2));
    let expected = "voile install: image.tga: the key is unknown: did you mean `tag`?\n";
    assert_eq!(errors, expected);
    let (code, _, errors) = voile(&["install", "-f", "/nonexistent/values.yaml"]);
    assert_eq!(code, Some(2));
    assert!(
        errors.starts_with("voile install: /nonexistent/values.yaml: "),
        "{errors}"
    );
}

#[test]
fn commands_without_a_cluster_say_how_to_name_one() {
    for command in ["install", "uninstall", "check"] {
        let (code, _, errors) = voile(&[command]);
        assert_eq!(code, Some(1), "{command}");
        assert!(
            errors.starts_with(&format!("voile {command}: no cluster: ")),
            "{errors}"
        );
        assert!(errors.contains("--kubeconfig FILE"), "{errors}");
    }
}
