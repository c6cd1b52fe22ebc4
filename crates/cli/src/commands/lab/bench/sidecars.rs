//! `voile bench sidecars`: what thousands of real sidecars hold on one machine, and one by the size of its mesh.

use std::path::PathBuf;
use std::time::Duration;

use crate::commands::lab::bench::outcome::{Done, command, finish, measured, program};
use crate::commands::values::OutputArgs;

#[derive(Debug, clap::Args)]
pub(super) struct BenchSidecarsArgs {
    /// Fifty sidecars, meshes of 10 and 100 services, two starts in each. Half a minute.
    #[arg(long)]
    quick: bool,
    /// Sidecars at once; 0: none, only the meshes [default: 2000].
    #[arg(long, value_name = "N")]
    sidecars: Option<u32>,
    /// Services that each sidecar uses; one of them is the same for all.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200), value_name = "N")]
    used: u32,
    /// Sidecars that carry load [default: 50, quick 10].
    #[arg(long, value_name = "N")]
    sample: Option<u32>,
    /// Requests a second through all of these.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    rate: u32,
    /// Duration of the load; 0: skip [default: 30s, quick 5s].
    #[arg(long, value_parser = voile_load::parse_duration, value_name = "DURATION")]
    load_for: Option<Duration>,
    /// Duration of the idle measurement; 0: skip [default: 10s, quick 3s].
    #[arg(long, value_parser = voile_load::parse_duration, value_name = "DURATION")]
    idle_for: Option<Duration>,
    /// All sidecars renew their certificates within a minute (lifetime: two minutes), and the load lasts longer than
    /// that.
    #[arg(long)]
    rotate: bool,
    /// Sizes (in services) of meshes in which one sidecar uses ten services; `none`: skip [default: 10,1000,10000].
    #[arg(long, value_name = "N,N,…|none", value_parser = meshes)]
    meshes: Option<Meshes>,
    /// Starts of that sidecar in each mesh [default: 5].
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    #[command(flatten)]
    output: OutputArgs,
    /// The record folder [default: voile-results/DATE-sidecars].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The voile program to measure [default: this one].
    #[arg(long, value_name = "PATH")]
    voile: Option<PathBuf>,
}

/// Services of several meshes, the smallest first.
#[derive(Debug, Clone)]
struct Meshes(Vec<u32>);

fn meshes(text: &str) -> Result<Meshes, String> {
    if text == "none" {
        return Ok(Meshes(Vec::new()));
    }
    let number = |word: &str| {
        word.trim()
            .parse::<u32>()
            .ok()
            .filter(|number| *number >= 10)
    };
    let all: Option<Vec<u32>> = text.split(',').map(number).collect();
    match all {
        Some(mut all) => {
            all.sort_unstable();
            all.dedup();
            Ok(Meshes(all))
        }
        None => Err(format!(
            "`{text}`: expected numbers from 10, as in 10,1000,10000, or `none`"
        )),
    }
}

/// Life of certificates that are to be renewed within a minute: half of it is when that begins.
const ROTATING_TTL: Duration = Duration::from_secs(120);
/// So long every one of them is renewed at least once.
const ROTATING_LOAD: Duration = Duration::from_secs(90);

pub(super) fn run(args: &BenchSidecarsArgs) -> Done {
    let quick = |whole: u64, quick: u64| if args.quick { quick } else { whole };
    let number = |whole: u32, few: u32| if args.quick { few } else { whole };
    let load_for = match args.rotate {
        true => ROTATING_LOAD,
        false => Duration::from_secs(quick(30, 5)),
    };
    let usual = if args.quick {
        vec![10, 100]
    } else {
        vec![10, 1_000, 10_000]
    };
    let settings = voile_lab::SidecarSettings {
        voile: program(args.voile.as_deref())?,
        sidecars: args.sidecars.unwrap_or(number(2_000, 50)),
        used: args.used,
        sample: args.sample.unwrap_or(number(50, 10)),
        rate: args.rate,
        load_for: args.load_for.unwrap_or(load_for),
        idle_for: args.idle_for.unwrap_or(Duration::from_secs(quick(10, 3))),
        certificate_ttl: args.rotate.then_some(ROTATING_TTL),
        meshes: args.meshes.clone().map_or(usual, |meshes| meshes.0),
        rounds: args.rounds.unwrap_or(number(5, 2)),
        command: command(),
    };
    let measure = voile_lab::measure_sidecars;
    let (record, broken) = measured(|say, stopped| measure(&settings, say, stopped))?;
    finish(&record, args.out.as_deref(), args.output.is_json(), broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshes_are_read_in_order_or_refused() {
        assert_eq!(meshes("1000,10").expect("meshes").0, [10, 1000]);
        assert!(meshes("none").expect("none").0.is_empty());
        for wrong in ["", "9", "10,x", "10,,20"] {
            assert!(
                meshes(wrong).is_err_and(|why| why.contains("none")),
                "{wrong}"
            );
        }
    }
}
