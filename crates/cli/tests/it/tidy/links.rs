//! Links of pages: each relative link leads to a file that exists, and to a heading that it has; and every page of commands has a test.

use std::collections::BTreeSet;
use std::path::Path;

/// The links of a page, without those in code.
fn links(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    prose
        .flat_map(|line| {
            // Text between backticks is code.
            let parts = line.split('`').step_by(2);
            parts.flat_map(|part| part.split("](").skip(1))
        })
        .filter_map(|rest| rest.split(')').next())
        .collect()
}

/// The anchors of the headings of a page, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let headings = text.lines().filter(|line| {
        fenced ^= line.starts_with("```");
        !fenced && line.starts_with('#')
    });
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter_map(|letter| match letter {
                ' ' | '-' => Some('-'),
                _ => (letter.is_alphanumeric() || letter == '_').then_some(letter),
            });
            kept.collect()
        })
        .collect()
}

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let (mut checked, mut broken) = (0, Vec::new());
    for page in super::files_of("md") {
        let text = std::fs::read_to_string(&page).expect("the page can be read");
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().expect("a folder").join(file),
            };
            let has_anchor = || {
                let text = std::fs::read_to_string(&target).unwrap_or_default();
                anchors(&text).contains(anchor)
            };
            if !target.exists() || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(checked > 400, "{checked} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Commands of tutorials and guides are run by a test.
#[test]
fn every_tutorial_and_guide_is_run_by_a_test() {
    let sources = [
        "bench/pages.rs",
        "kubernetes/guides.rs",
        "kubernetes/beside_istio.rs",
        "up/guides.rs",
        "up/tutorial.rs",
        "commands/from_istio.rs",
    ];
    let folder = super::root().join("crates/cli/tests/it");
    let sources = sources.map(|name| std::fs::read_to_string(folder.join(name)).expect("a source"));
    for page in super::files_of("md") {
        let root = super::root();
        let page = page.strip_prefix(&root).expect("below the root");
        let has_commands = ["docs/tutorials", "docs/guides"].map(Path::new);
        if !page
            .parent()
            .is_some_and(|parent| has_commands.contains(&parent))
            || page.ends_with("README.md")
            || !std::fs::read_to_string(root.join(page)).is_ok_and(|text| text.contains("\n$ "))
        {
            continue;
        }
        let opened = format!("\"{}\"", page.display());
        assert!(
            sources.iter().any(|source| source.contains(&opened)),
            "{opened}"
        );
    }
}
