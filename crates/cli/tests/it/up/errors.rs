//! `voile up` with errors in the folder: what they name is left out or stays as it was, and everything else runs.

use std::fs;
use std::path::Path;

use voile_testkit::prerequisites::{Prerequisite, skip};

use crate::control_plane::in_force::{ask, monitoring};
use crate::mesh::{get, put, wait_until};
use crate::up::{PAIR, Up, example, pair};

/// Documents of other products and with mistakes: each with the error that names it.
const REFUSED: [(&str, &str); 4] = [
    (
        "V0106",
        "{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: lua, namespace: pair}, spec: {}}",
    ),
    (
        "V0105",
        "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: in, namespace: pair}, spec: {}}",
    ),
    (
        "V0101",
        "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: web, namespace: pair}, spec: {hosts: [web], http: [{rout: [], route: [{destination: {host: web}}]}]}}",
    ),
    (
        "V0602",
        "{apiVersion: v1, kind: Pod, metadata: {name: image, namespace: pair}, spec: {containers: [{name: app, image: nginx}]}}",
    ),
];

/// A policy that nobody can read, nor whom it selects.
const CUT_POLICY: &str = "kind: AuthorizationPolicy\nmetadata: {name: p, namespace: pair\n";

fn refused() -> String {
    REFUSED
        .map(|(_, document)| format!("{document}\n"))
        .join("---\n")
}

fn pair_beside(refused: &str) -> impl FnOnce(&Path) {
    move |folder| {
        pair(folder);
        fs::write(folder.join("refused.yaml"), refused).expect("written");
    }
}

/// The process of the application of a pod.
fn application(up: &Up, pod: &str) -> Option<u32> {
    up.family().iter().find_map(|line| {
        let pid = line.split(' ').next()?.parse().ok()?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        let name = format!("POD_NAME={pod}");
        variables.any(|one| one == name.as_bytes()).then_some(pid)
    })
}

#[test]
fn a_mesh_runs_beside_documents_that_are_refused_and_says_so() {
    let mut up = Up::start(pair_beside(&refused()), &[]);
    let plain = up.ready()["pair/plain"];
    wait_until("the mesh to answer", || {
        get(plain, "/").is_ok_and(|answer| answer.status == 200)
    });
    let said = up.text("err");
    for (line, (code, _)) in REFUSED.iter().enumerate() {
        let place = format!("refused.yaml:{}:", 2 * line + 1);
        let told = |one: &str| one.contains(&place) && one.contains(&format!("error[{code}]"));
        assert!(said.lines().any(told), "{place} {code}: {said}");
    }
    assert!(said.contains("pair/image-0 is not started"), "{said}");
    let ready = said.lines().find(|line| line.contains("ready after"));
    let ready = ready.expect("the line of ready");
    assert!(ready.contains("; 4 errors in the folder;"), "{ready}");
    let open = "pair/plain-0 without a proxy: no policy is enforced for it";
    assert!(ready.contains(open), "{ready}");
    wait_until("the errors to stay on the screen", || {
        let said = up.text("err");
        said.contains("2 of 3 ready; wrong: ") && said.contains(" and 3 more;")
    });
    let (_, status) = ask(monitoring(&up), &["status"]);
    // The control plane knows no command lines.
    assert!(status.contains("3 errors in the configuration"), "{status}");
    for code in ["V0101", "V0105", "V0106"] {
        assert!(status.contains(code), "{code}: {status}");
    }
}

#[test]
fn an_edit_takes_effect_but_for_a_pod_that_it_would_refuse() {
    let worker = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: worker, namespace: pair}
spec:
  selector: {matchLabels: {app: worker}}
  strategy: {type: Recreate}
  template: {metadata: {labels: {app: worker}}, spec: {containers: [{name: app, command: [sleep, "1000"]}]}}
