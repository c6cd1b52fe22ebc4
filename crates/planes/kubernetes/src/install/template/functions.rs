//! Functions of templates: Go's own, and those that Helm adds.

use serde_json::{Map, Value};

use crate::install::yaml;

/// Calls a function.
pub(super) fn call(name: &str, arguments: Vec<Value>) -> Result<Value, String> {
    let wrong = || {
        let kinds: Vec<&str> = arguments.iter().map(kind).collect();
        format!("`{name}` with {} is not known here", kinds.join(", "))
    };
    Ok(match (name, &arguments[..]) {
        ("and", [.., last]) => arguments
            .iter()
            .find(|one| !is_true(one))
            .unwrap_or(last)
            .clone(),
        ("or", [.., last]) => arguments
            .iter()
            .find(|one| is_true(one))
            .unwrap_or(last)
            .clone(),
        ("not", [one]) => (!is_true(one)).into(),
        ("eq", [one, other]) => same(one, other).ok_or_else(wrong)?.into(),
        ("ne", [one, other]) => (!same(one, other).ok_or_else(wrong)?).into(),
        ("gt", [Value::Number(one), Value::Number(other)]) => {
            (one.as_f64() > other.as_f64()).into()
        }
        ("int", [Value::Number(number)]) => number.as_i64().ok_or_else(wrong)?.into(),
        ("default", [usual, given]) => match is_true(given) {
            true => given.clone(),
            false => usual.clone(),
        },
        ("quote", [one]) => Value::String(text(one)?).to_string().into(),
        ("printf", [Value::String(format), rest @ ..]) => print(format, rest)?.into(),
        ("list", items) => items.to_vec().into(),
        ("dict", items) => dictionary(items).ok_or_else(wrong)?.into(),
        ("get", [Value::Object(map), Value::String(key)]) => {
            map.get(key).cloned().unwrap_or_else(|| "".into())
        }
        ("dig", [keys @ .., usual, map]) => dig(keys, map).unwrap_or_else(|| usual.clone()),
        ("mergeOverwrite", [Value::Object(below), Value::Object(above)]) => {
            overlay(below.clone(), above).into()
        }
        ("toYaml", [one]) => yaml::write(one).trim_end().into(),
        ("fromYaml", [Value::String(text)]) => yaml::read(text)?,
        ("nindent", [Value::Number(width), Value::String(text)]) => {
            let width = width.as_u64().and_then(|width| usize::try_from(width).ok());
            let pad = " ".repeat(width.ok_or_else(wrong)?);
            format!("\n{pad}{}", text.replace('\n', &format!("\n{pad}"))).into()
        }
        ("fail", [Value::String(reason)]) => return Err(reason.clone()),
        _ => return Err(wrong()),
    })
}

/// Go's truth: neither empty nor zero.
pub(super) fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(boolean) => *boolean,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// A value as it is printed. Lists and maps need `toYaml`, and a missing value is an error.
pub(super) fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        Value::Null => Err("the value is missing".to_owned()),
        Value::Array(_) | Value::Object(_) => Err(format!("{} is not printed", kind(value))),
    }
}

/// The value at the end of a path. A missing key is null.
pub(super) fn field(value: &Value, path: &[String]) -> Result<Value, String> {
    let mut value = value;
    for name in path {
        value = match value {
            Value::Object(map) => map.get(name).unwrap_or(&Value::Null),
            Value::Null => &Value::Null,
            other => return Err(format!("{} has no field `{name}`", kind(other))),
        };
    }
    Ok(value.clone())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "a missing value",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// Comparison of values of one kind; Go refuses others.
fn same(one: &Value, other: &Value) -> Option<bool> {
    match (one, other) {
        (Value::String(one), Value::String(other)) => Some(one == other),
        (Value::Bool(one), Value::Bool(other)) => Some(one == other),
        (Value::Number(one), Value::Number(other)) => Some(one.as_f64() == other.as_f64()),
        _ => None,
    }
}

/// `%s` alone.
fn print(format: &str, arguments: &[Value]) -> Result<String, String> {
    let mut arguments = arguments.iter();
    let mut parts = format.split("%s");
    let mut printed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let argument = arguments.next().ok_or("`printf` lacks an argument")?;
        printed.push_str(&text(argument)?);
        printed.push_str(part);
    }
    match printed.contains('%') || arguments.next().is_some() {
        true => Err(format!("`printf` with \"{format}\" is not known here")),
        false => Ok(printed),
    }
}

fn dictionary(items: &[Value]) -> Option<Map<String, Value>> {
    let pairs = items.chunks(2).map(|pair| match pair {
        [Value::String(key), value] => Some((key.clone(), value.clone())),
        _ => None,
    });
    pairs.collect()
}

fn dig(keys: &[Value], map: &Value) -> Option<Value> {
    let mut value = map;
    for key in keys {
        value = value.get(key.as_str()?)?;
    }
    Some(value.clone())
}

/// Lays a map over another. Maps within are laid over each other, too.
fn overlay(mut below: Map<String, Value>, above: &Map<String, Value>) -> Map<String, Value> {
    for (key, value) in above {
        let merged = match (below.remove(key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => overlay(below, above).into(),
            _ => value.clone(),
        };
        below.insert(key.clone(), merged);
    }
    below
}
