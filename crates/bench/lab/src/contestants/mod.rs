//! Contestants: data planes between client and server. The lab starts them by command line and uses no other interface of their
//! programs.

pub(crate) mod agent_services;
mod captured;
pub(crate) mod certificates;
pub(crate) mod contestant;
pub(crate) mod effect_evidence;
mod generations;
mod listeners;
mod multi_role;
mod pair;
pub(crate) mod process;
pub(crate) mod programs;
mod retired_processes;
pub(crate) mod served_process;

pub(crate) use programs::command_output::output;
pub(crate) use programs::voile::counted;

use self::contestant::Contestant;
use self::multi_role::Planes;
use self::pair::Pair;
use self::programs::nodes::waypoint::WaypointProgram;
use self::programs::nodes::{Nodes, Program};
use self::programs::{
    baseline, envoy, haproxy, ingress, linkerd, nginx, pipy, relay, voile, ztunnel,
};
use crate::definition::{ENVOY_XDS, PeerFeatures, Variant, WAYPOINT_MODE};
use crate::find::FoundPeers;
use crate::machine::instance::INGRESS;
use crate::plan::ContestantSetup;

/// The contestant of that name; none when the lab does not know it.
pub(crate) fn named(
    name: &str,
    outfit: &ContestantSetup,
    variants: &[Variant],
    found: &FoundPeers,
) -> Result<Box<dyn Contestant>, String> {
    if let Some(variant) = variants.iter().find(|variant| variant.name == name) {
        return Ok(Box::new(voile_planes(variant, outfit)));
    }
    let (program, features) = PeerFeatures::of(name)?;
    let configured = outfit.has_policies() || outfit.believes() || outfit.routes().is_some();
    if configured && !["baseline", "voile", "envoy", ENVOY_XDS].contains(&program) {
        return Err(format!("the lab has no policies and routes for {program}"));
    }
    match program {
        "baseline" => Ok(Box::new(baseline::Baseline)),
        "relay" => Ok(Box::new(relay::LabRelays::default())),
        "voile" => Ok(Box::new(voile_planes(&Variant::plain("voile"), outfit))),
        "envoy" => {
            let envoy = envoy::Envoy::new(found.envoy.clone()?, features);
            let sidecars = Pair::new(envoy.fitted(outfit));
            let waypoint = WaypointProgram::Envoy(found.envoy.clone()?);
            let nodes = Nodes::around(waypoint, name);
            let planes = Planes::new(Box::new(sidecars)).and(&[WAYPOINT_MODE], Box::new(nodes));
            Ok(Box::new(planes))
        }
        ENVOY_XDS => {
            let told = voile::Voile::stock(found.envoy.clone()?);
            Ok(Box::new(told.fitted(outfit)))
        }
        "nginx" => Ok(Box::new(Pair::new(nginx::Nginx::new(
            found.nginx.clone()?,
            features,
        )))),
        "haproxy" => Ok(Box::new(Pair::new(haproxy::Haproxy::new(
            found.haproxy.clone()?,
            features,
        )))),
        "ztunnel" => {
            let found = found.other("ztunnel")?;
            let sidecars = ztunnel::Ztunnel::new(found.clone());
            let nodes = Nodes::new(Program::Ztunnel(found));
            let planes = Planes::new(Box::new(sidecars)).and(&["node"], Box::new(nodes));
            Ok(Box::new(planes))
        }
        "pipy" => Ok(Box::new(Pair::new(pipy::Pipy::new(found.other("pipy")?)))),
        linkerd::NAME => Ok(Box::new(linkerd::Linkerd::new(found.other(linkerd::NAME)?))),
        other => Err(format!("unknown contestant {other}")),
    }
}

/// Voile with a variant's changes, in all its roles.
fn voile_planes(variant: &Variant, outfit: &ContestantSetup) -> Planes {
    let sidecars = voile::Voile::variant(variant.clone()).fitted(outfit);
    let nodes = Nodes::new(Program::Voile(variant.clone()));
    let waypoint = Nodes::around(WaypointProgram::Voile(variant.clone()), &variant.name);
    let gateway = ingress::Ingress::new(variant.clone());
    Planes::new(Box::new(sidecars))
        .and(&["node"], Box::new(nodes))
        .and(&[WAYPOINT_MODE], Box::new(waypoint))
        .and(&[INGRESS], Box::new(gateway))
}
