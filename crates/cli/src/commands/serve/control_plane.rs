//! The control plane of a program that gets its certificates there, and the tokens by which it proves itself.

use std::path::PathBuf;
use std::process::ExitCode;

use super::token_files;

/// The control plane and the credentials for it.
#[derive(Debug, clap::Args)]
pub(crate) struct ControlPlaneArgs {
    /// The control plane. Of several (separated by commas, or the option repeated), and of several addresses of one name, one is
    /// picked at random, and another as soon as it fails.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "https://127.0.0.1:15012"
    )]
    pub(super) control: Vec<String>,
    /// PEM file of the mesh's root certificate, to verify the control plane.
    #[arg(long, value_name = "FILE")]
    pub(super) root_cert: PathBuf,
    /// File with a service-account token, read again for each use; it may be replaced at any time. A file for its owner only (mode
    /// 600), or a token in a projected volume of Kubernetes, which a kubelet writes and renews.
    #[arg(long, value_name = "FILE", required_unless_present = "join_token_file")]
    pub(super) token_file: Option<PathBuf>,
    /// File with a single-use join token for the first certificate; renewals use the certificate. For its owner only: mode 600.
    #[arg(long, value_name = "FILE")]
    pub(super) join_token_file: Option<PathBuf>,
}

impl ControlPlaneArgs {
    /// Refuses a token in place of the name of its file, and warns of a file that others can read.
    pub(super) fn check_token_files(&self, command: &str) -> Result<(), ExitCode> {
        let tokens = [
            ("--token-file", &self.token_file),
            ("--join-token-file", &self.join_token_file),
        ];
        for (option, path) in tokens {
            let Some(path) = path else { continue };
            if let Some(refusal) = token_files::refusal(option, path) {
                eprintln!("voile {command}: {refusal}");
                return Err(ExitCode::from(2));
            }
            token_files::warn_of_open(path);
        }
        Ok(())
    }
}
