//! `voile who-can`: every identity of the mesh against every port of a service.

use std::path::PathBuf;
use std::process::ExitCode;

use voile_analysis::explain::{self, Access, CallerAccess, CallerGroup};

use crate::commands::inspect::explain::{DataPlanes, Output, mesh, namespace};
use crate::commands::inspect::named_workloads;
use crate::commands::kubernetes::cluster::ClusterArgs;

/// The service.
#[derive(Debug, clap::Args)]
#[command(
    allow_missing_positional = true,
    after_help = "The callers are every identity of a workload with a sidecar or a node proxy, and callers in plaintext. Each is checked against\n\
    every port of the service, at its waypoint or else at every workload of it: `everything`, `nothing`, or the conditions\n\
    on a request.\n\n\
    With --kubernetes the mesh is that of a cluster's objects; a folder or file is read as if it were applied to it.\n\n\
    Exit code: 0, or 2 if the mesh cannot be read or the service is unknown."
)]
pub(crate) struct WhoCanArgs {
    /// Folder of YAML, single file, or `-` for standard input; if left out the folder of the mesh that runs on this machine
    #[arg(value_name = "DIR|FILE")]
    path: Option<PathBuf>,
    /// SERVICE, NAMESPACE/SERVICE, SERVICE.NAMESPACE, svc/NAME or a host name; deploy/NAME and pod/NAME for some of its workloads
    #[arg(value_name = "SERVICE", required = true)]
    service: String,
    /// Namespace of a service that is named without one; if left out that of the cluster's context, else `default`
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    served: DataPlanes,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Output format
    #[arg(long, short, value_enum, default_value = "text")]
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
    let path = args.path.as_slice();
    let (mesh, context) = mesh(path, &args.cluster, args.served)?;
    let own = namespace(args.namespace.as_deref().unwrap_or(&context))?;
    let called = named_workloads::service_called(&mesh, &args.service, &own)?;
    let mut rows = explain::who_can(&mesh, called.service);
    called.keep_meant(&mut rows, |row| &row.workload);
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
