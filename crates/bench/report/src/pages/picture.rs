//! Plots as files of their own. An SVG file carries its colours, for light and for dark; a PNG is drawn on white with a font
//! that is part of the program, so that it has letters on a machine without any.

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};

use crate::svg::WIDTH;

/// Pixels of a PNG for each unit of a plot: sharp on paper and on dense screens.
const PIXELS: f32 = 2.0;
/// Room for a plot's title in a file of its own.
const HEADING: f64 = 26.0;

/// Name of a colour, and its values in the light (and on paper) and in the dark.
type Colour = (&'static str, &'static str, &'static str);

const PALETTE: [Colour; 19] = [
    ("paper", "#fff", "#12161d"),
    ("ink", "#1c2330", "#e6eaf0"),
    ("soft", "#5b6576", "#9aa5b5"),
    ("rule", "#dde1e8", "#2b3340"),
    ("card", "#f7f8fa", "#1a202a"),
    ("voile", "#1f6feb", "#5b9bff"),
    ("envoy", "#c2550c", "#f0883e"),
    ("nginx", "#8250a8", "#b58ad6"),
    ("haproxy", "#b3246b", "#f778ba"),
    ("relay", "#7a8594", "#8e99a8"),
    ("baseline", "#3b8a5a", "#57b37f"),
    ("other", "#0a7d91", "#3fc1d6"),
    ("other1", "#9a6700", "#d9a521"),
    ("other2", "#5a3ec8", "#a08cff"),
    ("other3", "#4d7c0f", "#9bc53d"),
    ("other4", "#8a4b32", "#d19a80"),
    ("bad", "#b42318", "#ff7b72"),
    ("good", "#1a7f4b", "#56d08c"),
    ("shade", "#eef1f5", "#222a36"),
];

/// Classes that fill and stroke with the colour of their name.
const CONTESTANTS: [&str; 11] = [
    "voile", "envoy", "nginx", "haproxy", "relay", "baseline", "other", "other1", "other2",
    "other3", "other4",
];

/// CSS rules of plots for all colour schemes.
pub(crate) const RULES: &str = "\
svg text{font-family:system-ui,-apple-system,\"Segoe UI\",Roboto,\"DejaVu Sans\",sans-serif;font-size:13px;fill:var(--ink)}\
svg .a{font-size:12px;fill:var(--soft)}\n\
.w{stroke:var(--ink);stroke-width:1.5;fill:none}.g{stroke:var(--rule);fill:none}.one{stroke:var(--soft);stroke-dasharray:4 3}\n\
.x{stroke:var(--bad);stroke-width:1.5;fill:none}\n";

/// Rules that must win over the colours of contestants, and the colours of paper.
pub(crate) const ON_PAPER: &str = "\
.line{fill:none;stroke-width:2}.i{fill:none;stroke-width:1.2;stroke-opacity:.75}\
.d1{stroke-dasharray:6 3}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:8 3 2 3}\n\
@media print{html{font-size:10px}body{max-width:none;padding:0;font-size:11px}.scroll{overflow:visible}table{font-size:8.5px}\
th,td{padding:.2rem .25rem}td:first-child{white-space:normal}figure{border:1px solid var(--rule)}}\n";

/// The colours as custom properties, for light and dark, and the classes that use them.
pub(crate) fn palette() -> String {
    let all = |pick: fn(&Colour) -> &'static str| {
        PALETTE.iter().fold(String::new(), |mut text, colour| {
            let _ = write!(text, "--{}:{};", colour.0, pick(colour));
            text
        })
    };
    format!(
        ":root{{{}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}\n{}",
        all(|colour| colour.1),
        all(|colour| colour.2),
        classes()
    )
}

fn classes() -> String {
    CONTESTANTS.iter().fold(String::new(), |mut text, name| {
        let _ = write!(text, ".c-{name}{{fill:var(--{name});stroke:var(--{name})}}");
        text
    })
}

/// A plot as an SVG file: its colours follow the reader's, light or dark.
#[must_use]
pub fn svg_file(plot: &str) -> String {
    let light = rules(|colour| colour.1);
    let dark = rules(|colour| colour.2);
    whole(
        plot,
        &format!("{light}@media (prefers-color-scheme:dark){{{dark}}}"),
    )
}

