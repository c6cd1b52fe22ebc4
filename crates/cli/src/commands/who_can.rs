//! `voile who-can`: every identity of the mesh against every port of a service.

use std::path::PathBuf;
use std::process::ExitCode;

use voile_analysis::explain::{self, Access, CallerAccess, CallerGroup};
use voile_model::Namespace;

use super::explain::{DataPlanes, Output, mesh};

/// The service.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The callers are every identity of a workload with a sidecar or a node proxy, and callers in plaintext. Each is checked against\n\
    every port of the service, at its waypoint or else at every workload of it: `everything`, `nothing`, or the conditions\n\
    on a request.\n\n\
    Exit code: 0, or 2 if the folder cannot be read or the service is unknown."
)]
pub(crate) struct WhoCanArgs {
    /// Folder of YAML
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// SERVICE, NAMESPACE/SERVICE or a host name
    #[arg(value_name = "SERVICE")]
    service: String,
    /// Namespace of a service that is named without one
    #[arg(long, short, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    served: DataPlanes,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

pub(crate) fn run(args: &WhoCanArgs) -> ExitCode {
    match table(args) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("voile who-can: {why}");
            ExitCode::from(2)
        }
    }
}

fn table(args: &WhoCanArgs) -> Result<String, String> {
    let mesh = mesh(std::slice::from_ref(&args.directory), args.served)?;
    let own = Namespace::new(&args.namespace)
        .ok_or_else(|| format!("`{}` is not a namespace", args.namespace))?;
    let service = explain::service_called(&mesh, &args.service, &own)
        .ok_or_else(|| format!("there is no service `{}`", args.service))?;
    let rows = explain::who_can(&mesh, service);
    Ok(match args.output {
        Output::Json => json(&rows),
        Output::Text => text(&rows),
    })
}

fn caller(caller: &CallerGroup) -> String {
    match caller {
        CallerGroup::Identity(identity) => identity.to_string(),
        CallerGroup::Plaintext => "plaintext".to_owned(),
    }
}

fn cell(answer: &CallerAccess) -> String {
    match answer {
        CallerAccess::Everything => "everything".to_owned(),
        CallerAccess::Some(conditions) => format!("if {}", conditions.join(" and ")),
        CallerAccess::Nothing(why) => format!("nothing ({why})"),
    }
}

fn text(rows: &[Access]) -> String {
    let cells: Vec<[String; 4]> = rows
        .iter()
        .map(|row| {
            let port = row.port.to_string();
            [
                caller(&row.caller),
                row.workload.clone(),
                port,
                cell(&row.answer),
            ]
        })
        .collect();
    let titles = ["caller", "workload", "port", "may call"].map(str::to_owned);
    let all: Vec<&[String; 4]> = std::iter::once(&titles).chain(&cells).collect();
    let width = |column: usize| {
        all.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2)];
    let mut out = String::new();
    for [a, b, c, d] in all {
        let [x, y, z] = widths;
        out += &format!("{a:x$}  {b:y$}  {c:z$}  {d}\n");
    }
    out
}

fn json(rows: &[Access]) -> String {
    let row = |row: &Access| {
        let (access, detail) = match &row.answer {
            CallerAccess::Everything => ("everything", serde_json::Value::Null),
            CallerAccess::Some(conditions) => ("some", serde_json::json!(conditions)),
            CallerAccess::Nothing(why) => ("nothing", serde_json::json!(why)),
        };
        serde_json::json!({
            "caller": caller(&row.caller),
            "workload": row.workload,
            "port": row.port.get(),
            "access": access,
            "detail": detail,
        })
    };
    let all: Vec<_> = rows.iter().map(row).collect();
    format!("{:#}\n", serde_json::Value::Array(all))
}
