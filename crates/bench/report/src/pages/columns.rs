//! Columns of the tables, in the terminal and on the page. A table shows only columns with figures, so that saturation, bulk and
//! idle cells show their own figures, and no column is empty.

use crate::record::{Estimate, Record, Summary, ValueKind};
use crate::words::{bytes, core_share, duration, gigabits, micro, per_second, small_bytes};

/// One column.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    figure: &'static str,
    pub(crate) show: fn(f64) -> String,
    /// Only the page has room for it.
    page_only: bool,
    divided: ColumnDivision,
}

/// Condition for dividing a column by that of the other contestants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ColumnDivision {
    Always,
    /// Only without a measured baseline. With a baseline, the added latency is the better figure.
    WithoutBaseline,
    Never,
}

const fn column(title: &'static str, figure: &'static str, show: fn(f64) -> String) -> Column {
    Column {
        title,
        figure,
        show,
        page_only: false,
        divided: ColumnDivision::Always,
    }
}

static ALL: [Column; 21] = [
    Column {
        divided: ColumnDivision::WithoutBaseline,
        ..column("p50", "latency_us.p50", duration)
    },
    Column {
        page_only: true,
        divided: ColumnDivision::Never,
        ..column("p90", "latency_us.p90", duration)
    },
    Column {
        divided: ColumnDivision::WithoutBaseline,
        ..column("p99", "latency_us.p99", duration)
    },
    column("added p50", "added_us.p50", duration),
    column("added p99", "added_us.p99", duration),
    column("requests/s", "achieved_rps", per_second),
    Column {
        divided: ColumnDivision::Never,
        ..column("throughput", "gigabits_per_second", gigabits)
    },
    column("throughput/core", "gigabits_per_core", gigabits),
    column("CPU/request/proxy", "sidecar.cpu_us_per_request", duration),
    Column {
        page_only: true,
        divided: ColumnDivision::Never,
        ..column(
            "machine CPU/request",
            "machine_cpu_us_per_request",
            duration,
        )
    },
    Column {
        page_only: true,
        divided: ColumnDivision::Never,
        ..column(
            "user/request/proxy (sampled)",
            "sidecar.user_us_per_request_sampled",
            duration,
        )
    },
    Column {
        page_only: true,
        divided: ColumnDivision::Never,
        ..column(
            "kernel/request/proxy (sampled)",
            "sidecar.system_us_per_request_sampled",
            duration,
        )
    },
    Column {
        page_only: true,
        divided: ColumnDivision::Never,
        ..column(
            "machine's softirq/request (sampled)",
            "machine_softirq_us_per_request_sampled",
            duration,
        )
    },
    column("RSS/proxy", "sidecar.rss_bytes", bytes),
    Column {
        page_only: true,
        divided: ColumnDivision::Never,
        ..column("PSS/proxy", "sidecar.pss_bytes", bytes)
    },
    Column {
        page_only: true,
        divided: ColumnDivision::Never,
        ..column("heap and stacks/proxy", "sidecar.anonymous_bytes", bytes)
    },
    column("RSS/proxy, idle", "sidecar.idle_rss_bytes", bytes),
    column("CPU/proxy, idle", "sidecar.idle_cpu", core_share),
    column(
        "bytes/connection (PSS)",
        "sidecar.bytes_per_connection",
        small_bytes,
    ),
    Column {
        divided: ColumnDivision::Never,
        ..column(
            "anonymous bytes/connection",
            "sidecar.anonymous_bytes_per_connection",
            small_bytes,
        )
    },
    Column {
        page_only: true,
        divided: ColumnDivision::Never,
        ..column(
            "switches/request",
            "sidecar.ctx_switches_per_request",
            micro,
        )
    },
];

impl Column {
    /// Its figure of a cell. A rate that was asked for is no finding.
    pub(crate) fn of<'a>(&self, summary: &'a Summary) -> Option<&'a Estimate> {
        if self.figure == "achieved_rps" && summary.kind != ValueKind::Saturation {
            return None;
        }
        summary.figures.get(self.figure)
    }

    /// Its ratio to another contestant's.
    pub(crate) fn ratio<'a>(&self, summary: &'a Summary, against: &str) -> Option<&'a Estimate> {
        self.of(summary)?;
        summary.ratios.get(against)?.get(self.figure)
    }
}

/// Those that a record has something for.
pub(crate) fn columns(record: &Record, page: bool) -> Vec<&'static Column> {
    let shown = |column: &&Column| {
        let mut cells = record.summary.iter();
        (page || !column.page_only) && cells.any(|summary| column.of(summary).is_some())
    };
    ALL.iter().filter(shown).collect()
}

/// Those that Voile's cells are divided in.
pub(crate) fn divided(record: &Record) -> Vec<&'static Column> {
    let is_subtracted = record
        .summary
        .iter()
        .any(|summary| summary.figures.contains_key("added_us.p50"));
    let shown = |column: &&Column| {
        let mut cells = record.summary.iter().filter(|s| s.contestant == "voile");
        let worth = match column.divided {
            ColumnDivision::Always => true,
            ColumnDivision::WithoutBaseline => !is_subtracted,
            ColumnDivision::Never => false,
        };
        worth
            && cells.any(|s| {
                let mut others = s.ratios.keys();
                others.any(|other| column.ratio(s, other).is_some())
            })
    };
    ALL.iter().filter(shown).collect()
}