"#;
    let workers = |folder: &Path| {
        pair(folder);
        fs::write(folder.join("worker.yaml"), worker).expect("written");
    };
    let mut up = Up::start(workers, &["--quiet"]);
    let plain = up.ready()["pair/plain"];
    let running = || ["web-0", "worker-0"].map(|pod| application(&up, pod));
    let before = running();
    assert!(before.iter().all(Option::is_some), "{before:?}");
    let second = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: second, namespace: pair}\nspec: {containers: [{name: app, command: [sleep, \"1000\"]}]}\n";
    // One edit of both: a good pod comes, and a Deployment loses its command.
    let broken = worker.replace(r#"command: [sleep, "1000"]"#, "image: sleep");
    put(&up.file("worker.yaml"), &[&broken, second].concat());
    wait_until("the new pod to run", || {
        application(&up, "second-0").is_some()
    });
    let web = r#"command: ["$(VOILE)", echo, --listen, "$(POD_IP):18080"]"#;
    up.edit("pair.yaml", web, "image: echo");
    wait_until("the second error to be told", || {
        up.text("err").matches("error[V0602]").count() == 2
            && up.text("err").contains("2 errors in the folder")
    });
    assert_eq!(running(), before);
    assert_eq!(get(plain, "/").expect("an answer").status, 200);
    // Another edit is in force, and the errors stay told.
    fs::remove_file(up.file("worker.yaml")).expect("removed");
    put(&up.file("worker.yaml"), &broken);
    wait_until("the new pod to go", || {
        application(&up, "second-0").is_none()
    });
    wait_until("the edit to be in force", || {
        let said = up.text("err");
        said.contains("the edit is in force: acknowledged by 1 proxy; 2 errors in the folder")
    });
    up.edit("pair.yaml", "image: echo", web);
    put(&up.file("worker.yaml"), worker);
    wait_until("all to be in force", || {
        up.text("err").contains("acknowledged by 1 proxy\n")
    });
    assert_eq!(running(), before);
}

#[test]
fn a_pod_that_ends_again_and_again_does_not_keep_the_others_from_being_ready() {
    let crashes = "apiVersion: v1\nkind: Pod\nmetadata: {name: crash, namespace: pair}\nspec: {containers: [{name: app, command: [sh, -c, \"exit 3\"]}, {name: env, command: [sleep, \"1\"], env: [{name: A, valueFrom: {configMapKeyRef: {name: none, key: a}}}]}]}\n";
    let mut up = Up::start(pair_beside(crashes), &["--quiet"]);
    let plain = up.ready()["pair/plain"];
    let said = up.text("err");
    assert!(said.contains("continues without pair/crash-0"), "{said}");
    assert_eq!(get(plain, "/").expect("an answer").status, 200);
}

#[test]
fn a_folder_of_which_nothing_can_start_or_with_errors_under_strict_starts_nothing() {
    let typo = PAIR.replace("captureMode: NONE", "captureMode: NEVER");
    let only = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: two, template: {spec: {containers: [{name: app, command: [sleep, \"1\"]}]}}}\n";
    let image = &format!("{}\n", REFUSED[3].1);
    let ambient = image.replace("image: nginx", "command: [sleep]").replace(
        "namespace: pair",
        "namespace: pair, labels: {istio.io/dataplane-mode: ambient}",
    );
    for (text, arguments, place) in [
        (typo.as_str(), &["--strict"][..], "mesh.yaml:22:"),
        (only, &[], "mesh.yaml:4:"),
        (image, &[], "mesh.yaml:1:"),
        (&ambient, &[], "V0608"),
        ("a: [", &[], "mesh.yaml:1:"),
        // Everything else could start, but not without a policy that may be meant for it.
        (&format!("{PAIR}---\n{CUT_POLICY}"), &[], "V0124"),
    ] {
        let fill = |folder: &Path| fs::write(folder.join("mesh.yaml"), text).expect("written");
        let mut up = Up::start(fill, arguments);
        let status = up.wait();
        let said = up.text("err");
        assert_eq!(status.code(), Some(1), "{said}");
        let told = said.contains(place) && said.contains("nothing was started");
        assert!(told, "{place} {said}");
        assert_eq!((up.text("out"), up.left_behind()), (String::new(), vec![]));
    }
}

/// Nobody chose an isolation or a data plane.
#[test]
fn the_ambient_example_enforces_its_policies_without_any_flag() {
    let mut up = Up::start_as(|folder| example("ambient", folder), &["--quiet"], None);
    wait_until("the isolation to be told", || {
        up.text("err").contains("voile up: isolation ")
    });
    if !up.text("err").contains("isolation netns (") {
        return skip(Prerequisite::Netns, up.text("err"));
    }
    let published = up.ready();
    assert!(
        up.text("err").contains("data plane mixed"),
        "{}",
        up.text("err")
    );
    for (caller, status) in [("reader", 200), ("browser", 502)] {
        let at = published[&format!("library/{caller}")];
        wait_until(&format!("{caller} to be answered {status}"), || {
            get(at, "/").is_ok_and(|answer| answer.status == status)
        });
    }
}

#[test]
fn ambient_pods_are_refused_on_loopback_addresses_and_the_others_run() {
    let ambient = "apiVersion: v1\nkind: Namespace\nmetadata: {name: calm, labels: {istio.io/dataplane-mode: ambient}}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: page, namespace: calm}\nspec: {containers: [{name: app, command: [sleep, \"1000\"]}]}\n";
    let mut up = Up::start(pair_beside(ambient), &["--quiet"]);
    let plain = up.ready()["pair/plain"];
    assert_eq!(get(plain, "/").expect("an answer").status, 200);
    let said = up.text("err");
    let told = said.contains("error[V0608]: `page-0` is ambient")
        && said.contains("calm/page-0 is not started");
    assert!(told, "{said}");
    assert_eq!(application(&up, "page-0"), None);
}
