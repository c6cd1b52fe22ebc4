//! Finds the known word that a mistyped one probably means.

/// A word is near enough when so many letters of it, at most, differ: one in three.
const LETTERS_PER_MISTAKE: usize = 3;

/// `; did you mean "both"?`, or nothing.
pub(super) fn meant<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let nearest = known
        .into_iter()
        .map(|known| (distance(word, known), known))
        .min();
    match nearest {
        Some((apart, known)) if apart <= word.chars().count().div_ceil(LETTERS_PER_MISTAKE) => {
            format!("; did you mean \"{known}\"?")
        }
        _ => String::new(),
    }
}

/// Required fields of a definition, each with an example.
const REQUIRED: [(&str, &str); 11] = [
    ("rounds", "rounds = 9"),
    ("slice", "slice = \"1.1s\""),
    ("warmup", "warmup = \"300ms\""),
    ("load", "[load] with rate, connections, size and protocol"),
    ("rate", "rate = 1000, requests per second"),
    ("connections", "connections = 16"),
    ("size", "size = 1024, bytes of an answer"),
    ("protocol", "protocol = \"http1\" (http2, grpc, tcp)"),
    ("proxy", "[proxy] with workers = 2"),
    ("workers", "workers = 2, threads of every proxy"),
    ("cells", "[[cells]] with contestants and modes"),
];

/// Extends serde's message about an unknown field by the most similar known one; serde lists the known fields in backticks.
/// Extends a message about a missing field by an example of its value.
pub(super) fn field(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    match quoted.next() {
        Some(word) if message.starts_with("unknown field") => {
            format!("{message}{}", meant(word, quoted))
        }
        Some(word) if message.starts_with("missing field") => {
            match REQUIRED.iter().find(|(name, _)| *name == word) {
                Some((_, example)) => format!("{message}; such as {example}"),
                None => message.to_owned(),
            }
        }
        _ => message.to_owned(),
    }
}

/// Letters to be put in, taken out or changed (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in to.iter().enumerate() {
            let change = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = change.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_probably_meant_is_named_and_nothing_else() {
        for (word, expected) in [
            ("bth", "; did you mean \"both\"?"),
            ("boht", "; did you mean \"both\"?"),
            ("clientonyl", "; did you mean \"clientonly\"?"),
            ("waypoint", ""),
            ("", ""),
        ] {
            assert_eq!(meant(word, ["both", "clientonly"]), expected, "{word}");
        }
        assert_eq!(meant("both", []), "");
        let said = "unknown field `rouds`, expected one of `name`, `rounds`";
        assert_eq!(field(said), format!("{said}; did you mean \"rounds\"?"));
        let said = field("missing field `rounds`");
        assert_eq!(said, "missing field `rounds`; such as rounds = 9");
        assert_eq!(field("missing field `at`"), "missing field `at`");
    }
}
