//! The generated folder, and edits of it as an editor makes them: a draft beside the file, renamed over it.

use std::fs;
use std::path::{Path, PathBuf};

/// Prefix of a mark, by which the crowd recognises a change.
const MARK: &str = "mark-r";
/// File of the policy for all workloads.
const POLICY: &str = "policy.yaml";

pub(super) struct Folder {
    pub(super) path: PathBuf,
    workloads: Vec<WorkloadFile>,
    /// Workloads that do not stand behind the service that all use, by their places.
    apart: Vec<usize>,
    next_mark: u32,
}

/// One workload's file.
struct WorkloadFile {
    path: PathBuf,
    /// Its text, as generated.
    text: String,
    /// Identifier of the workload on the wire.
    uid: String,
    /// By which a service selects it: namespace and labels, as written.
    selected_by: (String, String),
}

impl Folder {
    /// Reads what was generated.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let folder = path.join("workloads");
        let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
        let mut workloads = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let text = fs::read_to_string(&path).map_err(failed)?;
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
                line.map(str::trim).unwrap_or_default()
            };
            let uid = format!("Kubernetes//Pod/{}/{}", field("namespace:"), field("name:"));
            let selected_by = (field("namespace:").to_owned(), field("labels:").to_owned());
            workloads.push(WorkloadFile {
                path,
                text,
                uid,
                selected_by,
            });
        }
        workloads.sort_by(|a, b| a.path.cmp(&b.path));
        let shared = workloads.first().map(|first| first.selected_by.clone());
        let is_apart = |at: &usize| Some(&workloads[*at].selected_by) != shared.as_ref();
        let apart: Vec<usize> = (0..workloads.len()).filter(is_apart).collect();
        if apart.is_empty() {
            return Err(format!(
                "{}: every workload is behind the service that all proxies use",
                folder.display()
            ));
        }
        Ok(Self {
            path: path.to_owned(),
            workloads,
            apart,
            next_mark: 1,
        })
    }

    /// The workload at the beginning: it stands behind the service that all use.
    pub(super) const SHARED: usize = 0;

    /// A random workload behind another service than the shared one: its change concerns few proxies. A workload of the shared
    /// service, drawn now and then, would be a hundredth of a percent of the changes and a twentieth of the updates.
    pub(super) fn any_apart(&self) -> usize {
        self.apart[fastrand::usize(..self.apart.len())]
    }

    /// The mark of the next change.
    pub(super) fn mark(&mut self) -> u32 {
        self.next_mark += 1;
        self.next_mark - 1
    }

    /// Identifier of the workload on the wire.
    pub(super) fn uid(&self, workload: usize) -> &str {
        &self.workloads[workload].uid
    }

    /// Prepares the edit of a workload; only the rename remains.
    pub(super) fn draft(&self, workload: usize, mark: u32) -> Result<DraftEdit, String> {
        let WorkloadFile { path, text, .. } = &self.workloads[workload];
        let text = text.replace("version: v1", &format!("version: {MARK}{mark}"));
        DraftEdit::new(path.clone(), &text)
    }

    /// Prepares a policy that every workload obeys.
    pub(super) fn policy(&self, mark: u32) -> Result<DraftEdit, String> {
        let text = format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {MARK}{mark}, namespace: istio-system}}\n\
             spec:\n  action: DENY\n  rules:\n  - to: [{{operation: {{methods: [TRACE]}}}}]\n"
        );
        DraftEdit::new(self.path.join(POLICY), &text)
    }
}

/// An edit that is ready.
pub(super) struct DraftEdit {
    draft: PathBuf,
    path: PathBuf,
}

impl DraftEdit {
    fn new(path: PathBuf, text: &str) -> Result<Self, String> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let draft = path.with_file_name(format!(".{name}.swp"));
        fs::write(&draft, text).map_err(|e| format!("{}: {e}", draft.display()))?;
        Ok(Self { draft, path })
    }

    /// Puts it into the folder.
    pub(super) fn publish(self) -> Result<(), String> {
        fs::rename(&self.draft, &self.path).map_err(|e| format!("{}: {e}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_concerns_few_is_never_one_of_the_service_that_all_use() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("workloads")).expect("a folder");
        let write = |number: usize, namespace: &str, app: &str| {
            let text = format!(
                "kind: Pod\nmetadata:\n  name: w{number}\n  namespace: {namespace}\n  labels: {{app: {app}, version: v1}}\n"
            );
            let path = folder.path().join(format!("workloads/w{number}.yaml"));
            fs::write(path, text).expect("written");
        };
        let rest = [("a", "s0"), ("a", "s1"), ("b", "s0"), ("a", "s0")];
        for (number, (namespace, app)) in rest.into_iter().enumerate() {
            write(number, namespace, app);
        }
        let found = Folder::open(folder.path()).expect("read");
        assert_eq!(found.apart, [1, 2], "of 0 and 3 everybody hears");
        assert!((0..100).all(|_| found.apart.contains(&found.any_apart())));
        for number in [1, 2] {
            write(number, "a", "s0");
        }
        assert!(Folder::open(folder.path()).is_err(), "none is left");
    }
}
