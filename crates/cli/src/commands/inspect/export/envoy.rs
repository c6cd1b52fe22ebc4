//! `voile export envoy` and `envoy-bootstrap`: a stock Envoy in a sidecar's place, with everything in one file or with the way to
//! the control plane.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use voile_envoy::{ControlPlaneAddress, EnvoyIdentity, InterceptMode, WrittenKeys};
use voile_model::{Namespace, WorkloadKey};

use super::{ExportedText, Problem, checked};

/// Everything inline.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "One JSON object goes to stdout: a bootstrap with listeners, routes, clusters, endpoints inline, which `envoy --mode validate`\n\
    accepts. The folder of certificates is the one that `voile agent --out` maintains, with envoy-identity.json and\n\
    envoy-root.json (`voile export envoy-secrets` writes them), so that Envoy picks up renewals.\n\n\
    Each limit of stock Envoy has a name (docs/reference/envoy.md) and is printed to stderr. Exit code: 0; 1 if the folder has\n\
    errors, the workload does not exist, or a limit was met (except `workload-address`, which is usual): then nothing is printed,\n\
    unless --partial is given; 2 if the folder cannot be read or the arguments are wrong."
)]
pub(super) struct StaticBootstrapArgs {
    /// Folders of YAML, read together as one mesh
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    #[command(flatten)]
    place: EnvoyTarget,
    /// Print the configuration although limits were met; the exit code stays 1
    #[arg(long)]
    partial: bool,
}

/// The way to the control plane.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "One JSON object goes to stdout: a bootstrap that gets all configuration from the control plane over one ADS stream."
)]
pub(super) struct Bootstrap {
    #[command(flatten)]
    place: EnvoyTarget,
    /// The workload's address
    #[arg(long)]
    address: IpAddr,
    /// The control plane, https://HOST:PORT
    #[arg(long, value_name = "URL")]
    control: String,
    /// Authenticate with this service-account token, not with the certificate; the token is copied, and is valid until
    /// it expires
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Run as a gateway: Gateway resources define its listeners
    #[arg(long)]
    gateway: bool,
    /// Use the state-of-the-world variant of xDS, not delta
    #[arg(long)]
    state_of_the_world: bool,
}

/// The files that tell Envoy of its certificates.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Writes envoy-identity.json and envoy-root.json into the folder, each by rename."
)]
pub(super) struct Secrets {
    /// The folder with cert-chain.pem, key.pem and root-cert.pem
    #[arg(value_name = "DIR")]
    certificates: PathBuf,
}

/// Which Envoy.
#[derive(Debug, clap::Args)]
struct EnvoyTarget {
    /// The workload of this Envoy
    #[arg(long, value_name = "NAMESPACE/NAME")]
    workload: String,
    /// Capture of connections
    #[arg(long, value_enum, default_value = "redirect")]
    capture: CaptureArgs,
    /// The folder with its certificates, as Envoy sees it
    #[arg(long, value_name = "DIR", default_value = "/var/run/secrets/voile")]
    certificates: String,
    /// Address of Envoy's admin pages
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15000")]
    admin: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CaptureArgs {
    /// Clients connect to the Sidecar resource's listeners
    None,
    /// The kernel redirects them to 15001 and 15006, by Istio's rules
    Redirect,
}

impl EnvoyTarget {
    fn key(&self) -> Result<WorkloadKey, Problem> {
        let wrong = || Problem::Arguments(format!("`{}` is not NAMESPACE/NAME", self.workload));
        let (namespace, name) = self.workload.split_once('/').ok_or_else(wrong)?;
        let namespace = Namespace::new(namespace).ok_or_else(wrong)?;
        Ok(WorkloadKey::new(namespace, name))
    }

    fn capture(&self) -> InterceptMode {
        match self.capture {
            CaptureArgs::None => InterceptMode::None,
            CaptureArgs::Redirect => InterceptMode::Redirect,
        }
    }

    fn seat<'a>(
        &'a self,
        workload: &'a WorkloadKey,
        gateway: bool,
        address: IpAddr,
    ) -> EnvoyIdentity<'a> {
        EnvoyIdentity {
            workload,
            gateway,
            address,
            capture: self.capture(),
            certificates: &self.certificates,
            admin: self.admin,
        }
    }
}

impl StaticBootstrapArgs {
    pub(super) fn said(&self) -> Result<ExportedText, Problem> {
        let key = self.place.key()?;
        let mesh = checked(&self.directories)?;
        let workload = mesh
            .workloads
            .get(&key)
            .ok_or_else(|| Problem::Resources(format!("workload {key} does not exist")))?;
        let made = voile_envoy::translate(&mesh, workload, self.place.capture(), &WrittenKeys);
        let limits: Vec<String> = made.limits.iter().map(ToString::to_string).collect();
        let address = workload.addresses.first().copied();
        let address =
            address.ok_or_else(|| Problem::Resources(format!("workload {key} has no address")))?;
        let unusual = made.limits.iter().any(|one| !one.name.is_usual());
        if unusual && !self.partial {
            let count = limits.len();
            let why = format!(
                "{count} limits of stock Envoy are met (--partial prints the rest):\n{}",
                limits.join("\n")
            );
            return Err(Problem::Resources(why));
        }
        let bootstrap = self
            .place
            .seat(&key, workload.gateway, address)
            .whole(&made);
        Ok(ExportedText {
            text: format!("{bootstrap:#}"),
            limits,
            is_whole: !unusual,
        })
    }
}

impl Bootstrap {
    pub(super) fn said(&self) -> Result<ExportedText, Problem> {
        let key = self.place.key()?;
        let wrong = || Problem::Arguments(format!("`{}` is not https://HOST:PORT", self.control));
        let place = self.control.strip_prefix("https://").ok_or_else(wrong)?;
        let (host, port) = place
            .trim_end_matches('/')
            .rsplit_once(':')
            .ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let token = match &self.token_file {
            None => None,
            Some(file) => {
                let unread =
                    |error| Problem::Arguments(format!("cannot read {}: {error}", file.display()));
                Some(std::fs::read_to_string(file).map_err(unread)?)
            }
        };
        let way = ControlPlaneAddress {
            host,
            port: port.parse().map_err(|_| wrong())?,
            token: token.as_deref().map(str::trim),
            state_of_the_world: self.state_of_the_world,
        };
        let bootstrap = self
            .place
            .seat(&key, self.gateway, self.address)
            .served(&way);
        Ok(ExportedText::all(format!("{bootstrap:#}")))
    }
}

impl Secrets {
    pub(super) fn said(&self) -> Result<ExportedText, Problem> {
        let folder = self.certificates.display().to_string();
        let unwritten = |error: std::io::Error| {
            Problem::Arguments(format!("cannot write into {folder}: {error}"))
        };
        for (name, text) in voile_envoy::secret_files(&folder) {
            let new = self.certificates.join(format!(".{name}.new"));
            std::fs::write(&new, text).map_err(unwritten)?;
            std::fs::rename(&new, self.certificates.join(name)).map_err(unwritten)?;
        }
        Ok(ExportedText::all(String::new()))
    }
}
