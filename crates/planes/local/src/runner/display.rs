//! Output for people: events as they happen, and the live state, redrawn in place or line by line.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use voile_model::ResourceName;

use super::Runner;
use crate::edges::{Edge, EdgeEnds, Edges};
use crate::observer::{Observation, Page};
use crate::scrape::{ScrapedRates, TrafficCounters};
use crate::view::{self, Picture, Row, ServingProxy, TerminalView};

/// Between two redraws of the picture.
const REDRAW_EVERY: Duration = Duration::from_secs(1);
/// Between two summary lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Number of events kept for display.
const KEPT_EVENTS: usize = 50;

/// State of the last display.
pub(super) struct DisplayState {
    at: Instant,
    /// Of the picture.
    lines: usize,
    /// Last page of each pod.
    pages: BTreeMap<ResourceName, Page>,
}

/// Recent traffic of a workload.
#[derive(Default)]
struct WorkloadTraffic {
    served: TrafficCounters,
    /// The time in which it was served.
    span: Duration,
    /// Requests a second that it sends.
    sent: f64,
}

impl DisplayState {
    pub(super) fn nothing(now: Instant) -> Self {
        Self {
            at: now,
            lines: 0,
            pages: BTreeMap::new(),
        }
    }
}

impl Runner {
    pub(super) fn say(&self, text: &str) {
        let _ = writeln!(io::stderr(), "voile up: {text}");
    }

    pub(super) fn event(&mut self, text: &str) {
        if self.events.len() == KEPT_EVENTS {
            self.events.remove(0);
        }
        self.events.push(text.to_owned());
        if !self.draws() {
            self.say(text);
        }
    }

    /// Returns true if the live state is redrawn in place.
    pub(super) fn draws(&self) -> bool {
        self.was_ready && !self.options.quiet && !self.options.logs && io::stderr().is_terminal()
    }

    pub(super) fn show(&mut self, now: Instant) {
        let draws = self.draws();
        let every = if draws { REDRAW_EVERY } else { LINE_EVERY };
        if self.options.quiet || now.duration_since(self.shown.at) < every {
            return;
        }
        self.shown.at = now;
        let view = self.view();
        let pages = self.seen.iter();
        let pages = pages.filter_map(|(name, seen)| Some((name.clone(), seen.counters.clone()?)));
        self.shown.pages = pages.collect();
        if !draws {
            self.say(&view::line(&view));
            return;
        }
        let (width, height) =
            rustix::termios::tcgetwinsize(io::stderr()).map_or((80, 24), |size| {
                (
                    usize::from(size.ws_col).max(20),
                    usize::from(size.ws_row).max(5),
                )
            });
        let size = Picture {
            width,
            height: height - 1,
            colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        let picture = view::picture(&view, &size);
        let up = match self.shown.lines {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        };
        self.shown.lines = picture.lines().count();
        let _ = write!(io::stderr(), "{up}{picture}");
    }

    /// Returns all current problems, whenever they began.
    fn troubles(&self) -> Vec<String> {
        let errors = self.problems.iter().filter(|problem| problem.is_error());
        let mut all = self.acknowledged.troubles();
        all.extend(errors.map(ToString::to_string));
        let now = Instant::now();
        all.extend(self.pods.values().flat_map(|pod| pod.crash_loops(now)));
        all
    }

    /// Recent traffic by its ends, with the time in which it was counted; and all of it since the proxies started.
    fn traffic(&self) -> (BTreeMap<EdgeEnds, (Edge, Duration)>, Edges) {
        let mut recent: BTreeMap<EdgeEnds, (Edge, Duration)> = BTreeMap::new();
        let mut all = Edges::default();
        for (name, seen) in &self.seen {
            if let Some((_, page)) = &seen.counters {
                all.merge(page.clone());
            }
            let Some((news, time)) = seen.news(self.shown.pages.get(name)) else {
                continue;
            };
            for (ends, edge) in news.0 {
                let (sum, span) = recent.entry(ends).or_default();
                sum.merge(edge);
                *span = (*span).max(time);
            }
        }
        (recent, all)
    }

    pub(super) fn view(&self) -> TerminalView {
        let (recent, all) = self.traffic();
        let mut traffic: BTreeMap<&str, WorkloadTraffic> = BTreeMap::new();
        let mut edges: Vec<(EdgeEnds, ScrapedRates)> = Vec::new();
        for (ends, (edge, span)) in &recent {
            let counters = edge.counters();
            let figures = counters.over(*span);
            traffic.entry(&ends.source).or_default().sent += figures.rate;
            let served = traffic.entry(&ends.destination).or_default();
            served.served.add(&counters);
            served.span = served.span.max(*span);
            edges.push((ends.clone(), figures));
        }
        // By whole requests, so that edges of one rate keep their places.
        edges.sort_by(|(_, one), (_, other)| other.rate.round().total_cmp(&one.rate.round()));
        let totals = all.by_workload();
        let mut rows = self.rows();
        for row in rows.values_mut() {
            if let Some(of) = traffic.get(&*row.name) {
                row.figures = of.served.over(of.span);
                row.sent = of.sent;
            }
            let total = totals.get(&*row.name);
            row.total = total.map_or(0.0, |(served, _)| served.requests);
        }
        let control = match (self.controls_ready, self.controls.len()) {
            (0, _) => "not ready (the last configuration stays in force)".to_owned(),
            (ready, all) if ready == all => "running".to_owned(),
            (ready, all) => format!("running ({ready} of {all})"),
        };
        TerminalView {
            folder: self.options.folder.display().to_string(),
            uptime: self.started.elapsed(),
            control,
            services: self.mesh.services.len(),
            reach: self.reach.published(),
            troubles: self.troubles(),
            rows: rows.into_values().collect(),
            edges,
            events: self.events.clone(),
        }
    }

    /// Each workload by its name, without its traffic.
    fn rows(&self) -> BTreeMap<String, Row> {
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        let (nothing, now) = (Observation::default(), Instant::now());
        for (name, pod) in self.pods.iter().filter(|(_, pod)| !pod.is_over()) {
            let seen = self.seen.get(name).unwrap_or(&nothing);
            let key = format!("{}/{}", name.namespace, pod.plan.workload());
            let row = rows.entry(key.clone()).or_default();
            row.name = key;
            row.wanted += 1;
            let is_ready = pod.is_ready(seen) && self.has_acknowledged(name, pod, now);
            row.ready += usize::from(is_ready);
            row.restarts += pod.restarts();
            row.proxy = match pod.plan.sidecar {
                Some(_) => ServingProxy::Sidecar,
                None if self.plan.by_node && pod.plan.is_ambient() => ServingProxy::Node,
                None => ServingProxy::None,
            };
            if row.proxy != ServingProxy::None {
                let trust_domain = &self.mesh.config.trust_domain;
                let account = &pod.plan.template.service_account;
                row.identity =
                    format!("spiffe://{trust_domain}/ns/{}/sa/{account}", name.namespace);
            }
        }
        for refused in &self.plan.refused {
            let key = format!("{}/{}", refused.name.namespace, refused.workload());
            let row = rows.entry(key.clone()).or_default();
            row.name = key;
            row.wanted += 1;
            row.refused += 1;
        }
        rows
    }
}
