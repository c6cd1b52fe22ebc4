//! Attacks of a hostile application from its pod under `voile up` as root: the application tries them and
//! reports the results.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use voile_testkit::prerequisites::{Prerequisite, skip};

use crate::mesh::{get, wait_until};
use crate::up::Up;
use crate::up::netns::{is_root, start_with};

/// Tries what an application must not do; `could NAME` is said for what it did. It changes nothing of the host.
const ATTEMPTS: &str = r#"
could() { echo "could $1"; }
echo "uid $(id -u)"
grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status | tr -d '\t'
[ "$(cat marker.txt)" = marker ] && could read-the-working-folder
[ "$FROM_MAP" = map ] && [ "$P_KEY" = secret ] && could read-its-variables
ulimit -c | grep -q '^0$' || could dump-core
for file in "$STATE"/* "$RUN"/state/* "$RUN"/tokens/* "$RUN"/logs/*; do
  cat "$file" >/dev/null 2>&1 && could "read-$file"
done
for folder in "$RUN" "$STATE" ../tmp/*/ ../state; do
  [ -n "$(ls -A "$folder" 2>/dev/null)" ] && could "list-$folder"
done
for descriptor in /proc/$$/fd/*; do
  case "$(readlink "$descriptor")" in *socket:*|*anon_inode*|*/state/*|*/tokens/*) could "use-descriptor-$descriptor" ;; esac
done
grep 'Max processes' /proc/self/limits | awk '{ print "processes " $4 }'
# The shell asks itself, without a program: that program could have the number that is asked about.
pid=1
while [ $pid -lt 400 ]; do
  if [ $pid != $$ ]; then
    [ -d /proc/$pid ] && could "see-process-$pid"
    true 2>/dev/null </proc/$pid/environ && could "read-environment-of-$pid"
    true 2>/dev/null </proc/$pid/mem && could "open-memory-of-$pid"
    [ -e /proc/$pid/root/. ] && could "enter-root-of-$pid"
    kill -0 $pid 2>/dev/null && could "signal-$pid"
  fi
  pid=$((pid + 1))
done
touch written-by-application 2>/dev/null && could write-the-working-folder
(ulimit -Hn 100000000) 2>/dev/null && could raise-its-limits
nsenter -t 1 -n true 2>/dev/null && could enter-a-network
uncovered=$(unshare -Urm sh -c 'umount "$1"; umount -l "$1"; umount /proc; ls -A "$1"; mount --bind / /mnt && ls -A "/mnt$1"' sh "$RUN" 2>/dev/null)
[ -n "$uncovered" ] && could uncover-the-run-folder
mount -t tmpfs none /mnt >/dev/null 2>&1 && could mount
umount "$RUN" >/dev/null 2>&1 && could umount
chroot / /bin/true >/dev/null 2>&1 && could chroot
[ -w /proc/sys/kernel/core_pattern ] && could change-the-kernel
[ -w /etc/passwd ] && could write-etc
[ -r /etc/shadow ] && could read-shadow
becomes=$("$SETUID" -u 2>/dev/null)
[ -n "$becomes" ] && [ "$becomes" != "$(id -u)" ] && could gain-root-by-setuid
echo "end of attempts"
[ "$WHERE" = netns ] && exec "$VOILE" echo --listen 0.0.0.0:8080 0.0.0.0:80
[ "$(id -u)" -lt 10000 ] && exec "$VOILE" echo --listen "$POD_IP:8080"
exec "$VOILE" echo --listen "$POD_IP:8080" "$POD_IP:80"
"#;

/// The sets of capabilities that a process has.
const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
/// None, and the one that binds ports below 1024 of the host.
const NONE: &str = "0000000000000000";
const LOW_PORTS: &str = "0000000000000400";

fn hostile(folder: &Path, security: &str, isolation: &str) {
    let root = folder.parent().expect("a parent");
    fs::write(folder.join("marker.txt"), "marker").expect("written");
    fs::write(folder.join("attempts.sh"), ATTEMPTS).expect("written");
    // A setuid program of root's that says who it runs as.
    let setuid = folder.join("id");
    fs::copy("/usr/bin/id", &setuid).expect("copied");
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).expect("setuid");
    let (state, run) = (root.join("state"), root.join("tmp"));
    let text = format!(
        r#"
apiVersion: v1
kind: Namespace
metadata: {{name: den, labels: {{istio-injection: {injection}}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: map, namespace: den}}
data: {{FROM_MAP: map}}
---
apiVersion: v1
kind: Secret
metadata: {{name: secret, namespace: den}}
stringData: {{KEY: secret}}
---
apiVersion: v1
kind: Service
metadata: {{name: app, namespace: den}}
spec: {{type: LoadBalancer, selector: {{app: app}}, ports: [{{name: http, port: 8080}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: app, namespace: den, labels: {{app: app}}}}
spec:
  {security}
  containers:
  - name: app
    command: [sh, -c, 'RUN=$(echo {run}/voile-up-*) exec sh attempts.sh']
    env:
    - {{name: STATE, value: "{state}"}}
    - {{name: WHERE, value: {isolation}}}
    - {{name: SETUID, value: "{setuid}"}}
    envFrom: [{{configMapRef: {{name: map}}}}, {{prefix: P_, secretRef: {{name: secret}}}}, {{configMapRef: {{name: none, optional: true}}}}]
"#,
        run = run.display(),
        state = state.display(),
        // Without redirection a sidecar would need a listener of its own.
        injection = if isolation == "netns" {
            "enabled"
        } else {
            "disabled"
        },
        setuid = setuid.display(),
    );
    fs::write(folder.join("den.yaml"), text).expect("written");
}

/// The application's reports, by their first word; `None` if namespaces are not available.
fn attempts(
    isolation: &str,
    security: &str,
    closed: bool,
) -> Option<BTreeMap<String, Vec<String>>> {
    let state = tempfile::tempdir().expect("a folder");
    // The process that starts the mesh may have left a descriptor open.
    let (left_open, _) = UnixStream::pair().expect("sockets");
    rustix::io::fcntl_setfd(&left_open, rustix::io::FdFlags::empty()).expect("inherited");
    let text = state.path().join("state").to_string_lossy().into_owned();
    let fill = |folder: &Path| {
        hostile(folder, security, isolation);
        if closed {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("closed");
        }
        let root = folder.parent().expect("a parent");
        std::os::unix::fs::symlink(&text, root.join("state")).expect("linked");
    };
    let state_option = ["--state", &text];
    let (up, published) = match isolation {
        "netns" => start_with(fill, None, &state_option)?,
        _ => {
            let options = [&["--isolation", "loopback", "--quiet"][..], &state_option].concat();
            let mut up = Up::start_as(fill, &options, None);
            let published = up.ready();
            (up, published)
        }
    };
    let log = || up.log("den.app-0.app");
    wait_until("the attempts are over", || {
        log().contains("end of attempts")
    });
    let to = published["den/app"];
    wait_until("the application serves", || {
        get(to, "/").is_ok_and(|answer| answer.status == 200)
    });
    assert!(
        Path::new(&text).join("root-cert.pem").exists(),
        "there was something to read"
    );
    let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in log().lines() {
        let (word, rest) = line.split_once([' ', ':']).unwrap_or((line, ""));
        said.entry(word.to_owned())
            .or_default()
            .push(rest.to_owned());
    }
    Some(said)
}

#[test]
fn an_application_of_roots_mesh_has_no_privileges_and_sees_no_keys_and_no_processes() {
    if !is_root() {
        return skip(
            Prerequisite::Root,
            "only root's mesh gives its pods other users",
        );
    }
    for (isolation, closed, capabilities) in [
        ("netns", false, NONE),
        ("netns", true, NONE),
        ("loopback", false, LOW_PORTS),
        ("loopback", true, LOW_PORTS),
    ] {
        let Some(said) = attempts(isolation, "", closed) else {
            return;
        };
        assert_eq!(
            said["could"],
            ["read-the-working-folder", "read-its-variables"],
            "{isolation}: {said:?}"
        );
        for set in SETS {
            assert_eq!(said[set], [capabilities], "{isolation}: {set}");
        }
        assert_eq!(said["NoNewPrivs"], ["1"]);
        let most = voile_host::confinement::MAX_PROCESSES.to_string();
        assert_eq!(said["processes"], [most]);
        let uid: u32 = said["uid"][0].parse().expect("a number");
        assert!(uid > 1000, "{uid}");
    }
}

#[test]
fn a_pod_runs_as_the_user_it_names_and_is_that_user_for_itself_alone() {
    if !is_root() {
        return skip(
            Prerequisite::Root,
            "only root's mesh gives its pods other users",
        );
    }
    const NAMED: &str = "securityContext: {runAsUser: 4711, runAsGroup: 4712}";
    const ROOT: &str = "securityContext: {runAsUser: 0, runAsGroup: 0}";
    for (isolation, security, user) in [
        ("netns", NAMED, "4711"),
        ("netns", ROOT, "0"),
        ("loopback", NAMED, "4711"),
        ("loopback", ROOT, "0"),
    ] {
        let Some(said) = attempts(isolation, security, false) else {
            return;
        };
        assert_eq!(said["uid"], [user]);
        assert_eq!(said["CapBnd"], [NONE]);
        assert_eq!(
            said["could"],
            ["read-the-working-folder", "read-its-variables"],
            "{isolation}, {user}: {said:?}"
        );
    }
}
