//! `voile bench best-practices` and the other presets: what others published, measured again here.

use voile_report::record::Record;

use super::BenchOptions;
use super::several::{RecordFolders, run_all};
use crate::commands::lab::bench::outcome::{Done, usage};

/// Options of a preset.
#[derive(Debug, clap::Args)]
pub(super) struct BenchPresetArgs {
    /// Fewer rounds, loads and seconds: a few minutes.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    run: BenchOptions,
}

/// Runs one preset, or all.
pub(super) fn run(name: Option<&'static str>, args: &BenchPresetArgs) -> Done {
    let names = name.map_or_else(voile_lab::presets, |name| vec![name]);
    let definitions = names
        .into_iter()
        .map(|name| voile_lab::preset(name, args.quick))
        .collect::<Result<Vec<_>, _>>()
        .map_err(usage)?;
    let several = definitions.len() > 1;
    let below = several.then(RecordFolders::all);
    let (records, done) = run_all(definitions, &args.run, below)?;
    let has_claims = |record: &&Record| several && !record.experiment.claims.is_empty();
    for record in records.iter().filter(has_claims) {
        let judged = voile_report::claims::judge(record);
        println!(
            "{}: {}",
            record.experiment.name,
            voile_report::claims::count(&judged)
        );
    }
    let has_targets = |record: &Record| !record.experiment.targets.is_empty();
    if several && records.iter().any(has_targets) {
        println!("\n{}", voile_report::table::targets(&records));
    }
    done
}
