//! Where contestants stand: for each outfit (number of workers, CPU set) a folder, bounds and a server to lead to. Outfits
//! of one CPU set share the server, so that all of a cell's contestants meet the same processes.

use std::collections::BTreeMap;
use std::path::Path;

use voile_host::child::Supervised;

use crate::bounds::Bounds;
use crate::contestants::Instance;
use crate::definition::Definition;
use crate::plan::Outfit;
use crate::target::{Echo, HTTP, Lab, TCP, TCP_SINK, start_echo_bound};

/// One outfit's place.
pub(crate) struct Hall {
    pub(crate) folder: std::path::PathBuf,
    pub(crate) echo: Echo,
    pub(crate) workers: u32,
    pub(crate) bounds: Bounds,
    pub(crate) server: Instance,
}

/// All of them; the servers end with it.
pub(crate) struct Halls<'a> {
    voile: &'a Path,
    stopped: &'a dyn Fn() -> bool,
    halls: BTreeMap<Outfit, Hall>,
    _servers: Vec<Supervised>,
}

impl<'a> Halls<'a> {
    pub(crate) fn open(
        definition: &Definition,
        voile: &'a Path,
        folder: &Path,
        stopped: &'a dyn Fn() -> bool,
    ) -> Result<Self, String> {
        let mut servers = Vec::new();
        let mut by_cpus: BTreeMap<String, (Echo, Instance)> = BTreeMap::new();
        let mut halls = BTreeMap::new();
        for cell in &definition.cells {
            let outfit = Outfit::of(cell);
            if halls.contains_key(&outfit) {
                continue;
            }
            let plain = outfit == Outfit::default();
            let folder = if plain {
                folder.to_owned()
            } else {
                folder.join(outfit.folder())
            };
            std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            let bounds = Bounds::new(definition, &outfit.cpus);
            let (echo, server) = match by_cpus.get(&outfit.cpus) {
                Some(known) => known.clone(),
                None => {
                    let tcp = if definition.is_bulk() { TCP_SINK } else { TCP };
                    let start =
                        |serves| start_echo_bound(voile, &folder, serves, &[], &bounds, stopped);
                    let (http, http_at) = start(HTTP)?;
                    let (tcp, tcp_at) = start(tcp)?;
                    let server = Instance {
                        name: "echo".to_owned(),
                        role: "server",
                        pids: vec![http.pid(), tcp.pid()],
                    };
                    let echo = Echo {
                        http: http_at,
                        tcp: tcp_at,
                    };
                    servers.extend([http, tcp]);
                    by_cpus.insert(outfit.cpus.clone(), (echo, server.clone()));
                    (echo, server)
                }
            };
            let hall = Hall {
                folder,
                echo,
                workers: outfit.workers.unwrap_or(definition.workers),
                bounds,
                server,
            };
            halls.insert(outfit, hall);
        }
        Ok(Self {
            voile,
            stopped,
            halls,
            _servers: servers,
        })
    }

    /// The hall of an outfit, as what contestants are started with; and the server there.
    pub(crate) fn lab(&self, outfit: &Outfit) -> Result<(Lab<'_>, &Instance), String> {
        let hall = self.halls.get(outfit);
        let hall = hall.ok_or_else(|| "no such outfit was planned".to_owned())?;
        let lab = Lab {
            voile: self.voile.to_owned(),
            folder: &hall.folder,
            echo: hall.echo,
            workers: hall.workers,
            bounds: hall.bounds.clone(),
            stopped: self.stopped,
        };
        Ok((lab, &hall.server))
    }

    pub(crate) fn stopped(&self) -> bool {
        (self.stopped)()
    }

    pub(crate) fn voile(&self) -> &Path {
        self.voile
    }
}
