//! `voile bench compare`, `history` and `gate`: what two records, or many, say together.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use voile_report::gate::{self, GateOptions, GateOutcome};
use voile_report::plots::Plot;
use voile_report::record::Record;
use voile_report::summarise::summarise;

use crate::commands::lab::bench::outcome::{Done, USAGE, failed, usage};
use crate::commands::values::Output;

/// Two records beside each other.
#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    /// The record folder whose figures are divided.
    first: PathBuf,
    /// The record folder that they are divided by.
    second: PathBuf,
    /// Also write compare.html and its plots, as SVG and PNG files, into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// Many records over time.
#[derive(Debug, clap::Args)]
pub(super) struct HistoryArgs {
    /// The record folders, in any order.
    #[arg(required = true, num_args = 2..)]
    folders: Vec<PathBuf>,
    /// Also write history.html and its plots, as SVG and PNG files, into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A gate for continuous integration.
#[derive(Debug, clap::Args)]
pub(super) struct GateArgs {
    /// The record folder from before the change.
    base: PathBuf,
    /// The record folder from after the change.
    new: PathBuf,
    /// Percent by which a figure may be worse; for one figure only: latency_us.p99=20.
    #[arg(long = "bound", value_name = "[FIGURE=]PERCENT", value_parser = bound)]
    bounds: Vec<(Option<String>, f64)>,
    /// Contestant to judge.
    #[arg(long, default_value = "voile", value_name = "NAME")]
    contestant: String,
    /// Judge ratios to this contestant within each record's rounds, so that a machine that changed in between cancels out.
    #[arg(long, value_name = "NAME")]
    beside: Option<String>,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

fn bound(text: &str) -> Result<(Option<String>, f64), String> {
    let (figure, percent) = match text.split_once('=') {
        Some((figure, percent)) => (Some(figure), percent),
        None => (None, text),
    };
    let known = || {
        voile_report::side_by_side::FIGURES
            .iter()
            .map(|figure| figure.name)
    };
    if let Some(stranger) = figure.filter(|figure| !known().any(|name| name == *figure)) {
        let known = known().collect::<Vec<_>>().join(", ");
        return Err(format!("\"{stranger}\" is not a figure; known: {known}"));
    }
    let number: f64 = percent
        .trim_end_matches('%')
        .parse()
        .map_err(|_| format!("\"{percent}\" is not a percentage"))?;
    if !(0.0..1000.0).contains(&number) {
        return Err(format!("{number} % must lie between 0 and 1000"));
    }
    Ok((figure.map(str::to_owned), number / 100.0))
}

fn read(folder: &Path) -> Result<Record, String> {
    let mut record = voile_lab::read(folder)?;
    summarise(&mut record);
    Ok(record)
}

pub(super) fn compare(args: &CompareArgs) -> Done {
    let first = read(&args.first).map_err(failed)?;
    let second = read(&args.second).map_err(failed)?;
    match args.output {
        Output::Text => print!(
            "{}",
            voile_report::compare::render(&first, &second).map_err(usage)?
        ),
        Output::Json => println!(
            "{:#}",
            voile_report::compare::to_json(&first, &second).map_err(usage)?
        ),
    }
    let Some(out) = &args.out else {
        return Ok(());
    };
    let compared = voile_report::compare::compare(&first, &second).map_err(usage)?;
    let page = voile_report::compare::page(&first, &second).map_err(usage)?;
    write(
        out,
        "compare.html",
        &page,
        &voile_report::compare::plots(&compared),
    )
}

pub(super) fn history(args: &HistoryArgs) -> Done {
    let records = args
        .folders
        .iter()
        .map(|folder| read(folder))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    let history = voile_report::history::history(&records);
    if history.lines.is_empty() {
        let mut why = history.left_out;
        why.insert(
            0,
            "no figure of a cell is in at least two of these records".to_owned(),
        );
        return Err(usage(why.join("; ")));
    }
    for sentence in history.in_words() {
        println!("{sentence}");
    }
    match &args.out {
        Some(out) => write(out, "history.html", &history.page(), &history.plots()),
        None => Ok(()),
    }
}

/// 0 without a proven regression, 1 with one, 2 on records that cannot be judged.
pub(super) fn gate(args: &GateArgs) -> ExitCode {
    match judge(args) {
        Ok(GateOutcome::Regression) => ExitCode::FAILURE,
        Ok(GateOutcome::Within | GateOutcome::CannotTell) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("voile bench gate: {why}");
            ExitCode::from(USAGE)
        }
    }
}

fn judge(args: &GateArgs) -> Result<GateOutcome, String> {
    let mut asked = GateOptions {
        contestant: args.contestant.clone(),
        beside: args.beside.clone(),
        ..GateOptions::default()
    };
    for (figure, bound) in &args.bounds {
        match figure {
            Some(figure) => asked.bounds.push((figure.clone(), *bound)),
            None => asked.bound = *bound,
        }
    }
    let (base, new) = (read(&args.base)?, read(&args.new)?);
    let judged = gate::judge(&base, &new, &asked)?;
    match args.output {
        Output::Text => print!("{}", gate::render(&judged, &asked)),
        Output::Json => println!("{:#}", gate::to_json(&judged, &asked)),
    }
    Ok(gate::outcome(&judged))
}

fn write(folder: &Path, name: &str, page: &str, plots: &[Plot]) -> Done {
    let formats = [voile_lab::Format::Svg, voile_lab::Format::Png];
    voile_lab::write_plots(plots, folder, &formats).map_err(failed)?;
    let path = folder.join(name);
    voile_lab::write_file(&path, page).map_err(failed)?;
    eprintln!("{}", path.display());
    Ok(())
}
