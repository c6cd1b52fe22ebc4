//! Growth of figures with the mesh. Compares each of several sizes with the smallest, and reports if the growth is linear or
//! better.

use std::fmt::Write as _;

use super::{ControlPlaneRecord, Figure, Size};
use crate::words::ratio;

/// Above the growth of the mesh by this factor it is no longer called linear: figures of one run shake.
const ROOM: f64 = 1.1;
/// Published needs of istiod, shown beside ours.
pub(super) const ISTIOD: &str = "istiod, as published for 1,000 services and 2,000 proxies: 1 vCPU and 1.5 GB, and convergence in seconds. \
     Other machines, and a load test of 70,000 requests a second beside it.";

/// A key of figures in the words of a reader, and how they are called in plots.
pub(super) const GROWING: [(&str, &str); 9] = [
    ("start", "until ready"),
    ("rss-alone", "RSS without proxies"),
    ("rss", "RSS with all proxies"),
    ("one-p99", "one endpoint changes that all use, p99"),
    ("one-cpu", "CPU of such a change"),
    ("policy-p99", "a policy for all, p99"),
    ("churn-cpu", "CPU under churn"),
    ("churn-p99", "churn, p99"),
    ("reconnected", "killed, until all are in sync"),
];

/// One figure of two meshes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Growth {
    pub(super) title: &'static str,
    /// The larger by the smaller.
    pub(super) times: f64,
    /// True if the figure grows as the mesh, or less.
    pub(super) linear: bool,
}

impl Size {
    /// Number of objects in the mesh: services, workloads and proxies.
    fn objects(&self) -> u64 {
        u64::from(self.services) + u64::from(self.workloads) + u64::from(self.proxies)
    }

    pub(super) fn figure(&self, key: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.key == key)
    }

    /// In words.
    pub(super) fn title(&self) -> String {
        format!(
            "{} services, {} workloads, {} proxies, {} changes a second",
            self.services, self.workloads, self.proxies, self.churn
        )
    }
}

impl ControlPlaneRecord {
    /// The mesh of the record as one of its sizes.
    pub(super) fn own_size(&self) -> Size {
        Size {
            services: self.services,
            workloads: self.workloads,
            proxies: self.proxies,
            churn: self.churn,
            figures: self.figures.clone(),
        }
    }

    /// The record's own size and the others, the smallest first.
    pub(super) fn all_sizes(&self) -> Vec<Size> {
        let mut all = self.sizes.clone();
        all.push(self.own_size());
        all.sort_by(|a, b| {
            let by_churn = a.churn.total_cmp(&b.churn);
            a.objects().cmp(&b.objects()).then(by_churn)
        });
        all
    }

    /// The largest mesh beside the smallest.
    pub(super) fn growth(&self) -> Option<(Size, Size, Vec<Growth>)> {
        let all = self.all_sizes();
        let (small, large) = (all.first()?.clone(), all.last()?.clone());
        if small.objects() == large.objects() {
            return None;
        }
        let most = mesh_times(&small, &large).into_iter().fold(0.0, f64::max);
        let grown = GROWING.iter().filter_map(|(key, title)| {
            let (few, many) = (small.figure(key)?.seen, large.figure(key)?.seen);
            let times = (few > 0.0).then(|| many / few)?;
            Some(Growth {
                title,
                times,
                linear: times <= most * ROOM,
            })
        });
        let grown = grown.collect();
        Some((small, large, grown))
    }

    /// A sentence a line; empty for a single mesh.
    pub(super) fn growth_in_words(&self) -> String {
        let Some((small, large, grown)) = self.growth() else {
            return String::new();
        };
        let [services, workloads, proxies] = mesh_times(&small, &large).map(ratio);
        let mut text = format!(
            "From {} to {} ({services} the services, {workloads} the workloads, {proxies} the proxies):\n",
            small.title(),
            large.title()
        );
        for one in grown {
            let word = match one.linear {
                true => "linear or better",
                false => "MORE THAN LINEAR",
            };
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{}: {}, {word}", one.title, ratio(one.times));
        }
        text
    }
}

/// Ratios of the two sizes: services, workloads, proxies.
fn mesh_times(small: &Size, large: &Size) -> [f64; 3] {
    [
        (small.services, large.services),
        (small.workloads, large.workloads),
        (small.proxies, large.proxies),
    ]
    .map(|(few, many)| f64::from(many) / f64::from(few.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_beside_that_of_the_mesh_and_what_grows_faster_is_named() {
        let mut record = ControlPlaneRecord {
            services: 10_000,
            workloads: 50_000,
            proxies: 10_000,
            ..ControlPlaneRecord::default()
        };
        assert_eq!(record.growth_in_words(), "", "one mesh does not grow");
        let mut small = ControlPlaneRecord::default();
        for (record, start, rss) in [(&mut record, 5.0, 9_000.0), (&mut small, 0.2, 200.0)] {
            record
                .add("start", "until ready", (start, "s"), None)
                .key("start");
            record.add("memory", "RSS", (rss, "MB"), None).key("rss");
        }
        record.sizes.push(Size {
            services: 1_000,
            workloads: 2_000,
            proxies: 2_000,
            churn: 0.0,
            figures: small.figures,
        });
        let text = record.growth_in_words();
        assert!(
            text.contains("until ready: 25.00×, linear or better"),
            "{text}"
        );
        assert!(
            text.contains("RSS with all proxies: 45.00×, MORE THAN LINEAR"),
            "{text}"
        );
        let page = record.page();
        assert!(
            page.contains("istiod"),
            "a reader wants to know what others need"
        );
    }

    #[test]
    fn a_curve_is_drawn_along_what_alone_differs() {
        let mut record = ControlPlaneRecord {
            services: 1_000,
            workloads: 2_000,
            proxies: 2_000,
            churn: 100.0,
            ..ControlPlaneRecord::default()
        };
        record.add("memory", "RSS", (200.0, "MB"), None).key("rss");
        let own = record.all_sizes()[0].clone();
        let half = Size {
            proxies: 1_000,
            ..own.clone()
        };
        let both = Size {
            services: 500,
            workloads: 1_000,
            ..own
        };
        record.sizes = vec![half, both];
        let titles: Vec<String> = record
            .plots()
            .into_iter()
            .filter(|section| section.title == "Cost curves")
            .flat_map(|section| section.plots)
            .map(|plot| plot.title)
            .collect();
        assert_eq!(titles, ["RSS with all proxies, by proxies"]);
    }
}
