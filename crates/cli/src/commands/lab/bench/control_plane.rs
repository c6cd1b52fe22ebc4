//! `voile bench control-plane`: time for a change to reach the proxies of a large mesh, and its cost.

use std::path::PathBuf;
use std::time::Duration;

use voile_lab::MeshSize;

use crate::commands::lab::bench::outcome::{Done, command, finish, measured, program};
use crate::commands::values::OutputArgs;

#[derive(Debug, clap::Args)]
pub(super) struct BenchControlPlaneArgs {
    /// A tenth of everything: 100 services, 200 workloads, 200 proxies, ten seconds of churn each. A minute.
    #[arg(long)]
    quick: bool,
    /// Services of the mesh [default: 1000].
    #[arg(long, value_name = "N")]
    services: Option<u32>,
    /// Workloads [default: 2000].
    #[arg(long, value_name = "N")]
    workloads: Option<u32>,
    /// Simulated proxies, at most as many as workloads [default: 2000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    proxies: Option<u32>,
    /// Services that each proxy uses; one of them is the same for all.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    used: u32,
    /// Number of single changes of an endpoint.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    changes: u32,
    /// Changes a second while the folder churns.
    #[arg(long, default_value_t = 100.0, value_name = "N")]
    churn: f64,
    /// Duration of each churn phase [default: 60s, quick 10s].
    #[arg(long, value_parser = voile_load::parse_duration, value_name = "DURATION")]
    churn_for: Option<Duration>,
    /// Duration for which 32 connections request certificates one after the other; 0: skip [default: 10s, quick 3s].
    #[arg(long, value_parser = voile_load::parse_duration, value_name = "DURATION")]
    certify_for: Option<Duration>,
    /// Time within which every proxy renews its certificate once; 0: skip [default: 60s, quick 10s].
    #[arg(long, value_parser = voile_load::parse_duration, value_name = "DURATION")]
    rotate_for: Option<Duration>,
    /// More meshes to measure in the same way (a third of the churn, no certificates): SERVICES/WORKLOADS/PROXIES, or
    /// with /CHANGES a second. The record shows how each figure grows.
    #[arg(long, value_delimiter = ',', value_parser = size, value_name = "S/W/P[/C]")]
    beside: Vec<Size>,
    /// Also measure meshes that differ in one dimension only: services, workloads, proxies, changes a second. The
    /// report draws a curve for each dimension. About a minute for each of nine meshes.
    #[arg(long)]
    curves: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// The record folder [default: voile-results/DATE-control-plane].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The voile program to measure [default: this one].
    #[arg(long, value_name = "PATH")]
    voile: Option<PathBuf>,
    /// Another build whose control plane is measured, with the proxies of this one.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// A mesh; without changes a second they are the record's.
#[derive(Debug, Clone, Copy)]
struct Size {
    services: u32,
    workloads: u32,
    proxies: u32,
    churn: Option<f64>,
}

fn size(text: &str) -> Result<Size, String> {
    let refused = || {
        format!(
            "`{text}`: expected SERVICES/WORKLOADS/PROXIES or SERVICES/WORKLOADS/PROXIES/CHANGES, as in 1000/2000/2000"
        )
    };
    let words: Vec<&str> = text.split('/').collect();
    let number = |word: &str| word.parse::<u32>().ok().filter(|number| *number > 0);
    let (mesh, churn) = match words[..] {
        [services, workloads, proxies] => ([services, workloads, proxies], None),
        [services, workloads, proxies, churn] => {
            let churn = churn.parse::<f64>().ok().filter(|rate| *rate > 0.0);
            (
                [services, workloads, proxies],
                Some(churn.ok_or_else(refused)?),
            )
        }
        _ => return Err(refused()),
    };
    let [Some(services), Some(workloads), Some(proxies)] = mesh.map(number) else {
        return Err(refused());
    };
    if proxies > workloads {
        return Err(format!(
            "`{text}`: {proxies} proxies are more than {workloads} workloads"
        ));
    }
    Ok(Size {
        services,
        workloads,
        proxies,
        churn,
    })
}

/// Meshes that differ from this one in one measure: half and twice or more of each, as far as the others allow.
fn curves(own: MeshSize) -> Vec<MeshSize> {
    let times = |number: u32, factor: f64| ((f64::from(number) * factor) as u32).max(1);
    let services = [0.5, 2.0, 4.0].map(|factor| MeshSize {
        services: times(own.services, factor),
        ..own
    });
    let workloads = [2.0, 4.0].map(|factor| MeshSize {
        workloads: times(own.workloads, factor),
        ..own
    });
    let proxies = [0.25, 0.5].map(|factor| MeshSize {
        proxies: times(own.proxies, factor),
        ..own
    });
    let churn = [0.1, 0.5].map(|factor| MeshSize {
        churn: own.churn * factor,
        ..own
    });
    [&services[..], &workloads[..], &proxies[..], &churn[..]].concat()
}

impl BenchControlPlaneArgs {
    fn settings(&self) -> Result<voile_lab::ControlPlaneSettings, (u8, String)> {
        let part = |given: Option<u32>, whole: u32| match (given, self.quick) {
            (Some(given), _) => given,
            (None, true) => whole / 10,
            (None, false) => whole,
        };
        let time = |given: Option<Duration>, whole: u64, quick: u64| {
            given.unwrap_or(Duration::from_secs(if self.quick { quick } else { whole }))
        };
        let voile = program(self.voile.as_deref())?;
        let size = MeshSize {
            services: part(self.services, 1000),
            workloads: part(self.workloads, 2000),
            proxies: part(self.proxies, 2000),
            churn: self.churn,
        };
        let mut others: Vec<MeshSize> = self
            .beside
            .iter()
            .map(|other| MeshSize {
                services: other.services,
                workloads: other.workloads,
                proxies: other.proxies,
                churn: other.churn.unwrap_or(self.churn),
            })
            .collect();
        if self.curves {
            others.extend(curves(size));
        }
        Ok(voile_lab::ControlPlaneSettings {
            control: self.control.clone().unwrap_or_else(|| voile.clone()),
            voile,
            size,
            others,
            used: self.used,
            changes: self.changes,
            policy_changes: self.changes.div_ceil(4),
            churn_for: time(self.churn_for, 60, 10),
            certify_for: time(self.certify_for, 10, 3),
            rotate_for: time(self.rotate_for, 60, 10),
            command: command(),
        })
    }
}

pub(super) fn run(args: &BenchControlPlaneArgs) -> Done {
    let settings = args.settings()?;
    let measure = voile_lab::measure_control_plane;
    let (record, broken) = measured(|say, stopped| measure(&settings, say, stopped))?;
    finish(&record, args.out.as_deref(), args.output.is_json(), broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_or_refused_in_words() {
        let read = size("10000/50000/10000").expect("a size");
        assert_eq!(
            (read.services, read.workloads, read.proxies, read.churn),
            (10_000, 50_000, 10_000, None)
        );
        assert_eq!(size("1/2/2/0.5").expect("a size").churn, Some(0.5));
        for wrong in ["", "1/2", "1/2/0", "a/2/1", "1/2/1/-1", "1/2/1/1/1"] {
            assert!(
                size(wrong).is_err_and(|why| why.contains("SERVICES")),
                "{wrong}"
            );
        }
        assert!(size("9/2/3").is_err_and(|why| why.contains("more than 2 workloads")));
    }

    #[test]
    fn each_curve_differs_in_one_measure_and_never_has_more_proxies_than_workloads() {
        let own = MeshSize {
            services: 1000,
            workloads: 2000,
            proxies: 2000,
            churn: 100.0,
        };
        for other in curves(own) {
            let same = [
                other.services == own.services,
                other.workloads == own.workloads,
                other.proxies == own.proxies,
                (other.churn - own.churn).abs() < f64::EPSILON,
            ];
            assert_eq!(same.iter().filter(|same| !**same).count(), 1, "{other:?}");
            assert!(other.proxies <= other.workloads, "{other:?}");
        }
    }
}
