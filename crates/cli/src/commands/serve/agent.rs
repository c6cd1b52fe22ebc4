//! `voile agent`: gives a program that is not ours its certificates as files, keeps them fresh, and writes the bootstrap by which
//! a stock gRPC finds the control plane. The program speaks to the control plane itself; nothing goes through the agent.

mod bootstrap;
mod child;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use voile_identity::state::{PUBLIC_MODE, SECRET_MODE, StateDir};
use voile_identity::{CertificateClient, CertificateStore, ClientSettings, WorkloadCertificate};
use voile_process::Signals;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bootstrap::Bootstrap;
use child::Program;

use super::control_plane::ControlPlaneArgs;

/// Leaf and intermediates; Istio's name.
const CHAIN: &str = "cert-chain.pem";
/// The private key; Istio's name.
const KEY: &str = "key.pem";
/// The mesh's roots; Istio's name.
const ROOTS: &str = "root-cert.pem";
/// File name of the bootstrap if COMMAND is given without `--bootstrap`.
const BOOTSTRAP: &str = "grpc-bootstrap.json";
/// Environment variable with the path of gRPC's bootstrap file.
const BOOTSTRAP_VARIABLE: &str = "GRPC_XDS_BOOTSTRAP";
/// Environment variable with the folder of the certificate files.
const FOLDER_VARIABLE: &str = "VOILE_CERTIFICATES";

/// Keep the mesh certificates of any program up to date, and configure a gRPC program for xDS.
///
/// The agent makes a key, gets a certificate for it from the control plane, and writes cert-chain.pem, key.pem (mode
/// 600) and root-cert.pem into a folder. It renews at half of the certificate's lifetime. Each file is replaced by a
/// rename: a reader sees the old one or the new one.
///
/// With --bootstrap it also writes the bootstrap file of a stock gRPC for `xds:///SERVICE:PORT`: the address of the
/// control plane, and the certificates for it (gRFC A65) and for mutual TLS with servers. With `-- COMMAND` it starts
/// the command when the files are written, with GRPC_XDS_BOOTSTRAP and VOILE_CERTIFICATES in its environment. The agent
/// forwards SIGTERM and SIGINT, and exits when the command exits. If the agent is killed, the command gets SIGTERM.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("token_file", |arg| arg.visible_alias("token")),
    after_help = "Examples:\n  voile agent --workload shop/client-1 --token-file token --root-cert state/root-cert.pem --out certs -- ./client xds:///cart.shop:7070\n  \
    voile agent --workload shop/legacy --token-file token --root-cert state/root-cert.pem --out certs --once\n\n\
    Exit code: 0 after SIGTERM or SIGINT, or with --once when the files are written; that of COMMAND, if given (128 plus\n\
    the signal, if a signal ended it); 1 if no certificate came in time or a file could not be written; 2 if the\n\
    arguments are wrong."
)]
pub(crate) struct AgentArgs {
    /// Workload of the program. Its service account must match the token.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = workload)]
    workload: AgentWorkload,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
    /// Folder for the files; created with mode 700 if missing. It holds the private key: no other user may have access.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Write gRPC's bootstrap to this file [with COMMAND: grpc-bootstrap.json in the folder]. It lists all addresses of --control, in
    /// an order of its own for each workload.
    #[arg(long, value_name = "FILE")]
    bootstrap: Option<PathBuf>,
    /// The workload's address, for the control plane's status page.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    address: IpAddr,
    /// Certificate lifetime to request, such as 1h [default: the control plane decides].
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::values::duration)]
    ttl: Option<Duration>,
    /// Time limit for the first certificate; the control plane may be starting too. 0s: no limit.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = crate::commands::values::duration)]
    wait: Duration,
    /// Write the files once and exit.
    #[arg(long, conflicts_with = "command")]
    once: bool,
    /// Level of the log on stderr: off, error, warn, info, debug, trace, or `target=level,…`.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// The program to run, and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

/// A workload by name.
#[derive(Debug, Clone)]
struct AgentWorkload {
    namespace: String,
    name: String,
}

