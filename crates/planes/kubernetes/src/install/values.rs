//! Values of the chart: its own, files laid over them, and single ones of the command line.

use serde_json::{Map, Value};

/// Single values of a command line, each `KEY=VALUE`.
#[derive(Debug, Clone, Default)]
pub struct Assignments {
    /// Those of `--set`: what looks like a number, true, false or null is one.
    pub values: Vec<String>,
    /// Those of `--set-string`, which are laid over the others: every value is a text.
    pub texts: Vec<String>,
}

impl From<Vec<String>> for Assignments {
    fn from(values: Vec<String>) -> Self {
        let texts = Vec::new();
        Self { values, texts }
    }
}

impl Assignments {
    /// Merges all of them into a map of values.
    ///
    /// # Errors
    /// One cannot be read. The reason names its option.
    pub(super) fn merge_into(&self, given: &mut Value) -> Result<(), String> {
        let options: [(&str, &[String], Scalar); 2] = [
            ("--set", &self.values, scalar),
            ("--set-string", &self.texts, |text| unescape(text).into()),
        ];
        for (option, assignments, scalar) in options {
            for one in assignments {
                let read = parse_assignments(one, scalar);
                merge(given, read.map_err(|reason| format!("{option}: {reason}"))?);
            }
        }
        Ok(())
    }
}

/// Reads a value that is neither a map nor a list.
type Scalar = fn(&str) -> Value;

/// Lays `above` over `below`, as Helm does: maps are merged, and null removes a key.
pub(super) fn overlay(below: &mut Value, above: Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (key, value) in above {
                match (value, below.get_mut(&key)) {
                    (Value::Null, _) => drop(below.remove(&key)),
                    (value @ Value::Object(_), Some(inner @ Value::Object(_))) => {
                        overlay(inner, value);
                    }
                    (value, _) => drop(below.insert(key, value)),
                }
            }
        }
        (below, above) => *below = above,
    }
}

/// Reads `a.b=c,d={e,f}`: `\.` and `\,` are letters.
///
/// # Errors
/// A part has no `=`, or names an element of a list.
fn parse_assignments(text: &str, scalar: Scalar) -> Result<Value, String> {
    let mut all = Value::Object(Map::new());
    for part in split(text, ',') {
        let (path, value) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` is not KEY=VALUE"))?;
        if path.contains('[') {
            return Err(format!(
                "`{path}`: elements of lists are set by `-f FILE`, or whole lists by KEY={{A,B}}"
            ));
        }
        let inner = value
            .strip_prefix('{')
            .and_then(|inner| inner.strip_suffix('}'));
        let value = match inner {
            Some("") => Value::Array(Vec::new()),
            Some(inner) => split(inner, ',').iter().map(|one| scalar(one)).collect(),
            None => scalar(value),
        };
        let keys = split(path, '.');
        let nested = keys.iter().rev().fold(value, |value, key| {
            let mut map = Map::new();
            map.insert(unescape(key), value);
            Value::Object(map)
        });
        merge(&mut all, nested);
    }
    Ok(all)
}

/// As `overlay`, but null stays, for the overlay that follows.
pub(super) fn merge(below: &mut Value, above: Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (key, value) in above {
                match below.get_mut(&key) {
                    Some(inner) => merge(inner, value),
                    None => drop(below.insert(key, value)),
                }
            }
        }
        (below, above) => *below = above,
    }
}

/// Splits at a letter that stands neither after `\` nor within braces.
fn split(text: &str, at: char) -> Vec<&str> {
    let (mut parts, mut begin, mut depth, mut escaped) = (Vec::new(), 0, 0_usize, false);
    for (place, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ if letter == at && depth == 0 => {
                parts.push(&text[begin..place]);
                begin = place + letter.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

fn unescape(text: &str) -> String {
    let mut letters = text.chars();
    let mut plain = String::new();
    while let Some(letter) = letters.next() {
        plain.extend(match letter {
            '\\' => letters.next(),
            other => Some(other),
        });
    }
    plain
}

fn scalar(text: &str) -> Value {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Value::Bool(true),
        _ if text.eq_ignore_ascii_case("false") => Value::Bool(false),
        _ if text.eq_ignore_ascii_case("null") => Value::Null,
        // Helm leaves numbers with a leading zero as they are.
        _ if text.len() > 1 && text.starts_with('0') => unescape(text).into(),
        _ => text
            .parse::<i64>()
            .map_or_else(|_| unescape(text).into(), Value::from),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Assignments, overlay, parse_assignments, scalar};

    #[test]
    fn assignments_are_read_as_by_helm() {
        for (text, expected) in [
            ("a=b", json!({"a": "b"})),
            (
                "a.b=1,a.c=true,d=null",
                json!({"a": {"b": 1, "c": true}, "d": null}),
            ),
            ("a={x,2},b={}", json!({"a": ["x", 2], "b": []})),
            (r"a.b\.c/d=e\,f", json!({"a": {"b.c/d": "e,f"}})),
            ("a=b=c", json!({"a": "b=c"})),
            ("a=007", json!({"a": "007"})),
            ("a=", json!({"a": ""})),
            ("a=True,b=NULL", json!({"a": true, "b": null})),
        ] {
            assert_eq!(parse_assignments(text, scalar), Ok(expected), "{text}");
        }
        assert!(parse_assignments("a", scalar).is_err());
        assert!(parse_assignments("a[0]=b", scalar).is_err());
    }

    #[test]
    fn texts_stay_texts_and_are_laid_over_the_other_values() {
        let list = |one: &str| vec![one.to_owned()];
        let assignments = Assignments {
            values: list("a=1,b=2"),
            texts: list(r"a=3,c={true,4},d.e\.f=null"),
        };
        let mut given = json!({"a": 0});
        assignments.merge_into(&mut given).expect("values");
        let expected = json!({"a": "3", "b": 2, "c": ["true", "4"], "d": {"e.f": "null"}});
        assert_eq!(given, expected);
        let assignments = Assignments {
            texts: list("a"),
            ..Assignments::default()
        };
        let refused = assignments.merge_into(&mut given);
        let reason = "--set-string: `a` is not KEY=VALUE".to_owned();
        assert_eq!(refused, Err(reason));
    }

    #[test]
    fn null_removes_a_value_and_maps_are_merged() {
        let mut values = json!({"a": {"b": 1, "c": 2}, "d": [1]});
        overlay(&mut values, json!({"a": {"b": null, "e": 3}, "d": [2]}));
        assert_eq!(values, json!({"a": {"c": 2, "e": 3}, "d": [2]}));
    }
}
