//! A pod that calls a service all the time, and tells in the end if a request has failed.

use std::time::{Duration, Instant};

use serde_json::Value;
use voile_testkit::cluster::{Cluster, wait_for};

use crate::kubernetes::kit::{IMAGE, PATIENCE, until_ready};
use crate::mesh::load::lost;

/// The least that a caller calls before it is ended.
const LEAST: Duration = Duration::from_secs(5);

/// A pod that calls `http://web/` ten times a second, and waits for answers of a busy machine. It prints its result when it is ended.
pub(crate) struct ClusterCaller<'a> {
    cluster: &'a Cluster,
    namespace: &'static str,
    name: &'static str,
    ready: Instant,
}

impl<'a> ClusterCaller<'a> {
    /// Starts it, with further options of `voile load`, and waits until it is ready.
    pub(crate) fn start(
        cluster: &'a Cluster,
        namespace: &'static str,
        name: &'static str,
        options: &str,
    ) -> Self {
        let pod = format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  restartPolicy: Never
  containers:
  - name: app
    image: {IMAGE}
    imagePullPolicy: Never
    args: [load, "http://web/", --rate, "20", --timeout, 30s, --duration, "0", --json{options}]
"#
        );
        cluster.apply(&pod).expect("a caller");
        until_ready(cluster, namespace, &format!("pod/{name}"), "Ready");
        Self {
            cluster,
            namespace,
            name,
            ready: Instant::now(),
        }
    }

    /// Ends it, and checks that no request of it has failed. Returns the number of its requests.
    pub(crate) fn no_request_failed(self) -> u64 {
        let name = self.name;
        wait_for("enough requests", PATIENCE, || {
            let elapsed = self.ready.elapsed();
            (elapsed > LEAST)
                .then_some(())
                .ok_or_else(|| format!("{elapsed:?}"))
        });
        let text = self.end();
        // Among the lines of the result it may say that it was late: the machine is busy.
        let talk = |line: &&str| line.starts_with("voile load: ");
        let result: String = text.lines().filter(|line| !talk(line)).collect();
        let result = serde_json::from_str::<Value>(&result);
        let result = result.unwrap_or_else(|error| panic!("no result of {name}: {error}: {text}"));
        let seconds = result["per_second"].as_array().into_iter().flatten();
        let failed: Vec<_> = seconds
            .filter(|one| one["errors"] != 0)
            .map(|one| &one["t"])
            .collect();
        assert_eq!(lost(&result), [], "{name}: in these seconds {failed:?}");
        let requests = result["ok"].as_u64().unwrap_or_default();
        assert!(requests > 30, "{name}: {requests} requests");
        requests
    }

    /// Ends its process and deletes the pod. Returns what it printed, which is whole: a pod that is deleted while it runs may take its
    /// log with it.
    fn end(&self) -> String {
        let pod = |arguments: &[&str]| {
            let all = [&["-n", self.namespace], arguments].concat();
            self.cluster.kubectl(&all).expect("kubectl runs")
        };
        let app = |field: &str| {
            let path =
                format!(r#"jsonpath={{.status.containerStatuses[?(@.name=="app")].{field}}}"#);
            pod(&["get", "pod", self.name, "-o", &path])
        };
        let node = pod(&["get", "pod", self.name, "-o", "jsonpath={.spec.nodeName}"]);
        let node = node
            .strip_prefix("node-")
            .and_then(|node| node.parse().ok());
        let container = app("containerID");
        let container = container.trim_start_matches("containerd://");
        let kill = [
            "-n", "k8s.io", "tasks", "kill", "--signal", "SIGTERM", container,
        ];
        let mut kill_it = self.cluster.node_command(node.expect("a node"), "ctr");
        let killed = kill_it.args(kill).output().expect("ctr runs");
        assert!(killed.status.success(), "{killed:?}");
        wait_for("the end of its process", PATIENCE, || {
            let code = app("state.terminated.exitCode");
            (!code.is_empty())
                .then_some(())
                .ok_or_else(|| "it runs".to_owned())
        });
        let text = pod(&["logs", self.name, "-c", "app"]);
        pod(&["delete", "pod", self.name]);
        text
    }
}
