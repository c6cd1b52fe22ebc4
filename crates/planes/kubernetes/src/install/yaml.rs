//! YAML of the chart, of values and of rendered manifests, as JSON values.

use serde_json::Value;

/// Words that YAML 1.1 or 1.2 reads as something else than text.
const RESERVED: [&str; 11] = [
    "true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf",
];

/// Reads one document. An empty one is null.
///
/// # Errors
/// It is no YAML.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    let only_comments = text
        .lines()
        .map(str::trim)
        .all(|line| line.is_empty() || line.starts_with('#'));
    if only_comments {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(text).map_err(|error| error.to_string())
}

/// Writes a value in block style, with sorted keys.
pub(crate) fn write(value: &Value) -> String {
    let mut out = String::new();
    node(value, 0, &mut out);
    out
}

fn node(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (number, (key, value)) in map.iter().enumerate() {
                indent(number, depth, out);
                out.push_str(&scalar(key));
                out.push(':');
                // Go's writer does not indent a list in a map.
                let within = if value.is_array() { depth } else { depth + 2 };
                nested(value, within, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (number, item) in items.iter().enumerate() {
                indent(number, depth, out);
                out.push_str("- ");
                node(item, depth + 2, out);
            }
        }
        Value::String(text) => line(&scalar(text), out),
        other => line(&other.to_string(), out),
    }
}

/// The first key of a map in a list is on the line of its dash.
fn indent(number: usize, depth: usize, out: &mut String) {
    if number > 0 || out.is_empty() || out.ends_with('\n') {
        out.push_str(&" ".repeat(depth));
    }
}

fn nested(value: &Value, depth: usize, out: &mut String) {
    let block = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    out.push(if block { '\n' } else { ' ' });
    node(value, depth, out);
}

fn line(text: &str, out: &mut String) {
    out.push_str(text);
    out.push('\n');
}

/// A text as it is, if no reader takes it for something else, and in quotes else.
fn scalar(text: &str) -> String {
    let begins = text.starts_with(|one: char| one.is_ascii_alphabetic() || one == '/');
    let plain = |one: char| one.is_ascii_alphanumeric() || "_./-:@".contains(one);
    let fine = begins && text.chars().all(plain) && !text.ends_with(':');
    match fine && !RESERVED.contains(&&*text.to_ascii_lowercase()) {
        true => text.to_owned(),
        false => Value::String(text.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{read, write};

    #[test]
    fn values_are_read_as_they_were_written() {
        let value = json!({
            "texts": ["plain", "true", "No", "1337", "", "a: b", "a\nb", "host:1", "trailing:", "~", "é", "# no", "0x1f"],
            "numbers": [1, -2, 1.5],
            "nested": [[1, [2]], {"a": {"b": [{"c": null, "d": true}]}}],
            "empty": [{}, []],
            "key with: colon": {},
        });
        assert_eq!(read(&write(&value)), Ok(value));
    }

    #[test]
    fn lists_and_maps_are_laid_out_as_by_helm() {
        let value = json!({"a": [{"b": 1, "c": ["d"]}], "e": {"f": "g"}});
        assert_eq!(write(&value), "a:\n- b: 1\n  c:\n  - d\ne:\n  f: g\n");
    }
}
