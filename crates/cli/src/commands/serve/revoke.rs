//! `voile revoke`: puts certificates on the list of the authority in a control plane's state directory. A running control
//! plane sees the list at once; proxies refuse a peer with a revoked certificate and close its connections.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use voile_identity::revocation::local::{self, RevokeError, Revoked};

/// Revoke certificates before they expire.
///
/// A certificate is named by its PEM file or by its serial number (shown by `curl http://ADMIN/certs` on its proxy, and
/// by `openssl x509 -serial`). Revokes the certificate, not the workload: a proxy that holds its token gets another
/// certificate for new keys. A holder of the old keys does not. Prints the serial numbers on the list.
#[derive(Debug, clap::Args)]
pub(crate) struct RevokeArgs {
    /// The control plane's state directory: where its root key is.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Certificates in PEM; `-` reads one from stdin.
    #[arg(value_name = "FILE")]
    certificates: Vec<PathBuf>,
    /// A serial number in hexadecimal; may be repeated.
    #[arg(long, value_name = "HEX")]
    serial: Vec<String>,
    /// Only print the revoked serial numbers.
    #[arg(long, conflicts_with_all = ["certificates", "serial"])]
    list: bool,
}

/// Largest file that can be a certificate, in bytes.
const MAX_CERTIFICATE_BYTES: u64 = 64 * 1024;

pub(crate) fn run(args: RevokeArgs) -> ExitCode {
    if !args.list && args.certificates.is_empty() && args.serial.is_empty() {
        eprintln!("voile revoke: give the FILE of a certificate or --serial, or use --list");
        return ExitCode::from(2);
    }
    match revoke(&args) {
        Ok(revoked) => {
            for one in revoked {
                let since = one.since.duration_since(UNIX_EPOCH).unwrap_or_default();
                println!("{} {}", hex(&one.serial), since.as_secs());
            }
            ExitCode::SUCCESS
        }
        Err((usage, reason)) => {
            eprintln!("voile revoke: {reason}");
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

fn revoke(args: &RevokeArgs) -> Result<Vec<Revoked>, (bool, String)> {
    let failed = |error: RevokeError| {
        let usage = matches!(error, RevokeError::Serial(_));
        (usage, error.to_string())
    };
    let mut serials = Vec::new();
    for text in &args.serial {
        serials.push(local::serial_of(text).map_err(failed)?);
    }
    for file in &args.certificates {
        let pem = read(file).map_err(|error| (false, format!("{}: {error}", file.display())))?;
        let serial = local::serial_in(&args.state, &pem);
        serials.push(serial.map_err(|error| (false, format!("{}: {error}", file.display())))?);
    }
    local::revoke(&args.state, &serials, SystemTime::now()).map_err(failed)
}

fn read(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    match file == Path::new("-") {
        true => std::io::stdin()
            .take(MAX_CERTIFICATE_BYTES)
            .read_to_string(&mut text)?,
        false => std::fs::File::open(file)?
            .take(MAX_CERTIFICATE_BYTES)
            .read_to_string(&mut text)?,
    };
    Ok(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
