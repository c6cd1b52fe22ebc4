//! `voile relay`: carry TCP bytes between two addresses.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use voile_load::Stop;
use voile_load::relay::{RelayOptions, TcpRelay};

/// Relay TCP bytes between two addresses: the minimum cost of a process in the path, the lab's floor.
///
/// Prints `listening on ADDRESS` to stderr once it accepts. Ends on SIGINT or SIGTERM.
#[derive(Debug, clap::Args)]
pub(crate) struct RelayArgs {
    /// Address to accept on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// Address to connect to.
    #[arg(long, value_name = "ADDR")]
    to: SocketAddr,
    /// Worker threads; connections are balanced over them.
    #[arg(long, default_value_t = 2, value_name = "N")]
    workers: usize,
    /// Source address of the outgoing connections.
    #[arg(long, value_name = "IP")]
    bind: Option<IpAddr>,
}

pub(crate) fn run(args: RelayArgs) -> ExitCode {
    if args
        .bind
        .is_some_and(|source| source.is_ipv4() != args.to.is_ipv4())
    {
        eprintln!("voile relay: --bind and --to are of different IP versions");
        return ExitCode::from(2);
    }
    let options = RelayOptions {
        listen: args.listen,
        to: args.to,
        workers: args.workers,
        bind: args.bind,
    };
    let ended = Stop::new().and_then(|stop| {
        stop.on_signals()?;
        let relay = TcpRelay::bind(options)?;
        eprintln!(
            "voile relay: listening on {}, to {}",
            relay.address()?,
            args.to
        );
        relay.run(&stop)
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("voile relay: {error}");
            ExitCode::from(1)
        }
    }
}
