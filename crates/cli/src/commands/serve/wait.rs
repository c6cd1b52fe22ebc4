//! `voile wait`: the `postStart` hook of an injected sidecar. The kubelet starts the next container as soon as it returns,
//! which a startup probe, asked once a second, cannot offer.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use voile_host::ready::http_get;
use voile_load::parse_duration;

/// Between two questions.
const ASK_EVERY: Duration = Duration::from_millis(10);
const PAGE: &str = "/healthz/ready";

/// Wait until a proxy is ready.
///
/// Asks `/healthz/ready` of a proxy on this machine until it answers 200. Exits with 1, and says why, if it does not in time.
#[derive(Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// Address of the proxy's readiness page (`voile proxy --readiness`).
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 15021)))]
    readiness: SocketAddr,
    /// Give up after this time.
    #[arg(long, default_value = "60s", value_parser = parse_duration, value_name = "DURATION")]
    timeout: Duration,
}

#[expect(
    clippy::disallowed_methods,
    reason = "paces the questions of a loop with a deadline"
)]
pub(crate) fn run(args: &WaitArgs) -> ExitCode {
    let start = Instant::now();
    loop {
        let reason = match http_get(args.readiness, PAGE) {
            Ok((200, _)) => return ExitCode::SUCCESS,
            Ok((_, body)) => String::from_utf8_lossy(&body).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        if start.elapsed() >= args.timeout {
            let (address, timeout) = (args.readiness, args.timeout);
            eprintln!(
                "voile wait: the proxy at {address} is not ready after {timeout:?}: {reason}"
            );
            return ExitCode::FAILURE;
        }
        std::thread::sleep(ASK_EVERY);
    }
}
