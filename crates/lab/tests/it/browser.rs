//! Reports in a real browser: they render without a complaint, nothing overlaps or runs out of its frame, on a phone and on a
//! desk, in the light and in the dark, and they print. Skipped, with the reason, where there is no chromium.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Looked for on PATH, in this order.
const NAMES: [&str; 2] = ["chromium", "chromium-browser"];

/// Appended to a copy of the page: what is wrong with it, one line each, as the page's last element.
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
    let reports = ["speed-mtls", "speed-core", "speed-idle-2", "aa-3"];
    let mut pages: Vec<(&str, String)> = reports
        .into_iter()
        .map(|name| (name, voile_report::html::render(&read(name))))
        .collect();
    let (first, second) = (read("speed-core"), read("speed-core-2"));
    let compared = voile_report::compare::page(&first, &second).expect("comparable");
    pages.push(("compare", compared));
    let history = voile_report::history::history(&[first, second, read("speed-mtls")]);
    pages.push(("history", history.page()));
    pages
}

#[test]
fn pages_render_print_and_fit_a_phone() {
    let Some(program) = chromium() else {
        eprintln!("skipped: no chromium here to show reports in");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().join("home");
    for (name, page) in pages() {
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
        &folder.path().join("speed-mtls.html"),
    );
    let printed = std::fs::read(&pdf).expect("it is printed");
    assert!(printed.starts_with(b"%PDF") && printed.len() > 20_000);
}
