//! `voile up` with a folder that was written for a cluster: StatefulSets, DaemonSets, Jobs, CronJobs, and the gateway of an Istio
//! installation; and with a folder without pods.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use crate::mesh::{exchange, put, wait_until};
use crate::up::netns::start_with;
use crate::up::{Up, pair};

/// One of each kind. The Jobs ask a pod of the StatefulSet by its own name.
const KINDS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: kinds, labels: {istio-injection: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: kinds}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: http, port: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: kinds}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: app, command: ["$(VOILE)", echo, --listen, "0.0.0.0:8080", --name, "$(POD_NAME)"]}]}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce]}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: kinds}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: app, command: [sleep, "1000"]}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: ask, namespace: kinds}
spec:
  completions: 2
  parallelism: 1
  completionMode: Indexed
  template:
    metadata: {labels: {app: ask}}
    spec:
      restartPolicy: Never
      containers:
      - name: app
        command:
        - sh
        - -c
        - |
          until $VOILE load http://db-$JOB_COMPLETION_INDEX.db.kinds.svc.cluster.local:8080/ --rate 50 --duration 200ms --json | grep -q '"200"'; do
            sleep 0.1
          done
          echo asked db-$JOB_COMPLETION_INDEX
---
apiVersion: batch/v1
kind: Job
metadata: {name: bad, namespace: kinds}
spec: {backoffLimit: 1, template: {spec: {restartPolicy: OnFailure, containers: [{name: app, command: [sh, -c, "exit 3"]}]}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: kinds}
spec: {schedule: "0 0 * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: app}]}}}}}
"#;

#[test]
fn stateful_sets_daemon_sets_and_jobs_run_as_on_a_cluster() {
    let fill = |folder: &Path| fs::write(folder.join("kinds.yaml"), KINDS).expect("written");
    let Some((up, _)) = start_with(fill, None, &[]) else {
        return;
    };
    let said = |text: &str| up.text("err").contains(text);
    for name in ["ask-0", "ask-1"] {
        wait_until("the job has asked", || {
            said(&format!("kinds/{name} has succeeded"))
        });
    }
    assert!(up.log("kinds.ask-0.app").contains("asked db-0"));
    assert!(up.log("kinds.ask-1.app").contains("asked db-1"));
    wait_until("the other job is given up", || {
        said("kinds/bad-0 has failed")
    });
    let err = up.text("err");
    let again = err.matches("kinds.bad-0.app ended with code 3; starting it again");
    assert_eq!(again.count(), 1, "{err}");
    assert!(
        !err.contains("kinds.ask-0.app ended with code 0; starting"),
        "{err}"
    );
    let runs = |pod: &str| {
        up.family()
            .concat()
            .contains(&format!("--workload kinds/{pod}"))
    };
    assert!(runs("agent-0") && runs("db-0") && runs("db-1"));
    // A new template: the pods keep their names.
    up.edit(
        "kinds.yaml",
        "--name, \"$(POD_NAME)\"",
        "--name, \"new-$(POD_NAME)\"",
    );
    for name in ["db-1", "db-0"] {
        wait_until("the pod is replaced", || {
            said(&format!("kinds/{name} is replaced"))
        });
    }
    wait_until("both run again", || runs("db-0") && runs("db-1"));
    let err = up.text("err");
    assert!(err.find("kinds/db-1 is replaced") < err.find("kinds/db-0 is replaced"));
}

/// A shop behind the gateway of an Istio installation, which nobody wrote.
const SHOP: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 8000}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, command: ["$(VOILE)", echo, --listen, "$(POD_IP):8000", --name, "$(POD_NAME)"]}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: shop}
spec:
  selector: {istio: ingressgateway}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [shop.example]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: [shop.example], gateways: [public], http: [{route: [{destination: {host: web}}]}]}
"#;

fn status(to: SocketAddr, host: &str) -> Option<u16> {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    Some(exchange(to, request.as_bytes()).ok()?.status)
}

#[test]
fn istios_ingress_gateway_is_started_for_a_gateway_that_asks_for_it() {
    let fill = |folder: &Path| fs::write(folder.join("shop.yaml"), SHOP).expect("written");
    let loopback = || {
        let mut up = Up::start(fill, &["--quiet"]);
        let published = up.ready();
        Some((up, published))
    };
    for started in [loopback(), start_with(fill, None, &[])] {
        let Some((up, published)) = started else {
            continue;
        };
        let to = published["istio-system/istio-ingressgateway"];
        let err = up.text("err");
        let said =
            "istio-system/istio-ingressgateway is started for the selector of Gateway shop/public";
        assert!(err.contains(said), "{err}");
        let hint = format!("try curl -H 'Host: shop.example' http://{to}/");
        assert!(err.contains(&hint), "{err}");
        wait_until("it routes", || status(to, "shop.example") == Some(200));
        assert_eq!(status(to, "other.example"), Some(404));
        // Somebody writes it: what was made goes.
        if up.text("err").contains("isolation netns") {
            up.edit("shop.yaml", "istio: ingressgateway", "istio: mine");
            wait_until("it goes", || {
                up.text("err")
                    .contains("istio-system/istio-ingressgateway-0 goes")
                    || up.text("err").contains("selects no workload")
            });
        }
    }
}

#[test]
fn a_folder_without_pods_is_not_ready_and_says_what_is_missing() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {selector: {app: web}, ports: [{port: 80}]}\n";
    let mut up = Up::start(
        |folder| fs::write(folder.join("only.yaml"), service).expect("written"),
        &["--quiet"],
    );
    wait_until("it says what is missing", || {
        up.text("err")
            .contains("waiting for a pod: the folder has no Deployment")
    });
    assert!(!up.text("err").contains("ready after"));
    let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop, labels: {app: other}}\nspec: {containers: [{name: app, command: [sleep, \"100\"]}]}\n";
    put(&up.file("only.yaml"), &[service, pod].concat());
    up.ready();
}

#[test]
fn sidecars_have_as_many_workers_as_the_mesh_says() {
    const MESH: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\n\
        data: {mesh: 'defaultConfig: {concurrency: 1}'}\n";
    let fill = |folder: &Path| {
        pair(folder);
        fs::write(folder.join("mesh.yaml"), MESH).expect("written");
    };
    let mut up = Up::start(fill, &["--quiet"]);
    up.ready();
    let processes = up.family();
    let sidecars = processes
        .iter()
        .filter(|one| one.contains(" proxy --workload"));
    let workers: Vec<_> = sidecars.map(|one| one.contains(" --workers 1 ")).collect();
    assert_eq!(workers, [true], "{processes:#?}");
}
