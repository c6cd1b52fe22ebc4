//! Every flag that `fortio load -h` names, and its treatment: as an option of ours, as a flag without effect, or refused with an
//! alternative. A test asks Fortio itself, if it is installed.

/// Treatment of a Fortio flag.
#[derive(Debug, Clone, Copy)]
pub(super) enum Taken {
    /// It has a value, and is this option of ours.
    As(&'static str),
    /// It has a value, and is dealt with below.
    Value,
    /// It has none (or `=true`, `=false`), and is dealt with below.
    Switch,
    /// It changes nothing here, because what it is for is so anyway: with a value, and without.
    Nothing,
    NoSwitch,
    /// It would mean something that is not to be had: what to do instead. With a value, and without.
    Refused(&'static str),
    RefusedSwitch(&'static str),
}

/// Reasons for refusing flags of Fortio's other commands, which change nothing in a load.
const SERVER: &str = "belongs to Fortio's server; `voile echo` is ours";
const CURL: &str = "belongs to `fortio curl`; curl does the same";

/// Fortio's flags: all that `fortio load -h` of version 1.66 names, and the further ones of 1.75.2. Any other flag is refused,
/// too.
pub(super) const FLAGS: &[(&str, Taken)] = &[
    ("qps", Taken::Value),
    ("t", Taken::Value),
    ("n", Taken::Value),
    ("c", Taken::As("--connections")),
    ("s", Taken::As("--streams")),
    ("H", Taken::As("--header")),
    ("X", Taken::As("--method")),
    ("payload", Taken::Value),
    ("payload-size", Taken::Value),
    ("payload-file", Taken::Value),
    ("content-type", Taken::Value),
    ("user", Taken::Value),
    ("timeout", Taken::Value),
    ("udp-timeout", Taken::Value),
    ("connection-reuse", Taken::As("--connection-reuse")),
    ("cacert", Taken::As("--cacert")),
    ("cert", Taken::As("--cert")),
    ("key", Taken::As("--key")),
    ("labels", Taken::Value),
    ("runid", Taken::Value),
    ("p", Taken::Value),
    ("r", Taken::Value),
    ("offset", Taken::Value),
    ("json", Taken::Value),
    ("data-dir", Taken::Value),
    ("resolve", Taken::As("--resolve")),
    ("resolve-ip-type", Taken::As("--resolve")),
    ("dns-method", Taken::Value),
    ("abort-on", Taken::Value),
    ("healthservice", Taken::Value),
    ("grpc-ping-delay", Taken::Value),
    ("grpc-method", Taken::Value),
    ("gomaxprocs", Taken::Value),
    ("loglevel", Taken::Nothing),
    ("uniform", Taken::Switch),
    ("nocatchup", Taken::Switch),
    ("keepalive", Taken::Switch),
    ("k", Taken::Switch),
    ("https-insecure", Taken::Switch),
    ("h2", Taken::Switch),
    ("http1.0", Taken::Switch),
    ("grpc", Taken::Switch),
    ("ping", Taken::Switch),
    ("compression", Taken::Switch),
    ("calc-qps", Taken::Switch),
    ("a", Taken::Switch),
    ("quiet", Taken::NoSwitch),
    // Buffers grow with their contents; `Connection: close` is always looked for; a name is resolved once; nothing is logged by
    // request.
    ("httpbufferkb", Taken::Nothing),
    ("maxpayloadsizekb", Taken::Nothing),
    ("httpccch", Taken::NoSwitch),
    ("no-reresolve", Taken::NoSwitch),
    ("log-errors", Taken::NoSwitch),
    ("logger-file-line", Taken::NoSwitch),
    ("logger-force-color", Taken::NoSwitch),
    ("logger-goroutine", Taken::NoSwitch),
    ("logger-json", Taken::NoSwitch),
    ("logger-no-color", Taken::NoSwitch),
    ("logger-timestamp", Taken::NoSwitch),
    // Connections are opened before the start, and one that cannot be is an error of the request that needs it.
    ("allow-initial-errors", Taken::NoSwitch),
    ("sequential-warmup", Taken::NoSwitch),
    // There is one client here, and it speaks HTTP/2 where -h2 asks for it.
    ("stdclient", Taken::NoSwitch),
    (
        "jitter",
        Taken::RefusedSwitch(
            "-uniform spreads connections evenly, and `voile load --arrival poisson` sends at random",
        ),
    ),
    (
        "L",
        Taken::RefusedSwitch(
            "a redirect is an answer here (`voile load --expect-status 302`), and is not followed",
        ),
    ),
    (
        "halfclose",
        Taken::RefusedSwitch("connections are closed whole"),
    ),
    (
        "grpc-compression",
        Taken::RefusedSwitch("messages are sent as they are"),
    ),
    ("unix-socket", Taken::Refused("only TCP and UDP are spoken")),
    (
        "access-log-file",
        Taken::Refused(
            "no line is kept of each request; `voile load --json --interval 10ms` has a histogram of every 10 ms",
        ),
    ),
    (
        "access-log-format",
        Taken::Refused("no line is kept of each request; see -access-log-file"),
    ),
    (
        "profile",
        Taken::Refused("`perf record` profiles any program"),
    ),
    ("M", Taken::Refused(SERVER)),
    (
        "P",
        Taken::Refused("belongs to Fortio's proxies; `voile relay` is ours"),
    ),
    ("base-url", Taken::Refused(SERVER)),
    ("config-dir", Taken::Refused(SERVER)),
    ("config-port", Taken::Refused(SERVER)),
    ("echo-debug-path", Taken::Refused(SERVER)),
    ("echo-server-default-params", Taken::Refused(SERVER)),
    ("grpc-max-streams", Taken::Refused(SERVER)),
    ("grpc-port", Taken::Refused(SERVER)),
    ("http-port", Taken::Refused(SERVER)),
    ("max-echo-delay", Taken::Refused(SERVER)),
    (
        "mtls",
        Taken::RefusedSwitch(
            "belongs to Fortio's server; a client shows its certificate by -cert and -key",
        ),
    ),
    ("multi-mirror-origin", Taken::RefusedSwitch(SERVER)),
    ("multi-serial-mode", Taken::RefusedSwitch(SERVER)),
    ("pprof", Taken::RefusedSwitch(SERVER)),
    ("proxy-all-headers", Taken::RefusedSwitch(SERVER)),
    ("redirect-port", Taken::Refused(SERVER)),
    ("server-idle-timeout", Taken::Refused(SERVER)),
    ("static-dir", Taken::Refused(SERVER)),
    ("sync", Taken::Refused(SERVER)),
    ("sync-interval", Taken::Refused(SERVER)),
    ("tcp-port", Taken::Refused(SERVER)),
    ("udp-port", Taken::Refused(SERVER)),
    ("udp-async", Taken::RefusedSwitch(SERVER)),
    ("ui-path", Taken::Refused(SERVER)),
    ("curl", Taken::RefusedSwitch(CURL)),
    ("curl-stdout-headers", Taken::RefusedSwitch(CURL)),
    ("stream", Taken::RefusedSwitch(CURL)),
    (
        "init",
        Taken::Refused("belongs to `fortio script`, whose words are not read here"),
    ),
    (
        "nc-dont-stop-on-eof",
        Taken::RefusedSwitch("belongs to `fortio nc`"),
    ),
    (
        "health",
        Taken::RefusedSwitch("belongs to `fortio grpcping`; -grpc alone is the health check"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_fortio_load_is_known() {
        let Ok(told) = std::process::Command::new("fortio")
            .args(["load", "-h"])
            .output()
        else {
            eprintln!("skipped: fortio is not here");
            return;
        };
        let text = [told.stdout, told.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let flags = text.lines().filter_map(|line| line.strip_prefix("  -"));
        let mut count = 0;
        for flag in flags {
            let mut words = flag.split_whitespace();
            let name = words.next().unwrap_or_default();
            // A flag without a value has its description on the next line, or after a tab.
            let valued = flag
                .split('\t')
                .next()
                .is_some_and(|head| head.trim() != name);
            let found = FLAGS.iter().find(|(known, _)| *known == name);
            let (_, taken) = found.unwrap_or_else(|| panic!("-{name} is not known"));
            let switch = matches!(
                taken,
                Taken::Switch | Taken::NoSwitch | Taken::RefusedSwitch(_)
            );
            assert_eq!(switch, !valued, "-{name}: {flag}");
            count += 1;
        }
        assert!(count > 80, "{count} flags: {text}");
    }
}
