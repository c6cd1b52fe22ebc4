//! The metrics page: asks each worker for a copy of its counters, merges, adds what the process knows of itself.

use std::cell::RefCell;
use std::time::Duration;

use voile_model::mesh::telemetry::{Metric, TagOverride, TelemetrySide};
use voile_telemetry::{
    LabelChange, MetricFamily, MetricShape, ProcessFigures, Projection, Reporter, Scrape,
};
use voile_traffic::EndpointHealth;
use voile_xds::wire::Telemetry;

use crate::clock;
use crate::control::discovery::state::Control;
use crate::plan::SharedPart;
use crate::rate_limits::RateLimits;
use crate::registry::Findings;
use crate::worker::{AuthorizationFigures, Overload, ToWorker, TokenFigures, WorkerFigures};

/// Timeout of a worker's answer to a scrape; then the page goes out without it.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);

pub(in crate::control) async fn page(control: &RefCell<Control>) -> String {
    let asked = control.borrow().dispatcher.ask(ToWorker::Scrape);
    let mut scrape = Scrape::default();
    scrape.project(projection(&control.borrow()));
    let mut total = Totals::default();
    for receiver in asked {
        if let Ok(Ok(figures)) = tokio::time::timeout(SCRAPE_TIMEOUT, receiver).await {
            total.add(&figures);
            scrape.add(figures.snapshot);
        }
    }
    total.families(&mut scrape);
    for family in own(&control.borrow()) {
        scrape.family(family);
    }
    ProcessFigures::read()
        .families()
        .into_iter()
        .for_each(|family| scrape.family(family));
    scrape.render()
}

/// Changes of Istio's metrics by Telemetry's overrides.
fn projection(control: &Control) -> Projection {
    let mut projection = Projection::default();
    let Some(plan) = &control.published else {
        return projection;
    };
    let sides = [
        (TelemetrySide::Client, Reporter::Source),
        (TelemetrySide::Server, Reporter::Destination),
        (TelemetrySide::Server, Reporter::Waypoint),
    ];
    let told = &plan.telemetry;
    for (side, reporter) in sides {
        for (.., exposed) in Metric::NAMES {
            let shape = shape(&told.telemetry, side, exposed);
            projection.set(reporter, exposed, shape);
        }
    }
    let servers = plan.gateway.iter().flat_map(|gateway| &gateway.servers);
    for server in servers {
        let door = server.door.as_ref();
        let apart = door.and_then(|door| told.apart.get(door.telemetry?));
        for (apart, to) in apart.into_iter().zip(&server.way.services) {
            for (.., exposed) in Metric::NAMES {
                let shape = shape(apart, TelemetrySide::Server, exposed);
                projection.set_behind_waypoint(&to.service, exposed, shape);
            }
        }
    }
    projection
}

fn shape(told: &Telemetry, side: TelemetrySide, exposed: &str) -> MetricShape {
    let (off, tags) = told.metric(side, exposed);
    let label = |(name, change)| match change {
        TagOverride::Remove => (name, LabelChange::Remove),
        TagOverride::Set(value) => (name, LabelChange::Set(value)),
        TagOverride::Computed(attribute) => {
            (name, LabelChange::Value(attribute.to_string().into()))
        }
    };
    let labels = tags.into_iter().map(label).collect();
    MetricShape { off, labels }
}

#[derive(Default)]
struct Totals {
    connections: u64,
    accepted: u64,
    downstream: u64,
    upstream: u64,
    refused: u64,
    idle: u64,
    retries: u64,
    retries_over_budget: u64,
    mirrored: u64,
    mirrors_dropped: u64,
    outliers_ejected: u64,
    authorization: AuthorizationFigures,
    tokens: TokenFigures,
}

impl Totals {
    fn add(&mut self, figures: &WorkerFigures) {
        self.connections += figures.connections;
        self.accepted += figures.accepted;
        self.downstream += figures.handshake_failures_downstream;
        self.upstream += figures.handshake_failures_upstream;
        self.refused += figures.refused;
        self.idle += figures.idle_upstreams;
        self.retries += figures.retries;
        self.retries_over_budget += figures.retries_over_budget;
        self.mirrored += figures.mirrored;
        self.mirrors_dropped += figures.mirrors_dropped;
        self.outliers_ejected += figures.outliers_ejected;
        self.authorization.add(&figures.authorization);
        self.tokens.add(&figures.tokens);
    }

