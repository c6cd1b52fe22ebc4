//! Plain words: type names that say what they are without their module, and prose whose sentences name their subject. `docs`
//! and every source are counted, so that neither creeps back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Definitions of one type name outside tests; beyond it, each needs its noun.
const MAX_SAME_NAME: usize = 4;

/// Sentences of 1,000 that may open with a pronoun clause in a noun's place ("What is sent is counted").
const MAX_OPENERS_PER_MILLE: usize = 20;

const OPENERS: &[&str] = &[
    "What",
    "Who",
    "Whom",
    "Whose",
    "Whoever",
    "Whatever",
    "Whichever",
    "Whether",
    "Where",
    "Wherever",
    "How",
];

/// Paths from the root, and texts, of all files of ours with this ending.
fn texts(ending: &str) -> Vec<(String, String)> {
    let root = super::root();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("the file can be read");
        let short = path.strip_prefix(&root).unwrap_or(&path);
        (short.to_string_lossy().into_owned(), text)
    };
    let ours = super::files_of(ending).into_iter().map(read);
    ours.filter(|(path, _)| !path.starts_with("docs/results"))
        .collect()
}

fn is_test(path: &str) -> bool {
    path.contains("/tests") || path.contains("testkit") || path.ends_with("tests.rs")
}

/// Names of structs, enums and traits that a text defines outside functions.
fn defined(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| !line.starts_with("        "));
    lines
        .filter_map(|line| {
            let mut words = line
                .split_whitespace()
                .skip_while(|word| word.starts_with("pub"));
            // `pub(in path)` is two words.
            let first = words
                .next()
                .filter(|word| !word.ends_with(')'))
                .or_else(|| words.next())?;
            let name = words
                .next()
                .filter(|_| ["struct", "enum", "trait"].contains(&first))?;
            let end = name.find(|byte: char| !byte.is_alphanumeric());
            Some(&name[..end.unwrap_or(name.len())])
        })
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn no_type_name_is_defined_more_often_than_readers_can_tell_apart() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in texts("rs").into_iter().filter(|(path, _)| !is_test(path)) {
        for name in defined(&text) {
            places
                .entry(name.to_owned())
                .or_default()
                .push(path.clone());
        }
    }
    assert!(places.len() > 1000, "types were found");
    let crowded: Vec<_> = places
        .iter()
        .filter(|(_, paths)| paths.len() > MAX_SAME_NAME)
        .collect();
    assert!(crowded.is_empty(), "{crowded:#?}");
}

/// Sentences of the comments or of the prose of a file.
fn sentences(path: &str, text: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    let mut fenced = false;
    for line in text.lines() {
        let prose = if Path::new(path)
            .extension()
            .is_some_and(|ending| ending == "rs")
        {
            line.trim_start()
                .strip_prefix("//")
                .map(|rest| rest.trim_start_matches(['/', '!']).trim())
        } else {
            fenced ^= line.starts_with("```");
            let skipped = fenced || line.starts_with(['|', '`', '#']) || line.trim().is_empty();
            (!skipped).then(|| line.trim_start_matches([' ', '-', '*', '>']))
        };
        match prose {
            Some(words) => {
                let block = blocks.last_mut().expect("one is there");
                block.push(' ');
                block.push_str(words);
            }
            None => blocks.push(String::new()),
        }
    }
    blocks
        .iter()
        .flat_map(|block| block.split_inclusive(". "))
        .map(|sentence| sentence.trim().to_owned())
        .filter(|sentence| sentence.split_whitespace().count() > 2)
        .collect()
}

fn opens_with_a_pronoun(sentence: &str) -> bool {
    let first = sentence.split_whitespace().next().unwrap_or_default();
    OPENERS.contains(&first) && !sentence.ends_with('?')
}

#[test]
fn sentences_open_with_their_subject() {
    let files = texts("rs").into_iter().chain(texts("md"));
    let all: Vec<(String, String)> = files
        .flat_map(|(path, text)| {
            let sentences = sentences(&path, &text);
            sentences
                .into_iter()
                .map(move |sentence| (path.clone(), sentence))
        })
        .collect();
    assert!(all.len() > 10_000, "sentences were found");
    let riddles: Vec<_> = all
        .iter()
        .filter(|(_, sentence)| opens_with_a_pronoun(sentence))
        .collect();
    let allowed = all.len() * MAX_OPENERS_PER_MILLE / 1000;
    assert!(
        riddles.len() <= allowed,
        "{} of {} sentences open so, {allowed} may: {riddles:#?}",
        riddles.len(),
        all.len()
    );
}
