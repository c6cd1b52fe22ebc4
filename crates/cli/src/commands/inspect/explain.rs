//! `voile explain`: would this request be let in, and why. Folders and clusters are read as the control plane reads them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use voile_analysis::explain::{
    self, AccessQuestion, DecidingPolicy, Explanation, PresentedToken, TokenSaid,
};
use voile_model::{Identity, Mesh, Namespace, Source};

use crate::commands::inspect::analyze::counted;
use crate::commands::inspect::named_workloads;
use crate::commands::kubernetes::cluster::{ClusterArgs, ReadResources};
use crate::commands::serve::up::Dataplane;
use crate::commands::values::Output;

/// The request.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Answers for every workload of the service: whether it would allow the request, which policy and rule decide (with file\n\
    and line, or the object of the cluster), and what would have to change. A caller whose identity no workload has is answered, with a warning.\n\n\
    With --kubernetes the mesh is that of a cluster's objects; folders and files are read as if they were applied to it.\n\n\
    Exit code: 0 if all allow it, 1 if any denies it or leaves it to an external service, 2 if the mesh cannot be read or a name is unknown."
)]
pub(crate) struct ExplainArgs {
    /// Folders of YAML, single files and `-` for standard input, read together as one mesh; if left out the folder of the mesh
    /// that runs on this machine
    #[arg(value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Caller: spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT, NAMESPACE/SERVICE-ACCOUNT, deploy/NAME or pod/NAME; plaintext if left out
    #[arg(long, value_name = "IDENTITY")]
    from: Option<String>,
    /// Service called: SERVICE[:PORT], NAMESPACE/SERVICE[:PORT], SERVICE.NAMESPACE[:PORT], svc/NAME[:PORT] or a host name; deploy/NAME and pod/NAME for some of its workloads
    #[arg(long, value_name = "SERVICE:PORT")]
    to: String,
    /// Namespace of a name without one; if left out the caller's, else that of the cluster's context, else `default`
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// The method
    #[arg(long, default_value = "GET")]
    method: String,
    /// Path and query
    #[arg(long, default_value = "/")]
    path: String,
    /// Host and port that the request names; the service's own name if left out
    #[arg(long)]
    host: Option<String>,
    /// A header of the request
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Address of the caller
    #[arg(long, value_name = "ADDRESS")]
    source_ip: Option<IpAddr>,
    /// Server name (SNI) of its TLS handshake
    #[arg(long)]
    sni: Option<String>,
    /// A token of the request; it is placed where the rules of its issuer look for it
    #[arg(long, value_name = "TOKEN")]
    jwt: Option<String>,
    /// Key set (JWKS) of an issuer whose rule fetches its keys; nothing is fetched here
    #[arg(long, value_name = "ISSUER=FILE", requires = "jwt")]
    jwks: Vec<String>,
    #[command(flatten)]
    served: DataPlanes,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Output format
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// Data plane of the folder's pods.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct DataPlanes {
    /// Answer as for `voile up --dataplane WHO`: with `node`, a node proxy replaces the sidecars, and applies policies
    /// to connections instead of requests. Without this option labels decide, as for `voile up`
    #[arg(long, value_enum, value_name = "WHO")]
    dataplane: Option<Dataplane>,
}

pub(crate) fn run(args: ExplainArgs) -> ExitCode {
    match answer(&args) {
        Ok(explanations) => {
            let text = match args.output {
                Output::Json => json(&explanations),
                Output::Text => explanations.iter().map(text).collect(),
            };
            print!("{text}");
            ExitCode::from(u8::from(explanations.iter().any(|one| !one.allowed)))
        }
        Err(why) => {
            eprintln!("voile explain: {why}");
            ExitCode::from(2)
        }
    }
}

/// Reads folders and files, or a cluster, as one mesh. Returns the namespace of names without one, too.
pub(crate) fn mesh(
    paths: &[PathBuf],
    cluster: &ClusterArgs,
    served: DataPlanes,
) -> Result<(Mesh, String), String> {
    let read = ReadResources::read(paths, cluster)?;
    let (mesh, errors) = read.mesh(served.dataplane == Some(Dataplane::Node));
    if errors > 0 {
        let (mesh, options) = match cluster.kubernetes {
            true => ("cluster", " --kubernetes -A"),
            false => ("folder", ""),
        };
        let errors = counted(errors, "error");
        eprintln!("the {mesh} has {errors}: run `voile analyze{options}`");
    }
    Ok((mesh, read.namespace))
}

/// A namespace that a person names.
pub(crate) fn namespace(name: &str) -> Result<Namespace, String> {
    Namespace::new(name).ok_or_else(|| format!("`{name}` is not a namespace"))
}

fn identity(mesh: &Mesh, text: &str, own: &Namespace) -> Result<Identity, String> {
    if let Some(identity) = named_workloads::identity_of(mesh, text, own) {
        return identity.map_err(|error| format!("--from: {error}"));
    }
    let whole = match text.split_once('/') {
        Some((namespace, account)) if !text.starts_with("spiffe://") => {
            format!(
                "spiffe://{}/ns/{namespace}/sa/{account}",
                mesh.config.trust_domain
            )
        }
        _ => text.to_owned(),
    };
    whole.parse().map_err(|error| format!("--from: {error}"))
}

/// Issuer and text of a key set.
pub(crate) fn key_set(text: &String) -> Result<(String, String), String> {
    // An issuer may have `=` in it; a file's name hardly has.
    let (issuer, file) = text
        .rsplit_once('=')
        .ok_or_else(|| format!("--jwks: `{text}` is not ISSUER=FILE"))?;
    let keys = std::fs::read_to_string(file);
    let keys = keys.map_err(|error| format!("--jwks: cannot read {file}: {error}"))?;
    Ok((issuer.to_owned(), keys))
}

