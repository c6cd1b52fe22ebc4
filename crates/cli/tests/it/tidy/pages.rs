//! Pages that must tell the truth: ARCHITECTURE.md's table of arrows, the two commands that README promises, the list of examples,
//! and the help of each command.

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
        ci.lines()
            .any(|line| line == r#"cargo test 2>&1 | tee "$work/tests""#),
        ".ci/run runs README's test command"
    );
}

/// Each folder has its row, and teaches the kinds that the row names.
#[test]
fn every_example_is_listed_with_what_it_has() {
    let folders = std::fs::read_dir(super::root().join("examples")).expect("examples");
    let folders: BTreeSet<String> = folders
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let list = page("examples/README.md");
    let rows = list.lines().filter_map(|line| line.strip_prefix("| ["));
    let mut listed = BTreeSet::new();
    for row in rows {
        let (name, rest) = row.split_once(']').expect("a link");
        listed.insert(name.to_owned());
        let kinds = rest.trim_end_matches([' ', '|']);
        let (_, kinds) = kinds.rsplit_once("| ").expect("its kinds");
        // Graphs are of isotope's kind alone.
        for kind in kinds.split(", ").filter(|kind| !kind.contains(' ')) {
            let folder = super::root().join("examples").join(name);
            let files = std::fs::read_dir(folder).expect("its files");
            let has = files
                .map(|entry| entry.expect("an entry").path())
                .any(|file| {
                    let text = std::fs::read_to_string(file).unwrap_or_default();
                    text.lines().any(|line| line == format!("kind: {kind}"))
                });
            assert!(has, "{name} has no {kind}");
        }
    }
    assert_eq!(listed, folders);
}

#[test]
fn the_page_on_the_proxy_shows_its_help() {
    const PAGE: &str = "docs/reference/proxy.md";
    const BEGIN: &str = "```text\n";
    let help = help(&["proxy", "--help"]);
    let text = page(PAGE);
    let (before, rest) = text.split_once(BEGIN).expect("a place for it");
    let (_, after) = rest.split_once("\n```\n").expect("its end");
    let expected = [before, BEGIN, &help, "\n```\n", after].concat();
    check_or_bless(PAGE, &text, &expected);
}

#[test]
fn the_page_on_the_command_line_shows_the_help_of_each_command() {
    const PAGE: &str = "docs/reference/cli.md";
    const BEGIN: &str = "## `voile`\n";
    let text = page(PAGE);
    let (before, _) = text.split_once(BEGIN).expect("a place for it");
    let mut expected = before.to_owned();
    let mut waiting = vec![Vec::<String>::new()];
    while let Some(command) = waiting.pop() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = help(&[&words[..], &["-h"]].concat());
        let name = [&["voile"], &words[..]].concat().join(" ");
        let level = "#".repeat(2 + usize::from(words.len() > 1));
        expected += &format!("{level} `{name}`\n\n```text\n{help}\n```\n\n");
        let mut commands = subcommands(&help);
        commands.retain(|name| name != "help");
        waiting.extend(commands.into_iter().rev().map(|name| {
            let mut longer = command.clone();
            longer.push(name);
            longer
        }));
    }
    check_or_bless(PAGE, &text, &format!("{}\n", expected.trim_end()));
}

/// The names of the commands in a help. The whole program's are in groups.
fn subcommands(help: &str) -> Vec<String> {
    let groups = ["Commands:", "Run:", "Inspect:", "Measure:", "Experts:"];
    let mut is_group = false;
    let mut names = Vec::new();
    for line in help.lines() {
        if !line.starts_with(' ') {
            is_group = groups.contains(&line) || (is_group && line.is_empty());
        } else if let Some(row) = line.strip_prefix("  ").filter(|_| is_group) {
            // A longer indentation continues the row before.
            names.extend(
                row.split(' ')
                    .next()
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned),
            );
        }
    }
    names
}

/// The output of a command that asks for help.
fn help(words: &[&str]) -> String {
    let output = crate::mesh::Process::output(|voile| {
        voile.args(words);
    });
    let help = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

fn check_or_bless(name: &str, text: &str, expected: &str) {
    if std::env::var_os("VOILE_BLESS").is_some() {
        return std::fs::write(super::root().join(name), expected).expect("written");
    }
    let difference = text
        .lines()
        .zip(expected.lines())
        .find(|(shown, printed)| shown != printed);
    assert!(
        text == expected,
        "VOILE_BLESS=1 cargo test -p voile pages: {difference:?}"
    );
}

#[test]
fn the_summary_of_the_site_has_every_page_of_docs_once() {
    let docs = super::root().join("docs");
    let summary = page("docs/SUMMARY.md");
    let links = summary.split("](").skip(1);
    let mut listed: Vec<&str> = links.filter_map(|link| link.split(')').next()).collect();
    listed.sort_unstable();
    let pages = super::files_of("md");
    let pages = pages
        .iter()
        .filter_map(|page| page.strip_prefix(&docs).ok());
    let pages = pages.map(|page| page.display().to_string());
    let mut pages: Vec<String> = pages.filter(|page| page != "SUMMARY.md").collect();
    pages.sort_unstable();
    assert_eq!(listed, pages);
}
