//! Surroundings of contestants: for each outfit (number of workers, CPU set) a folder, bounds and a server. Outfits of one CPU
//! set share the server, so that all of a cell's contestants meet the same processes. Outfits balanced over several endpoints
//! have their own servers.

pub(crate) mod endpoints;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use crate::agent::{AgentConnection, AgentProgram};
use crate::definition::{Definition, EventAction, Isolation};
use crate::machine::instance::Instance;
use crate::network::Echo;
use crate::network::{self, FabricVisit, Network};
use crate::plan::{ContestantSetup, RequestPath};
use crate::process::Process;
use crate::process_bounds::ProcessBounds;
use crate::shared_processes::{HTTP, Lab, TCP, TCP_SINK, start_echo_bound};

/// Servers that contestants lead to.
#[derive(Clone)]
pub(crate) struct OriginServers {
    pub(crate) echo: Echo,
    pub(crate) server: Instance,
    /// As in [`Lab`].
    pub(crate) endpoints: Vec<SocketAddr>,
}

/// Surroundings of one outfit.
pub(crate) struct OriginServer {
    pub(crate) folder: std::path::PathBuf,
    pub(crate) echo: Echo,
    pub(crate) endpoints: Vec<SocketAddr>,
    pub(crate) workers: u32,
    pub(crate) bounds: ProcessBounds,
    pub(crate) ways: Vec<RequestPath>,
    pub(crate) server: Instance,
}

/// All of them; the servers end with it.
pub(crate) struct OriginServerSet<'a> {
    voile: &'a Path,
    stopped: &'a dyn Fn() -> bool,
    halls: BTreeMap<ContestantSetup, OriginServer>,
    network: Option<Network>,
    far: Option<&'a AgentConnection>,
    upgradable: bool,
    moves: bool,
    _servers: Vec<Process>,
    /// Last, so that the lab leaves its network when all else has ended.
    _visit: Option<FabricVisit>,
}

impl<'a> OriginServerSet<'a> {
    pub(crate) fn open(
        definition: &Definition,
        voile: &'a Path,
        folder: &Path,
        far: Option<&'a AgentConnection>,
        stopped: &'a dyn Fn() -> bool,
    ) -> Result<Self, String> {
        let tcp_serves = if definition.is_bulk() { TCP_SINK } else { TCP };
        let network = match definition.isolation {
            Isolation::Loopback => None,
            Isolation::Netns => Some(Network::create(tcp_serves)?),
        };
        let visit = network.as_ref().map(Network::visit).transpose()?;
        let mut servers = Vec::new();
        let mut served: BTreeMap<(String, Option<u32>), OriginServers> = BTreeMap::new();
        let mut halls = BTreeMap::new();
        for cell in &definition.cells {
            let outfit = ContestantSetup::of(cell);
            if halls.contains_key(&outfit) {
                continue;
            }
            let plain = outfit == ContestantSetup::default();
            let folder = if plain {
                folder.to_owned()
            } else {
                folder.join(outfit.folder())
            };
            std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            let bounds = ProcessBounds::new(definition, &outfit.cpus);
            let which = (outfit.cpus.clone(), outfit.endpoints());
            if !served.contains_key(&which) {
                let lab = Lab {
                    bounds: bounds.clone(),
                    network: network.as_ref(),
                    far,
                    ..Lab::on_loopback(voile, &folder, Echo::NOWHERE, stopped)
                };
                let one = match which.1 {
                    Some(number) => endpoints::serve(&lab, number, &mut servers)?,
                    None => serve(lab, served.len(), tcp_serves, &mut servers)?,
                };
                served.insert(which.clone(), one);
            }
            let OriginServers {
                echo,
                server,
                endpoints,
            } = served[&which].clone();
            let hall = OriginServer {
                folder,
                echo,
                endpoints,
                workers: outfit.workers.unwrap_or(definition.workers),
                bounds,
                ways: ways(definition, &outfit),
                server,
            };
            halls.insert(outfit, hall);
        }
        Ok(Self {
            voile,
            stopped,
            halls,
            network,
            far,
            upgradable: happens(definition, &EventAction::UpgradeProxy),
            moves: happens(definition, &EventAction::MoveEndpoints),
            _servers: servers,
            _visit: visit,
        })
    }