fn answer(args: &ExplainArgs) -> Result<Vec<Explanation>, String> {
    let (mesh, context) = mesh(&args.paths, &args.cluster, args.served)?;
    let own = namespace(args.namespace.as_deref().unwrap_or(&context))?;
    let from = args.from.as_ref();
    let from = from.map(|text| identity(&mesh, text, &own)).transpose()?;
    if let Some(unknown) = from
        .as_ref()
        .and_then(|one| explain::unknown_caller(&mesh, one))
    {
        eprintln!("voile explain: warning: {unknown}");
    }
    let own = match (&from, &args.namespace) {
        (Some(from), None) => from.namespace.clone(),
        _ => own,
    };
    let (name, port) = match args.to.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (&*args.to, None),
    };
    let called = named_workloads::service_called(&mesh, name, &own);
    let called = called.map_err(|error| format!("--to: {error}"))?;
    let service = called.service;
    let port = explain::port_called(service, port).ok_or_else(|| {
        let ports: Vec<String> = service
            .ports
            .iter()
            .map(|port| port.number.to_string())
            .collect();
        format!("--to: add a port of {}: {}", service.key, ports.join(", "))
    })?;
    let header = |text: &String| {
        let (name, value) = text
            .split_once(':')
            .ok_or_else(|| format!("--header: `{text}` is not NAME: VALUE"))?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    let headers = args
        .headers
        .iter()
        .map(header)
        .collect::<Result<Vec<_>, String>>()?;
    let keys = args.jwks.iter().map(key_set);
    let keys = keys.collect::<Result<BTreeMap<_, _>, String>>()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let token = args.jwt.as_deref().map(|token| PresentedToken {
        token: token.trim(),
        keys: &keys,
        now: now.map_or(0, |now| now.as_secs()),
    });
    let question = AccessQuestion {
        from: from.as_ref(),
        source_ip: args.source_ip,
        method: &args.method,
        path: &args.path,
        host: args.host.as_deref(),
        headers: &headers,
        server_name: args.sni.as_deref(),
        token,
    };
    let mut explanations = explain::explain(&mesh, service, port, &question);
    called.keep_meant(&mut explanations, |one| &one.workload);
    match explanations.is_empty() {
        true => Err(format!(
            "port {} of {} has no workload",
            port.number, service.key
        )),
        false => Ok(explanations),
    }
}

/// The rule that decided, and where it was written.
fn rule(decided: &DecidingPolicy) -> Option<String> {
    let (policy, rule) = (decided.policy.as_ref()?, decided.rule?);
    let source = decided.source.as_ref()?;
    Some(format!(
        "AuthorizationPolicy {policy}, rule {rule}, in {source}"
    ))
}

/// The line of a file; none of an object of a cluster.
fn line(source: Option<&Source>) -> Option<u32> {
    source?.position().map(|(line, _)| line)
}

fn decided(one: &DecidingPolicy) -> serde_json::Value {
    serde_json::json!({
        "why": one.why,
        "policy": one.policy,
        "rule": one.rule,
        "file": one.source.as_ref().map(|source| source.file.to_string()),
        "line": line(one.source.as_ref()),
    })
}

fn token(one: &TokenSaid) -> serde_json::Value {
    serde_json::json!({
        "why": one.why,
        "principal": one.principal,
        "policy": one.policy,
        "file": one.source.as_ref().map(|source| source.file.to_string()),
        "line": line(one.source.as_ref()),
    })
}

fn text(one: &Explanation) -> String {
    let decides = |asked: &DecidingPolicy| {
        (&asked.policy, asked.rule) == (&one.decided.policy, one.decided.rule)
    };
    let verdict = match one.allowed {
        true => "ALLOWED",
        // The external service's decision is not known here.
        false if one.asked.as_ref().is_some_and(decides) => "ASKED ABOUT",
        false => "DENIED",
    };
    let mut out = format!(
        "{verdict} by {}, port {}: {}\n",
        one.workload, one.port, one.decided.why
    );
    if let Some(rule) = rule(&one.decided) {
        out += &format!("  {rule}\n");
    }
    if let Some(asked) = &one.asked {
        let by = rule(asked).unwrap_or_default();
        out += &format!("  asked first: {}, by {by}\n", asked.why);
    }
    if let Some(token) = &one.token {
        out += &format!("  token: {}\n", token.why);
        if let (Some(policy), Some(source)) = (&token.policy, &token.source) {
            out += &format!("  RequestAuthentication {policy}, in {source}\n");
        }
    }
    for line in &one.otherwise {
        out += &format!("  otherwise: {line}\n");
    }
    for line in &one.beside {
        out += &format!("  beside: {line}\n");
    }
    for line in &one.limits {
        out += &format!("  limit: {line}\n");
    }
    out
}

fn json(all: &[Explanation]) -> String {
    let one = |one: &Explanation| {
        let mut said = decided(&one.decided);
        said["workload"] = one.workload.clone().into();
        said["port"] = one.port.get().into();
        said["allowed"] = one.allowed.into();
        said["asked"] = one.asked.as_ref().map(decided).into();
        said["token"] = one.token.as_ref().map(token).into();
        said["otherwise"] = one.otherwise.clone().into();
        said["beside"] = one.beside.clone().into();
        said["limits"] = one.limits.clone().into();
        said
    };
    let all: Vec<_> = all.iter().map(one).collect();
    format!("{:#}\n", serde_json::Value::Array(all))
}
