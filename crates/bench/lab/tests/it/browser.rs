//! Reports in a real browser: they render without a complaint, nothing overlaps or runs out of its frame, on a phone and on a
//! desk, in the light and in the dark, and they print. Skipped, with the reason, where there is no chromium.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::json;
use voile_report::record::Record;
use voile_report::record::scene::SceneKind;
use voile_report::scenes;
use voile_testkit::prerequisites::{Prerequisite, require};

/// Looked for on PATH, in this order.
const NAMES: [&str; 2] = ["chromium", "chromium-browser"];

/// Script that is appended to a copy of the page. It lists the page's errors, one a line, as the page's last element.
const INSPECTION: &str = r#"<pre id="inspection"></pre><script>
const wrong = [];
for (const details of document.querySelectorAll('details')) details.open = true;
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
if (wide > 0) wrong.push(`the page is ${wide} px wider than the screen`);
for (const svg of document.querySelectorAll('figure svg')) {
  const frame = svg.getBoundingClientRect();
  const name = svg.getAttribute('aria-label');
  if (frame.width < 100 || frame.height < 20) wrong.push(`${name}: not drawn`);
  const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent);
  const boxes = texts.map(t => [t.textContent, t.getBoundingClientRect()]);
  for (const [word, box] of boxes)
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
      wrong.push(`${name}: "${word}" leaves its frame`);
  for (let a = 0; a < boxes.length; a++) for (let b = a + 1; b < boxes.length; b++) {
    const [one, other] = [boxes[a][1], boxes[b][1]];
    const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    if (across > 1 && down > 4) wrong.push(`${name}: "${boxes[a][0]}" and "${boxes[b][0]}" overlap`);
  }
}
for (const text of document.querySelectorAll('figure text')) {
  const ink = getComputedStyle(text).fill.match(/\d+/g).map(Number);
  const paper = getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number);
  const light = c => 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
  if (Math.abs(light(ink) - light(paper)) < 80) { wrong.push(`"${text.textContent}" cannot be read`); break; }
}
wrong.push(`plots: ${document.querySelectorAll('figure svg').length}`);
document.getElementById('inspection').textContent = wrong.join('\n');
</script>"#;

fn chromium() -> Option<&'static str> {
    NAMES.into_iter().find(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    })
}

fn browse(program: &str, home: &Path, arguments: &[&str], page: &Path) -> Output {
    Command::new(program)
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .args([
            "--enable-logging=stderr",
            "--log-level=0",
            "--virtual-time-budget=20000",
        ])
        .arg(format!("--user-data-dir={}", home.display()))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .output()
        .expect("the browser starts")
}

/// The pages that are looked at: reports of all kinds, a comparison, a history.
fn pages() -> Vec<(&'static str, String)> {
    let committed = super::records::committed();
    let read = |name: &str| {
        let from = committed
            .iter()
            .find(|path| path.display().to_string().ends_with(name))
            .expect("it is committed");
        let mut record = voile_lab::read(from).expect("it is read");
        voile_report::summarise::summarise(&mut record);
        record
    };
    let reports = ["speed-mtls-3", "speed-core", "speed-idle-5", "aa-3"];
    let mut pages: Vec<(&str, String)> = reports
        .into_iter()
        .map(|name| (name, voile_report::html::render(&read(name))))
        .collect();
    let (first, second) = (read("speed-core"), read("speed-core-2"));
    let compared = voile_report::compare::page(&first, &second).expect("comparable");
    pages.push(("compare", compared));
    pages.extend(scene_pages(&committed));
    let history = voile_report::history::history(&[first, second, read("speed-mtls-3")]);
    pages.push(("history", history.page()));
    pages
}

/// Pages of scenes: a committed record of each, and a made-up graph's: nineteen services, each with a long name.
fn scene_pages(committed: &[std::path::PathBuf]) -> Vec<(&'static str, String)> {
    let page = |kind: SceneKind| {
        let mut paths = committed.iter().map(|folder| folder.join(kind.file()));
        let record = match kind {
            SceneKind::Graph => graph(),
            _ => {
                let path = paths.find(|path| path.is_file());
                super::records::scene(kind, &path.expect("it is committed"))
            }
        };
        let (_, page) = scenes::drawings(&record).swap_remove(0);
        (kind.file().trim_end_matches(".json"), page)
    };
    SceneKind::ALL.map(page).into()
}

