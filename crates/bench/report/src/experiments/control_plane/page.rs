//! Page of a control plane's record: the table with a column for each size of the mesh, bars of the figures, and curves along
//! each property that alone differs between sizes.

use std::fmt::Write as _;

use super::growth::{GROWING, ISTIOD};
use super::{ControlPlaneRecord, Size, row, shown};
use crate::html;
use crate::page::{begin, end, table, words};
use crate::plots::plot::Plot;
use crate::record::Estimate;
use crate::side_record::SideRecord;
use crate::svg::{Frame, PlotPoint, Scale, Series, lines};
use crate::words::escape;

/// Dimension of a curve, and the mesh's size along it.
type Along = (&'static str, fn(&Size) -> f64);
const ALONG: [Along; 4] = [
    ("services", |size| f64::from(size.services)),
    ("workloads", |size| f64::from(size.workloads)),
    ("proxies", |size| f64::from(size.proxies)),
    ("changes a second", |size| size.churn),
];

impl ControlPlaneRecord {
    pub(super) fn title(&self) -> &'static str {
        match (self.sidecars, self.nodes) {
            (0, 0) => "Cost of a control plane",
            (0, _) => "A node proxy with many pods",
            _ => "Cost of many sidecars",
        }
    }

    /// Along each measure in which sizes of the mesh differ.
    pub(super) fn curves(&self) -> Vec<Plot> {
        ALONG.iter().flat_map(|along| self.along(*along)).collect()
    }

    /// A plot for each figure that meshes have which differ in this alone.
    fn along(&self, (name, amount): Along) -> Vec<Plot> {
        let (own, all) = (self.own_size(), self.all_sizes());
        let alike = |size: &&Size| {
            let mut others = ALONG.iter().filter(|(other, _)| *other != name);
            others.all(|(_, of)| (of(size) - of(&own)).abs() < f64::EPSILON)
        };
        let sizes: Vec<&Size> = all.iter().filter(alike).collect();
        let plot = |(key, title): &(&str, &str)| {
            let mut unit = "";
            let mut points: Vec<PlotPoint> = sizes
                .iter()
                .filter_map(|size| {
                    let figure = size.figure(key)?;
                    unit = &figure.unit;
                    Some(PlotPoint {
                        x: amount(size),
                        y: Estimate {
                            median: figure.seen,
                            low: None,
                            high: None,
                            rounds: 1,
                        },
                        invalid: false,
                    })
                })
                .collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            (points.len() > 1).then(|| {
                let title = format!("{title}, by {name}");
                let frame = Frame {
                    title: &title,
                    across: name,
                    x: Scale::Linear,
                    y: Scale::Linear,
                    show: shower(unit),
                    joined: true,
                    each: true,
                };
                let series = Series {
                    label: "voile control".to_owned(),
                    class: "c-voile",
                    dash: 0,
                    points,
                };
                let svg = lines(&frame, &[series], &[]);
                Plot::new(key, title, svg)
            })
        };
        GROWING.iter().filter_map(plot).collect()
    }

    /// The page.
    pub(super) fn page(&self) -> String {
        let mut page = begin(self.title(), &self.head);
        let mut lead = self.mesh() + ".\n";
        if self.sidecars == 0 && self.nodes == 0 {
            lead = lead + ISTIOD + "\n";
        }
        words(&mut page, &(lead + &self.growth_in_words()));
        page.push_str("<h2>Figures</h2>\n");
        let rows: Vec<Vec<String>> = self
            .figures
            .iter()
            .map(|figure| row(figure).iter().map(|cell| escape(cell)).collect())
            .collect();
        table(&mut page, &["figure", "asked", "seen", ""], &rows);
        if !self.sizes.is_empty() {
            self.sizes_table(&mut page);
        }
        html::draw(&mut page, &self.plots());
        end(&mut page, &self.head, self.file());
        page
    }

    fn sizes_table(&self, page: &mut String) {
        // Writing into a String cannot fail.
        let _ = writeln!(page, "<h2>By size of the mesh</h2>");
        let all = self.all_sizes();
        let titles: Vec<String> = all.iter().map(Size::title).collect();
        let mut headings = vec!["figure"];
        headings.extend(titles.iter().map(String::as_str));
        let rows = GROWING.iter().map(|(key, title)| {
            let seen = all.iter().map(|size| {
                let figure = size.figure(key);
                figure.map_or_else(|| "–".to_owned(), |figure| shown(figure.seen, &figure.unit))
            });
            std::iter::once((*title).to_owned()).chain(seen).collect()
        });
        table(page, &headings, &rows.collect::<Vec<_>>());
    }
}

/// Formatter of the values of a unit.
pub(super) fn shower(unit: &str) -> fn(f64) -> String {
    match unit {
        "ms" => |value| shown(value, "ms"),
        "s" => |value| shown(value, "s"),
        "µs" => |value| shown(value, "µs"),
        "cores" => |value| shown(value, "cores"),
        "MB" => |value| shown(value, "MB"),
        _ => |value| shown(value, ""),
    }
}
