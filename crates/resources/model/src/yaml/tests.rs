//! Compares Voile's parser with Kubernetes' own decoder. `kubernetes.yaml` holds documents and the results of
//! `sigs.k8s.io/yaml` in JSON with sorted keys. If Voile's result differs on purpose, `ours` is that result and `why`
//! the reason.

use std::fmt::Write as _;

use super::*;

#[test]
fn documents_are_read_as_kubernetes_reads_them() {
    let origin = SourcePosition { line: 1, column: 1 };
    let table = parse_document(include_str!("kubernetes.yaml"), origin);
    let table = table.expect("a table").expect("with rows");
    let Value::List(rows) = &table.value else {
        panic!("a list of rows")
    };
    let (mut wrong, mut count) = (String::new(), 0);
    for row in rows {
        let text = |key: &str| match row.get(key).map(|node| &node.value) {
            Some(Value::Scalar(scalar)) => Some(scalar.text.to_string()),
            _ => None,
        };
        let (yaml, kubernetes) = (text("yaml").expect("yaml"), text("json").expect("json"));
        let expected = text("ours").unwrap_or(kubernetes);
        let found = decoded(&yaml);
        count += 1;
        if found != expected {
            writeln!(
                wrong,
                "{}: {yaml:?}: {found}, not {expected}",
                row.place.line
            )
            .unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 500, "{count} rows");
}

/// The one document of a text as JSON, or `refused`.
fn decoded(text: &str) -> String {
    let documents = split(text, 1);
    let first = documents.first();
    let Some(document) = first else {
        return "null".to_owned();
    };
    let line = document.first_line;
    match parse_document(document.text, SourcePosition { line, column: 1 }) {
        Ok(None) => "null".to_owned(),
        Ok(Some(node)) => json(&node),
        Err(_) => "refused".to_owned(),
    }
}

fn json(node: &YamlNode) -> String {
    let quoted = |text: &str| {
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
        let escaped = escaped.replace('\n', "\\n").replace('\t', "\\t");
        format!("\"{escaped}\"")
    };
    match &node.value {
        Value::Scalar(scalar) => match scalar.resolve() {
            ResolvedScalar::Text => quoted(&scalar.text),
            ResolvedScalar::Null => "null".to_owned(),
            ResolvedScalar::Boolean(word) => word.to_string(),
            ResolvedScalar::Integer(number) => number.to_string(),
            ResolvedScalar::Float(number) => number.to_string(),
        },
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(json).collect();
            format!("[{}]", items.join(","))
        }
        Value::Map(entries) => {
            let entry = |(key, value): &(MappingKey, YamlNode)| (key.text.to_string(), json(value));
            let mut entries: Vec<_> = entries.iter().map(entry).collect();
            entries.sort();
            let entries = entries.iter();
            let entries = entries.map(|(key, value)| format!("{}:{value}", quoted(key)));
            let entries: Vec<String> = entries.collect();
            format!("{{{}}}", entries.join(","))
        }
    }
}

#[test]
fn directives_take_no_document_along_that_they_would_break() {
    let documents = split("a: b\n---\n\n%YAML 1.0 \n---\nc: d\n", 1);
    let texts: Vec<_> = documents.iter().map(|document| document.text).collect();
    assert_eq!(texts, ["a: b\n", "---\n\n%YAML 1.0 \n", "---\nc: d\n"]);
    let commented = split("#\u{1d}\n%YAML 1.2\n\n---\nc: d\n", 1);
    let texts: Vec<_> = commented.iter().map(|document| document.text).collect();
    assert_eq!(texts, ["#\u{1d}\n%YAML 1.2\n\n", "---\nc: d\n"]);
    let closed = split("a: b\n...\n%YAML 1.2\n---\nc: d\n", 1);
    assert_eq!(closed.len(), 2);
    for broken in ["%TA\r\n\r\u{c}\r%A\r\n", "%TA\n\u{c}%A\n", "# b\ra: b\n"] {
        let documents = split_with_another(broken);
        assert_eq!(documents, [broken, "---\nc: d\n"]);
    }
    let with_returns = "%TA\r\r\r\n\r# b\r%A\r\n";
    assert_eq!(split_with_another(with_returns).len(), 1);
}

fn split_with_another(text: &str) -> Vec<String> {
    let text = format!("{text}---\nc: d\n");
    let documents = split(&text, 1).into_iter();
    documents.map(|document| document.text.to_owned()).collect()
}

/// Each line is looked at a bounded number of times: 200,000 short lines are cut apart in seconds, not in hours.
#[test]
fn a_file_is_cut_apart_in_linear_time() {
    const LINES: usize = 200_000;
    const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
    let begin = std::time::Instant::now();
    for (text, documents) in [
        ("a: b\n".repeat(LINES), 1),
        // A directive of an unknown name is left out (YAML 1.2.2, 6.8); a version that is none belongs to no document.
        ("%a\n".repeat(LINES) + "---\na: b\n", 1),
        ("%a\n---\n".repeat(LINES / 2), LINES / 2 - 1),
        ("%YAML a\n".repeat(LINES) + "---\na: b\n", 2),
        ("%YAML a\n---\n".repeat(LINES / 2), LINES / 2),
        ("%TAG ! a\n---\n".repeat(LINES / 2), LINES / 2 - 1),
        ("---\n".repeat(LINES), 0),
        ("# a\n---\na\n".repeat(LINES / 4), LINES / 4),
    ] {
        assert_eq!(split(&text, 1).len(), documents);
        assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    }
}
