//! The last configuration without errors, kept in the state directory: a control plane that is started again beside a
//! broken folder, or while the folder is away, holds what was good before, like one that kept running.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use voile_model::mesh::Secret;
use voile_model::{Mesh, SourceFile};

use crate::state_file::StateFile;

/// Name in the state directory. No Secret's key is in it; it is for its owner all the same.
const FILE: &str = "last-good.json";
/// Text in place of a Secret's content. It decodes to nothing: a gateway that has the Secret goes on with it, and a gateway that
/// never had it admits no client.
const LEFT_OUT: &str = "left out: the content of a Secret stays in its source";
/// Public fields of a Secret: trusted authorities, and lists of revoked certificates.
const PUBLIC: [&str; 4] = ["ca.crt", "cacert", "ca.crl", "crl"];

/// See the module.
#[derive(Debug)]
pub(crate) struct LastGood {
    file: StateFile,
}

impl LastGood {
    pub(crate) fn new(state: &Path) -> Self {
        Self {
            file: StateFile::new(state, FILE),
        }
    }

    /// The mesh that was kept; nothing when there is none or it cannot be read, which is said.
    pub(crate) fn load(&self) -> Option<Mesh> {
        let path = self.file.path().display();
        let text = match self.file.read() {
            Ok(text) => text?,
            Err(error) => {
                tracing::warn!(%path, %error, "cannot read the last good configuration");
                return None;
            }
        };
        match serde_json::from_slice::<Vec<(String, String)>>(&text) {
            Ok(files) => {
                let files: Vec<SourceFile> = files
                    .into_iter()
                    .map(|(name, text)| SourceFile::new(name, text))
                    .collect();
                Some(voile_model::check(&files, None).0)
            }
            Err(error) => {
                tracing::warn!(%path, %error, "the saved last good configuration is damaged");
                None
            }
        }
    }

    /// Keeps these files. Failing is no reason to stop: it is said, and what is in force stays.
    pub(crate) fn keep(&self, files: &[Arc<SourceFile>], mesh: &Mesh) {
        if let Err(error) = self.write(files, mesh) {
            let path = self.file.path().display();
            tracing::warn!(%path, %error, "cannot save the last good configuration");
        }
    }

    fn write(&self, files: &[Arc<SourceFile>], mesh: &Mesh) -> std::io::Result<()> {
        let secrets = |file: &SourceFile| -> Vec<&Secret> {
            let secrets = mesh.secrets.values();
            secrets
                .map(|secret| &**secret)
                .filter(|secret| *secret.source.file == *file.name)
                .collect()
        };
        let texts: Vec<(&str, String)> = files
            .iter()
            .filter_map(|file| {
                let text = file.text.as_deref().ok()?;
                Some((&*file.name, without_keys(text, &secrets(file))))
            })
            .collect();
        self.file.replace(serde_json::to_vec(&texts)?)
    }
}

/// The text with nothing of these Secrets but their names and what is public of them. Lines keep their numbers.
fn without_keys(text: &str, secrets: &[&Secret]) -> String {
    if secrets.is_empty() {
        return text.to_owned();
    }
    let all: Vec<&str> = text.lines().collect();
    // A key in quotes may have a line that begins with dashes.
    let begins = |line: &str| {
        let rest = line.strip_prefix("---");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
    };
    let mut kept = String::with_capacity(text.len());
    let mut start = 0;
    while start < all.len() {
        let more = all[start + 1..].iter().take_while(|line| !begins(line));
        let document = start..start + 1 + more.count();
        let is_within =
            |secret: &&&Secret| document.contains(&(secret.source.line as usize).saturating_sub(1));
        let within: Vec<_> = secrets.iter().filter(is_within).collect();
        let stands = match &*within {
            [] => None,
            [one] => Some(format!("--- {}", without_key(one))),
            // Several in one document are of a list: it is left out whole.
            _ => Some("---".to_owned()),
        };
        for (number, line) in all[document.clone()].iter().enumerate() {
            match (&stands, number) {
                (None, _) => kept.push_str(line),
                (Some(stands), 0) => kept.push_str(stands),
                (Some(_), _) => {}
            }
            kept.push('\n');
        }
        start = document.end;
    }
    kept
}

