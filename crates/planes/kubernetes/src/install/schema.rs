//! Checks values by the chart's JSON schema. Knows the keywords that the chart's schema uses; any other one is an error, so
//! that no rule is silently without effect.

use regex_automata::meta::Regex;
use serde_json::Value;

/// Returns all violations, each with the path of its value.
///
/// # Errors
/// The schema has a keyword that is not known.
pub(super) fn violations(schema: &Value, value: &Value) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    visit(schema, value, "", &mut found)?;
    Ok(found)
}

fn visit(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) -> Result<(), String> {
    let rules = schema.as_object().ok_or("a schema is a map")?;
    let mut complain = |reason: String| {
        let place = if path.is_empty() { "the values" } else { path };
        found.push(format!("{place}: {reason}"));
    };
    for (keyword, rule) in rules {
        match &**keyword {
            "$schema" | "properties" | "additionalProperties" | "items" => {}
            "type" if rule == "string" && (value.is_number() || value.is_boolean()) => {
                complain(format!(
                    "expected {rule}, not {value}; put it in quotes in a file for -f"
                ));
            }
            "type" if !has_type(rule, value) => complain(format!("expected {rule}, not {value}")),
            "enum" if !one_of(rule, value) => complain(format!("{value} is none of {rule}")),
            "not" if !is_violated(rule, value)? => complain(format!("{value} is not allowed")),
            "pattern" if !matches(rule, value)? => {
                complain(format!("{value} does not match {rule}"));
            }
            "minimum" if value.as_f64() < rule.as_f64() && value.is_number() => {
                complain(format!("{value} is less than {rule}"));
            }
            "maximum" if value.as_f64() > rule.as_f64() && value.is_number() => {
                complain(format!("{value} is more than {rule}"));
            }
            "minLength" if length(value) < rule.as_u64() => complain("it is empty".to_owned()),
            "maxLength" if length(value) > rule.as_u64() && value.is_string() => {
                complain(format!("{value} is longer than {rule} letters"));
            }
            "type" | "enum" | "not" | "pattern" | "minimum" | "maximum" | "minLength"
            | "maxLength" => {}
            _ => return Err(format!("the keyword `{keyword}` of a schema is not known")),
        }
    }
    inside(schema, value, path, found)
}

/// The fields of a map and the elements of a list.
fn inside(
    schema: &Value,
    value: &Value,
    path: &str,
    found: &mut Vec<String>,
) -> Result<(), String> {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = match path {
            "" => key.clone(),
            parent => format!("{parent}.{key}"),
        };
        match (
            schema["properties"].get(key),
            &schema["additionalProperties"],
        ) {
            (Some(schema), _) => visit(schema, value, &path, found)?,
            (None, Value::Bool(false)) => {
                let known = schema["properties"].as_object().into_iter().flatten();
                let known = known.map(|(key, _)| &**key);
                let help = voile_model::suggest(key, known);
                let help = if help.is_empty() {
                    help
                } else {
                    format!(": {help}")
                };
                found.push(format!("{path}: the key is unknown{help}"));
            }
            (None, schema @ Value::Object(_)) => visit(schema, value, &path, found)?,
            (None, _) => {}
        }
    }
    let items = schema.get("items").zip(value.as_array());
    if let Some((schema, items)) = items {
        for (number, item) in items.iter().enumerate() {
            visit(schema, item, &format!("{path}[{number}]"), found)?;
        }
    }
    Ok(())
}

fn has_type(rule: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        _ => false,
    };
    match rule {
        Value::Array(names) => names.iter().any(is),
        name => is(name),
    }
}

fn one_of(rule: &Value, value: &Value) -> bool {
    rule.as_array().is_some_and(|known| known.contains(value))
}

fn is_violated(rule: &Value, value: &Value) -> Result<bool, String> {
    Ok(!violations(rule, value)?.is_empty())
}

fn matches(rule: &Value, value: &Value) -> Result<bool, String> {
    let (Some(rule), Some(text)) = (rule.as_str(), value.as_str()) else {
        return Ok(true);
    };
    let expression = Regex::new(rule).map_err(|error| format!("{rule}: {error}"))?;
    Ok(expression.is_match(text))
}

fn length(value: &Value) -> Option<u64> {
    let text = value.as_str()?;
    u64::try_from(text.chars().count()).ok()
}
