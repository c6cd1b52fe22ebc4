//! `voile redirect`: redirects the connections of the network namespace that it runs in to a sidecar. The init container
//! `istio-init` of an injected pod runs it.

use std::process::ExitCode;

use voile_host::netns::link;
use voile_host::netns::rules::{
    PodCapture, Rules, SidecarMatch, Tool, ToolError, apply_here, script,
};
use voile_model::Labels;
use voile_model::check::{CAPTURE_PREFIX, capture_scope};

/// Redirect the connections of a pod to its sidecar.
///
/// Sets the rules of the network namespace in which it runs, by `nft` or else by `iptables-restore`. Rules of an earlier run
/// are replaced. Never run it in the network of a host: it would redirect the host's connections. `--remove` takes the rules
/// back.
///
/// The sidecar is `voile proxy --capture redirect-by-user`, which runs as `--proxy-uid`. All connections of that user are left
/// alone. An application must run as another user.
///
/// The lists have the syntax of the annotations `traffic.sidecar.istio.io/…`.
#[derive(Debug, clap::Args)]
pub(crate) struct RedirectArgs {
    /// User of the sidecar.
    #[arg(long, value_name = "UID", default_value_t = 1337, value_parser = clap::value_parser!(u32).range(1..))]
    proxy_uid: u32,
    /// Port of the sidecar for outbound connections.
    #[arg(long, value_name = "PORT", default_value_t = 15001, value_parser = clap::value_parser!(u16).range(1..))]
    outbound_port: u16,
    /// Port of the sidecar for inbound connections.
    #[arg(long, value_name = "PORT", default_value_t = 15006, value_parser = clap::value_parser!(u16).range(1..))]
    inbound_port: u16,
    /// Redirect DNS questions to this port of the sidecar (`voile proxy --dns`).
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    dns_port: Option<u16>,
    /// Inbound ports that are redirected, joined by commas; `*` is all.
    #[arg(long, value_name = "PORTS", default_value = "*")]
    include_inbound_ports: String,
    /// Inbound ports that are not redirected.
    #[arg(long, value_name = "PORTS", default_value = "")]
    exclude_inbound_ports: String,
    /// Destinations to which connections are redirected, as ADDRESS/BITS joined by commas; `*` is all.
    #[arg(long, value_name = "RANGES", default_value = "*")]
    include_outbound_ip_ranges: String,
    /// Destinations to which connections are not redirected.
    #[arg(long, value_name = "RANGES", default_value = "")]
    exclude_outbound_ip_ranges: String,
    /// Destination ports to which connections are redirected whatever the destination.
    #[arg(long, value_name = "PORTS", default_value = "")]
    include_outbound_ports: String,
    /// Destination ports to which connections are not redirected.
    #[arg(long, value_name = "PORTS", default_value = "")]
    exclude_outbound_ports: String,
    /// Print the rules as input of `nft`, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Remove the rules of an earlier run.
    #[arg(long, conflicts_with = "dry_run")]
    remove: bool,
}

/// The options that are annotations of Istio, by the annotation's name.
fn annotations(args: &RedirectArgs) -> [(&'static str, &'static str, &str); 6] {
    [
        (
            "includeInboundPorts",
            "--include-inbound-ports",
            &args.include_inbound_ports,
        ),
        (
            "excludeInboundPorts",
            "--exclude-inbound-ports",
            &args.exclude_inbound_ports,
        ),
        (
            "includeOutboundIPRanges",
            "--include-outbound-ip-ranges",
            &args.include_outbound_ip_ranges,
        ),
        (
            "excludeOutboundIPRanges",
            "--exclude-outbound-ip-ranges",
            &args.exclude_outbound_ip_ranges,
        ),
        (
            "includeOutboundPorts",
            "--include-outbound-ports",
            &args.include_outbound_ports,
        ),
        (
            "excludeOutboundPorts",
            "--exclude-outbound-ports",
            &args.exclude_outbound_ports,
        ),
    ]
}

pub(crate) fn run(args: &RedirectArgs) -> ExitCode {
    let rules = match rules(args) {
        Ok(rules) => rules,
        Err(faults) => {
            for fault in faults {
                eprintln!("voile redirect: {fault}");
            }
            return ExitCode::from(2);
        }
    };
    let v6 = link::has_v6();
    if args.dry_run {
        print!("{}", script(&rules, v6));
        return ExitCode::SUCCESS;
    }
    let done = Tool::find().and_then(|tool| apply_here(&tool, &rules, v6).map(|()| tool));
    match done {
        Ok(tool) if args.remove => {
            println!("connections are no longer redirected ({})", tool.name());
            ExitCode::SUCCESS
        }
        Ok(tool) => {
            println!(
                "connections are redirected to the sidecar of user {}: outbound to port {}, inbound to port {} ({})",
                args.proxy_uid,
                args.outbound_port,
                args.inbound_port,
                tool.name()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("voile redirect: {error}");
            if matches!(error, ToolError::Capability) {
                eprintln!(
                    "  help: let the container istio-init run as user 0 with `securityContext.capabilities.add: [NET_ADMIN]`, in a \
                     namespace whose Pod Security level allows it (privileged)"
                );
            }
            ExitCode::FAILURE
        }
    }
}

/// The rules that the options ask for, or what is wrong with them.
fn rules(args: &RedirectArgs) -> Result<Rules, Vec<String>> {
    if args.remove {
        return Ok(Rules::default());
    }
    let options = annotations(args);
    let written = options
        .iter()
        .map(|(name, _, value)| (format!("{CAPTURE_PREFIX}{name}"), *value));
    let (scope, faults) = capture_scope(&written.collect::<Labels>());
    let faults: Vec<String> = faults.iter().map(|fault| in_options(args, fault)).collect();
    if !faults.is_empty() {
        return Err(faults);
    }
    let capture = PodCapture {
        outbound: args.outbound_port,
        inbound: args.inbound_port,
        dns: args.dns_port,
        sidecar: SidecarMatch::User(args.proxy_uid),
        ..voile_local::pod_network::pod_capture(&scope)
    };
    Ok(Rules {
        capture: Some(capture),
        ..Rules::default()
    })
}

/// A fault of an annotation, by the option in its place.
fn in_options(args: &RedirectArgs, fault: &voile_model::Diagnostic) -> String {
    let text = format!("{}: {}", fault.message, fault.help);
    annotations(args)
        .iter()
        .fold(text, |text, (name, option, _)| {
            text.replace(&format!("{CAPTURE_PREFIX}{name}"), option)
                .replace(name, option)
        })
}
