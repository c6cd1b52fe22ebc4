//! Isolation of the mesh's pods on this machine, and the way in. Isolation by addresses needs no privilege. Isolation
//! by network namespaces makes this process fork before it has a second thread.

use std::io;
use std::path::Path;

use voile_host::enclosure::{self, EnclosureSide};
use voile_model::Mesh;
use voile_model::files::expect_outside;
use voile_model::mesh::{Location, WorkloadKind};

use crate::host_capabilities::say;
use crate::pod_network::check;
use crate::run_folder::RunFolder;
use crate::runner::{Dataplane, RunnerOptions, SignalMessages, UpError, run};

/// Isolation that the user asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedIsolation {
    /// Namespaces where they can be had and reach everything the folder names.
    Auto,
    /// Namespaces, or an error.
    Namespaces,
    /// Addresses in 127.0.0.0/8.
    Loopback,
}

/// Runs the mesh in the isolation that is wanted, until `signals` say so; returns the exit code. Must be called while the
/// process has one thread; `signals` is called where the mesh runs, before anything is started.
pub fn start(
    mut options: RunnerOptions,
    wanted: WantedIsolation,
    signals: impl FnOnce() -> io::Result<SignalMessages>,
) -> Result<u8, UpError> {
    let temporary = std::env::temp_dir();
    expect_outside(&options.folder, &temporary)
        .map_err(|reason| UpError::Machine(io::Error::other(format!("TMPDIR {reason}"))))?;
    if let Some(state) = &options.state {
        expect_outside(&options.folder, state).map_err(UpError::State)?;
    }
    let folder = RunFolder::make(&temporary)?;
    let refused = match wanted {
        WantedIsolation::Loopback => None,
        WantedIsolation::Auto if options.egress => None,
        WantedIsolation::Auto => names_elsewhere(&options.folder),
        WantedIsolation::Namespaces => None,
    };
    if wanted == WantedIsolation::Loopback || refused.is_some() {
        let why = refused.as_deref().unwrap_or("as asked for");
        say(&format!("isolation loopback ({why})"));
        return run(options, None, folder, &signals()?);
    }
    match enclosure::enter(folder.path(), check) {
        Ok(EnclosureSide::Outside(outside)) => Ok(outside.serve()),
        Ok(EnclosureSide::Inside(inside)) => {
            let why = if wanted == WantedIsolation::Auto {
                "this machine supports it; --isolation loopback disables it"
            } else {
                "as asked for"
            };
            say(&format!("isolation netns ({why})"));
            if options.by_labels && has_ambient_pods(&options.folder) {
                options.dataplane = Dataplane::Mixed;
                say(
                    "data plane mixed (a pod is ambient by istio.io/dataplane-mode; --dataplane chooses another)",
                );
            }
            run(options, Some(inside), folder, &signals()?)
        }
        Err(error) if wanted == WantedIsolation::Auto => {
            say(&format!("isolation loopback (no namespaces: {error})"));
            run(options, None, folder, &signals()?)
        }
        Err(error) => Err(UpError::Namespaces(error)),
    }
}

/// Returns true if a pod of the folder is to be served by a node proxy.
fn has_ambient_pods(folder: &Path) -> bool {
    let Ok(sources) = voile_model::files::read_directory(folder) else {
        return false;
    };
    let (mesh, _) = voile_model::check(&sources, None);
    let deployments = mesh.deployments.values().map(|one| &one.template);
    let pods = mesh.pods.values().map(|one| &one.template);
    let mut templates = deployments.chain(pods);
    templates.any(|template| template.ambient && !template.has_sidecar)
}

/// Returns a destination that the folder names and that does not run in it. A mesh in a namespace of its own cannot
/// reach it.
fn names_elsewhere(folder: &Path) -> Option<String> {
    let sources = voile_model::files::read_directory(folder).ok()?;
    let (mesh, _) = voile_model::check(&sources, None);
    elsewhere(&mesh)
}

fn elsewhere(mesh: &Mesh) -> Option<String> {
    let what = mesh
        .workloads
        .values()
        .next()
        .map(|workload| match &workload.kind {
            WorkloadKind::Pod => format!("Pod {} has an address", workload.key),
            WorkloadKind::WorkloadEntry => {
                format!("there is the WorkloadEntry {}", workload.key)
            }
            WorkloadKind::ServiceEntryEndpoint(entry) => {
                format!("the ServiceEntry {entry} has endpoints")
            }
            WorkloadKind::SliceEndpoint(service) => {
                let namespace = &workload.key.namespace;
                format!("EndpointSlices of the Service {namespace}/{service} name addresses")
            }
        });
    let external = || {
        let service = mesh
            .services
            .values()
            .find(|service| service.location == Location::MeshExternal)?;
        Some(format!("{} is outside the mesh", service.key))
    };
    let what = what.or_else(external)?;
    Some(format!(
        "{what}, and pods in network namespaces reach only each other"
    ))
}
