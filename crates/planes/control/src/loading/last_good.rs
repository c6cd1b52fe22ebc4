//! The last good configuration, kept in the state directory: a control plane that is started again beside a broken folder, or
//! while the folder is away, holds what was good before, like one that kept running. It is the last configuration without
//! errors, and after it a newer one, if all of its documents could be read: an error that stays does not keep back what came
//! since.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use voile_model::mesh::Secret;
use voile_model::{Diagnostic, Mesh, SourceFile, codes};

use crate::state_file::StateFile;

/// Name in the state directory. No Secret's key is in it; it is for its owner all the same.
const FILE: &str = "last-good.json";
/// Text in place of a Secret's content. It decodes to nothing: a gateway that has the Secret goes on with it, and a gateway that
/// never had it admits no client.
const LEFT_OUT: &str = "left out: the content of a Secret stays in its source";
/// Public fields of a Secret: trusted authorities, and lists of revoked certificates.
const PUBLIC: [&str; 4] = ["ca.crt", "cacert", "ca.crl", "crl"];

/// Kind whose content is not kept.
const SECRET: &str = "Secret";

/// Errors after which nobody knows what a document was.
const UNREAD: [&str; 5] = [
    codes::UNREADABLE,
    codes::NOT_YAML,
    codes::LIMIT,
    codes::DUPLICATE_KEY,
    codes::YAML_FEATURE,
];

/// Files by name, as they were at one time.
type Files = Vec<(String, String)>;

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
        self.kept().into_iter().fold(None, |mesh, files| {
            let files = files.into_iter();
            let files: Vec<_> = files
                .map(|(name, text)| SourceFile::new(name, text))
                .collect();
            Some(voile_model::check(&files, mesh.as_ref()).0)
        })
    }

    /// The configurations that were kept, each after the one before it.
    fn kept(&self) -> Vec<Files> {
        let path = self.file.path().display();
        let text = match self.file.read() {
            Ok(text) => text.unwrap_or_else(|| b"[]".to_vec()),
            Err(error) => {
                tracing::warn!(%path, %error, "cannot read the last good configuration");
                return Vec::new();
            }
        };
        // An earlier version kept one configuration.
        let one = || serde_json::from_slice(&text).map(|files: Files| vec![files]);
        serde_json::from_slice(&text)
            .or_else(|_| one())
            .inspect_err(|error| {
                tracing::warn!(%path, %error, "the saved last good configuration is damaged");
            })
            .unwrap_or_default()
    }

    /// Keeps these files, which make this mesh and have these problems. Failing is no reason to stop: it is said, and what is in
    /// force stays.
    pub(crate) fn keep(&self, files: &[Arc<SourceFile>], mesh: &Mesh, problems: &[Diagnostic]) {
        if let Err(error) = self.write(files, mesh, problems) {
            let path = self.file.path().display();
            tracing::warn!(%path, %error, "cannot save the last good configuration");
        }
    }

    fn write(
        &self,
        files: &[Arc<SourceFile>],
        mesh: &Mesh,
        problems: &[Diagnostic],
    ) -> std::io::Result<()> {
        let has_errors = problems.iter().any(Diagnostic::is_error);
        if has_errors && !may_be_kept(files, problems) {
            return Ok(());
        }
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
        let before = if has_errors { self.kept() } else { Vec::new() };
        let before = before.first().map(|files| serde_json::json!(files));
        let all: Vec<_> = before
            .into_iter()
            .chain([serde_json::json!(texts)])
            .collect();
        self.file.replace(serde_json::to_vec(&all)?)
    }
}

/// Returns true if these files, which have errors, may be kept: a first start from them would not lose a security resource, and
/// no Secret is beside an error, where its key would not be found.
fn may_be_kept(files: &[Arc<SourceFile>], problems: &[Diagnostic]) -> bool {
    let mut broken = problems.iter().filter(|problem| problem.is_error());
    if broken.any(|problem| UNREAD.contains(&problem.code)) {
        return false;
    }
    let all: Vec<SourceFile> = files.iter().map(|file| SourceFile::clone(file)).collect();
    let (_, problems) = voile_model::check(&all, None);
    let broken = problems.iter().filter(|problem| problem.is_error());
    let broken: BTreeSet<&str> = broken.map(|problem| &*problem.source.file).collect();
    let has_secret = |file: &SourceFile| {
        let text = file.text.as_ref();
        text.is_ok_and(|text| text.contains(SECRET))
    };
    let is_lost = problems
        .iter()
        .any(|problem| problem.code == codes::NEVER_READ);
    let mut all = all.iter().filter(|file| broken.contains(&*file.name));
    !is_lost && !all.any(has_secret)
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
        kept.keep(&files.map(Arc::new), &mesh, &[]);
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

    const POLICY: &str = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: NAME, namespace: a}\nspec: {action: DENY, rules: [{}]}\n";
    /// An error of a resource, which stays.
    const BROKEN: &str =
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: UPPER_CASE, namespace: a}\n";
    /// A document that may be any policy.
    const CUT: &str = "---\nkind: AuthorizationPolicy\nmetadata: {name: one, namespace: a\n";
    const KEY: &str = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: UPPER_CASE, namespace: a}\nstringData: {key: hidden}\n";

    #[test]
    fn an_error_that_stays_does_not_keep_back_what_came_since() {
        let policy = |name: &str| POLICY.replace("NAME", name);
        let folder = tempfile::tempdir().expect("a folder");
        let kept = LastGood::new(folder.path());
        let file = folder.path().join(FILE);
        // As an earlier version kept it.
        let old = serde_json::json!([["mesh.yaml", policy("zero")]]);
        std::fs::write(&file, old.to_string()).expect("written");
        // What the folder says, and the policies that hold after a restart beside a policy that cannot be read.
        for (text, expected) in [
            (policy("zero") + CUT, "zero"),
            (policy("zero") + BROKEN, "zero"),
            (policy("zero") + &policy("one") + BROKEN, "one zero"),
            // In place of `one`.
            (policy("zero") + CUT + BROKEN, "one zero"),
            (policy("two") + KEY, "one zero"),
            (policy("one") + BROKEN, "one"),
            (policy("one") + &policy("two"), "one two"),
            (policy("two") + BROKEN, "two"),
        ] {
            let files = [SourceFile::new("mesh.yaml", &*text)];
            let (mesh, problems) = voile_model::check(&files, kept.load().as_ref());
            kept.keep(&files.map(Arc::new), &mesh, &problems);
            let again = kept.load().expect("read");
            let names = again.authorization_policies.keys();
            let names: Vec<_> = names.map(|policy| policy.name.to_string()).collect();
            assert_eq!(names.join(" "), expected, "{text}");
            let said = std::fs::read_to_string(&file).expect("kept");
            assert!(!said.contains("hidden"), "{said}");
        }
    }
}
