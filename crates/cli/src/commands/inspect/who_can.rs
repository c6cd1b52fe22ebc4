//! `voile who-can`: every identity of the mesh against every port of a service.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use voile_analysis::explain::{self, Access, CallerAccess, CallerGroup};
use voile_model::{Identity, Mesh, Namespace, Port};

use crate::commands::inspect::explain::{DataPlanes, mesh, namespace};
use crate::commands::inspect::named_workloads;
use crate::commands::kubernetes::cluster::ClusterArgs;
use crate::commands::values::Output;

/// The service.
#[derive(Debug, clap::Args)]
#[command(
    allow_missing_positional = true,
    after_help = "The callers are every identity of a workload with a sidecar or a node proxy, and callers in plaintext. Each is checked against\n\
    every port of the service, at its waypoint or else at every workload of it: `everything`, `nothing`, or the conditions\n\
    on a request. Callers with the same answer are below it; gateways and waypoints are marked, and routes of gateways to the\n\
    service are named at the end. JSON has a row for each caller, with its `role`: gateway, waypoint, or null.\n\n\
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
        Output::Json => json(&rows, &mesh),
        Output::Text => {
            let mut text = text(&rows, &mesh);
            let entrances = explain::entrances(&mesh, called.service);
            if !entrances.is_empty() {
                text += "from outside of the mesh\n";
            }
            for entrance in entrances {
                text += &format!("  {entrance}\n");
            }
            text
        }
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

/// Workloads and ports with the same answers.
pub(crate) struct SharedAccess {
    /// Each is `WORKLOAD, port PORT`.
    pub(crate) places: Vec<String>,
    /// Each answer with its callers, in groups.
    pub(crate) answers: Vec<(String, Vec<String>)>,
}

/// Puts together what has the same answers.
pub(crate) fn shared_access(rows: &[Access], mesh: &Mesh) -> Vec<SharedAccess> {
    type Answers<'a> = Vec<(String, Vec<&'a CallerGroup>)>;
    let mut of_port: Vec<((&str, Port), Answers<'_>)> = Vec::new();
    for row in rows {
        let place = (&*row.workload, row.port);
        let index = of_port.iter().position(|(known, _)| *known == place);
        let index = index.unwrap_or_else(|| {
            of_port.push((place, Vec::new()));
            of_port.len() - 1
        });
        let (answers, said) = (&mut of_port[index].1, cell(&row.answer));
        match answers.iter_mut().find(|(known, _)| *known == said) {
            Some((_, callers)) => callers.push(&row.caller),
            None => answers.push((said, vec![&row.caller])),
        }
    }
    let mut alike: Vec<(Vec<String>, Answers<'_>)> = Vec::new();
    for ((workload, port), answers) in of_port {
        let place = format!("{workload}, port {port}");
        match alike.iter_mut().find(|(_, known)| *known == answers) {
            Some((places, _)) => places.push(place),
            None => alike.push((vec![place], answers)),
        }
    }
    let known = explain::identities(mesh);
    let shared = alike.into_iter().map(|(places, answers)| SharedAccess {
        places,
        answers: answers
            .into_iter()
            .map(|(said, callers)| (said, grouped(&callers, &known)))
            .collect(),
    });
    shared.collect()
}

/// Workloads with the same answers, below them each answer with its callers.
fn text(rows: &[Access], mesh: &Mesh) -> String {
    let mut out = String::new();
    for SharedAccess { places, answers } in shared_access(rows, mesh) {
        out += &format!("{}\n", places.join("\n"));
        for (said, callers) in answers {
            out += &format!("  {said}\n");
            for line in callers {
                out += &format!("    {line}\n");
            }
        }
    }
    out
}

/// One line for each caller; one for all of the mesh, or of a namespace, where they are more than a few.
fn grouped(
    callers: &[&CallerGroup],
    known: &BTreeMap<Identity, Option<&'static str>>,
) -> Vec<String> {
    const FEW: usize = 3;
    let identities: Vec<&Identity> = callers.iter().filter_map(|one| one.identity()).collect();
    let mut lines = Vec::new();
    if identities.len() < callers.len() {
        lines.push("plaintext".to_owned());
    }
    if identities.len() > FEW && identities.len() == known.len() {
        lines.push(format!("every identity of the mesh ({})", known.len()));
        return lines;
    }
    let mut namespaces: BTreeMap<&Namespace, Vec<&Identity>> = BTreeMap::new();
    for identity in identities {
        namespaces
            .entry(&identity.namespace)
            .or_default()
            .push(identity);
    }
    for (namespace, own) in namespaces {
        let all = known.keys().filter(|one| one.namespace == *namespace);
        if own.len() > FEW && own.len() == all.count() {
            lines.push(format!("every identity of {namespace} ({})", own.len()));
            continue;
        }
        lines.extend(own.iter().map(|identity| match known.get(identity) {
            Some(Some(role)) => format!("{identity} ({role})"),
            _ => identity.to_string(),
        }));
    }
    lines
}

fn json(rows: &[Access], mesh: &Mesh) -> String {
    let roles = explain::identities(mesh);
    let row = |row: &Access| {
        let (access, detail) = match &row.answer {
            CallerAccess::Everything => ("everything", serde_json::Value::Null),
            CallerAccess::Some(conditions) => ("some", serde_json::json!(conditions)),
            CallerAccess::Nothing(why) => ("nothing", serde_json::json!(why)),
        };
        serde_json::json!({
            "caller": caller(&row.caller),
            "role": row.caller.identity().and_then(|identity| roles.get(identity)),
            "workload": row.workload,
            "port": row.port.get(),
            "access": access,
            "detail": detail,
        })
    };
    let all: Vec<_> = rows.iter().map(row).collect();
    format!("{:#}\n", serde_json::Value::Array(all))
}
