//! `voile bench curves`: the file of curves that `voile plan` predicts by, measured now or from records.

use std::path::{Path, PathBuf};

use voile_report::record::Record;

use super::BenchOptions;
use super::several::{RecordFolders, run_all};
use crate::commands::lab::bench::outcome::{Done, failed, usage};

/// Options of `voile bench curves`.
#[derive(Debug, clap::Args)]
pub(super) struct BenchCurvesArgs {
    /// Measure nothing, and make the curves of these record folders, all of one machine. Of two measurements of the same
    /// load, the one of the folder named first counts.
    #[arg(long, value_name = "RECORD", num_args = 1..)]
    from: Vec<PathBuf>,
    /// The file of curves to write.
    #[arg(long, default_value = "curves.json", value_name = "FILE")]
    curves: PathBuf,
    #[command(flatten)]
    run: BenchOptions,
}

pub(super) fn run(args: &BenchCurvesArgs) -> Done {
    if !args.from.is_empty() {
        let records = args.from.iter().map(|folder| voile_lab::read(folder));
        let records = records.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        return write(records, &args.curves);
    }
    let definitions = voile_lab::curves().map_err(usage)?;
    let (records, done) = run_all(definitions, &args.run, Some(RecordFolders::named("curves")))?;
    if args.run.dry_run {
        return done;
    }
    write(records, &args.curves)?;
    done
}

/// Writes the curves of records, and says what they hold.
fn write(records: Vec<Record>, path: &Path) -> Done {
    let curves = voile_plan::fit(records).map_err(usage)?;
    let text = curves.to_json().map_err(failed)?;
    voile_lab::write_file(path, &text).map_err(failed)?;
    for (set, points) in &curves.sets {
        let s = if points.len() == 1 { "" } else { "s" };
        println!("{set}: {} load{s}", points.len());
    }
    println!("{}", path.display());
    Ok(())
}
