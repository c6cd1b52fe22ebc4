//! The mesh of `voile up` that runs on this machine: found by its control socket, without addresses.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Runtime;
use voile_local::RunningMesh;

use crate::commands::inspect::monitoring::{PagePlace, PageServer, word};

/// The running mesh that is meant, for a command that can ask others, too.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct MeshArgs {
    /// The mesh of `voile up`, by its folder or process number. Without it the one that runs on this machine.
    #[arg(long, value_name = "FOLDER|PID")]
    mesh: Option<String>,
}

/// A mesh that runs, and its state.
#[derive(Debug)]
pub(crate) struct FoundMesh {
    pub(crate) running: RunningMesh,
    /// The page `/mesh` of its control socket.
    pub(crate) state: Value,
    runtime: Arc<Runtime>,
}

impl MeshArgs {
    /// The mesh of the `voile up` with this process number.
    pub(crate) fn of_process(pid: u32) -> Self {
        Self {
            mesh: Some(pid.to_string()),
        }
    }

    /// The mesh that is meant; none if none is named and none runs.
    pub(crate) fn find(&self, runtime: &Arc<Runtime>) -> Result<Option<FoundMesh>, String> {
        let folder = self
            .mesh
            .as_ref()
            .map(|mesh| Path::new(mesh).canonicalize());
        let folder = folder.and_then(Result::ok);
        let is_meant = |one: &FoundMesh| {
            self.mesh.as_ref().is_none_or(|wanted| {
                let by_folder = folder.as_deref() == Some(one.folder());
                by_folder || *wanted == one.running.pid.to_string()
            })
        };
        let mut found: Vec<FoundMesh> = Vec::new();
        for running in voile_local::running_meshes() {
            // Another user's mesh says what it likes, and as slowly: it is asked only if none of one's own is meant.
            if !running.own && found.iter().any(|one| one.running.own && is_meant(one)) {
                break;
            }
            let at = page_server(&running, "", "voile up", runtime);
            match at.page("/mesh", Duration::ZERO) {
                Ok(state) => found.push(FoundMesh {
                    running,
                    state,
                    runtime: Arc::clone(runtime),
                }),
                Err(reason) if running.own && self.mesh.is_some() => return Err(reason),
                // It ends just now, or it is another user's.
                Err(_) => {}
            }
        }
        let list = |found: &[FoundMesh]| {
            let lines = found.iter().map(|one| {
                let pid = one.running.pid;
                format!("\n  --mesh {pid}  {}", one.folder().display())
            });
            lines.collect::<String>()
        };
        let Some(wanted) = &self.mesh else {
            return match found.len() {
                0 | 1 => Ok(found.pop()),
                several => Err(format!(
                    "{several} meshes run on this machine; choose one:{}",
                    list(&found)
                )),
            };
        };
        match found.iter().position(is_meant) {
            Some(at) => Ok(Some(found.swap_remove(at))),
            None if found.is_empty() => Err(format!(
                "no mesh runs on this machine for this user; cure: voile up {wanted}"
            )),
            None => Err(format!(
                "no mesh of `{wanted}` runs on this machine; these run:{}",
                list(&found)
            )),
        }
    }

    /// The mesh that is meant, for a command that needs one.
    pub(crate) fn need(&self, runtime: &Arc<Runtime>) -> Result<FoundMesh, String> {
        let none = "no mesh runs on this machine for this user; cure: voile up FOLDER";
        self.find(runtime)?.ok_or_else(|| none.to_owned())
    }

    /// Refuses a mesh of this machine for a command that asks a cluster.
    pub(crate) fn refuse_for_cluster(&self) -> Result<(), String> {
        match &self.mesh {
            Some(mesh) => Err(format!(
                "--mesh {mesh} is on this machine, --kubernetes asks a cluster: give one of them"
            )),
            None => Ok(()),
        }
    }
}

impl FoundMesh {
    pub(crate) fn folder(&self) -> &Path {
        Path::new(self.state["folder"].as_str().unwrap_or_default())
    }

    /// The pages of each control plane.
    pub(crate) fn control_planes(&self) -> Vec<PageServer> {
        let count = self.state["control_planes"].as_u64().unwrap_or(1);
        let server = |number: u64| {
            let name = match count {
                1 => "control plane".to_owned(),
                _ => format!("control plane {number}"),
            };
            let prefix = format!("/control/{number}");
            page_server(&self.running, &prefix, &name, &self.runtime)
        };
        (0..count).map(server).collect()
    }

    /// The pages of each proxy, with the namespace and name of its pod.
    pub(crate) fn proxies(&self) -> Vec<PageServer> {
        let pods = self.state["pods"].as_array().map_or(&[][..], Vec::as_slice);
        let with_proxy = pods.iter().filter(|pod| pod["proxy"] == true);
        let server = |pod: &Value| {
            let name = format!("{}/{}", word(pod, "namespace"), word(pod, "name"));
            let prefix = format!("/proxy/{name}");
            page_server(&self.running, &prefix, &name, &self.runtime)
        };
        with_proxy.map(server).collect()
    }

    /// Orders it to stop.
    pub(crate) fn stop(&self) -> Result<(), String> {
        page_server(&self.running, "", "voile up", &self.runtime).post("/stop")
    }

    /// The state, for people.
    pub(crate) fn text(&self) -> String {
        let state = &self.state;
        let ready = match state["ready"] == true {
            true => "ready".to_owned(),
            false => format!("starting, waits for {}", word(state, "waiting_for")),
        };
        let mut text = format!(
            "voile up {} (process {}, isolation {}): {ready}\n",
            self.folder().display(),
            self.running.pid,
            word(state, "isolation"),
        );
        let list = |field: &str| state[field].as_array().cloned().unwrap_or_default();
        for one in list("published") {
            text += &format!("  {}  → {}\n", word(&one, "url"), word(&one, "service"));
        }
        for problem in list("problems") {
            let first = problem.as_str().unwrap_or_default().lines().next();
            text += &format!("! {}\n", first.unwrap_or_default());
        }
        text
    }
}

fn page_server(
    running: &RunningMesh,
    prefix: &str,
    name: &str,
    runtime: &Arc<Runtime>,
) -> PageServer {
    let place = PagePlace::Socket {
        path: PathBuf::clone(&running.socket),
        prefix: prefix.to_owned(),
        name: name.to_owned(),
    };
    PageServer::new(place, runtime)
}
