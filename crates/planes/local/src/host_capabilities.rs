//! Isolation that is in use: where pods run, and how this process reaches them.

use std::io::{self, Write};

use voile_host::enclosure::InsideSocket;
use voile_host::isolation::ProcessIsolation;

use crate::addresses::PodIsolation;
use crate::contained::loopback_place;
use crate::loopback_block::{Block, ControlPlace};
use crate::pod_network::MeshNetwork;
use crate::runner::UpError;

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

pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "voile up: {text}");
}
