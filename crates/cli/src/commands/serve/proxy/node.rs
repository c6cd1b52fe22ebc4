//! `voile proxy --role node`: options of the command line that apply to a node proxy, and options that do not.

use std::process::ExitCode;

use voile_node::Subscription;
use voile_process::RunError;
use voile_telemetry::logging::LogLevelHandle;

use super::{CaptureMode, ProxyArgs, Subscribe, exit_code, process};

pub(super) fn run(args: ProxyArgs, log: LogLevelHandle) -> ExitCode {
    let options = options(args, log).map_err(RunError::Option);
    exit_code(options.and_then(voile_node::run))
}

/// First given option that has no meaning here. It is refused, since the user expects an effect.
fn meaningless(args: &ProxyArgs) -> Option<&'static str> {
    let given = [
        ("--workload-group", args.workload_group.is_some()),
        (
            "--join-token-file",
            args.control_plane.join_token_file.is_some(),
        ),
        ("--capture", args.capture != CaptureMode::None),
        ("--dns", args.dns.0.is_some()),
        ("--max-connections", args.max_connections > 0),
        ("--max-requests", args.max_requests > 0),
        (
            "--max-requests-per-destination",
            args.max_requests_per_destination > 0,
        ),
        (
            "--service-idle-timeout",
            !args.service_idle_timeout.is_zero(),
        ),
        ("--request-timeout", !args.request_timeout.is_zero()),
    ];
    let found = given.iter().find(|(_, given)| *given);
    found.map(|(name, _)| *name)
}

fn options(args: ProxyArgs, log: LogLevelHandle) -> Result<voile_node::NodeOptions, String> {
    if let Some(option) = meaningless(&args) {
        return Err(format!("{option} has no effect with --role node"));
    }
    let process = process(&args, log);
    let workload = args.workload.unwrap_or_default();
    let named = workload.split_once('/');
    let named = named.filter(|(namespace, name)| {
        !namespace.is_empty() && !name.is_empty() && !name.contains('/')
    });
    let (namespace, name) =
        named.ok_or_else(|| format!("--workload `{workload}`: expected NAMESPACE/NAME"))?;
    let token_file = args
        .control_plane
        .token_file
        .ok_or("--role node requires --token-file: a token that is bound to its own pod")?;
    Ok(voile_node::NodeOptions {
        process,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        own_account: args.service_account,
        node: args.node,
        trust_domain: args.trust_domain,
        trust_domain_aliases: args.trust_domain_alias,
        agent: args.agent,
        authority: args.ca_address,
        subscription: match args.subscribe {
            Subscribe::All => Subscription::All,
            Subscribe::OnDemand => Subscription::OnDemand,
        },
        token_file,
        keeps_source: args.keep_source,
        memory_limit: args.memory_limit,
    })
}
