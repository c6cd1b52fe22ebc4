//! The steps of the measurement, one figure or a few each.

use std::time::{Duration, Instant};

use voile_host::child::Spec;
use voile_report::record::Record;

use super::READ_A_SECOND;
use super::config_folder::Folder;
use super::crowd::{CertificationResult, ProxyCrowd, Report};
use super::steps::{MeasurementState, now_ns};

/// Rest between single changes, so that each is the first after a quiet.
const REST: Duration = Duration::from_millis(300);
/// Connections on which certificates are asked for all the time: enough that the authority never waits for us.
const CERTIFY_CONNECTIONS: u32 = 32;
/// Work that it does by itself is over when it uses less than this share of a core for so long; it is not waited for longer.
const QUIET_FOR: Duration = Duration::from_millis(500);
const QUIET_SHARE: f64 = 0.05;
const QUIET_LOOKS: u32 = 60;
/// Certificates that a core is to sign in a second.
const SIGNED_A_CORE: f64 = 2000.0;

impl MeasurementState<'_> {
    /// All steps; of another size than the record's own only those that tell growth.
    pub(super) fn all(&mut self, record: &mut Record) -> Result<(), String> {
        self.progress.next();
        self.progress.say("starting the control plane");
        let took = self.start_control()?;
        record
            .add("start", "until ready", (took, "s"), Some(1.0))
            .key("start");
        let held = self.held()?;
        let seen = (megabytes(held.rss_bytes), "MB");
        record
            .add("memory", "RSS, no proxies", seen, None)
            .key("rss-alone");
        self.progress.next();
        self.connect(record)?;
        self.progress.next();
        self.one_endpoint(record)?;
        self.progress.next();
        self.policy(record)?;
        self.progress.next();
        self.churn(record, false)?;
        if self.own {
            self.progress.next();
            self.churn(record, true)?;
            self.progress.next();
            self.certificates(record)?;
        }
        let held = self.held()?;
        let what = format!("RSS, {} proxies, after all of it", self.size.proxies);
        let seen = (megabytes(held.rss_bytes), "MB");
        record.add("memory", &what, seen, self.size.asked(150.0));
        self.progress.next();
        self.killed(record)
    }

    fn connect(&mut self, record: &mut Record) -> Result<(), String> {
        let proxies = self.size.proxies;
        self.progress
            .say(&format!("connecting {proxies} simulated proxies"));
        let before = self.used()?;
        let spec = Spec::new("voile crowd", &self.settings.voile)
            .arg("crowd")
            .arg("--config")
            .arg(&self.folder.path)
            .arg("--state")
            .arg(self.scratch.join("state"))
            .args(["--control", &format!("https://{}", self.tls)])
            .args(["--proxies", &proxies.to_string()])
            .args(["--services", &self.settings.used.to_string()])
            .args(["--shared", "1"]);
        let since = now_ns();
        let objects = self.size.services + self.size.workloads + proxies;
        let more = Duration::from_secs_f64(f64::from(objects) / READ_A_SECOND);
        self.crowd = Some(ProxyCrowd::start(
            spec,
            &self.scratch,
            more * 10,
            self.stopped,
        )?);
        self.until_synced(since)?;
        let used = self.used()?.since(before).cpu_ns as f64 / f64::from(proxies);
        let held = self.held()?;
        record.add("connecting", "CPU of a proxy", (used / 1e3, "µs"), None);
        let what = format!("RSS, {proxies} proxies, in sync");
        record
            .add(
                "memory",
                &what,
                (megabytes(held.rss_bytes), "MB"),
                self.size.asked(150.0),
            )
            .key("rss");
        Ok(())
    }

    /// Single changes of a workload that stands behind the service that all use.
    fn one_endpoint(&mut self, record: &mut Record) -> Result<(), String> {
        let all = self.settings.changes;
        self.crowd()?.clear()?;
        let before = self.used()?;
        for change in 1..=all {
            self.progress
                .say(&format!("one endpoint changes, {change}/{all}"));
            self.change(Folder::SHARED)?;
            self.until_reached()?;
            self.rest(REST)?;
        }
        let used = self.used()?.since(before).cpu_ns as f64;
        let report = self.crowd()?.report()?;
        let what = "one endpoint changes that all use";
        let asked = (self.size.asked(50.0), self.size.asked(100.0));
        told(record, what, &report, asked, "one-p99");
        let pushes = report.updates.max(1) as f64;
        record.add(
            what,
            "CPU of a push, all included",
            (used / 1e3 / pushes, "µs"),
            self.size.asked(20.0),
        );
        let seen = (used / 1e6 / f64::from(all), "ms");
        record
            .add(what, "CPU of a change", seen, None)
            .key("one-cpu");
        Ok(())
    }

    fn policy(&mut self, record: &mut Record) -> Result<(), String> {
        let all = self.settings.policy_changes;
        self.crowd()?.clear()?;
        let before = self.used()?;
        for change in 1..=all {
            self.progress
                .say(&format!("a policy changes that all obey, {change}/{all}"));
            let mark = self.folder.mark();
            let draft = self.folder.policy(mark)?;
            self.crowd()?.changed(mark, now_ns(), "*")?;
            draft.publish()?;
            self.until_reached()?;
            self.rest(REST)?;
        }
        let used = self.used()?.since(before).cpu_ns as f64;
        let report = self.crowd()?.report()?;
        let what = "a policy changes that all obey";
        let asked = (None, self.size.asked(500.0));
        told(record, what, &report, asked, "policy-p99");
        record.add(
            what,
            "CPU of a change",
            (used / 1e6 / f64::from(all.max(1)), "ms"),
            None,
        );
        Ok(())
    }

    /// Changes on a schedule, of workloads that stand behind any service, or behind the one that all use.
    fn churn(&mut self, record: &mut Record, shared: bool) -> Result<(), String> {
        let (rate, time) = (self.size.churn, self.settings.churn_time(self.own));
        let what = match shared {
            false => format!("{rate} changes a second for {time:?}"),
            true => format!("{rate} changes a second of what all use"),
        };
        self.progress.say(&what);
        self.crowd()?.clear()?;
        let (before, began) = (self.used()?, Instant::now());
        let number = (rate * time.as_secs_f64()) as u32;
        let mut late = Duration::ZERO;
        for change in 0..number {
            let due = began + Duration::from_secs_f64(f64::from(change) / rate);
            let wait = due.saturating_duration_since(Instant::now());
            match wait.is_zero() {
                true => late = late.max(Instant::now() - due),
                false => self.rest(wait)?,
            }
            self.go_on()?;
            let workload = match shared {
                true => Folder::SHARED,
                false => self.folder.any_apart(),
            };
            self.change(workload)?;
        }
        let window = began.elapsed();
        let used = self.used()?.since(before).cpu_ns as f64 / window.as_nanos() as f64;
        let end = self.crowd()?.report()?;
        let drained = Instant::now();
        self.until_reached()?;
        let drained = drained.elapsed();
        let report = self.crowd()?.report()?;
        let asked = |bound: f64| self.size.asked(bound).filter(|_| !shared);
        let key = |key: &'static str| if shared { "" } else { key };
        record
            .add(&what, "CPU", (used, "cores"), asked(0.2))
            .key(key("churn-cpu"));
        told(
            record,
            &what,
            &report,
            (None, asked(50.0)),
            key("churn-p99"),
        );
        let backlog = end.expected.saturating_sub(end.reached) as f64;
        let share = backlog / end.expected.max(1) as f64;
        record.add(
            &what,
            "not yet told when it ended",
            (share * 100.0, "%"),
            None,
        );
        record.add(
            &what,
            "until the last was told",
            (drained.as_secs_f64() * 1e3, "ms"),
            None,
        );
        record.add(&what, "responses", (report.updates as f64, ""), None);
        record.add(
            &what,
            "the latest edit was late by",
            (late.as_secs_f64() * 1e3, "ms"),
            None,
        );
        let held = self.held()?;
        record.add(&what, "RSS", (megabytes(held.rss_bytes), "MB"), None);
        Ok(())
    }

    /// The control plane is killed and started again.
    fn killed(&mut self, record: &mut Record) -> Result<(), String> {
        self.progress
            .say("the control plane is killed and started again");
        self.kill_control();
        let since = now_ns();
        let ready = self.start_control()?;
        let synced = self.until_synced(since)?;
        let what = "killed, and started again";
        record.add(what, "until ready", (ready, "s"), None);
        record.add(
            what,
            "until half are in sync",
            (synced.p50_ms / 1e3, "s"),
            None,
        );
        let seen = (synced.last_ms / 1e3, "s");
        record
            .add(what, "until all are in sync", seen, self.size.asked(5.0))
            .key("reconnected");
        Ok(())
    }

    /// Measures the highest rate of certificates, and a certificate for every proxy within a time.
    fn certificates(&mut self, record: &mut Record) -> Result<(), String> {
        let (time, rotation) = (self.settings.certify_for, self.settings.rotate_for);
        let proxies = self.size.proxies;
        if !time.is_zero() {
            self.progress.say("asking for certificates");
            let what = "certificates, by mutual TLS";
            let first = self.crowd()?.hold(proxies.min(CERTIFY_CONNECTIONS))?;
            refused(record, what, &first);
            self.until_quiet()?;
            let before = self.used()?;
            let done = self.crowd()?.certify(CERTIFY_CONNECTIONS, time)?;
            // The handshakes of those connections are in it, a few dozen beside thousands.
            let used = self.used()?.since(before).cpu_ns as f64 / 1e9;
            let each = done.certified as f64;
            let seen = (each / used.max(1e-9), "");
            record
                .add(
                    what,
                    "signed in a second of its CPU",
                    seen,
                    Some(SIGNED_A_CORE),
                )
                .at_least();
            record.add(what, "signed a second", (each / done.seconds, ""), None);
            asked(record, what, &done);
        }
        if !rotation.is_zero() {
            self.progress
                .say(&format!("{proxies} proxies get their first certificates"));
            let what = "first certificates, by tokens";
            let first = self.crowd()?.hold(proxies)?;
            asked(record, what, &first);
            self.progress
                .say(&format!("{proxies} proxies renew their certificates"));
            let what = format!("{proxies} proxies renew, each over a connection of its own");
            let before = self.used()?;
            let done = self.crowd()?.rotate(rotation)?;
            let used = self.used()?.since(before).cpu_ns as f64 / 1e9;
            record.add(&what, "all of them took", (done.seconds, "s"), None);
            record.add(&what, "CPU", (used, "s"), None);
            asked(record, &what, &done);
            let missing = f64::from(proxies) - done.asked as f64;
            record.add(
                &what,
                "proxies that had nothing to renew",
                (missing, ""),
                Some(0.0),
            );
            let synced = self.crowd()?.synced(0)?;
            let away = synced.proxies - synced.synced;
            record.add(
                &what,
                "proxies out of sync after it",
                (away as f64, ""),
                Some(0.0),
            );
        }
        Ok(())
    }

    /// Waits until the control plane has nothing left to do: after a storm it looks at the whole mesh once more.
    fn until_quiet(&mut self) -> Result<(), String> {
        for _ in 0..QUIET_LOOKS {
            let before = self.used()?;
            self.rest(QUIET_FOR)?;
            let used = self.used()?.since(before).cpu_ns as f64;
            if used < QUIET_FOR.as_nanos() as f64 * QUIET_SHARE {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Records the delays until all proxies were updated.
fn told(
    record: &mut Record,
    what: &str,
    report: &Report,
    (p50, p99): (Option<f64>, Option<f64>),
    key: &str,
) {
    record.add(what, "p50 until told", (report.p50_ms, "ms"), p50);
    record
        .add(what, "p99 until told", (report.p99_ms, "ms"), p99)
        .key(key);
    record.add(what, "the last told", (report.max_ms, "ms"), None);
}

/// Records the delays of certificates, and the number of failures.
fn asked(record: &mut Record, what: &str, done: &CertificationResult) {
    for (measure, seen) in [
        ("p50 of a request", done.p50_ms),
        ("p99 of a request", done.p99_ms),
        ("the slowest", done.max_ms),
    ] {
        record.add(what, measure, (seen, "ms"), None);
    }
    let failed = done.asked - done.certified;
    record.add(what, "requests", (done.asked as f64, ""), None);
    record.add(what, "failed requests", (failed as f64, ""), Some(0.0));
    refused(record, what, done);
}

/// Records the reasons of failed certificate requests.
fn refused(record: &mut Record, what: &str, done: &CertificationResult) {
    for why in &done.failures {
        record.notes.push(format!("{what}: {why}"));
    }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