fn workload(text: &str) -> Result<AgentWorkload, String> {
    let refused = || "expected NAMESPACE/NAME in lower case, as in `shop/cart-1`".to_owned();
    let (namespace, name) = text.split_once('/').ok_or_else(refused)?;
    voile_model::Namespace::new(namespace).ok_or_else(refused)?;
    if !voile_model::names::is_dns_subdomain(name) {
        return Err(refused());
    }
    Ok(AgentWorkload {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

pub(crate) fn run(args: AgentArgs) -> ExitCode {
    if let Err(error) = voile_telemetry::logging::install(&args.log_level) {
        eprintln!("voile agent: --log-level {error}");
        return ExitCode::from(2);
    }
    if let Err(code) = args.control_plane.check_token_files("agent") {
        return code;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(serve(args));
            // A program that we no longer wait for must not keep us.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(error.to_string()),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(reason) => {
            eprintln!("voile agent: {reason}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: AgentArgs) -> Result<u8, String> {
    // Before anything is started, so that no signal falls between.
    let mut signals = Signals::install().map_err(|error| format!("signals: {error}"))?;
    let files = AgentFiles::open(&args)?;
    let store = Arc::new(CertificateStore::new());
    let settings = ClientSettings {
        control: args.control_plane.control,
        root_cert: args.control_plane.root_cert,
        token_file: args.control_plane.token_file,
        join_token_file: args.control_plane.join_token_file,
        ttl: args.ttl,
    };
    let client = CertificateClient::new(settings, store.clone());
    let mut renewed = client.subscribe();
    let keeping = tokio::spawn(client.run(std::future::pending()));
    let first = tokio::select! {
        first = first(&mut renewed, args.wait) => first,
        _ = signals.next() => return Ok(0),
    };
    if let Err(mut why) = first {
        if let Some(trouble) = store.trouble() {
            why = format!("{why}: {trouble}");
        }
        return Err(why);
    }
    files.write(&renewed.borrow_and_update().clone())?;
    if args.once {
        return Ok(0);
    }
    let mut program = match args.command.split_first() {
        None => None,
        Some((command, arguments)) => Some(files.start(command, arguments)?),
    };
    loop {
        tokio::select! {
            changed = renewed.changed() => match changed {
                Ok(()) => {
                    let certificate = renewed.borrow_and_update().clone();
                    // The disk may have room again by the next time, and the old certificate is good for its whole
                    // life.
                    if let Err(error) = files.write(&certificate) {
                        tracing::error!(error, "cannot write the new certificate; the old one stays");
                    }
                }
                Err(_) => return Err("certificates are no longer renewed".to_owned()),
            },
            signal = signals.next() => match &program {
                Some(program) => program.signal(signal),
                None => break,
            },
            code = child::ended(&mut program) => {
                keeping.abort();
                return Ok(code);
            }
        }
    }
    keeping.abort();
    Ok(0)
}

type Renewed = watch::Receiver<Option<Arc<WorkloadCertificate>>>;

async fn first(renewed: &mut Renewed, wait: Duration) -> Result<(), String> {
    let there = renewed.wait_for(Option::is_some);
    let there = match wait.is_zero() {
        true => there.await,
        false => match tokio::time::timeout(wait, there).await {
            Ok(there) => there,
            Err(_) => return Err(format!("no certificate within {wait:?}")),
        },
    };
    match there {
        Ok(_) => Ok(()),
        Err(_) => Err("no certificate: the renewal task ended".to_owned()),
    }
}

/// Files that the agent writes, and the values that go into them.
struct AgentFiles {
    folder: StateDir,
    bootstrap: Option<PathBuf>,
    workload: AgentWorkload,
    control: Vec<String>,
    address: IpAddr,
}

impl AgentFiles {
    fn open(args: &AgentArgs) -> Result<Self, String> {
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let out = absolute(&args.out)?;
        let wanted = args.bootstrap.as_deref().map(absolute).transpose()?;
        let bootstrap = match args.command.is_empty() {
            true => wanted,
            false => Some(wanted.unwrap_or_else(|| out.join(BOOTSTRAP))),
        };
        Ok(Self {
            folder: StateDir::open(&out).map_err(|error| error.to_string())?,
            bootstrap,
            workload: args.workload.clone(),
            control: args.control_plane.control.clone(),
            address: args.address,
        })
    }

    fn write(&self, certificate: &Option<Arc<WorkloadCertificate>>) -> Result<(), String> {
        let Some(certificate) = certificate else {
            return Ok(());
        };
        let identity = certificate.identity();
        if *identity.namespace.as_str() != *self.workload.namespace {
            let (own, name) = (&self.workload.namespace, &self.workload.name);
            return Err(format!(
                "the token is for {identity}, which is not in the namespace of {own}/{name}"
            ));
        }
        // The key first: who reads in between finds a pair that does not match, and readers of pairs try again.
        let files = [
            (KEY, certificate.private_key_pem().to_owned(), SECRET_MODE),
            (CHAIN, certificate.chain_pem().to_owned(), PUBLIC_MODE),
            (ROOTS, roots(certificate), PUBLIC_MODE),
        ];
        for (name, text, mode) in files {
            let written = self.folder.replace(name, &text, mode);
            written.map_err(|error| error.to_string())?;
        }
        if let Some(path) = &self.bootstrap {
            self.write_bootstrap(path, certificate)?;
        }
        let folder = self.folder.path().display();
        let life = life_of(certificate);
        tracing::info!(%identity, serial = certificate.serial(), %folder, ?life, "certificate written");
        Ok(())
    }

    fn write_bootstrap(
        &self,
        path: &Path,
        certificate: &WorkloadCertificate,
    ) -> Result<(), String> {
        let bootstrap = Bootstrap {
            control: &self.control,
            folder: self.folder.path(),
            namespace: &self.workload.namespace,
            name: &self.workload.name,
            address: self.address,
            life: life_of(certificate),
        };
        let text = bootstrap.text()?;
        // Renewals change nothing in it; who watches it is not woken.
        if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        bootstrap::write(path, &text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn start(
        &self,
        command: &std::ffi::OsStr,
        arguments: &[std::ffi::OsString],
    ) -> Result<Program, String> {
        let mut process = std::process::Command::new(command);
        process
            .args(arguments)
            .env(FOLDER_VARIABLE, self.folder.path());
        if let Some(bootstrap) = &self.bootstrap {
            process.env(BOOTSTRAP_VARIABLE, bootstrap);
        }
        Program::start(process).map_err(|error| format!("{}: {error}", command.display()))
    }
}

/// Of whole seconds, from now.
fn life_of(certificate: &WorkloadCertificate) -> Duration {
    let left = certificate.not_after().duration_since(SystemTime::now());
    Duration::from_secs(left.unwrap_or_default().as_secs())
}

/// The roots in PEM.
fn roots(certificate: &WorkloadCertificate) -> String {
    /// RFC 7468.
    const LINE: usize = 64;
    let mut text = String::new();
    for root in certificate.roots() {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let mut encoded = &*BASE64_STANDARD.encode(root);
        while !encoded.is_empty() {
            let (line, rest) = encoded.split_at(encoded.len().min(LINE));
            text.push_str(line);
            text.push('\n');
            encoded = rest;
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}
