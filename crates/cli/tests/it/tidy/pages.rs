//! Pages that must tell the truth: ARCHITECTURE.md's table of arrows, the two commands that README promises, and the options of
//! `voile proxy`.

use std::collections::BTreeSet;

fn page(name: &str) -> String {
    std::fs::read_to_string(super::root().join(name))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn architecture_lists_every_crate_with_its_arrows() {
    let edges = super::layers::normal_edges(&super::metadata());
    let ours = |name: &&String| name.starts_with("voile-");
    let mut expected = BTreeSet::new();
    for (package, dependencies) in edges.iter().filter(|(name, _)| name.starts_with("voile")) {
        let short = |name: &str| name.strip_prefix("voile-").unwrap_or("cli").to_owned();
        let arrows: Vec<String> = dependencies
            .iter()
            .filter(ours)
            .map(|name| short(name))
            .collect();
        let arrows = if arrows.is_empty() {
            "none".to_owned()
        } else {
            arrows.join(", ")
        };
        expected.insert(format!("| `{}` | {arrows} |", short(package)));
    }
    let architecture = page("ARCHITECTURE.md");
    let drawn: BTreeSet<String> = architecture
        .lines()
        .filter(|line| line.starts_with("| `") && line.matches('|').count() == 3)
        .map(str::to_owned)
        .collect();
    let missing: Vec<_> = expected.difference(&drawn).collect();
    let stale: Vec<_> = drawn.difference(&expected).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "ARCHITECTURE.md's table of arrows\nmissing: {missing:#?}\nstale: {stale:#?}"
    );
}

#[test]
fn readme_and_ci_run_the_same_commands() {
    let readme = page("README.md");
    for command in [
        "cargo run --release -- bench quick",
        "cargo test",
        "cargo run --release -- up examples/bookstore",
    ] {
        assert!(
            readme.contains(command),
            "README.md no longer says `{command}`"
        );
    }
    let ci = page(".ci/run");
    assert!(
        ci.lines().any(|line| line == "cargo test"),
        ".ci/run runs README's test command"
    );
}

#[test]
fn the_page_on_the_proxy_shows_its_help() {
    const PAGE: &str = "docs/reference/proxy.md";
    const BEGIN: &str = "```text\n";
    let output = crate::mesh::Process::output(|voile| {
        voile.args(["proxy", "--help"]);
    });
    let help = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
    let help = lines.join("\n");
    let text = page(PAGE);
    let (before, rest) = text.split_once(BEGIN).expect("a place for it");
    let (shown, after) = rest.split_once("\n```\n").expect("its end");
    if std::env::var_os("VOILE_BLESS").is_some() {
        let blessed = [before, BEGIN, &help, "\n```\n", after].concat();
        return std::fs::write(super::root().join(PAGE), blessed).expect("written");
    }
    assert_eq!(shown, help, "VOILE_BLESS=1 cargo test -p voile pages");
}
