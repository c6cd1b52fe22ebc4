//! `voile bench control-plane`: how soon the proxies of a large mesh are told of a change, and what that costs.

use std::path::PathBuf;
use std::time::Duration;

use super::{Done, command, failed, interrupted, program, say};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A tenth of everything: 100 services, 200 workloads, 200 proxies, ten seconds of churn each. Half a minute.
    #[arg(long)]
    quick: bool,
    /// Services of the mesh [default: 1000].
    #[arg(long, value_name = "N")]
    services: Option<u32>,
    /// Workloads [default: 2000].
    #[arg(long, value_name = "N")]
    workloads: Option<u32>,
    /// Simulated proxies, at most as many as workloads [default: 2000].
    #[arg(long, value_name = "N")]
    proxies: Option<u32>,
    /// Services that each of them uses; one is the same for all.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    used: u32,
    /// Single changes of an endpoint.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    changes: u32,
    /// Changes a second while the folder churns.
    #[arg(long, default_value_t = 100.0, value_name = "N")]
    churn: f64,
    /// For how long it churns, each time [default: 60s, quick 10s].
    #[arg(long, value_parser = voile_load::parse_duration, value_name = "DURATION")]
    churn_for: Option<Duration>,
    /// Print the record as JSON instead of the table.
    #[arg(long)]
    json: bool,
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

pub(super) fn run(args: &Args) -> Done {
    let size = |given: Option<u32>, whole: u32| match (given, args.quick) {
        (Some(given), _) => given,
        (None, true) => whole / 10,
        (None, false) => whole,
    };
    let churn_for = args.churn_for.unwrap_or(match args.quick {
        true => Duration::from_secs(10),
        false => Duration::from_secs(60),
    });
    let voile = program(args.voile.as_deref())?;
    let settings = voile_lab::ControlPlaneSettings {
        control: args.control.clone().unwrap_or_else(|| voile.clone()),
        voile,
        services: size(args.services, 1000),
        workloads: size(args.workloads, 2000),
        proxies: size(args.proxies, 2000),
        used: args.used,
        changes: args.changes,
        policy_changes: args.changes.div_ceil(4),
        churn: args.churn,
        churn_for,
        command: command(),
    };
    // The crowd's and the control plane's descriptors come from our limit.
    voile_transport::raise_descriptor_limit();
    voile_host::interrupt::watch().map_err(|e| failed(format!("cannot watch for signals: {e}")))?;
    let asked = &voile_host::interrupt::asked;
    let record = match voile_lab::measure_control_plane(&settings, &say, asked) {
        Err(_) if asked() => return Err(interrupted("interrupted".to_owned())),
        measured => measured.map_err(failed)?,
    };
    let folder = match &args.out {
        Some(folder) => folder.clone(),
        None => voile_lab::default_folder("control-plane", &record.head.started_at),
    };
    voile_lab::write_control_plane(&record, &folder).map_err(failed)?;
    if args.json {
        print!("{}", record.to_json());
        return Ok(());
    }
    for note in &record.head.notes {
        println!("{note}");
    }
    print!("\n{}", record.in_words());
    println!("\n{}", folder.join("report.md").display());
    Ok(())
}
