//! Findings as SARIF 2.1.0 (OASIS), which code hosts and editors read. Only what its schema knows is written.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};
use voile_analysis::explanations::explanation;
use voile_model::{Diagnostic, Severity};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";
const VERSION: &str = "2.1.0";
/// Name of the fingerprint that tells a finding apart when lines above it come and go.
const FINGERPRINT: &str = "voile/v1";

/// One run with the problems found, and the problems hidden by an annotation.
pub(super) fn sarif(found: &[Diagnostic], hidden: &[Diagnostic]) -> String {
    let all = found.iter().chain(hidden);
    let codes: BTreeSet<&'static str> = all.map(|diagnostic| diagnostic.code).collect();
    let codes: Vec<&'static str> = codes.into_iter().collect();
    let told = found.iter().map(|one| result(one, &codes, false));
    let results = told.chain(hidden.iter().map(|one| result(one, &codes, true)));
    let log = json!({
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [{
            "tool": {"driver": {
                "name": "voile analyze",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": codes.iter().map(|code| rule(code)).collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results.collect::<Vec<_>>(),
        }],
    });
    format!("{log:#}\n")
}

fn rule(code: &str) -> Value {
    let Some(explanation) = explanation(code) else {
        return json!({"id": code});
    };
    json!({
        "id": code,
        "shortDescription": {"text": explanation.meaning},
        "fullDescription": {"text": explanation.why},
        "help": {"text": explanation.page, "markdown": explanation.page},
    })
}

fn result(one: &Diagnostic, codes: &[&str], hidden: bool) -> Value {
    let mut text = one.message.clone();
    if !one.field.is_empty() {
        let _ = write!(text, " (field {})", one.field);
    }
    if !one.help.is_empty() {
        let _ = write!(text, "\nhelp: {}", one.help);
    }
    let mut place = json!({"artifactLocation": {"uri": uri(&one.source.file)}});
    if let Some((line, column)) = one.source.position() {
        place["region"] = json!({"startLine": line, "startColumn": column});
    }
    let mut result = json!({
        "ruleId": one.code,
        "ruleIndex": codes.iter().position(|code| *code == one.code),
        "level": level(one.severity),
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {FINGERPRINT: fingerprint(one)},
    });
    if hidden {
        result["suppressions"] = json!([{"kind": "inSource"}]);
    }
    result
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

/// A path as a URI reference: what is neither a letter of one nor a slash is percent-encoded.
fn uri(path: &str) -> String {
    let mut uri = match path.starts_with('/') {
        true => "file://".to_owned(),
        false => String::new(),
    };
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                uri.push(byte.into());
            }
            _ => {
                let _ = write!(uri, "%{byte:02X}");
            }
        }
    }
    uri
}

/// FNV-1a over what stays the same when a document moves within its file.
fn fingerprint(one: &Diagnostic) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    // Messages name places of others (`in mesh.yaml:3:18`), so digits do not count.
    let message = one.message.bytes().filter(|byte| !byte.is_ascii_digit());
    let parts = one.code.bytes().chain(one.source.file.bytes());
    let bytes = parts.chain(one.field.bytes()).chain(message);
    let hash = bytes.fold(OFFSET, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    });
    format!("{hash:016x}")
}
