//! The tutorial `docs/tutorials/cluster.md` on a real cluster: its commands, read from the page, in their order.

use std::path::Path;

use voile_testkit::cluster::{Cluster, kubectl};

use crate::kubernetes::kit::VOILE;
use crate::kubernetes::nothing_is_left;

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Success,
    Failure,
    /// It needs a registry. Where there is none, says the page, the nodes import the archive.
    Imported,
}
use End::{Failure, Imported, Success};

/// Every command of the page: how it begins, how it ends, and text of its output.
const COMMANDS: [(&str, End, &str); 18] = [
    (
        "deploy/image/build ",
        Success,
        "voile.tar: images.example.com/voile:v1",
    ),
    ("skopeo copy ", Imported, ""),
    ("voile check", Success, "cure: voile install"),
    (
        "voile install ",
        Success,
        "istiod is available: 2 of 2 pods",
    ),
    (
        "voile check",
        Success,
        "control plane: 2 of 2 pods are available",
    ),
    (
        "kubectl apply -f docs/tutorials/shop.yaml",
        Success,
        "deployment.apps/client created",
    ),
    (
        "kubectl -n shop rollout status ",
        Success,
        "\"client\" successfully rolled out",
    ),
    (
        "voile status --kubernetes",
        Success,
        "spiffe://cluster.local/ns/shop/sa/client",
    ),
    ("kubectl apply -f - <<EOF", Success, "default created"),
    ("voile explain ", Success, "ALLOWED by Pod shop/server-"),
    ("kubectl apply -f - <<EOF", Success, "server created"),
    (
        "voile who-can ",
        Success,
        "spiffe://cluster.local/ns/shop/sa/client",
    ),
    ("voile explain ", Failure, "DENIED by Pod shop/server-"),
    ("kubectl apply -f - <<EOF", Failure, "field spec.mtls.mode"),
    ("voile analyze ", Success, "0 errors, 0 warnings"),
    ("voile config ", Success, "configuration  shop/server-"),
    ("kubectl delete namespace shop", Success, "deleted"),
    (
        "voile uninstall ",
        Success,
        "namespaces/istio-system removed",
    ),
];

/// The commands in the `console` blocks of a page, each with its input.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```console\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let mut commands: Vec<String> = Vec::new();
    for line in blocks.flat_map(str::lines) {
        match line.strip_prefix("$ ") {
            Some(command) => commands.push(command.to_owned()),
            None => {
                let last = commands.last_mut().expect("a command before its input");
                *last += &format!("\n{line}");
            }
        }
    }
    commands
}

/// Runs a command of the page, as it stands, where the page expects it to be run.
fn run(cluster: &Cluster, command: &str, archive: &str) -> (bool, String) {
    let folder = |program: &Path| program.parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").expect("a search path");
    let programs = [folder(Path::new(VOILE)), folder(&kubectl()), path].join(":");
    let command = command.replace("target/release/voile", VOILE).replace(
        "--output voile.tar",
        &format!("--level 1 --output {archive}"),
    );
    let mut shell = cluster.control_plane_command("sh");
    let shell = shell.args(["-c", &format!("exec 2>&1\n{command}")]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = shell.current_dir(root).env("PATH", programs).output();
    let output = output.expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

#[test]
fn the_tutorial_of_a_cluster_works_from_top_to_bottom() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tutorials/cluster.md");
    let commands = commands(&std::fs::read_to_string(page).expect("the page"));
    assert_eq!(commands.len(), COMMANDS.len(), "{commands:#?}");
    // A cluster of its own: another test installs the mesh in the shared one.
    let Some(cluster) = &Cluster::start(1) else {
        return;
    };
    let archive = cluster.folder().join("voile.tar");
    for (command, (begins, end, text)) in commands.iter().zip(COMMANDS) {
        assert!(command.starts_with(begins), "{command}: expected {begins}");
        if end == Imported {
            cluster.import_image(&archive);
            continue;
        }
        let (succeeds, output) = run(cluster, command, &archive.to_string_lossy());
        assert_eq!(succeeds, end == Success, "{command}: {output}");
        assert!(output.contains(text), "{command}: {text}: {output}");
    }
    nothing_is_left(cluster, &[]);
}