/// As the file of an older build.
fn graph() -> Record {
    let took = |us: f64| json!({"mean_us": us, "p50_us": us * 0.9, "p99_us": null});
    let mut slices = Vec::new();
    for round in 1..=8u32 {
        for mesh in [false, true] {
            let times = if mesh { 3.0 } else { 1.0 } * (1.0 + f64::from(round) / 50.0);
            let (mut services, mut edges) = (json!({}), json!({}));
            for number in 0..19u32 {
                let name = format!("a-service-with-a-long-name-{number}");
                let of = f64::from(number + 1) * times;
                edges[format!("svc-0-{number} → {name}")] =
                    json!({"calls": 400, "failed": 0, "took": took(of * 90.0)});
                services[name] = json!({
                    "requests": 400, "took": took(of * 100.0), "cpu_us": 40.0 * times,
                    "rss_bytes": 6e6, "sidecar_cpu_us": mesh.then_some(60.0),
                    "sidecar_rss_bytes": mesh.then_some(8e6),
                });
            }
            let reasons = if mesh && round == 3 {
                vec!["a <reason>"]
            } else {
                vec![]
            };
            slices.push(json!({
                "round": round, "mesh": mesh, "ok": 400, "p50_us": 900.0 * times,
                "p90_us": 1100.0 * times, "p99_us": 2500.0 * times, "machine_us": 2000.0 * times,
                "by_mutual_tls": mesh.then_some(7200), "services": services, "edges": edges,
                "cpu_us": {"service": 800.0, "sidecar": mesh.then_some(1500.0)},
                "memory_bytes": {"sidecar": mesh.then_some(7e6)}, "invalid_reasons": reasons,
            }));
        }
    }
    let file = json!({
        "format": 1, "graph": "made-up.yaml", "services": 19, "requests": 19.0, "depth": 3,
        "rate": 100.0, "connections": 8, "slices": slices,
        "picture": "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"60\"><text y=\"20\">#%\"</text></svg>",
    });
    let mut record = scenes::read(SceneKind::Graph, file).expect("a record");
    scenes::conclude(&mut record);
    record
}

#[test]
fn pages_render_print_and_fit_a_phone() {
    // Before the skip, so that a missing record fails without a browser, too.
    let pages = pages();
    let missing = format!("there is none of {}", NAMES.join(", "));
    let Some(program) = require(Prerequisite::Browser, chromium().ok_or(missing)) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().join("home");
    for (name, page) in pages {
        let page = page.replace("</body>", &format!("{INSPECTION}</body>"));
        let path = folder.path().join(format!("{name}.html"));
        std::fs::write(&path, page).expect("written");
        for (size, dark) in [
            ("--window-size=500,900", true),
            ("--window-size=1280,900", false),
        ] {
            let mut arguments = vec![size, "--dump-dom"];
            if dark {
                arguments.push("--blink-settings=preferredColorScheme=0");
            }
            let output = browse(program, &home, &arguments, &path);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("CONSOLE"), "{name}: {said}");
            let dom = String::from_utf8_lossy(&output.stdout);
            let found = dom.split("id=\"inspection\">").nth(1).unwrap_or_default();
            let found = found.split("</pre>").next().unwrap_or_default();
            let (wrong, plots) = found.rsplit_once("plots: ").unwrap_or((found, "0"));
            assert!(wrong.trim().is_empty(), "{name} {size}:\n{wrong}\n{said}");
            assert!(
                plots.parse().is_ok_and(|count: u32| count > 0),
                "{name}: {found}"
            );
        }
    }
    let pdf = folder.path().join("page.pdf");
    let to = format!("--print-to-pdf={}", pdf.display());
    browse(
        program,
        &home,
        &[&to],
        &folder.path().join("speed-mtls-3.html"),
    );
    let printed = std::fs::read(&pdf).expect("it is printed");
    assert!(printed.starts_with(b"%PDF") && printed.len() > 20_000);
}
