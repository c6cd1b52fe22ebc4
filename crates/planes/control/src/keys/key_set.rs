//! Reads a key server's answer, with suspicion. The answer must be a key set. Only the public parts of its keys go on to
//! proxies.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use voile_policy::tokens::KeySet;

use super::fetch::Document;

/// Members of a key that say what it is, in the order in which they are written; private parts, certificates and whatever
/// else a server adds stay behind.
const PUBLIC: [&str; 10] = [
    "alg", "crv", "e", "key_ops", "kid", "kty", "n", "use", "x", "y",
];

/// A key set as proxies get it: one text for one set, however it was written.
pub(crate) fn key_set(text: &str) -> Result<Arc<str>, String> {
    let set = KeySet::survey(text).map_err(|error| error.to_string())?;
    if set.usable() == 0 {
        return Err(match set.faults().first() {
            None => "the key set is empty".to_owned(),
            Some((_, fault)) => format!("no usable key in it: {fault}"),
        });
    }
    let parsed: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    let keys = parsed.get("keys").and_then(Value::as_array);
    let public: Vec<Value> = keys.into_iter().flatten().filter_map(public).collect();
    Ok(json!({ "keys": public }).to_string().into())
}

/// The public parts of a key; nothing of a shared secret.
fn public(key: &Value) -> Option<Value> {
    let members = key.as_object()?;
    if members.get("kty")?.as_str()? == "oct" {
        return None;
    }
    let kept = PUBLIC.into_iter();
    let kept: Map<String, Value> = kept
        .filter_map(|name| Some((name.to_owned(), members.get(name)?.clone())))
        .collect();
    Some(kept.into())
}

/// The key set of a document.
pub(super) fn keys_of(document: &Document) -> Result<Arc<str>, String> {
    key_set(&document.text).map_err(|why| called(why, document))
}

/// URL of the keys in the issuer's own OpenID configuration (OpenID Connect Discovery 1.0, section 4.3: the `issuer` in it
/// must be the one that was asked about).
pub(super) fn keys_uri(document: &Document, issuer: &str) -> Result<String, String> {
    let parsed: Value = serde_json::from_str(&document.text)
        .map_err(|error| called(format!("not JSON: {error}"), document))?;
    match parsed.get("issuer").and_then(Value::as_str) {
        Some(named) if named == issuer => {}
        Some(named) => {
            let named: String = named.chars().take(200).collect();
            return Err(format!(
                "it belongs to the issuer `{named}`, not to `{issuer}`"
            ));
        }
        None => return Err("it has no `issuer`".to_owned()),
    }
    let uri = parsed.get("jwks_uri").and_then(Value::as_str);
    uri.map(str::to_owned)
        .ok_or_else(|| "it has no `jwks_uri`".to_owned())
}

/// Adds the content type that the server declared to an error, if the content type explains the error.
fn called(why: String, document: &Document) -> String {
    match &*document.content_type {
        "" => why,
        kind if kind.to_ascii_lowercase().contains("json") => why,
        kind => {
            let kind: String = kind.chars().take(80).collect();
            format!("{why} (its content type is `{kind}`)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str, content_type: &str) -> Document {
        Document {
            text: text.to_owned(),
            content_type: content_type.to_owned(),
        }
    }

    const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"; // RFC 8037, appendix A.2

    #[test]
    fn a_key_set_is_reduced_to_public_parts() {
        let text = format!(
            r#"{{"more": 1, "keys": [
            {{"x": "{X}", "kid": "a", "kty": "OKP", "crv": "Ed25519", "d": "secret", "x5c": ["long"]}},
            {{"kty": "oct", "k": "secret"}}, {{"no": "kind"}}, 7]}}"#
        );
        let once = key_set(&text).expect("a key set");
        let wanted = format!(r#"{{"keys":[{{"crv":"Ed25519","kid":"a","kty":"OKP","x":"{X}"}}]}}"#);
        assert_eq!(*once, wanted);
        assert_eq!(
            key_set(&once),
            Ok(once.clone()),
            "reducing twice changes nothing"
        );
    }

    #[test]
    fn lies_are_refused_with_a_reason() {
        for (text, kind, part) in [
            (
                "<html>sign in</html>",
                "text/html",
                "content type is `text/html`",
            ),
            ("", "application/json", "not a JSON object"),
            ("[]", "application/json", "not a JSON object"),
            ("{}", "", "no list `keys`"),
            (r#"{"keys": {}}"#, "application/json", "no list `keys`"),
            (r#"{"keys": []}"#, "application/json", "empty"),
            (r#"{"keys": [{"kty": "oct", "k": "x"}]}"#, "", "symmetric"),
            (r#"{"keys": [null, "x"]}"#, "", "no usable key in it"),
        ] {
            let why = keys_of(&document(text, kind)).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn discovery_speaks_for_its_own_issuer_alone() {
        let issuer = "https://a.example";
        for (text, expected) in [
            (
                r#"{"issuer": "https://a.example", "jwks_uri": "https://a.example/k"}"#,
                Ok("https://a.example/k"),
            ),
            (
                r#"{"issuer": "https://evil.example", "jwks_uri": "https://a.example/k"}"#,
                Err("belongs to the issuer"),
            ),
            (
                r#"{"issuer": "https://a.example/", "jwks_uri": "x"}"#,
                Err("belongs to the issuer"),
            ),
            (r#"{"jwks_uri": "x"}"#, Err("has no `issuer`")),
            (r#"{"issuer": "https://a.example"}"#, Err("jwks_uri")),
            ("<html>", Err("not JSON")),
        ] {
            let found = keys_uri(&document(text, ""), issuer);
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{text}: {why}"),
                _ => panic!("{text}: {found:?}"),
            }
        }
    }
}
