//! Folders that are against the control plane: bombs, pipes, loops, halves of files, storms of edits, kills, full disks. It says
//! what is wrong with place and reason, keeps what was good, follows everything else, and holds on to nothing.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use voile_testkit::prerequisites::{Prerequisite, require, skip};

use crate::mesh::{Process, free_port, get, wait_until};

/// Type whose resources are the services and workloads in force.
const ADDRESSES: &str = "type.googleapis.com/istio.workload.Address";
/// More memory than a control plane of a handful of services may have after all tests here, in kilobytes; a bomb would take
/// gigabytes.
const MAX_RESIDENT_KB: u64 = 256 * 1024;

/// A control plane over a folder of its own.
struct Control {
    process: Process,
    monitoring: SocketAddr,
    root: tempfile::TempDir,
}

fn start(root: &Path, folders: &[PathBuf], monitoring: u16) -> Process {
    Process::start("control", |voile| {
        voile.arg("control").args(folders);
        voile.arg("--state").arg(root.join("state"));
        voile.args(["--listen", "127.0.0.1:0", "--plaintext", "off"]);
        voile.args(["--monitoring", &format!("127.0.0.1:{monitoring}")]);
    })
}

impl Control {
    /// With one folder, in which there is one service.
    fn start() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("mesh")).expect("made");
        write(&root.path().join("mesh/first.yaml"), &service("first"));
        let monitoring = free_port();
        let folder = root.path().join("mesh");
        let process = start(root.path(), &[folder], monitoring);
        let control = Self {
            process,
            monitoring: SocketAddr::from(([127, 0, 0, 1], monitoring)),
            root,
        };
        control.until_services(1);
        control
    }

    fn folder(&self) -> PathBuf {
        self.root.path().join("mesh")
    }

    fn status(&self) -> Option<serde_json::Value> {
        let answer = get(self.monitoring, "/debug/status").ok()?;
        serde_json::from_slice(&answer.body).ok()
    }

    fn services(&self) -> Option<u64> {
        self.status()?["resources"][ADDRESSES].as_u64()
    }

    fn until_services(&self, count: u64) {
        wait_until(&format!("{count} services are in force"), || {
            self.services() == Some(count)
        });
    }

    fn until_said(&self, words: &str) {
        wait_until(&format!("it says `{words}`"), || {
            self.process.log().contains(words)
        });
    }

    fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.process.pid());
        fs::read_dir(folder).map_or(0, Iterator::count)
    }

    fn resident_kb(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number
            .and_then(|number| number.parse().ok())
            .expect("a number")
    }
}

/// One of which nothing is to be said.
fn service(name: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}}}\n\
         spec: {{hosts: [{name}.example], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: NONE}}\n"
    )
}

/// Puts a finished file in place, as editors do.
fn write(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).expect("written");
    fs::rename(&draft, path).expect("renamed");
}

/// Ten to the ninth values in a few lines.
fn bomb() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    text
}

/// Files for the folder, each with its name, its text, and the expected report.
fn attacks() -> Vec<(&'static str, String, &'static str)> {
    let million = "x".repeat(1_000_000);
    vec![
        ("bomb", bomb(), "error[V0003]"),
        (
            "circle",
            "a: &a [*a]\n".to_owned(),
            "a value that contains it",
        ),
        ("deep", "[".repeat(100_000), "recursion limit"),
        ("long", service(&million), "error[V0104]"),
        (
            "longer",
            format!("a: {}", "x".repeat(4 << 20)),
            "more than the 3145728 allowed",
        ),
        ("largest", " ".repeat((16 << 20) + 1), "larger than the"),
        (
            "odd",
            service("odd").replace("name: odd", "name: \"a\\u202Eb\\u0000\\U0001F600\""),
            "\\u{202e}",
        ),
        (
            "broken",
            "kind: Service\nmetadata: {name: [".to_owned(),
            "error[V0002]",
        ),
        ("nothing", "\u{feff}\n---\n---\n".to_owned(), ""),
    ]
}

#[test]
fn hostile_files_are_refused_by_name_and_the_rest_goes_on() {
    let control = Control::start();
    let folder = control.folder();
    let before = control.descriptors();
    let mut expected = 1;
    for (name, text, words) in attacks() {
        write(&folder.join(format!("{name}.yaml")), &text);
        // A correct file beside it is followed all the same.
        write(&folder.join(format!("good-{name}.yaml")), &service(name));
        expected += 1;
        control.until_services(expected);
        control.until_said(words);
    }
    let log = control.process.log();
    assert!(!log.contains('\u{202e}'), "a name turns a terminal's text");
    assert!(log.len() < 1 << 20, "the log has {} bytes", log.len());
    assert!(!log.contains("panicked"), "{log}");
    for (name, _, _) in attacks() {
        fs::remove_file(folder.join(format!("{name}.yaml"))).expect("removed");
    }
    control.until_said("all problems are fixed");
    assert_eq!(control.services(), Some(expected));
    assert!(control.descriptors() <= before + 2, "descriptors are held");
    let resident = control.resident_kb();
    assert!(resident < MAX_RESIDENT_KB, "{resident} KB");
}