/// The Secret, as a document of one line.
fn without_key(secret: &Secret) -> serde_json::Value {
    let public = |key: &str, held: &[u8]| -> Option<String> {
        let text = std::str::from_utf8(held).ok()?;
        (PUBLIC.contains(&key) && !text.contains("PRIVATE KEY")).then(|| text.to_owned())
    };
    let data = secret.data.iter().map(|(key, held)| {
        let text = match held.is_empty() {
            true => String::new(),
            false => public(key, held).unwrap_or_else(|| LEFT_OUT.to_owned()),
        };
        (key.to_string(), text)
    });
    let data: BTreeMap<_, _> = data.collect();
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": &*secret.name.name, "namespace": secret.name.namespace.as_str()},
        "type": &*secret.kind,
        "stringData": data,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_secrets_hold_is_not_kept_and_everything_else_stays_where_it_was() {
        let secret = |name: &str| {
            format!(
                "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: a}}\nstringData: {{key: hidden}}\n"
            )
        };
        let map = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: map, namespace: a}\ndata: {say: \"kind: Secret\"}\n";
        let json = r#"{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "j", "namespace": "a"}, "data": {"key": "aGlkZGVu"}}"#;
        let quoted = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: q, namespace: a}\nstringData: {key: \"-\n-----BEGIN hidden\n\"}\n";
        let beside = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: z-cacert, namespace: a}\nstringData: {ca.crt: believed, crl: \"\", cacert: hidden PRIVATE KEY}\n";
        let files = [
            SourceFile::new(
                "e.yaml",
                beside.to_owned() + map.replace("name: map", "name: last").as_str(),
            ),
            SourceFile::new("d.yaml", quoted),
            SourceFile::new("a.yaml", secret("one") + map + &secret("two")),
            SourceFile::new("b.yaml", map.replace("name: map", "name: other")),
            SourceFile::new("c.json", json),
        ];
        let (mesh, problems) = voile_model::check(&files, None);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(mesh.secrets.len(), 5);
        let folder = tempfile::tempdir().expect("a folder");
        let kept = LastGood::new(folder.path());
        // Files of earlier versions or of a crash, readable by all.
        for name in [FILE, "last-good.draft"] {
            let path = folder.path().join(name);
            std::fs::write(&path, "[]").expect("written");
            std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("its mode");
        }
        kept.keep(&files.map(Arc::new), &mesh);
        let text = std::fs::read_to_string(folder.path().join(FILE)).expect("kept");
        assert!(
            !text.contains("hidden") && !text.contains("aGlkZGVu"),
            "{text}"
        );
        let mode = std::fs::metadata(folder.path().join(FILE)).expect("kept");
        assert_eq!(mode.permissions().mode() & 0o7777, 0o600);
        let again = kept.load().expect("read");
        assert_eq!((again.secrets.len(), again.config_maps.len()), (5, 3));
        let held = |mesh: &Mesh| -> Vec<(String, String, String)> {
            let all = mesh.secrets.values().flat_map(|secret| {
                let one = |(key, held): (&Arc<str>, &Arc<[u8]>)| {
                    let text = String::from_utf8_lossy(held).into_owned();
                    (secret.name.to_string(), key.to_string(), text)
                };
                secret.data.iter().map(one)
            });
            all.collect()
        };
        let expected: Vec<_> = held(&mesh)
            .into_iter()
            .map(|(name, key, text)| match &*key {
                "ca.crt" | "crl" => (name, key, text),
                _ => (name, key, LEFT_OUT.to_owned()),
            })
            .collect();
        assert_eq!(held(&again), expected);
        let lines = |mesh: &Mesh| -> Vec<u32> {
            mesh.config_maps
                .values()
                .map(|map| map.source.line)
                .collect()
        };
        assert_eq!(lines(&again), lines(&mesh));
    }
}
