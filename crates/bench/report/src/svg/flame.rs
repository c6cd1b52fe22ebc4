//! Flame graphs: stacks of functions over the share of samples that they have, outermost at the bottom. Letters appear where
//! they fit; every frame has its name and share as a title.

use std::fmt::Write as _;

use crate::profile::Flame;
use crate::words::escape;

const WIDE: f64 = 1000.0;
const ROW: f64 = 17.0;
/// About what a letter of 11 units takes.
const LETTER: f64 = 7.0;
/// Narrower frames are not drawn.
const THINNEST: f64 = 0.8;
/// Letters worth drawing.
const FEWEST_LETTERS: usize = 3;

/// A function in the place that its callers give it.
#[derive(Default)]
struct FlameNode {
    name: u32,
    samples: u64,
    calls: Vec<FlameNode>,
}

impl FlameNode {
    fn add(&mut self, stack: &[u32], samples: u64) {
        self.samples += samples;
        let Some((first, rest)) = stack.split_first() else {
            return;
        };
        let at = match self.calls.iter().position(|node| node.name == *first) {
            Some(at) => at,
            None => {
                self.calls.push(Self {
                    name: *first,
                    ..Self::default()
                });
                self.calls.len() - 1
            }
        };
        self.calls[at].add(rest, samples);
    }

    fn depth(&self, unit: f64) -> usize {
        let drawn = self
            .calls
            .iter()
            .filter(|call| call.samples as f64 * unit >= THINNEST);
        1 + drawn.map(|call| call.depth(unit)).max().unwrap_or(0)
    }
}

/// Draws it.
pub(crate) fn flame(title: &str, flame: &Flame) -> String {
    let mut root = FlameNode::default();
    for stack in &flame.stacks {
        root.add(&stack.functions, stack.samples);
    }
    let unit = WIDE / root.samples.max(1) as f64;
    let rows = root.depth(unit);
    let height = rows as f64 * ROW + 4.0;
    let mut svg = format!(
        r#"<svg class="flame" viewBox="0 0 {WIDE} {height:.0}" role="img" aria-label="{0}" xmlns="http://www.w3.org/2000/svg"><title>{0}</title>"#,
        escape(title)
    );
    let all = FlameDrawing {
        flame,
        unit,
        floor: height - 2.0,
        all: root.samples.max(1) as f64,
    };
    all.frame(&mut svg, &root, "all", 0.0, 0);
    all.calls(&mut svg, &root, 0.0, 1);
    svg.push_str("</svg>");
    svg
}

struct FlameDrawing<'a> {
    flame: &'a Flame,
    unit: f64,
    floor: f64,
    all: f64,
}

impl FlameDrawing<'_> {
    fn calls(&self, svg: &mut String, node: &FlameNode, mut x: f64, row: usize) {
        let mut calls: Vec<(&str, &FlameNode)> = node
            .calls
            .iter()
            .map(|call| {
                let name = self.flame.frames.get(call.name as usize);
                (name.map_or("?", String::as_str), call)
            })
            .collect();
        calls.sort_by_key(|(name, _)| *name);
        for (name, call) in calls {
            let width = call.samples as f64 * self.unit;
            if width >= THINNEST {
                self.frame(svg, call, name, x, row);
                self.calls(svg, call, x, row + 1);
            }
            x += width;
        }
    }

    fn frame(&self, svg: &mut String, node: &FlameNode, name: &str, x: f64, row: usize) {
        let width = node.samples as f64 * self.unit;
        let y = self.floor - (row + 1) as f64 * ROW;
        let share = node.samples as f64 / self.all * 100.0;
        let _ = write!(
            svg,
            r#"<g><title>{} ({} samples, {share:.1} %)</title><rect x="{x:.1}" y="{y:.1}" width="{:.1}" height="{:.1}" rx="1" fill="{}"/>"#,
            escape(name),
            node.samples,
            (width - 0.4).max(0.3),
            ROW - 1.0,
            colour(name)
        );
        let letters = ((width - 6.0) / LETTER).max(0.0) as usize;
        if letters >= FEWEST_LETTERS {
            let _ = write!(
                svg,
                r##"<text x="{:.1}" y="{:.1}" font-size="11" fill="#111">{}</text>"##,
                x + 3.0,
                y + ROW - 5.0,
                escape(&fitting(name, letters))
            );
        }
        svg.push_str("</g>");
    }
}

/// As much of a name as fits. For a path of modules the end is the most useful part.
fn fitting(name: &str, letters: usize) -> String {
    let count = name.chars().count();
    if count <= letters {
        return name.to_owned();
    }
    let last = name.rsplit("::").next().unwrap_or(name);
    let kept: String = last.chars().take(letters.saturating_sub(1)).collect();
    if last.chars().count() <= letters {
        last.to_owned()
    } else {
        format!("{kept}…")
    }
}

/// Warm for programs, cool for the kernel; the same name has the same colour everywhere.
fn colour(name: &str) -> String {
    let hash = name.bytes().fold(2_166_136_261_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    });
    let within = |width: u32| hash % width;
    match name.ends_with("_[k]") {
        true => format!("hsl({},45%,{}%)", 195 + within(25), 68 + within(12)),
        false => format!("hsl({},75%,{}%)", 18 + within(35), 62 + within(12)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_is_as_wide_as_its_share_and_names_do_not_become_markup() {
        let stack = |text: &str| text.split(';').map(str::to_owned).collect::<Vec<_>>();
        let stacks = (0..4).map(|n| stack(if n == 0 { "main;a<b>" } else { "main;c_[k]" }));
        let svg = flame("a \"title\"", &Flame::of("server", stacks));
        assert!(svg.contains("a&lt;b&gt; (1 samples, 25.0 %)"), "{svg}");
        assert!(
            svg.contains("main (4 samples, 100.0 %)") && svg.contains("width=\"749.6\""),
            "{svg}"
        );
        assert_eq!(svg.matches("<rect").count(), 4, "all, main and two");
        assert!(!flame("nothing", &Flame::default()).contains("NaN"));
    }
}
