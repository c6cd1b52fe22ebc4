//! `voile export`: resources in another proxy's configuration, for experiments beside it and for migrations.

mod envoy;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use voile_analysis::explain;
use voile_envoy::{Layer, PeerIdentity, Translation, WorkloadFilters};
use voile_model::mesh::{KeySource, Provider, RequestAuthentication, TokenRule, token_rules};
use voile_model::{Mesh, Namespace};
use voile_policy::tokens::KeySet;

use crate::commands::inspect::analyze::counted;
use crate::commands::inspect::explain::key_set;
use crate::commands::inspect::generate::labels;

/// The export.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(subcommand)]
    what: ExportFormat,
}

#[derive(Debug, clap::Subcommand)]
enum ExportFormat {
    #[command(
        about = "A workload's AuthorizationPolicies and RequestAuthentications as Envoy's filters"
    )]
    EnvoyFilters(Filters),
    #[command(
        about = "The complete static configuration of a stock Envoy as a workload's sidecar, in one file"
    )]
    Envoy(envoy::StaticBootstrapArgs),
    #[command(
        about = "The bootstrap with which a stock Envoy gets its configuration from the control plane"
    )]
    EnvoyBootstrap(envoy::Bootstrap),
    #[command(about = "The SDS files with the paths of Envoy's certificates")]
    EnvoySecrets(envoy::Secrets),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A JSON array of filters goes to stdout, in the order in which Envoy must run them, which is the order of Istio's control plane: CUSTOM\n\
    (an RBAC filter whose shadow rules mark matches, then ext_authz), RequestAuthentication (jwt_authn), AUDIT, DENY, ALLOW;\n\
    dry-run policies are shadow rules. Place them before the router of an HTTP connection manager (with `normalize_path`), or for TCP\n\
    before tcp_proxy, where there are no tokens. ext_authz calls the cluster that Istio names `outbound|PORT||HOST`; define it\n\
    yourself. Keys are inline in the filter: give those that the mesh fetches (jwksUri, discovery) with --jwks. The array is empty if\n\
    no policy selects the workload.\n\n\
    Exit code: 0; 1 if the folder has errors or something cannot be translated (it is named: missing keys, a missing provider,\n\
    several providers, a provider over HTTP for TCP): then nothing is printed; 2 if the folder cannot be read or the arguments\n\
    are wrong."
)]
struct Filters {
    /// Folders of YAML, read together as one mesh
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// The workload's namespace
    #[arg(long, short, default_value = "default")]
    namespace: String,
    /// Its labels
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Kind of traffic that the filters apply to
    #[arg(long, value_enum, default_value = "http")]
    layer: At,
    /// Source of the caller's identity in Envoy
    #[arg(long, value_enum, default_value = "certificate")]
    peer: By,
    /// Key set (JWKS) of an issuer whose rule fetches its keys; nothing is fetched here
    #[arg(long, value_name = "ISSUER=FILE")]
    jwks: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum At {
    /// HTTP requests
    Http,
    /// Connections: conditions on HTTP are treated as the action of each rule requires
    Tcp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// The connection's certificate
    Certificate,
    /// The filter state `io.istio.peer_principal`, as in waypoints
    FilterState,
}

/// An error, and its cause: the resources or the arguments.
enum Problem {
    Resources(String),
    Arguments(String),
}

/// Text for stdout, and the parts that have no translation.
struct ExportedText {
    text: String,
    limits: Vec<String>,
    /// Nothing is missing except parts that no mesh can translate.
    is_whole: bool,
}

impl ExportedText {
    /// Nothing is missing.
    fn all(text: String) -> Self {
        Self {
            text,
            limits: Vec::new(),
            is_whole: true,
        }
    }
}

pub(crate) fn run(args: &ExportArgs) -> ExitCode {
    let (command, said) = match &args.what {
        ExportFormat::EnvoyFilters(filters) => {
            ("envoy-filters", filters.text().map(ExportedText::all))
        }
        ExportFormat::Envoy(whole) => ("envoy", whole.said()),
        ExportFormat::EnvoyBootstrap(bootstrap) => ("envoy-bootstrap", bootstrap.said()),
        ExportFormat::EnvoySecrets(secrets) => ("envoy-secrets", secrets.said()),
    };
    match said {
        Ok(said) => {
            if !said.text.is_empty() {
                println!("{}", said.text);
            }
            for limit in &said.limits {
                eprintln!("voile export {command}: {limit}");
            }
            ExitCode::from(u8::from(!said.is_whole))
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
        let count = counted(errors.len(), "error");
        let why = format!("the folder has {count}, of which the first is: {first}");
        return Err(Problem::Resources(why));
    }
    Ok(mesh)
}

impl Filters {
    fn text(&self) -> Result<String, Problem> {
        let namespace = Namespace::new(&self.namespace).ok_or_else(|| {
            Problem::Arguments(format!("`{}` is not a namespace", self.namespace))
        })?;
        let labels = labels("--label", &self.labels).map_err(Problem::Arguments)?;
        let mesh = checked(&self.directories)?;
        let translation = Translation {
            layer: match self.layer {
                At::Http => Layer::Http,
                At::Tcp => Layer::Tcp,
            },
            peer: match self.peer {
                By::Certificate => PeerIdentity::Certificate,
                By::FilterState => PeerIdentity::FilterState,
            },
        };
        let keys = self.jwks.iter().map(key_set);
        let keys = keys.collect::<Result<BTreeMap<_, _>, String>>();
        let keys = keys.map_err(Problem::Arguments)?;
        let policies = explain::policies_of(&mesh, &namespace, &labels);
        let tokens = match self.layer {
            At::Http => {
                let resources = mesh.request_authentication_for_labels(&namespace, &labels);
                let rules = token_rules(resources).into_iter();
                let rules = rules.map(|(from, rule)| Ok((rule, keys_of(from, rule, &keys)?)));
                rules
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(Problem::Resources)?
            }
            At::Tcp => Vec::new(),
        };
        let obeyed = WorkloadFilters {
            policies: &policies,
            tokens: &tokens,
            provider: &|name| provider(&mesh, name),
        };
        let filters = translation
            .all_filters(&obeyed)
            .map_err(Problem::Resources)?;
        Ok(serde_json::Value::from(filters).to_string())
    }
}

/// The keys of a rule that Envoy can be given: with none that it could use it would refuse all of its configuration.
fn keys_of<'a>(
    from: &RequestAuthentication,
    rule: &'a TokenRule,
    given: &'a BTreeMap<String, String>,
) -> Result<&'a str, String> {
    let issuer = &rule.issuer;
    let who = || {
        format!(
            "RequestAuthentication {} ({}), issuer {issuer}",
            from.name, rule.source
        )
    };
    let fetched = |whence: &str| {
        let who = who();
        format!(
            "{who}: its keys are fetched ({whence}), which this command does not do: give them with --jwks {issuer}=FILE"
        )
    };
    let keys = match (&rule.keys, given.get(&**issuer)) {
        (KeySource::Inline(keys), _) => &**keys,
        (_, Some(keys)) => keys,
        (KeySource::Uri(uri), None) => return Err(fetched(uri)),
        (KeySource::Discovery, None) => return Err(fetched("by OpenID discovery")),
    };
    match KeySet::read(keys) {
        Ok(_) => Ok(keys),
        Err(why) => Err(format!("{}: {why}, and Envoy refuses such a filter", who())),
    }
}

fn provider(mesh: &Mesh, name: &str) -> Option<voile_model::mesh::ExtAuthzProvider> {
    match mesh.config.provider(name) {
        Some(Provider::ExtAuthz(provider)) => Some(provider),
        _ => None,
    }
}
