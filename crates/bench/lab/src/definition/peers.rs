//! Feature sets of peers: the meaning of `envoy+demo`, and the sets that the lab can switch on in each program. The words are
//! Voile's, so that the same feature's cost can be compared.

/// Sets that each program has beside `default`.
const SETS: [(&str, &[&str]); 3] = [
    (
        "envoy",
        &[
            "no-metrics",
            "detection",
            "access-log",
            "access-log-json",
            "access-log-grpc",
            "tracing",
            "tracing-1",
            "demo",
            "out-of-process",
            "round-robin",
            "least-request",
        ],
    ),
    ("nginx", &["access-log", "access-log-json"]),
    ("haproxy", &["access-log"]),
];

/// Destination and format of an access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessLog {
    /// Istio's text, into a file.
    Text,
    /// Istio's fields as JSON, into a file.
    Json,
    /// To a gRPC access log service.
    Service,
}

/// Features that are switched on in a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PeerFeatures {
    /// The contestant's name: `envoy`, or `envoy+demo`.
    pub(crate) contestant: String,
    pub(crate) log: Option<AccessLog>,
    /// Percent of requests whose spans are sent.
    pub(crate) sampling: Option<u8>,
    /// Ports say nothing of their protocol.
    pub(crate) detection: bool,
    /// Statistics are off.
    pub(crate) quiet: bool,
    /// Load balancing policy, in Envoy's word; none is Envoy's default.
    pub(crate) balancer: Option<&'static str>,
    /// The server's side asks a service about every request.
    pub(crate) asks: bool,
}

impl PeerFeatures {
    /// The program of a contestant, and its features.
    pub(crate) fn of(contestant: &str) -> Result<(&str, Self), String> {
        let (program, set) = contestant
            .split_once('+')
            .unwrap_or((contestant, "default"));
        if set != "default" && !has(program, set) {
            return Err(format!(
                "the lab has no configuration of {program} for feature set {set}"
            ));
        }
        let mut features = Self {
            contestant: contestant.to_owned(),
            ..Self::default()
        };
        match set {
            "no-metrics" => features.quiet = true,
            "detection" => features.detection = true,
            "access-log" => features.log = Some(AccessLog::Text),
            "access-log-json" => features.log = Some(AccessLog::Json),
            "access-log-grpc" => features.log = Some(AccessLog::Service),
            "tracing" => features.sampling = Some(100),
            "tracing-1" => features.sampling = Some(1),
            "demo" => {
                features.log = Some(AccessLog::Text);
                features.sampling = Some(100);
            }
            "round-robin" => features.balancer = Some("ROUND_ROBIN"),
            "least-request" => features.balancer = Some("LEAST_REQUEST"),
            "out-of-process" => {
                features.log = Some(AccessLog::Service);
                features.asks = true;
            }
            _ => {}
        }
        Ok((program, features))
    }

    /// Returns true if log entries or spans go to a collector.
    pub(crate) fn collects(&self) -> bool {
        self.sampling.is_some() || self.log == Some(AccessLog::Service) || self.asks
    }

    /// Features beside the defaults, in words; none if there are none.
    pub(crate) fn title(&self) -> Option<String> {
        let mut words = Vec::new();
        if self.quiet {
            words.push("statistics off".to_owned());
        }
        if self.detection {
            words.push("ports without a protocol: detection on".to_owned());
        }
        words.extend(
            self.balancer
                .map(|word| format!("load balancing by {word}")),
        );
        if self.asks {
            words.push("external authorization of every request over gRPC".to_owned());
        }
        words.extend(self.log.map(|log| {
            let how = match log {
                AccessLog::Text => "as text, into a file",
                AccessLog::Json => "as JSON, into a file",
                AccessLog::Service => "to a gRPC access log service",
            };
            format!("an access log of both sidecars, {how}")
        }));
        words.extend(self.sampling.map(|percent| match percent {
            100 => "spans of every request, over OTLP".to_owned(),
            percent => format!("spans of {percent} % of requests, over OTLP"),
        }));
        (!words.is_empty()).then(|| words.join("; "))
    }
}

/// Returns true if the lab can switch the feature set on in the program.
pub(super) fn has(program: &str, set: &str) -> bool {
    SETS.iter()
        .any(|(name, sets)| *name == program && sets.contains(&set))
}

#[cfg(test)]
mod tests {
    use super::super::features::FEATURES;
    use super::*;

    #[test]
    fn each_set_of_a_peer_is_one_of_voiles_and_changes_something() {
        for (program, sets) in SETS {
            for set in sets {
                assert!(FEATURES.contains(set), "{set}");
                let name = format!("{program}+{set}");
                let (base, features) = PeerFeatures::of(&name).expect("built");
                assert_eq!(
                    (base, features.contestant.as_str()),
                    (program, name.as_str())
                );
                assert!(features.title().is_some(), "{name}");
            }
            let (_, plain) = PeerFeatures::of(program).expect("itself");
            assert_eq!(plain.title(), None);
        }
        let no = PeerFeatures::of("haproxy+tracing").expect_err("none");
        assert!(no.contains("haproxy for feature set tracing"), "{no}");
    }
}