#[test]
fn pipes_devices_and_loops_are_no_files_and_nobody_waits_for_them() {
    let control = Control::start();
    let folder = control.folder();
    let pipe = Command::new("mkfifo")
        .arg(folder.join("pipe.yaml"))
        .status();
    assert!(pipe.expect("mkfifo").success());
    symlink("/dev/zero", folder.join("zero.yaml")).expect("linked");
    symlink("itself.yaml", folder.join("itself.yaml")).expect("linked");
    symlink("nowhere", folder.join("nowhere.yaml")).expect("linked");
    symlink(".", folder.join("again")).expect("linked");
    write(&folder.join("second.yaml"), &service("second"));
    control.until_said("not a regular file");
    control.until_said("Too many levels of symbolic links");
    control.until_said("No such file");
    // Through the loop each file is there again and again, and only the first counts.
    control.until_said("V0111");
    control.until_services(2);
    fs::remove_file(folder.join("again")).expect("removed");
    for name in ["pipe.yaml", "zero.yaml", "itself.yaml", "nowhere.yaml"] {
        fs::remove_file(folder.join(name)).expect("removed");
    }
    write(&folder.join("third.yaml"), &service("third"));
    control.until_services(3);
    assert!(control.resident_kb() < MAX_RESIDENT_KB);
}

#[test]
fn half_of_a_file_keeps_the_last_good_and_a_folder_that_goes_comes_back() {
    let control = Control::start();
    let (folder, root) = (control.folder(), control.root.path());
    let text = format!("{}---\n{}", service("second"), service("third"));
    write(&folder.join("more.yaml"), &text);
    control.until_services(3);
    // In place, as an editor that died in the middle would leave it.
    fs::write(folder.join("more.yaml"), &text[..text.len() / 2 + 40]).expect("written");
    control.until_said("V0110");
    assert_eq!(control.services(), Some(3));
    write(&folder.join("more.yaml"), &text);
    control.until_said("all problems are fixed");
    // All of it replaced in one step.
    fs::create_dir(root.join("next")).expect("made");
    for name in ["first", "second", "third", "fourth"] {
        write(&root.join(format!("next/{name}.yaml")), &service(name));
    }
    fs::rename(&folder, root.join("old")).expect("renamed");
    fs::rename(root.join("next"), &folder).expect("renamed");
    control.until_services(4);
    // Gone for longer: nothing is lost.
    fs::rename(&folder, root.join("next")).expect("renamed");
    control.until_said("the last good configuration stays in force");
    assert_eq!(control.services(), Some(4));
    fs::rename(root.join("next"), &folder).expect("renamed");
    write(&folder.join("fifth.yaml"), &service("fifth"));
    control.until_services(5);
}

#[test]
fn a_thousand_edits_at_once_end_where_the_last_one_says() {
    const EDITS: usize = 1000;
    let control = Control::start();
    let folder = control.folder();
    let before = control.descriptors();
    for edit in 0..EDITS {
        let name = folder.join(format!("{}.yaml", edit % 50));
        match edit % 7 {
            0 => drop(fs::remove_file(&name)),
            1 => fs::write(&name, "kind: [").expect("written"),
            _ => write(&name, &service(&format!("s{}", edit % 50))),
        }
    }
    for file in 0..50 {
        write(
            &folder.join(format!("{file}.yaml")),
            &service(&format!("s{file}")),
        );
    }
    control.until_services(51);
    let status = control.status().expect("a status");
    let reloads = status["reloads"].as_u64().expect("a number");
    assert!(
        reloads < EDITS as u64,
        "{reloads} readings: nothing was merged"
    );
    assert!(control.descriptors() <= before + 2, "descriptors are held");
}

#[test]
fn several_folders_are_one_mesh_and_one_that_is_away_takes_nothing() {
    let root = tempfile::tempdir().expect("a folder");
    let folders = ["one", "two"].map(|name| root.path().join(name));
    for folder in &folders {
        fs::create_dir(folder).expect("made");
        let name = folder.file_name().expect("a name").to_string_lossy();
        write(&folder.join("a.yaml"), &service(&name));
    }
    let monitoring = free_port();
    let process = start(root.path(), &folders, monitoring);
    let monitoring = SocketAddr::from(([127, 0, 0, 1], monitoring));
    let control = Control {
        process,
        monitoring,
        root,
    };
    control.until_services(2);
    fs::rename(&folders[0], control.root.path().join("away")).expect("renamed");
    control.until_said("the last good configuration stays in force");
    assert_eq!(control.services(), Some(2));
    fs::rename(control.root.path().join("away"), &folders[0]).expect("renamed");
    write(&folders[1].join("b.yaml"), &service("three"));
    control.until_services(3);
}

