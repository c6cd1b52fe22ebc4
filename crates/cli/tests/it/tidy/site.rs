//! The pages as a site of mdBook: links that leave docs/, and all links of a site that a real mdBook has made.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use voile_testkit::prerequisites::{Prerequisite, peer, program};

/// A chapter of a book after `scripts/site-links`.
fn converted(python: &Path, repository: Option<&str>, content: &str) -> String {
    let mut child = Command::new(python)
        .arg(super::root().join("scripts/site-links"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python starts");
    let settings = repository.map_or(json!({}), |address| json!({ "repository": address }));
    let book = json!([
        { "config": { "preprocessor": { "site-links": settings } } },
        { "items": ["Separator", { "Chapter": {
            "path": "guides/ambient.md", "content": "", "sub_items": [
                { "Chapter": { "path": "reference/node.md", "content": content, "sub_items": [] } }
            ],
        } }] },
    ]);
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin
        .write_all(book.to_string().as_bytes())
        .expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let book: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let chapter = &book["items"][1]["Chapter"]["sub_items"][0]["Chapter"];
    chapter["content"].as_str().expect("its text").to_owned()
}

#[test]
fn links_out_of_docs_lead_to_the_repository_or_become_text() {
    let Some(python) = program(Prerequisite::Python, "python3") else {
        return;
    };
    let address = "https://example.com/voile";
    for (content, as_text, as_link) in [
        (
            "[a](../../deploy/x#y) b",
            "a b",
            "[a](https://example.com/voile/deploy/x#y) b",
        ),
        (
            "[`a` [b]](../../x.md)",
            "`a` [b]",
            "[`a` [b]](https://example.com/voile/x.md)",
        ),
        (
            "[a](../x.md) [b](README.md#y) [c](../x/README.md)",
            "[a](../x.md) [b](index.md#y) [c](../x/index.md)",
            "[a](../x.md) [b](index.md#y) [c](../x/index.md)",
        ),
        (
            "[a](#b) [c](https://d.example/../..)",
            "[a](#b) [c](https://d.example/../..)",
            "[a](#b) [c](https://d.example/../..)",
        ),
        (
            "![a](../results/b.svg)",
            "![a](../results/b.svg)",
            "![a](../results/b.svg)",
        ),
    ] {
        assert_eq!(converted(&python, None, content), as_text, "{content}");
        assert_eq!(
            converted(&python, Some(address), content),
            as_link,
            "{content}"
        );
    }
}

/// The values of an attribute.
fn attributes<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!(" {name}=\"");
    let parts = page.split(&begin).skip(1);
    let values = parts.filter_map(|part| part.split('"').next());
    values.collect()
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn a_real_mdbook_makes_a_site_without_dead_links() {
    let Some(mdbook) = peer(Prerequisite::Mdbook, "MDBOOK", "mdbook") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(mdbook)
        .arg("build")
        .arg(super::root().join("docs"))
        .arg("--dest-dir")
        .arg(folder.path())
        .output()
        .expect("mdbook starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let complaints = ["WARN", "ERROR"];
    assert!(!complaints.iter().any(|word| said.contains(word)), "{said}");
    let mut pages = BTreeMap::new();
    let mut folders = vec![folder.path().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "html") {
                let text = std::fs::read_to_string(&path).expect("a page");
                pages.insert(path, text);
            }
        }
    }
    let ids: BTreeMap<_, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, page)| (path, attributes(page, "id").into_iter().collect()))
        .collect();
    let (mut checked, mut dead) = (0, BTreeSet::new());
    for (path, page) in &pages {
        // It is for any address that does not exist.
        if path.ends_with("404.html") {
            continue;
        }
        for link in attributes(page, "href")
            .into_iter()
            .chain(attributes(page, "src"))
        {
            if link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:") {
                continue;
            }
            checked += 1;
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => plain(&path.parent().expect("a folder").join(file)),
            };
            let has_fragment =
                fragment.is_empty() || ids.get(&target).is_some_and(|ids| ids.contains(fragment));
            if !target.is_file() || !has_fragment {
                let page = path.strip_prefix(folder.path()).expect("below");
                dead.insert(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(checked > 1000, "{checked} links were found");
    assert!(dead.is_empty(), "{} of {checked}: {dead:#?}", dead.len());
}
