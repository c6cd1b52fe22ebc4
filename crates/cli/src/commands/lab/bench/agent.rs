//! `voile bench agent`: the far end of an experiment, on another host.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use voile_lab::{AgentAddress, AgentSettings, Token};

use crate::commands::lab::bench::outcome::{Done, failed, program, usage};

#[derive(Debug, clap::Args)]
pub(super) struct BenchAgentArgs {
    /// Listen address that the near end can reach. Servers and sidecars listen on it, too, on other ports.
    #[arg(long, default_value = "127.0.0.1:15070", value_name = "ADDR")]
    listen: SocketAddr,
    /// File with the secret shared with the near end: one word of 32 characters or more, readable only by its owner.
    /// Without it a token is made and printed, valid while this agent runs.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Exit after one session.
    #[arg(long)]
    once: bool,
    /// Path of a peer: envoy=PATH, nginx=PATH, haproxy=PATH. By default found on PATH, in /usr/sbin and in Python
    /// environments.
    #[arg(long = "peer", value_name = "NAME=PATH")]
    peers: Vec<String>,
    /// Another build of voile, by the name that the near end's --contestant gives it.
    #[arg(long = "contestant", value_name = "NAME=PATH")]
    contestants: Vec<String>,
    /// The voile program to measure [default: this one].
    #[arg(long, value_name = "PATH")]
    voile: Option<PathBuf>,
}

pub(super) fn run(args: &BenchAgentArgs) -> Done {
    if let IpAddr::V6(v6) = args.listen.ip()
        && v6.is_unicast_link_local()
    {
        let why = "a link-local address: servers and sidecars need addresses that are valid on both hosts";
        return Err(usage(format!("--listen {}: {why}", args.listen)));
    }
    let (token, ours) = match &args.token_file {
        Some(path) => (Token::read(path).map_err(usage)?, false),
        None => (Token::generate().map_err(failed)?, true),
    };
    let builds = args.contestants.iter().map(|build| {
        let (name, path) = build
            .split_once('=')
            .ok_or_else(|| usage(format!("--contestant {build}: expected NAME=PATH")))?;
        let path =
            std::fs::canonicalize(path).map_err(|e| usage(format!("--contestant {build}: {e}")))?;
        Ok((name.to_owned(), path))
    });
    let settings = AgentSettings {
        listen: args.listen,
        once: args.once,
        voile: program(args.voile.as_deref())?,
        found: voile_lab::peers(&args.peers).map_err(usage)?,
        builds: builds.collect::<Result<_, _>>()?,
        token,
    };
    voile_host::interrupt::watch().map_err(|e| failed(format!("cannot watch for signals: {e}")))?;
    let mut listening = |address: SocketAddr| {
        println!("listening on {address}");
        if ours {
            println!("token {}", settings.token.reveal());
            eprintln!(
                "voile bench agent: on the other host: voile bench run EXPERIMENT.toml --agent {address}=TOKEN"
            );
        }
    };
    let say = |line: &str| eprintln!("voile bench agent: {line}");
    voile_lab::serve_agent(
        &settings,
        &mut listening,
        &say,
        voile_host::interrupt::asked,
    )
    .map_err(failed)
}

/// `HOST:PORT=TOKEN`, or `HOST:PORT` with the token in a file.
pub(super) fn address(
    written: Option<&str>,
    file: Option<&std::path::Path>,
) -> Result<Option<AgentAddress>, (u8, String)> {
    let Some(written) = written else {
        return Ok(None);
    };
    let (name, token) = match (written.split_once('='), file) {
        (Some(_), Some(_)) => {
            let why = "--agent has a token, and so has --agent-token-file: give only one of them";
            return Err(usage(why.to_owned()));
        }
        (Some((name, token)), None) => (name, Token::parse(token)),
        (None, Some(file)) => (written, Token::read(file)),
        (None, None) => {
            let why = "--agent needs the agent's token: --agent HOST:PORT=TOKEN, or --agent-token-file FILE";
            return Err(usage(why.to_owned()));
        }
    };
    let token = token.map_err(|why| usage(format!("--agent {name}: {why}")))?;
    Ok(Some(AgentAddress {
        name: name.to_owned(),
        token,
    }))
}
