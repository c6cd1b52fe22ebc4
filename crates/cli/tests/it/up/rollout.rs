//! Pods and sidecars of `voile up` are replaced while clients keep calling: no call fails, in either isolation.

use std::fs;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use crate::mesh::load::lost;
use crate::mesh::resolver::ask;
use crate::mesh::{read_answer, wait_until};
use crate::up::Up;
use crate::up::netns::{enters_namespaces, inside, sidecars, start};

/// One pod that serves.
const WEB: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: roll}
spec: {selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: roll}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, sidecar.istio.io/inject: "true"}}
    spec: {containers: [{name: app, env: [{name: VERSION, value: "1"}], command: ["$(VOILE)", echo, --listen, "$(POD_IP):18080", "$(POD_IP):9000"]}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: roll}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - {port: {number: 8080, protocol: HTTP, name: http}, captureMode: NONE, defaultEndpoint: "0.0.0.0:18080"}
  - {port: {number: 9000, protocol: TCP, name: raw}, defaultEndpoint: "0.0.0.0:9000"}
"#;

/// A pod with this label that calls the service `web` beside it by `voile load`, from `go` until `enough`.
pub(crate) fn caller(namespace: &str, name: &str, label: &str, load: &str) -> String {
    format!(
        r#"---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}, {label}}}}}
spec:
  containers:
  - name: app
    command:
    - sh
    - -c
    - |
      until [ -e go ]; do sleep 0.05; done
      $VOILE load http://$WEB_SERVICE_HOST:$WEB_SERVICE_PORT/ --duration 120s \
        --method POST --payload-size 100 --timeout 20s --json {load} > out/result-{name} 2> out/said-{name} &
      load=$!
      until [ -e enough ]; do sleep 0.05; done
      kill -TERM $load
      wait $load
      mv out/result-{name} out/done-{name}
      exec sleep 1000
"#
    )
}

/// The server, and who calls it a thousand times a second.
fn pair() -> String {
    let label = "sidecar.istio.io/inject: \"true\"";
    [
        WEB,
        &caller("roll", "client", label, "--rate 1000 --connections 16"),
    ]
    .concat()
}

/// Pods that do something once: one when its service answers, one that fails, one that fails at first.
const JOBS: &str = r#"---
apiVersion: v1
kind: Pod
metadata: {name: good, namespace: roll, labels: {app: good, sidecar.istio.io/inject: "true"}}
spec:
  restartPolicy: Never
  containers:
  - name: app
    command:
    - sh
    - -c
    - |
      until $VOILE load http://$WEB_SERVICE_HOST:$WEB_SERVICE_PORT/ --rate 50 --duration 200ms --json | grep -q '"200"'; do
        sleep 0.1
      done
---
apiVersion: v1
kind: Pod
metadata: {name: bad, namespace: roll, labels: {app: bad, sidecar.istio.io/inject: "true"}}
spec: {restartPolicy: Never, containers: [{name: app, command: [sh, -c, "echo last words; exit 3"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stubborn, namespace: roll, labels: {app: stubborn, sidecar.istio.io/inject: "true"}}
spec: {restartPolicy: OnFailure, containers: [{name: app, command: [sh, -c, "[ -e out/tried ] || { touch out/tried; exit 4; }"]}]}
"#;

/// Opaque bytes to the same pod, where the kernel redirects them.
const RAW: &str = r#"---
apiVersion: v1
kind: Service
metadata: {name: raw, namespace: roll}
spec: {clusterIP: 10.96.0.77, selector: {app: web}, ports: [{name: tcp, port: 9000}]}
"#;

/// Makes a folder that applications of any user may write to. The mesh's folder itself belongs to
/// its author.
pub(crate) fn make_outbox(folder: &Path) {
    let outbox = folder.join("out");
    fs::create_dir(&outbox).expect("made");
    fs::set_permissions(&outbox, fs::Permissions::from_mode(0o777)).expect("opened");
}

fn write(folder: &Path, text: &str) {
    make_outbox(folder);
    fs::write(folder.join("roll.yaml"), text).expect("written");
}

fn touch(up: &Up, name: &str) {
    fs::write(up.file(name), "").expect("written");
}

fn said(up: &Up, text: &str) -> bool {
    up.text("err").contains(text)
}

/// Ends the load and looks at what became of its requests.
fn no_request_failed(up: &Up) {
    touch(up, "enough");
    wait_until("the generator has ended", || {
        up.file("out/done-client").exists()
    });
    let result = fs::read(up.file("out/done-client")).expect("its result");
    let result: serde_json::Value = serde_json::from_slice(&result).unwrap_or_else(|error| {
        let said = fs::read_to_string(up.file("out/said-client"));
        panic!("the generator prints JSON: {error}, {said:?}")
    });
    assert_eq!(lost(&result), [], "{result:#}");
    assert!(result["status"]["200"].as_u64() > Some(500), "{result:#}");
    assert!(
        result["status"]
            .as_object()
            .is_some_and(|codes| codes.len() == 1),
        "{result:#}"
    );
}

fn replace_pod_and_sidecars(up: &Up) {
    touch(up, "go");
    wait_until("the load runs", || up.file("out/result-client").exists());
    up.edit("roll.yaml", r#"value: "1""#, r#"value: "2""#);
    wait_until("the old pod goes", || said(up, "roll/web-0 goes"));
    let order = up.text("err");
    assert!(
        order.find("roll/web-1 starts") < order.find("roll/web-0 goes"),
        "{order}"
    );
    up.signal(Signal::USR2);
    wait_until("both sidecars are replaced", || {
        said(up, "roll.client-0.sidecar is replaced") && said(up, "roll.web-1.sidecar is replaced")
    });
    wait_until("the old pod is gone", || {
        up.family().iter().all(|line| !line.contains("roll/web-0"))
    });
}

#[test]
fn no_request_fails_while_the_only_pod_and_all_sidecars_are_replaced() {
    let mut up = Up::start_as(
        |folder| write(folder, &pair()),
        &["--isolation", "loopback", "--quiet"],
        None,
    );
    up.ready();
    replace_pod_and_sidecars(&up);
    no_request_failed(&up);
    up.signal(Signal::TERM);
    assert!(up.wait().success());
    assert_eq!(up.left_behind(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn where_the_kernel_redirects_no_request_fails_either() {
    let fill = |folder: &Path| write(folder, &[&*pair(), RAW].concat());
    let Some((mut up, _)) = start(fill, None) else {
        return;
    };
    replace_pod_and_sidecars(&up);
    no_request_failed(&up);
    up.signal(Signal::TERM);
    assert!(up.wait().success());
}

#[test]
fn a_replaced_sidecar_loses_no_question_and_keeps_its_tunnels_to_their_end() {
    if !enters_namespaces() {
        return;
    }
    let fill = |folder: &Path| write(folder, &[&*pair(), RAW].concat());
    let Some((up, _)) = start(fill, None) else {
        return;
    };
    let running = sidecars(&up);
    let client = running.iter().find(|(pod, _)| pod == "roll/client-0");
    let client = client.expect("the client's sidecar").1;
    // An opaque connection, as the application would make it.
    let raw = SocketAddr::from((Ipv4Addr::new(10, 96, 0, 77), 9000));
    let tunnel = inside(client, move || TcpStream::connect(raw)).expect("connected");
    let talk = |tunnel: &TcpStream| {
        let mut stream = tunnel;
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .expect("sent");
        read_answer(&mut BufReader::new(stream))
            .expect("an answer")
            .status
    };
    assert_eq!(talk(&tunnel), 200);
    // Questions without a pause: each waits for its answer.
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let asking = std::thread::spawn(move || {
        inside(client, move || {
            let server = SocketAddr::from((Ipv4Addr::LOCALHOST, 15053));
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                let answer = ask(server, "raw.roll.svc.cluster.local", "A");
                assert_eq!(answer, "NOERROR 10.96.0.77");
                count += 1;
            }
            count
        })
    });
    up.signal(Signal::USR2);
    let taken_over = |pod: &str| {
        let log = up.log(&format!("roll.{pod}.sidecar"));
        log.contains("handed over to a new process")
    };
    wait_until("new ones serve beside the old", || {
        taken_over("client-0") && taken_over("web-0") && sidecars(&up).len() == 4
    });
    assert_eq!(talk(&tunnel), 200, "the tunnel lives on");
    let fresh = inside(client, move || TcpStream::connect(raw)).expect("connected");
    assert_eq!(talk(&fresh), 200, "new connections are taken");
    assert!(
        !said(&up, "sidecar is replaced"),
        "the old ones wait for their tunnel"
    );
    assert_eq!(talk(&tunnel), 200, "the tunnel still lives");
    drop((tunnel, fresh));
    wait_until("both are replaced", || {
        said(&up, "roll.client-0.sidecar is replaced")
            && said(&up, "roll.web-0.sidecar is replaced")
    });
    over.store(true, Ordering::Relaxed);
    assert!(asking.join().expect("no question is lost") > 10);
}

#[test]
fn a_pod_that_does_its_work_once_ends_with_its_sidecar_and_its_code_is_said() {
    let mut up = Up::start_as(
        |folder| write(folder, &[&*pair(), JOBS].concat()),
        &["--isolation", "loopback", "--quiet"],
        None,
    );
    up.ready();
    for line in [
        "roll/good-0 has succeeded",
        "roll.bad-0.app ended with code 3\n    last words\n",
        "roll/bad-0 has failed: roll.bad-0.app",
        "roll.stubborn-0.app ended with code 4; starting it again at once",
        "roll/stubborn-0 has succeeded",
        "roll.good-0.sidecar ended with code 0\n",
        "roll.bad-0.sidecar ended with code 0\n",
        "roll.stubborn-0.sidecar ended with code 0\n",
    ] {
        wait_until(line, || said(&up, line));
    }
    let sidecars: Vec<_> = sidecars(&up).into_iter().map(|(pod, _)| pod).collect();
    assert_eq!(sidecars.len(), 2, "of those that go on: {sidecars:?}");
}
