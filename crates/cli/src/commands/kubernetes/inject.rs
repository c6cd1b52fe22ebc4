//! `voile inject`: gives the Pods of a file of Kubernetes objects their proxies, for clusters without the webhook.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use voile_kubernetes::inject::{
    InjectedManifest, InjectorOptions, inject_manifest, read_manifest, write_manifest,
};
use voile_model::mesh::MeshConfig;

/// Give the Pods of a file of Kubernetes objects their proxies.
///
/// Reads YAML or JSON: Pods, Deployments, StatefulSets, DaemonSets, Jobs, CronJobs, ReplicaSets and Lists of them. Writes all
/// objects to stdout, and warnings to stderr. Objects without Pods pass unchanged. Labels of namespaces are not known here: every
/// Pod gets a proxy, unless it refuses by the label or annotation sidecar.istio.io/inject or has its node's network.
///
/// The control plane injects Pods by a webhook with the same result (docs/reference/injection.md).
#[derive(Debug, clap::Args)]
pub(crate) struct InjectArgs {
    /// File of the objects; `-` is stdin.
    #[arg(short = 'f', long = "filename", value_name = "FILE|-")]
    file: PathBuf,
    /// Format of the output.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "yaml")]
    output: OutputFormat,
    /// Namespace of objects that name none.
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    namespace: String,
    /// Image of the proxy.
    #[arg(long, value_name = "IMAGE", default_value = "voile:latest")]
    image: String,
    /// Revision of the control plane.
    #[arg(long, value_name = "NAME", default_value = "default")]
    revision: String,
    /// Address of the control plane.
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "istiod.istio-system.svc:15012"
    )]
    discovery_address: String,
    /// Authority that proxies ask for their certificates in place of the control plane, such as cert-manager's istio-csr.
    #[arg(long, value_name = "HOST:PORT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    ca_address: Option<String>,
    /// Name of the cluster.
    #[arg(long, value_name = "NAME", default_value = "Kubernetes")]
    cluster: String,
    /// Name of the Pods' network, where a mesh has several.
    #[arg(long, value_name = "NAME", default_value = "")]
    network: String,
    /// A CNI plugin redirects the connections of Pods: they get no init container `istio-init`.
    #[arg(long)]
    cni: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OutputFormat {
    Yaml,
    Json,
}

pub(crate) fn run(args: InjectArgs) -> ExitCode {
    let documents = match read(&args.file).and_then(|text| {
        let read = read_manifest(&text);
        read.map_err(|error| error.to_string())
    }) {
        Ok(documents) => documents,
        Err(error) => {
            eprintln!("voile inject: {}: {error}", args.file.display());
            return ExitCode::from(2);
        }
    };
    let options = InjectorOptions {
        image: args.image,
        revision: args.revision,
        discovery_address: args.discovery_address,
        ca_address: args.ca_address,
        cluster: args.cluster,
        network: args.network,
        cni: args.cni,
        ..InjectorOptions::default()
    };
    let manifest = inject_manifest(documents, &args.namespace, &options, &MeshConfig::default());
    for note in &manifest.notes {
        eprintln!("{note}");
    }
    if !manifest.faults.is_empty() {
        for fault in &manifest.faults {
            eprintln!("voile inject: {fault}");
        }
        return ExitCode::FAILURE;
    }
    match write(manifest, args.output) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("voile inject: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text).map(drop),
        _ => std::fs::read_to_string(file).map(|read| text = read),
    };
    read.map(|()| text).map_err(|error| error.to_string())
}

/// One JSON document is an object; several are a List.
fn write(manifest: InjectedManifest, format: OutputFormat) -> Result<String, String> {
    let documents = manifest.documents;
    match format {
        OutputFormat::Yaml => write_manifest(&documents).map_err(|error| error.to_string()),
        OutputFormat::Json => {
            let document = match <[_; 1]>::try_from(documents) {
                Ok([document]) => document,
                Err(items) => json!({"apiVersion": "v1", "kind": "List", "items": items}),
            };
            let text = serde_json::to_string_pretty(&document);
            text.map(|text| text + "\n")
                .map_err(|error| error.to_string())
        }
    }
}