    fn families(&self, scrape: &mut Scrape) {
        let side = |name: &str| vec![("side", name.to_owned())];
        scrape.family(MetricFamily {
            name: "voile_tls_handshake_failures_total",
            kind: "counter",
            help: "Failed TLS handshakes, by side.",
            samples: vec![
                (side("downstream"), self.downstream as f64),
                (side("upstream"), self.upstream as f64),
            ],
        });
        self.authorization.families(scrape);
        self.tokens.families(scrape);
        let mut single = |name, kind, help, value: u64| {
            scrape.family(MetricFamily::single(name, kind, help, value as f64));
        };
        single(
            "voile_connections",
            "gauge",
            "Downstream connections open.",
            self.connections,
        );
        single(
            "voile_connections_accepted_total",
            "counter",
            "Downstream connections accepted.",
            self.accepted,
        );
        single(
            "voile_connections_refused_total",
            "counter",
            "Connections closed by policy.",
            self.refused,
        );
        single(
            "voile_upstream_idle_connections",
            "gauge",
            "Upstream connections kept for reuse.",
            self.idle,
        );
        single(
            "voile_retries_total",
            "counter",
            "Retries of requests, at another endpoint if there is one.",
            self.retries,
        );
        single(
            "voile_retries_over_budget_total",
            "counter",
            "Retries not made because the destination's retry budget was used up.",
            self.retries_over_budget,
        );
        single(
            "voile_mirrored_requests_total",
            "counter",
            "Copies of requests sent to mirror destinations.",
            self.mirrored,
        );
        single(
            "voile_mirrored_requests_dropped_total",
            "counter",
            "Copies not sent, because too many were in flight or the request was too large to buffer.",
            self.mirrors_dropped,
        );
        single(
            "voile_outliers_ejected_total",
            "counter",
            "Endpoints ejected by outlierDetection.",
            self.outliers_ejected,
        );
    }
}

impl AuthorizationFigures {
    fn add(&mut self, more: &Self) {
        self.allowed += more.allowed;
        self.denied += more.denied;
        self.revoked += more.revoked;
        self.longest_cut = self.longest_cut.max(more.longest_cut);
        self.audited += more.audited;
        self.would_allow += more.would_allow;
        self.would_deny += more.would_deny;
        self.would_ask += more.would_ask;
        self.asked.allowed += more.asked.allowed;
        self.asked.denied += more.asked.denied;
        self.asked.failed += more.asked.failed;
        self.asked.failed_open += more.asked.failed_open;
    }

    fn families(self, scrape: &mut Scrape) {
        let verdict = |word: &str| vec![("verdict", word.to_owned())];
        scrape.family(MetricFamily {
            name: "voile_authorization_total",
            kind: "counter",
            help: "Connections and requests by the verdict of AuthorizationPolicies; revoked: closed while in flight.",
            samples: vec![
                (verdict("allowed"), self.allowed as f64),
                (verdict("denied"), self.denied as f64),
                (verdict("revoked"), self.revoked as f64),
            ],
        });
        scrape.family(MetricFamily::single(
            "voile_authorization_audited_total",
            "counter",
            "Connections and requests that AuthorizationPolicies with AUDIT matched.",
            self.audited as f64,
        ));
        scrape.family(MetricFamily::single(
            "voile_authorization_longest_cut_seconds",
            "gauge",
            "Longest time from the arrival of a policy change to the end of a connection or request that it closed.",
            self.longest_cut.as_secs_f64(),
        ));
        scrape.family(MetricFamily {
            name: "voile_authorization_dry_run_total",
            kind: "counter",
            help: "Verdicts of AuthorizationPolicies in dry run.",
            samples: vec![
                (verdict("allowed"), self.would_allow as f64),
                (verdict("denied"), self.would_deny as f64),
                (verdict("asked"), self.would_ask as f64),
            ],
        });
        scrape.family(MetricFamily {
            name: "voile_authorization_asked_total",
            kind: "counter",
            help: "Verdicts of external authorization (CUSTOM policies); error and error_allowed: the service did not answer.",
            samples: vec![
                (verdict("allowed"), self.asked.allowed as f64),
                (verdict("denied"), self.asked.denied as f64),
                (verdict("error"), self.asked.failed as f64),
                (verdict("error_allowed"), self.asked.failed_open as f64),
            ],
        });
    }
}

impl TokenFigures {
    fn add(&mut self, more: &Self) {
        self.verified += more.verified;
        self.refused += more.refused;
        self.none += more.none;
    }

    fn families(self, scrape: &mut Scrape) {
        let verdict = |word: &str| vec![("verdict", word.to_owned())];
        scrape.family(MetricFamily {
            name: "voile_tokens_total",
            kind: "counter",
            help: "Requests under RequestAuthentications by the verdict on their token; none: no token.",
            samples: vec![
                (verdict("verified"), self.verified as f64),
                (verdict("refused"), self.refused as f64),
                (verdict("none"), self.none as f64),
            ],
        });
    }
}

