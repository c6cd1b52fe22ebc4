//! Removes folders of the user's machine from texts of a record: a path keeps only its last name. The folders are private to that
//! user.

use std::path::Path;

/// Folders of the kernel's: they are the same on every machine and say something.
const EVERYWHERE: [&str; 3] = ["proc", "sys", "dev"];

/// The text with the last name only of each absolute path that begins in a folder of this machine.
#[must_use]
pub fn without(text: &str) -> String {
    without_those(text, &|name| {
        !EVERYWHERE.contains(&name) && Path::new("/").join(name).is_dir()
    })
}

/// As [`without`]; `is_root` tells names of folders below `/`.
fn without_those(text: &str, is_root: &dyn Fn(&str) -> bool) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        kept.push_str(before);
        let begins = kept.chars().next_back().is_none_or(may_precede);
        let path = &from[..from.find(ends).unwrap_or(from.len())];
        let path = path.trim_end_matches(['.', ':']);
        let mut names = path.split('/').filter(|name| !name.is_empty());
        let root = names.next();
        let inside = root.is_some_and(is_root) && !path.starts_with("//");
        if begins && inside {
            kept.push_str(names.next_back().unwrap_or("FOLDER"));
            rest = &from[path.len()..];
        } else {
            kept.push('/');
            rest = &from[1..];
        }
    }
    kept + rest
}

/// Characters that may stand before an absolute path. Letters may not, as in `FOLDER/x`, nor a second slash, as in `http://`.
fn may_precede(c: char) -> bool {
    !(c.is_alphanumeric() || "/_-.~+}".contains(c))
}

/// Characters that end a path in a text for people.
fn ends(c: char) -> bool {
    c.is_whitespace() || "\"'`,;()[]<>|=".contains(c)
}

/// All texts of a record by [`without`].
pub(crate) fn without_in(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) if text.contains('/') => *text = without(text),
        serde_json::Value::Array(values) => values.iter_mut().for_each(without_in),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(without_in),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_their_names_and_lose_their_places() {
        let is_root = |name: &str| ["opt", "home", "tmp", "usr"].contains(&name);
        for (text, wanted) in [
            (
                "/home/jo/mesh/voile bench run /home/jo/x.toml",
                "voile bench run x.toml",
            ),
            (
                "--out=/tmp/a/b --peer nginx=/usr/sbin/nginx",
                "--out=b --peer nginx=nginx",
            ),
            (
                "reading /tmp/voile-lab-Xy/log: No such file",
                "reading log: No such file",
            ),
            ("it said `/opt/x y'.", "it said `x y'."),
            ("see /home/jo.", "see jo."),
            ("/tmp is full", "FOLDER is full"),
            ("/tmp/", "FOLDER"),
            (
                "http://127.0.0.1:80/home/x?path=/etc",
                "http://127.0.0.1:80/home/x?path=/etc",
            ),
            (
                "FOLDER/voile/state/root-cert.pem",
                "FOLDER/voile/state/root-cert.pem",
            ),
            (
                "/voile.echo.v1.Echo/Unary and /proc/1/stat",
                "/voile.echo.v1.Echo/Unary and /proc/1/stat",
            ),
            ("1 µs/request, 2/3", "1 µs/request, 2/3"),
            ("HISTFAAA/home/x", "HISTFAAA/home/x"),
            ("", ""),
            ("/", "/"),
            ("ö/opt/a (/opt/ü/ß)", "ö/opt/a (ß)"),
        ] {
            assert_eq!(without_those(text, &is_root), wanted, "{text}");
        }
    }

    #[test]
    fn every_text_of_a_record_is_looked_at() {
        let exe = std::env::current_exe().expect("this program");
        let place = exe.parent().expect("a folder").display().to_string();
        let mut value = serde_json::json!({"a": [{"b": format!("{place}/voile load")}], "n": 1.5});
        without_in(&mut value);
        assert_eq!(
            value,
            serde_json::json!({"a": [{"b": "voile load"}], "n": 1.5})
        );
    }
}
