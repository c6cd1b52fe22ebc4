//! Every flag that `fortio load -h` names, and its treatment: as an option of ours, as a flag without effect, or refused with an
//! alternative. A test asks Fortio itself, if it is installed.

/// Treatment of a Fortio flag.
#[derive(Debug, Clone, Copy)]
pub(super) enum FlagHandling {
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
const SERVER: &str = "belongs to Fortio's server; use `voile echo`";
const CURL: &str = "belongs to `fortio curl`; use curl";

/// Fortio's flags: all that `fortio load -h` of version 1.66 names, and the further ones of 1.75.2. Any other flag is refused,
/// too.
pub(super) const FLAGS: &[(&str, FlagHandling)] = &[
    ("qps", FlagHandling::Value),
    ("t", FlagHandling::Value),
    ("n", FlagHandling::Value),
    ("c", FlagHandling::As("--connections")),
    ("s", FlagHandling::As("--streams")),
    ("H", FlagHandling::As("--header")),
    ("X", FlagHandling::As("--method")),
    ("payload", FlagHandling::Value),
    ("payload-size", FlagHandling::Value),
    ("payload-file", FlagHandling::Value),
    ("content-type", FlagHandling::Value),
    ("user", FlagHandling::Value),
    ("timeout", FlagHandling::Value),
    ("udp-timeout", FlagHandling::Value),
    ("connection-reuse", FlagHandling::As("--connection-reuse")),
    ("cacert", FlagHandling::As("--cacert")),
    ("cert", FlagHandling::As("--cert")),
    ("key", FlagHandling::As("--key")),
    ("labels", FlagHandling::Value),
    ("runid", FlagHandling::Value),
    ("p", FlagHandling::Value),
    ("r", FlagHandling::Value),
    ("offset", FlagHandling::Value),
    ("json", FlagHandling::Value),
    ("data-dir", FlagHandling::Value),
    ("resolve", FlagHandling::As("--resolve")),
    ("resolve-ip-type", FlagHandling::As("--resolve")),
    ("dns-method", FlagHandling::Value),
    ("abort-on", FlagHandling::Value),
    ("healthservice", FlagHandling::Value),
    ("grpc-ping-delay", FlagHandling::Value),
    ("grpc-method", FlagHandling::Value),
    ("gomaxprocs", FlagHandling::Value),
    ("loglevel", FlagHandling::Nothing),
    ("uniform", FlagHandling::Switch),
    ("nocatchup", FlagHandling::Switch),
    ("keepalive", FlagHandling::Switch),
    ("k", FlagHandling::Switch),
    ("https-insecure", FlagHandling::Switch),
    ("h2", FlagHandling::Switch),
    ("http1.0", FlagHandling::Switch),
    ("grpc", FlagHandling::Switch),
    ("ping", FlagHandling::Switch),
    ("compression", FlagHandling::Switch),
    ("calc-qps", FlagHandling::Switch),
    ("a", FlagHandling::Switch),
    ("quiet", FlagHandling::NoSwitch),
    // Buffers grow with their contents; `Connection: close` is always looked for; a name is resolved once; nothing is logged by
    // request.
    ("httpbufferkb", FlagHandling::Nothing),
    ("maxpayloadsizekb", FlagHandling::Nothing),
    ("httpccch", FlagHandling::NoSwitch),
    ("no-reresolve", FlagHandling::NoSwitch),
    ("log-errors", FlagHandling::NoSwitch),
    ("logger-file-line", FlagHandling::NoSwitch),
    ("logger-force-color", FlagHandling::NoSwitch),
    ("logger-goroutine", FlagHandling::NoSwitch),
    ("logger-json", FlagHandling::NoSwitch),
    ("logger-no-color", FlagHandling::NoSwitch),
    ("logger-timestamp", FlagHandling::NoSwitch),
    ("allow-initial-errors", FlagHandling::Switch),
    // Connections are opened before the start, and one that cannot be is an error of the request that needs it.
    ("sequential-warmup", FlagHandling::NoSwitch),
    // There is one client here, and it speaks HTTP/2 where -h2 asks for it.
    ("stdclient", FlagHandling::NoSwitch),
    (
        "jitter",
        FlagHandling::RefusedSwitch(
            "use -uniform to spread connections evenly, or `voile load --arrival poisson` for random times",
        ),
    ),
    (
        "L",
        FlagHandling::RefusedSwitch(
            "redirects are not followed; a redirect is a response (`voile load --expect-status 302`)",
        ),
    ),
    (
        "halfclose",
        FlagHandling::RefusedSwitch("half-close is not supported"),
    ),
    (
        "grpc-compression",
        FlagHandling::RefusedSwitch("message compression is not supported"),
    ),
    (
        "unix-socket",
        FlagHandling::Refused("only TCP and UDP are supported"),
    ),
    (
        "access-log-file",
        FlagHandling::Refused(
            "requests are not logged; `voile load -o json --interval 10ms` has a histogram of every 10 ms",
        ),
    ),
    (
        "access-log-format",
        FlagHandling::Refused("requests are not logged; see -access-log-file"),
    ),
    (
        "profile",
        FlagHandling::Refused("not supported; use `perf record`"),
    ),
    ("M", FlagHandling::Refused(SERVER)),
    (
        "P",
        FlagHandling::Refused("belongs to Fortio's proxies; use `voile relay`"),
    ),
    ("base-url", FlagHandling::Refused(SERVER)),
    ("config-dir", FlagHandling::Refused(SERVER)),
    ("config-port", FlagHandling::Refused(SERVER)),
    ("echo-debug-path", FlagHandling::Refused(SERVER)),
    ("echo-server-default-params", FlagHandling::Refused(SERVER)),
    ("grpc-max-streams", FlagHandling::Refused(SERVER)),
    ("grpc-port", FlagHandling::Refused(SERVER)),
    ("http-port", FlagHandling::Refused(SERVER)),
    ("max-echo-delay", FlagHandling::Refused(SERVER)),
    (
        "mtls",
        FlagHandling::RefusedSwitch(
            "belongs to Fortio's server; for a client certificate use -cert and -key",
        ),
    ),
    ("multi-mirror-origin", FlagHandling::RefusedSwitch(SERVER)),
    ("multi-serial-mode", FlagHandling::RefusedSwitch(SERVER)),
    ("pprof", FlagHandling::RefusedSwitch(SERVER)),
    ("proxy-all-headers", FlagHandling::RefusedSwitch(SERVER)),
    ("redirect-port", FlagHandling::Refused(SERVER)),
    ("server-idle-timeout", FlagHandling::Refused(SERVER)),
    ("static-dir", FlagHandling::Refused(SERVER)),
    ("sync", FlagHandling::Refused(SERVER)),
    ("sync-interval", FlagHandling::Refused(SERVER)),
    ("tcp-port", FlagHandling::Refused(SERVER)),
    ("udp-port", FlagHandling::Refused(SERVER)),
    ("udp-async", FlagHandling::RefusedSwitch(SERVER)),
    ("ui-path", FlagHandling::Refused(SERVER)),
    ("curl", FlagHandling::RefusedSwitch(CURL)),
    ("curl-stdout-headers", FlagHandling::RefusedSwitch(CURL)),
    ("stream", FlagHandling::RefusedSwitch(CURL)),
    (
        "init",
        FlagHandling::Refused("belongs to `fortio script`, which is not supported"),
    ),
    (
        "nc-dont-stop-on-eof",
        FlagHandling::RefusedSwitch("belongs to `fortio nc`"),
    ),
    (
        "health",
        FlagHandling::RefusedSwitch(
            "belongs to `fortio grpcping`; -grpc alone is the health check",
        ),
    ),
];

#[cfg(test)]
mod tests {
    use voile_testkit::prerequisites::{Prerequisite, program};

    use super::*;

    #[test]
    fn every_flag_of_fortio_load_is_known() {
        let Some(fortio) = program(Prerequisite::Fortio, "fortio") else {
            return;
        };
        let told = std::process::Command::new(fortio)
            .args(["load", "-h"])
            .output();
        let told = told.expect("fortio runs");
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
                FlagHandling::Switch | FlagHandling::NoSwitch | FlagHandling::RefusedSwitch(_)
            );
            assert_eq!(switch, !valued, "-{name}: {flag}");
            count += 1;
        }
        assert!(count > 80, "{count} flags: {text}");
    }
}
