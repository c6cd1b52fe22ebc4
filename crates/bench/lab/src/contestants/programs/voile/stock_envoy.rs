//! A stock, unmodified Envoy in each sidecar's place. Voile's control plane serves all its configuration over ADS: listeners,
//! routes, clusters, endpoints, secrets. `voile agent` gets its certificate, and `voile export` writes its bootstrap file, as for
//! any user. The lab adds the mark that any sidecar needs in network namespaces.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use voile_host::netns::rules::{MARK_INWARD, MARK_OUTWARD};

use super::{CLIENT, CONTROL, Ports, TOKEN_BOUND, Voile, VoileSidecar, local_port};
use crate::contestants::contestant::peers_folder;
use crate::contestants::pair::{STATUS_PORT, write};
use crate::contestants::programs::command_output::output;
use crate::contestants::programs::envoy::{marking, with_file};
use crate::definition::ENVOY_XDS;
use crate::definition::Variant;
use crate::find;
use crate::shared_processes::{Lab, READY_BOUND};

/// Differences of its work from the others.
pub(super) const TERMS: [&str; 3] = [
    "all configuration from a live voile control over delta ADS, from the same resources as voile: listeners, routes, clusters, endpoints, secrets",
    "as voile translates them: request ids, retries and x-forwarded-client-cert on, the access log off, no Istio filters (no Istio \
     metrics); Envoy chooses suites and curves",
    "its certificate by `voile agent --once` before it is started: no agent runs beside it, and none is counted",
];
/// The readiness page: it answers well after Envoy has all its configuration.
const READY_PATH: &str = "/ready";
/// Deadline of the certificate from the control plane, as an argument of the agent and for the lab.
const CERTIFIED_WITHIN: &str = "15s";
const CERTIFIED_BOUND: Duration = READY_BOUND;

impl Voile {
    /// The same mesh with this Envoy in the place of both sidecars.
    pub(crate) fn stock(envoy: find::PeerProgram) -> Self {
        Self {
            stock: Some(envoy),
            ..Self::variant(Variant::plain(ENVOY_XDS))
        }
    }

    /// Starts Envoy for that pod, whose token is in the file.
    pub(super) fn start_stock(
        &self,
        lab: &Lab<'_>,
        envoy: &find::PeerProgram,
        state: &Path,
        ports: &Ports,
        (pod, role, token): (&str, &'static str, &Path),
    ) -> Result<VoileSidecar, String> {
        let folder = peers_folder(lab, &self.variant.name)?;
        let certificates = folder.join(format!("{pod}-certificates"));
        let workload = format!("lab/{pod}");
        let control = format!("https://{}", ports.control);
        let says = |what: &str| {
            let name = self.process_name(&format!("{pod}-{what}"));
            lab.process(CONTROL, &name, self.program(lab))
        };
        let agent = says("agent")?
            .args(["agent", "--once", "--wait", CERTIFIED_WITHIN])
            .args(["--workload", &workload, "--control", &control])
            .arg("--token-file")
            .arg(token)
            .arg("--root-cert")
            .arg(state.join("root-cert.pem"))
            .arg("--out")
            .arg(&certificates);
        output(lab, agent, CERTIFIED_BOUND)?;
        let secrets = says("secrets")?
            .args(["export", "envoy-secrets"])
            .arg(&certificates);
        output(lab, secrets, TOKEN_BOUND)?;
        let address = ports.pod(role);
        let (admin, capture) = match lab.network {
            Some(_) => (SocketAddr::new(address, STATUS_PORT), "redirect"),
            None => (local_port()?, "none"),
        };
        let bootstrap = says("bootstrap")?
            .args(["export", "envoy-bootstrap", "--workload", &workload])
            .args(["--address", &address.to_string(), "--control", &control])
            .args(["--admin", &admin.to_string(), "--capture", capture])
            .arg("--certificates")
            .arg(&certificates);
        let bootstrap = output(lab, bootstrap, TOKEN_BOUND)?;
        let bootstrap = match lab.network {
            Some(_) => marked(&bootstrap, role)?,
            None => bootstrap,
        };
        let file = write(&folder, &format!("{pod}.json"), &bootstrap)?;
        let spec = lab.process(role, &self.process_name(pod), &envoy.path)?;
        // As docs/reference/envoy.md asks: connections that an older policy allowed must end.
        let spec = with_file(spec, &file, lab.workers)
            .args(["--drain-time-s", "1", "--drain-strategy", "immediate"])
            .arg("--disable-hot-restart");
        Ok(VoileSidecar {
            process: spec.start().map_err(|e| e.to_string())?.into(),
            role,
            admin,
            metrics: admin,
            readiness: admin,
            ready_path: READY_PATH,
        })
    }
}

/// The same file, by which what it sends is not redirected to it again: the server's sends to its own pod.
fn marked(bootstrap: &str, role: &str) -> Result<String, String> {
    let wrong = |why: &str| format!("output of `voile export envoy-bootstrap`: {why}");
    let mut bootstrap: Value =
        serde_json::from_str(bootstrap).map_err(|e| wrong(&e.to_string()))?;
    let all = bootstrap.as_object_mut();
    let all = all.ok_or_else(|| wrong("it is not a JSON object"))?;
    if all.contains_key("cluster_manager") {
        return Err(wrong("it already has bind options"));
    }
    let mark = if role == CLIENT {
        MARK_OUTWARD
    } else {
        MARK_INWARD
    };
    let sockets = json!({ "upstream_bind_config": { "socket_options": [marking(mark)] } });
    all.insert("cluster_manager".to_owned(), sockets);
    Ok(bootstrap.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::instance::SERVER;

    #[test]
    fn what_it_is_started_with_is_what_was_exported_and_a_mark() {
        let exported = json!({ "node": { "id": "sidecar~10.210.1.2~client.lab~x" }, "static_resources": { "clusters": [] } });
        for (role, mark) in [(CLIENT, 0x539), (SERVER, 0x53a)] {
            let text = marked(&exported.to_string(), role).expect("marked");
            let mut given: Value = serde_json::from_str(&text).expect("JSON");
            let options = &given["cluster_manager"]["upstream_bind_config"]["socket_options"];
            assert_eq!(options[0]["int_value"], mark, "{text}");
            assert_eq!(options[0]["name"], 36, "{text}");
            let rest = given.as_object_mut().expect("an object");
            rest.remove("cluster_manager");
            assert_eq!(given, exported);
        }
        for (text, told) in [
            ("", "EOF"),
            ("[]", "not a JSON object"),
            ("{\"cluster_manager\": {}}", "already"),
        ] {
            let why = marked(text, CLIENT).expect_err(told);
            assert!(
                why.contains("envoy-bootstrap") && why.contains(told),
                "{why}"
            );
        }
    }
}
