//! The last configuration without errors, kept in the state directory: a control plane that is started again beside a
//! broken folder holds what was good before, like one that kept running.

use std::path::Path;
use std::sync::Arc;

use voile_model::{Mesh, SourceFile};

use crate::state_file::StateFile;

/// Name in the state directory. Secrets are left out of it; it is for its owner all the same.
const FILE: &str = "last-good.json";

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
                tracing::warn!(%path, %error, "the last good configuration cannot be read");
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
                tracing::warn!(%path, %error, "the last good configuration is damaged");
                None
            }
        }
    }

    /// Keeps these files. Failing is no reason to stop: it is said, and what is in force stays.
    pub(crate) fn keep(&self, files: &[Arc<SourceFile>], mesh: &Mesh) {
        if let Err(error) = self.write(files, mesh) {
            let path = self.file.path().display();
            tracing::warn!(%path, %error, "the last good configuration cannot be kept");
        }
    }

    fn write(&self, files: &[Arc<SourceFile>], mesh: &Mesh) -> std::io::Result<()> {
        let secrets = |file: &SourceFile| -> Vec<u32> {
            let secrets = mesh.secrets.values().map(|secret| &secret.source);
            secrets
                .filter(|source| *source.file == *file.name)
                .map(|source| source.line)
                .collect()
        };
        let texts: Vec<(&str, String)> = files
            .iter()
            .filter_map(|file| {
                let text = file.text.as_deref().ok()?;
                Some((&*file.name, without_documents(text, &secrets(file))))
            })
            .collect();
        self.file.replace(serde_json::to_vec(&texts)?)
    }
}

/// The text without the documents that hold these lines (from 1). Lines keep their numbers.
fn without_documents(text: &str, lines: &[u32]) -> String {
    if lines.is_empty() {
        return text.to_owned();
    }
    let all: Vec<&str> = text.lines().collect();
    // A key in quotes may have a line that begins with dashes.
    let begins = |line: &str| {
        let rest = line.strip_prefix("---");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
    };
    let mut kept: Vec<&str> = Vec::new();
    let mut start = 0;
    while start < all.len() {
        let more = all[start + 1..].iter().take_while(|line| !begins(line));
        let document = start..start + 1 + more.count();
        let is_secret = lines
            .iter()
            .any(|line| document.contains(&(*line as usize).saturating_sub(1)));
        for line in &all[document.clone()] {
            kept.push(match (is_secret, begins(line)) {
                (false, _) => line,
                (true, true) => "---",
                (true, false) => "",
            });
        }
        start = document.end;
    }
    kept.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_are_not_kept_and_everything_else_stays_where_it_was() {
        let secret = |name: &str| {
            format!(
                "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: a}}\nstringData: {{key: hidden}}\n"
            )
        };
        let map = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: map, namespace: a}\ndata: {say: \"kind: Secret\"}\n";
        let json = r#"{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "j", "namespace": "a"}, "data": {"key": "aGlkZGVu"}}"#;
        let quoted = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: q, namespace: a}\nstringData: {key: \"-\n-----BEGIN hidden\n\"}\n";
        let files = [
            SourceFile::new("d.yaml", quoted),
            SourceFile::new("a.yaml", secret("one") + map + &secret("two")),
            SourceFile::new("b.yaml", map.replace("name: map", "name: other")),
            SourceFile::new("c.json", json),
        ];
        let (mesh, problems) = voile_model::check(&files, None);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(mesh.secrets.len(), 4);
        let folder = tempfile::tempdir().expect("a folder");
        let kept = LastGood::new(folder.path());
        // What earlier versions or a crash left behind, readable by all.
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
        assert_eq!((again.secrets.len(), again.config_maps.len()), (0, 2));
        let lines = |mesh: &Mesh| -> Vec<u32> {
            mesh.config_maps
                .values()
                .map(|map| map.source.line)
                .collect()
        };
        assert_eq!(lines(&again), lines(&mesh));
    }
}