    /// The lab of an outfit, in which contestants start; and the server there.
    pub(crate) fn lab(&self, outfit: &ContestantSetup) -> Result<(Lab<'_>, &Instance), String> {
        let hall = self.halls.get(outfit);
        let hall = hall.ok_or_else(|| "no such outfit was planned".to_owned())?;
        let lab = Lab {
            voile: self.voile.to_owned(),
            folder: &hall.folder,
            echo: hall.echo,
            endpoints: hall.endpoints.clone(),
            workers: hall.workers,
            bounds: hall.bounds.clone(),
            network: self.network.as_ref(),
            far: self.far,
            upgradable: self.upgradable,
            moves: self.moves,
            outfit: outfit.clone(),
            ways: hall.ways.clone(),
            stopped: self.stopped,
        };
        Ok((lab, &hall.server))
    }

    /// Reason why the experiment cannot go on: the agent is gone, and with it all servers.
    pub(crate) fn lost(&self) -> Option<String> {
        self.far.and_then(AgentConnection::lost)
    }

    pub(crate) fn stopped(&self) -> bool {
        (self.stopped)()
    }

    pub(crate) fn voile(&self) -> &Path {
        self.voile
    }
}

/// Returns true if the action is one of the definition's events.
fn happens(definition: &Definition, action: &EventAction) -> bool {
    let mut events = definition.events.iter();
    events.any(|event| event.action == *action)
}

/// Paths of the outfit's cells.
fn ways(definition: &Definition, outfit: &ContestantSetup) -> Vec<RequestPath> {
    let ways = definition.cells.iter().map(RequestPath::of);
    let own: BTreeSet<RequestPath> = ways.filter(|way| way.outfit == *outfit).collect();
    own.into_iter().collect()
}

/// Starts the server that contestants of one CPU set share; of several it has that number.
fn serve(
    lab: Lab<'_>,
    number: usize,
    tcp_serves: &'static str,
    servers: &mut Vec<Process>,
) -> Result<OriginServers, String> {
    let one_for_all = |echo, server| OriginServers {
        echo,
        server,
        endpoints: Vec::new(),
    };
    if let Some(network) = lab.network {
        let echo = network.shared_echo(number)?;
        let (http, tcp) = ([echo.http.port()], [echo.tcp.port()]);
        let name = format!("echo-{number}");
        let child = lab.start_pod_echo(network, &network.server, &name, (&http, &tcp), &[])?;
        let server = network::server(&child);
        servers.push(child.into());
        return Ok(one_for_all(echo, server));
    }
    if let Some(far) = lab.far {
        let sink = tcp_serves == TCP_SINK;
        let server = AgentProgram::Echo {
            sink,
            second: false,
        };
        let (process, addresses) = lab.start_there(far, server)?;
        let [http, tcp] = addresses[..] else {
            return Err("the agent's server has no listen address".to_owned());
        };
        let server = process.instance("server");
        servers.push(Process::There(process));
        return Ok(one_for_all(Echo { http, tcp }, server));
    }
    let start = |serves| {
        start_echo_bound(
            &lab.voile,
            lab.folder,
            serves,
            &[],
            &lab.bounds,
            lab.stopped,
        )
    };
    let (http, http_at) = start(HTTP)?;
    let (tcp, tcp_at) = start(tcp_serves)?;
    let server = Instance::here("echo".to_owned(), "server", vec![http.pid(), tcp.pid()]);
    let echo = Echo {
        http: http_at,
        tcp: tcp_at,
    };
    servers.extend([http.into(), tcp.into()]);
    Ok(one_for_all(echo, server))
}