#[test]
fn killed_at_any_moment_it_starts_again_with_what_was_good() {
    const KILLS: usize = 8;
    let mut control = Control::start();
    // A clean stop writes the state; a kill may come before the first write.
    control.until_state();
    for kill in 0..KILLS {
        for edit in 0..=kill * 20 {
            let name = control.folder().join(format!("{}.yaml", edit % 10));
            write(&name, &service(&format!("s{}", edit % 10)));
        }
        control.process.kill();
        let folder = control.folder();
        let port = control.monitoring.port();
        control.process = start(control.root.path(), &[folder], port);
        let expected = 1 + (kill * 20 + 1).min(10) as u64;
        control.until_services(expected);
    }
    control.until_state();
    control.process.kill();
    // The folder breaks while no control plane runs: its last good state is remembered.
    write(&control.folder().join("first.yaml"), "kind: [");
    let folder = control.folder();
    control.process = start(control.root.path(), &[folder], control.monitoring.port());
    control.until_services(11);
    control.until_said("V0110");
    let leftovers = fs::read_dir(control.root.path().join("state")).expect("the folder");
    let drafts = leftovers.flatten().filter(|one| {
        let name = one.file_name();
        name.to_string_lossy().contains("draft")
    });
    assert!(drafts.count() <= 1, "drafts pile up");
}

#[test]
fn a_first_start_with_a_policy_that_nobody_can_read_serves_nothing_and_a_later_one_serves_what_was_good()
 {
    const CUT: &str = "kind: AuthorizationPolicy\nmetadata: {name: p, namespace: pair\n";
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("mesh");
    fs::create_dir(&folder).expect("made");
    write(&folder.join("first.yaml"), &service("first"));
    write(&folder.join("policy.yaml"), CUT);
    let output = Process::output(|voile| {
        voile.arg("control").arg(&folder);
        voile.arg("--state").arg(root.path().join("state"));
        voile.args(["--listen", "127.0.0.1:0", "--plaintext", "off"]);
        voile.args(["--monitoring", "127.0.0.1:0"]);
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for told in [
        "policy.yaml:2:",
        "error[V0002]",
        "error[V0124]",
        "correct it, or move it out of the folder",
        "nothing is served until it can be read",
    ] {
        assert!(said.contains(told), "{told}: {said}");
    }
    // A template of a chart is no policy of any cluster, and stops nothing.
    let template =
        "{{- if .Values.on }}\nkind: AuthorizationPolicy\nmetadata: {name: p}\n{{- end }}\n";
    write(&folder.join("policy.yaml"), template);
    let monitoring = free_port();
    let mut control = Control {
        process: start(root.path(), std::slice::from_ref(&folder), monitoring),
        monitoring: SocketAddr::from(([127, 0, 0, 1], monitoring)),
        root,
    };
    control.until_services(1);
    fs::remove_file(folder.join("policy.yaml")).expect("removed");
    control.until_state();
    control.process.kill();
    write(&folder.join("policy.yaml"), CUT);
    let port = control.monitoring.port();
    control.process = start(control.root.path(), &[folder], port);
    control.until_services(1);
    control.until_said("V0002");
}

impl Control {
    /// Until what is good now is remembered.
    fn until_state(&self) {
        let file = self.root.path().join("state/last-good.json");
        let services = self.services().expect("it answers");
        wait_until("the state is written", || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            text.matches("resolution: NONE").count() as u64 >= services
        });
    }
}

#[test]
fn a_full_disk_is_named_and_takes_nothing_from_who_is_served() {
    let root = tempfile::tempdir().expect("a folder");
    let (mesh, port) = (root.path().join("mesh"), free_port());
    fs::create_dir(&mesh).expect("made");
    write(&mesh.join("first.yaml"), &service("first"));
    // Room for keys and the first state, and then none.
    let script = format!(
        "mkdir {0}/state && mount -t tmpfs -o size=64k,mode=0700 none {0}/state || exit 99\n\
         exec '{1}' control {0}/mesh --state {0}/state --listen 127.0.0.1:0 --plaintext off --monitoring 127.0.0.1:{port}",
        root.path().display(),
        env!("CARGO_BIN_EXE_voile")
    );
    let log = fs::File::create(root.path().join("log")).expect("a log");
    let child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .spawn();
    let Some(mut child) = require(Prerequisite::UtilLinux, child) else {
        return;
    };
    let monitoring = SocketAddr::from(([127, 0, 0, 1], port));
    let services = || {
        let answer = get(monitoring, "/debug/status").ok()?;
        let status: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        status["resources"][ADDRESSES].as_u64()
    };
    let mut ended = None;
    wait_until("it starts, or may not", || {
        ended = child.try_wait().expect("a child");
        ended.is_some() || services() == Some(1)
    });
    let said = || fs::read_to_string(root.path().join("log")).unwrap_or_default();
    if let Some(status) = ended {
        assert_ne!(status.code(), Some(1), "{}", said());
        return skip(Prerequisite::Userns, said());
    }
    // More than the disk has room for.
    let long = format!("# {}\n{}", "x".repeat(100_000), service("second"));
    write(&mesh.join("second.yaml"), &long);
    wait_until("it is followed", || services() == Some(2));
    wait_until("it is said", || {
        said().contains("cannot save the last good configuration")
    });
    write(&mesh.join("third.yaml"), &service("third"));
    wait_until("it goes on", || services() == Some(3));
    // Ends only what was started here.
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}
