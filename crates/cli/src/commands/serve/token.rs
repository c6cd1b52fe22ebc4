//! `voile token`: makes the tokens by which a proxy proves its identity, with the key in the control plane's
//! state directory. A user with read access to that directory can take any identity in the mesh; that is why it
//! is private.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use voile_identity::state::StateDir;
use voile_identity::{
    JoinError, JoinTokens, StateError, TOKEN_AUDIENCE, TokenError, TokenKey, TokenSubject,
};

#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    kind: SubjectKind,
}

#[derive(Debug, clap::Subcommand)]
enum SubjectKind {
    /// Print a service-account token (a JWT): valid for any number of certificates until it expires.
    Create(Create),
    /// Print a join token: valid for one first certificate, with which the proxy then renews.
    Join(Join),
}

#[derive(Debug, clap::Args)]
struct Subject {
    /// The control plane's state directory; created with mode 0700 if missing.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// The service account.
    #[arg(long, value_name = "NS/SA", value_parser = service_account)]
    service_account: TokenSubject,
}

#[derive(Debug, clap::Args)]
struct Create {
    #[command(flatten)]
    subject: Subject,
    /// Bind the token to a pod.
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
    /// Lifetime of the token, at most 24h.
    #[arg(long, default_value = "1h", value_parser = voile_load::parse_duration)]
    ttl: Duration,
    /// Audience of the token.
    #[arg(long, default_value = TOKEN_AUDIENCE)]
    audience: String,
}

#[derive(Debug, clap::Args)]
struct Join {
    #[command(flatten)]
    subject: Subject,
    /// Time in which to use the token, at most 168h.
    #[arg(long, default_value = "1h", value_parser = voile_load::parse_duration)]
    ttl: Duration,
}

/// An error message. `usage` is true if the arguments caused it.
struct Failure {
    text: String,
    usage: bool,
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        let text = error.to_string();
        Self { text, usage: false }
    }
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        let usage = matches!(error, TokenError::Ttl(_) | TokenError::Subject(_));
        let text = error.to_string();
        Self { text, usage }
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        let usage = matches!(error, JoinError::Ttl(_) | JoinError::Subject(_));
        let text = error.to_string();
        Self { text, usage }
    }
}

pub(crate) fn run(args: TokenArgs) -> ExitCode {
    let made = match args.kind {
        SubjectKind::Create(create) => service_account_token(create),
        SubjectKind::Join(join) => join_token(&join),
    };
    match made {
        Ok(token) => {
            println!("{token}");
            let stdout = std::fs::metadata("/dev/stdout");
            if let Some(warning) = stdout
                .ok()
                .and_then(|file| crate::commands::serve::token_files::warning_of_output(&file))
            {
                eprintln!("voile token: {warning}");
            }
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("voile token: {}", failure.text);
            ExitCode::from(if failure.usage { 2 } else { 1 })
        }
    }
}

fn service_account_token(args: Create) -> Result<String, Failure> {
    let state = StateDir::open(&args.subject.state)?;
    let subject = TokenSubject {
        pod: args.pod,
        ..args.subject.service_account
    };
    let key = TokenKey::open(&state)?;
    Ok(key.mint(&subject, &args.audience, SystemTime::now(), args.ttl)?)
}

fn join_token(args: &Join) -> Result<String, Failure> {
    let joins = JoinTokens::open(&StateDir::open(&args.subject.state)?)?;
    let subject = &args.subject.service_account;
    Ok(joins.create(subject, SystemTime::now(), args.ttl)?)
}

/// `NAMESPACE/SERVICE-ACCOUNT`, both Kubernetes names.
fn service_account(text: &str) -> Result<TokenSubject, String> {
    let refused =
        || "expected NAMESPACE/SERVICE-ACCOUNT in lower case, as in `shop/cart`".to_owned();
    let (namespace, account) = text.split_once('/').ok_or_else(refused)?;
    voile_model::Namespace::new(namespace).ok_or_else(refused)?;
    if !voile_model::names::is_dns_subdomain(account) {
        return Err(refused());
    }
    Ok(TokenSubject {
        namespace: namespace.to_owned(),
        service_account: account.to_owned(),
        pod: None,
    })
}