/// A plot as a PNG file, on white.
///
/// # Errors
/// When the drawing is none: a mistake of ours.
pub fn png(plot: &str) -> Result<Vec<u8>, String> {
    let text = whole(plot, &rules(|colour| colour.1));
    let options = Options {
        fontdb: fonts(),
        ..Options::default()
    };
    let tree = Tree::from_str(&text, &options).map_err(|e| format!("drawing a plot: {e}"))?;
    let size = tree.size();
    let pixels = |units: f32| (units * PIXELS).ceil() as u32;
    let mut pixmap = Pixmap::new(pixels(size.width()), pixels(size.height()))
        .ok_or("drawing a plot: it has no size")?;
    resvg::render(
        &tree,
        Transform::from_scale(PIXELS, PIXELS),
        &mut pixmap.as_mut(),
    );
    pixmap
        .encode_png()
        .map_err(|e| format!("writing a plot: {e}"))
}

/// Our own font only, so that a plot looks the same on every machine.
fn fonts() -> Arc<Database> {
    static FONTS: OnceLock<Arc<Database>> = OnceLock::new();
    let read = || {
        let mut fonts = Database::new();
        fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
        let family = fonts.faces().next().and_then(|face| face.families.first());
        if let Some(name) = family.map(|(name, _)| name.clone()) {
            fonts.set_sans_serif_family(name);
        }
        Arc::new(fonts)
    };
    FONTS.get_or_init(read).clone()
}

/// The rules of a plot with the colours in their places: programs that draw SVG know no custom properties.
fn rules(pick: fn(&Colour) -> &'static str) -> String {
    let own = ON_PAPER.lines().next().unwrap_or_default();
    let mut rules = format!(".paper{{fill:var(--paper)}}{RULES}{}{own}", classes());
    for colour in &PALETTE {
        rules = rules.replace(&format!("var(--{})", colour.0), pick(colour));
    }
    rules.replace('\n', "")
}

/// The plot with its own size, colours, ground and heading.
fn whole(plot: &str, style: &str) -> String {
    let between = |from: &str, to: &str| {
        let (_, rest) = plot.split_once(from)?;
        Some(rest.split_once(to)?.0)
    };
    let height = between("viewBox=\"0 0 460 ", "\"").and_then(|height| height.parse().ok());
    let title = between("<title>", "</title>").unwrap_or_default();
    let height: f64 = height.unwrap_or(260.0) + HEADING;
    let (_, inside) = plot.split_once('>').unwrap_or(("", plot));
    // Long headings are set narrower, not cut.
    let letters = title.chars().count() as f64;
    let size = ((WIDTH - 16.0) / (letters.max(1.0) * 0.54)).clamp(8.0, 13.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 -{HEADING} {WIDTH} {height:.0}\" \
         role=\"img\" aria-label=\"{title}\"><style>{style}</style>\
         <rect y=\"-{HEADING}\" width=\"{WIDTH}\" height=\"{height:.0}\" class=\"paper\"/>\
         <text x=\"8\" y=\"-8\" style=\"font-size:{size:.1}px\">{title}</text>{inside}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_size_its_colours_and_no_custom_property() {
        let file = svg_file(
            "<svg viewBox=\"0 0 460 120\" role=\"img\"><title>t</title><path class=\"c-envoy\"/></svg>",
        );
        for part in [
            "xmlns=",
            "width=\"460\" height=\"146\"",
            "#c2550c",
            "#f0883e",
            "class=\"paper\"",
            "<title>t</title>",
        ] {
            assert!(file.contains(part), "{part}: {file}");
        }
        assert!(!file.contains("var("), "{file}");
    }

    /// Two plots that differ in one word only: the word is drawn, with no font but ours.
    #[test]
    fn a_png_has_letters() {
        let plot = |word: &str| {
            let svg = format!(
                "<svg viewBox=\"0 0 460 40\"><text x=\"20\" y=\"20\" class=\"a\">{word}</text></svg>"
            );
            let png = png(&svg).expect("it is drawn");
            assert!(png.starts_with(b"\x89PNG"));
            Pixmap::decode_png(&png).expect("a picture")
        };
        let dark = |picture: &Pixmap| {
            let dark = picture.pixels().iter().filter(|pixel| pixel.red() < 160);
            dark.count()
        };
        let (none, some) = (plot(""), plot("12 µs × ≤ – mTLS"));
        assert_eq!((none.width(), none.height()), (920, 132));
        assert_eq!(dark(&none), 0);
        assert!(dark(&some) > 200, "{}", dark(&some));
    }

    #[test]
    fn every_colour_that_is_used_is_known() {
        let style = format!(
            "{}{RULES}{ON_PAPER}{}",
            palette(),
            include_str!("../page.css")
        );
        for used in style.split("var(--").skip(1) {
            let name = used.split(')').next().unwrap_or_default();
            assert!(
                PALETTE.iter().any(|colour| colour.0 == name),
                "--{name} is no colour"
            );
        }
    }
}
