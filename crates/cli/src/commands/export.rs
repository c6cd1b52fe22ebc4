//! `voile export`: resources in the words of another proxy, for experiments beside it and for who moves from one to the other.

mod envoy;

use std::path::PathBuf;
use std::process::ExitCode;

use voile_analysis::explain;
use voile_envoy::{Layer, Peer, Translation};
use voile_model::{Mesh, Namespace};

use super::generate::labels;

/// What is said.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    #[command(about = "A workload's AuthorizationPolicies as Envoy's RBAC filters")]
    EnvoyFilters(Filters),
    #[command(about = "All that a stock Envoy needs to be a workload's sidecar, in one file")]
    Envoy(envoy::Whole),
    #[command(about = "The file by which a stock Envoy asks the control plane for everything")]
    EnvoyBootstrap(envoy::Bootstrap),
    #[command(about = "The files that tell Envoy where its certificates are")]
    EnvoySecrets(envoy::Secrets),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A JSON array of filters goes to stdout, in the order in which Envoy is to ask them: AUDIT, DENY, ALLOW, as Istio's\n\
    control plane gives them; dry-run policies are their shadow rules. They belong before the router of an HTTP connection\n\
    manager (with `normalize_path`), over TCP before the proxy. Empty where no policy selects the workload.\n\n\
    Exit code: 0; 1 where the folder has errors or a policy cannot be translated (CUSTOM): nothing is said by halves;\n\
    2 when the folder cannot be read or the arguments are wrong."
)]
struct Filters {
    /// Folders of YAML, taken together as one mesh
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// The workload's namespace
    #[arg(long, short, default_value = "default")]
    namespace: String,
    /// Its labels
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// In front of what they stand
    #[arg(long, value_enum, default_value = "http")]
    layer: At,
    /// By what Envoy knows who calls
    #[arg(long, value_enum, default_value = "certificate")]
    peer: By,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum At {
    /// HTTP requests
    Http,
    /// Connections: HTTP's terms are treated as each rule's action demands
    Tcp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// The connection's certificate
    Certificate,
    /// The filter state `io.istio.peer_principal`, as in waypoints
    FilterState,
}

/// What is wrong, and whose fault it is.
enum Problem {
    Resources(String),
    Arguments(String),
}

/// What goes to stdout, and what could not be said.
struct Said {
    text: String,
    limits: Vec<String>,
}

impl Said {
    /// Nothing is missing.
    fn all(text: String) -> Self {
        Self {
            text,
            limits: Vec::new(),
        }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let (command, said) = match &args.what {
        What::EnvoyFilters(filters) => ("envoy-filters", filters.text().map(Said::all)),
        What::Envoy(whole) => ("envoy", whole.said()),
        What::EnvoyBootstrap(bootstrap) => ("envoy-bootstrap", bootstrap.said()),
        What::EnvoySecrets(secrets) => ("envoy-secrets", secrets.said()),
    };
    match said {
        Ok(said) => {
            if !said.text.is_empty() {
                println!("{}", said.text);
            }
            for limit in &said.limits {
                eprintln!("voile export {command}: {limit}");
            }
            ExitCode::from(u8::from(!said.limits.is_empty()))
        }
        Err(problem) => {
            let (why, code) = match problem {
                Problem::Resources(why) => (why, 1),
                Problem::Arguments(why) => (why, 2),
            };
            eprintln!("voile export {command}: {why}");
            ExitCode::from(code)
        }
    }
}

/// The mesh of these folders, if nothing in them is wrong.
fn checked(directories: &[PathBuf]) -> Result<Mesh, Problem> {
    let mut files = Vec::new();
    for directory in directories {
        let read = voile_model::files::read_directory(directory).map_err(|error| {
            let directory = directory.display();
            Problem::Arguments(format!("cannot read the folder {directory}: {error}"))
        });
        files.extend(read?);
    }
    let (mesh, problems) = voile_model::check(&files, None);
    let errors: Vec<String> = problems
        .iter()
        .filter(|problem| problem.is_error())
        .map(ToString::to_string)
        .collect();
    if let Some(first) = errors.first() {
        let count = errors.len();
        let why = format!("the folder has {count} errors, of which the first is: {first}");
        return Err(Problem::Resources(why));
    }
    Ok(mesh)
}

impl Filters {
    fn text(&self) -> Result<String, Problem> {
        let namespace = Namespace::new(&self.namespace)
            .ok_or_else(|| Problem::Arguments(format!("`{}` is no namespace", self.namespace)))?;
        let labels = labels("--label", &self.labels).map_err(Problem::Arguments)?;
        let mesh = checked(&self.directories)?;
        let translation = Translation {
            layer: match self.layer {
                At::Http => Layer::Http,
                At::Tcp => Layer::Tcp,
            },
            peer: match self.peer {
                By::Certificate => Peer::Certificate,
                By::FilterState => Peer::FilterState,
            },
        };
        let policies = explain::policies_of(&mesh, &namespace, &labels);
        let filters = translation.filters(&policies).map_err(Problem::Resources)?;
        Ok(serde_json::Value::from(filters).to_string())
    }
}
