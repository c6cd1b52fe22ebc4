//! Isolation of the mesh's pods on this machine, and the way in. Isolation by addresses needs no privilege. Isolation
//! by network namespaces makes this process fork before it has a second thread.

use std::io::{self, Write};
use std::path::Path;

use voile_host::enclosure::{self, EnclosureSide, InsideSocket};
use voile_host::isolation::ProcessIsolation;
use voile_model::Mesh;
use voile_model::mesh::{Location, WorkloadKind};

use crate::addresses::PodIsolation;
use crate::contained::loopback_place;
use crate::loopback_block::{Block, ControlPlace};
use crate::pod_network::{MeshNetwork, check};
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

/// Isolation that is in use.
#[derive(Debug)]
pub(crate) enum HostCapabilities {
    /// And the place of applications there.
    Loopback(Block, Option<ProcessIsolation>),
    Namespaces(Box<MeshNetwork>),
}

impl HostCapabilities {
    pub(crate) fn claim(inside: Option<InsideSocket>) -> Result<Self, UpError> {
        Ok(match inside {
            None => {
                let place = loopback_place().unwrap_or_else(|error| {
                    say(&format!(
                        "applications run as root and are not contained: run only programs that you trust ({error})"
                    ));
                    None
                });
                Self::Loopback(Block::claim()?, place)
            }
            Some(inside) => Self::Namespaces(Box::new(MeshNetwork::set_up(inside)?)),
        })
    }

    pub(crate) fn layout(&self) -> PodIsolation {
        match self {
            Self::Loopback(block, _) => PodIsolation::Loopback(block.octet()),
            Self::Namespaces(_) => PodIsolation::Namespaces,
        }
    }

    /// Returns the addresses of the first `count` control planes.
    pub(crate) fn control_planes(&self, count: usize) -> Vec<ControlPlace> {
        let all = match self {
            Self::Loopback(block, _) => block.control_planes(),
            Self::Namespaces(network) => network.control_planes(),
        };
        all.into_iter().take(count.max(1)).collect()
    }

    pub(crate) fn network(&self) -> Option<&MeshNetwork> {
        match self {
            Self::Loopback(..) => None,
            Self::Namespaces(network) => Some(network),
        }
    }

    /// Returns the place of applications that have no network of their own, if it is another than the mesh's.
    pub(crate) fn loopback_place(&self) -> Option<&ProcessIsolation> {
        match self {
            Self::Loopback(_, place) => place.as_ref(),
            Self::Namespaces(_) => None,
        }
    }

    /// Describes the location of the pods, in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Loopback(block, _) => format!("127.{}.0.0/16", block.octet()),
            Self::Namespaces(network) => {
                format!(
                    "10.244.0.0/16, each in its network namespace, captured by {}",
                    network.tool()
                )
            }
        }
    }
}

/// Runs the mesh in the isolation that is wanted, until `signals` say so; returns the exit code. Must be called while the
/// process has one thread; `signals` is called where the mesh runs, before anything is started.
pub fn start(
    mut options: RunnerOptions,
    wanted: WantedIsolation,
    signals: impl FnOnce() -> io::Result<SignalMessages>,
) -> Result<u8, UpError> {
    let folder = RunFolder::make(&std::env::temp_dir())?;
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

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "voile up: {text}");
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