fn own(control: &Control) -> Vec<MetricFamily> {
    let connected = control.client.state().borrow().connected;
    let ledger = control.dispatcher.ledger();
    let refused = |why: Overload| {
        let reason = vec![("reason", why.name().to_owned())];
        (reason, ledger.refused(why) as f64)
    };
    let mut families = vec![
        MetricFamily {
            name: "voile_requests_overload_total",
            kind: "counter",
            help: "Requests refused because of overload, by limit.",
            samples: Overload::ALL.map(refused).to_vec(),
        },
        MetricFamily::single(
            "voile_connections_shed_total",
            "counter",
            "Connections closed at once because a connection, memory or descriptor limit was reached.",
            control.dispatcher.shed.total() as f64,
        ),
        MetricFamily::single(
            "voile_control_plane_connected",
            "gauge",
            "Whether the stream to the control plane is open.",
            f64::from(u8::from(connected)),
        ),
    ];
    let rules = control
        .published
        .as_ref()
        .map_or(0, |plan| plan.token_rules());
    families.push(MetricFamily::single(
        "voile_token_rules",
        "gauge",
        "Rules of RequestAuthentications in force.",
        rules as f64,
    ));
    let out = control.shared().registry.health.out(clock::now());
    let out = out.into_iter();
    families.push(MetricFamily {
        name: "voile_outliers_out",
        kind: "gauge",
        help: "Endpoints currently ejected by outlierDetection, by cluster.",
        samples: out
            .map(|(cluster, count)| (vec![("cluster", cluster)], count as f64))
            .collect(),
    });
    families.extend(asked(&control.shared().registry.health.asked()));
    let limits = control.published.as_ref();
    let limits = limits.and_then(|plan| plan.rate_limits.as_ref());
    families.extend(limited(limits.map(|SharedPart(limits)| &**limits)));
    families.extend(followed(control));
    families.extend(control.recorders.families());
    families.extend(control.lookups.families(&control.shared().registry.names));
    families.extend(control.dns.iter().flat_map(|dns| dns.families()));
    families
}

/// Metrics of subscriptions that traffic needs.
fn followed(control: &Control) -> [MetricFamily; 4] {
    [
        MetricFamily::single(
            "voile_destinations",
            "gauge",
            "Original destinations whose configuration is held.",
            control.destinations.len() as f64,
        ),
        MetricFamily::single(
            "voile_strangers",
            "gauge",
            "Source addresses of plaintext callers that are looked up for metric labels.",
            control.strangers.len() as f64,
        ),
        MetricFamily::single(
            "voile_strangers_let_go_total",
            "counter",
            "Such addresses dropped because they were unused, or to make room for others.",
            control.strangers.let_go() as f64,
        ),
        MetricFamily::single(
            "voile_destinations_let_go_total",
            "counter",
            "Original destinations dropped because they were unused, or to make room for others.",
            control.destinations.let_go() as f64,
        ),
    ]
}

/// Metrics of HealthChecks.
fn asked(all: &[Findings]) -> [MetricFamily; 2] {
    let cluster = |one: &Findings| ("cluster", one.cluster.clone());
    let standings = |one: &Findings| {
        [
            EndpointHealth::Well,
            EndpointHealth::Unwell,
            EndpointHealth::Unasked,
        ]
        .map(|standing| {
            let like = one.endpoints.iter().filter(|(_, now, _)| *now == standing);
            let labels = vec![cluster(one), ("state", word(standing).to_owned())];
            (labels, like.count() as f64)
        })
    };
    let answers = |one: &Findings| {
        [("success", one.good), ("failure", one.bad)].map(|(result, count)| {
            let labels = vec![cluster(one), ("result", result.to_owned())];
            (labels, count as f64)
        })
    };
    [
        MetricFamily {
            name: "voile_health_check_endpoints",
            kind: "gauge",
            help: "Endpoints under HealthChecks, by cluster and health.",
            samples: all.iter().flat_map(standings).collect(),
        },
        MetricFamily {
            name: "voile_health_checks_total",
            kind: "counter",
            help: "Health checks, by cluster and result.",
            samples: all.iter().flat_map(answers).collect(),
        },
    ]
}

/// As Envoy calls it.
pub(in crate::control) fn word(standing: EndpointHealth) -> &'static str {
    match standing {
        EndpointHealth::Well => "healthy",
        EndpointHealth::Unwell => "unhealthy",
        EndpointHealth::Unasked => "unknown",
    }
}

/// Metrics of RateLimits.
fn limited(limits: Option<&RateLimits>) -> [MetricFamily; 2] {
    let family = |name, help, which: usize| MetricFamily {
        name,
        kind: "counter",
        help,
        samples: limits
            .into_iter()
            .flat_map(RateLimits::counted)
            .map(|(resource, rule, figures)| {
                let labels = vec![
                    ("rate_limit", resource.to_string()),
                    ("rule", rule.to_string()),
                ];
                (labels, figures[which] as f64)
            })
            .collect(),
    };
    [
        family(
            "voile_rate_limited_requests_total",
            "Requests answered 429 by a RateLimit, by resource and rule.",
            0,
        ),
        family(
            "voile_rate_limits_unanswered_total",
            "Requests for which the global rate limit service did not answer, by resource and rule.",
            1,
        ),
    ]
}
