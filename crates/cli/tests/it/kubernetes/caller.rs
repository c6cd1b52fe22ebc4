//! A pod that calls a service all the time, and tells in the end if a request has failed.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use voile_testkit::cluster::{Cluster, kubectl, wait_for};

use crate::kubernetes::kit::{IMAGE, PATIENCE, until_ready};
use crate::mesh::load::lost;

/// The least that a caller calls before it is ended.
const LEAST: Duration = Duration::from_secs(5);

/// A pod that calls `http://web/` forty times a second. It prints its result when it is deleted.
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
    args: [load, "http://web/", --rate, "40", --duration, "0", --json{options}]
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
        let (namespace, name) = (self.namespace, self.name);
        wait_for("enough requests", PATIENCE, || {
            let elapsed = self.ready.elapsed();
            (elapsed > LEAST)
                .then_some(())
                .ok_or_else(|| format!("{elapsed:?}"))
        });
        let mut logs = self.cluster.control_plane_command(kubectl());
        let logs = logs.args(["-n", namespace, "logs", "-f", name, "-c", "app"]);
        let logs = logs.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let logs = logs.expect("kubectl runs");
        let delete = ["-n", namespace, "delete", "pod", name];
        self.cluster.kubectl(&delete).expect("deleted");
        let output = logs.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout);
        // Among the lines of the result it may say that it was late: the machine is busy.
        let talk = |line: &&str| line.starts_with("voile load: ");
        let result: String = text.lines().filter(|line| !talk(line)).collect();
        // Its last part has an object for each second. The log of a pod that ends may lack the end of it.
        let head = || result.split("\"per_second\"").next().unwrap_or_default();
        let result = serde_json::from_str::<Value>(&result)
            .or_else(|_| serde_json::from_str(&format!("{}\"per_second\": []}}", head())));
        let result = result.unwrap_or_else(|error| panic!("no result of {name}: {error}: {text}"));
        let seconds = result["per_second"].as_array().into_iter().flatten();
        let failed: Vec<_> = seconds
            .filter(|one| one["errors"] != 0)
            .map(|one| &one["t"])
            .collect();
        assert_eq!(lost(&result), [], "{name}: in these seconds {failed:?}");
        let requests = result["ok"].as_u64().unwrap_or_default();
        assert!(requests > 50, "{name}: {requests} requests");
        requests
    }
}
