//! The generated folder, and edits of it as an editor makes them: a draft beside the file, renamed over it.

use std::fs;
use std::path::{Path, PathBuf};

/// How a mark is written, for the crowd to find again.
const MARK: &str = "mark-r";
/// Where the policy for all is.
const POLICY: &str = "policy.yaml";

pub(super) struct Folder {
    pub(super) path: PathBuf,
    workloads: Vec<Workload>,
    next_mark: u32,
}

/// One workload's file.
struct Workload {
    path: PathBuf,
    /// Its text, as generated.
    text: String,
    /// As the wire calls it.
    uid: String,
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
            workloads.push(Workload { path, text, uid });
        }
        workloads.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self {
            path: path.to_owned(),
            workloads,
            next_mark: 1,
        })
    }

    pub(super) fn workloads(&self) -> usize {
        self.workloads.len()
    }

    /// The mark of the next change.
    pub(super) fn mark(&mut self) -> u32 {
        self.next_mark += 1;
        self.next_mark - 1
    }

    /// As the wire calls the workload.
    pub(super) fn uid(&self, workload: usize) -> &str {
        &self.workloads[workload].uid
    }

    /// Prepares the edit of a workload: what remains is to rename.
    pub(super) fn draft(&self, workload: usize, mark: u32) -> Result<Draft, String> {
        let Workload { path, text, .. } = &self.workloads[workload];
        let text = text.replace("version: v1", &format!("version: {MARK}{mark}"));
        Draft::new(path.clone(), &text)
    }

    /// Prepares a policy that every workload obeys.
    pub(super) fn policy(&self, mark: u32) -> Result<Draft, String> {
        let text = format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {MARK}{mark}, namespace: istio-system}}\n\
             spec:\n  action: DENY\n  rules:\n  - to: [{{operation: {{methods: [TRACE]}}}}]\n"
        );
        Draft::new(self.path.join(POLICY), &text)
    }
}

/// An edit that is ready.
pub(super) struct Draft {
    draft: PathBuf,
    path: PathBuf,
}

impl Draft {
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
