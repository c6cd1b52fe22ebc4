//! The plugin on a node: its program, its kubeconfig and its place in the configuration list, kept there until the node agent is
//! uninstalled.

use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, PostParams};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{PLUGIN, PluginConfig, conflist};
use crate::connect::ClusterAddress;
use crate::error::ClusterError;

/// The cluster's authority, in a pod.
const CLUSTER_ROOTS: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
/// The kubeconfig's name. Runtimes read `*.conf`, `*.conflist` and `*.json` only.
const KUBECONFIG: &str = "ZZZ-voile-cni-kubeconfig";
/// The configuration is looked at again at least so often.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Life of the plugin's token. It is not bound to the agent's pod: the plugin needs it while there is none.
const TOKEN_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Age at which another token is asked for.
const TOKEN_RENEWAL: Duration = Duration::from_secs(6 * 60 * 60);
const PROGRAM_MODE: u32 = 0o755;
const CONFIG_MODE: u32 = 0o644;
const SECRET_MODE: u32 = 0o600;

/// Why the plugin cannot be installed.
#[derive(Debug, thiserror::Error)]
#[error("the CNI plugin: {}: {error}", path.display())]
pub struct InstallationError {
    path: PathBuf,
    error: io::Error,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> InstallationError {
    let path = path.to_owned();
    move |error| InstallationError { path, error }
}

/// The plugin on this node. The folders are the node's, as the agent sees them.
#[derive(Debug)]
pub(crate) struct Installation {
    pub(crate) programs: PathBuf,
    pub(crate) configs: PathBuf,
    /// The folder of configurations, as the runtime sees it.
    pub(crate) configs_on_node: PathBuf,
    pub(crate) socket: PathBuf,
    /// The agent's service account, in the namespace of its pods.
    pub(crate) account: String,
    /// Namespace and start of the names of the agent's own pods.
    pub(crate) agent: (String, String),
    pub(crate) has_node_proxy: bool,
}

impl Installation {
    /// Copies the program, which is this process's own. Then keeps kubeconfig and configuration as they must be, for ever.
    ///
    /// # Errors
    /// A file of the node cannot be written.
    pub(crate) async fn keep(&self, client: &Client) -> Result<(), InstallationError> {
        let program = self.programs.join(PLUGIN);
        let source = env::current_exe().map_err(at(Path::new("/proc/self/exe")))?;
        copy(&source, &program).map_err(at(&program))?;
        let changed = Arc::new(Notify::new());
        let _watcher = watch(&self.configs, changed.clone()).map_err(at(&self.configs))?;
        let mut problem = String::new();
        let mut renewal = Instant::now();
        loop {
            if Instant::now() >= renewal {
                match self.request_token(client).await {
                    Ok(token) => {
                        self.write_kubeconfig(&token)?;
                        renewal = Instant::now() + TOKEN_RENEWAL;
                    }
                    Err(error) => tracing::warn!("{error}; the CNI plugin keeps its last token"),
                }
            }
            let found = self.chain();
            match found {
                Ok(Some(file)) => {
                    tracing::info!(file = %file.display(), "the CNI plugin is chained");
                }
                Ok(None) => problem.clear(),
                Err(reason) if reason != problem => {
                    tracing::warn!(
                        "the CNI plugin is not chained: {reason}; new pods start without it"
                    );
                    problem = reason;
                }
                Err(_) => {}
            }
            let _ = tokio::time::timeout(LOOK_INTERVAL, changed.notified()).await;
        }
    }

    /// Puts the plugin into the configuration that the runtime uses, and returns the file if that changed it.
    fn chain(&self) -> Result<Option<PathBuf>, String> {
        let config = PluginConfig::new(
            self.socket.clone(),
            self.configs_on_node.join(KUBECONFIG),
            (&self.agent.0, &self.agent.1),
            self.has_node_proxy,
        );
        let file = self.primary()?;
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = fs::read_to_string(&file).map_err(|error| told(&error))?;
        match conflist::with_plugin(&text, &config).map_err(|error| told(&error))? {
            None => Ok(None),
            Some(text) => {
                replace(&file, text.as_bytes(), CONFIG_MODE).map_err(|error| told(&error))?;
                Ok(Some(file))
            }
        }
    }

    /// The configuration that a runtime uses: the first by name.
    fn primary(&self) -> Result<PathBuf, String> {
        let folder = self.configs.display();
        let entries = fs::read_dir(&self.configs).map_err(|error| format!("{folder}: {error}"))?;
        let of_runtime = |path: &PathBuf| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("conf" | "conflist" | "json"))
        };
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let first = files.filter(of_runtime).min();
        let first = first.ok_or_else(|| {
            format!("{folder} has no configuration yet; the primary plugin writes one")
        })?;
        match first.extension().is_some_and(|one| one == "conflist") {
            true => Ok(first),
            false => Err(format!(
                "{}: a single plugin, behind which none can be chained; write it as a *.conflist",
                first.display()
            )),
        }
    }

    /// Takes the plugin out of every configuration, and its files away.
    ///
    /// # Errors
    /// A file of the node cannot be changed.
    pub(crate) fn remove(&self) -> Result<(), InstallationError> {
        for entry in fs::read_dir(&self.configs).map_err(at(&self.configs))? {
            let file = entry.map_err(at(&self.configs))?.path();
            if file.extension().is_some_and(|one| one == "conflist") {
                let text = fs::read_to_string(&file).map_err(at(&file))?;
                // Another's broken file is not ours to judge.
                if let Ok(Some(text)) = conflist::without_plugin(&text) {
                    replace(&file, text.as_bytes(), CONFIG_MODE).map_err(at(&file))?;
                }
            }
        }
        for file in [self.configs.join(KUBECONFIG), self.programs.join(PLUGIN)] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(at(&file)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn request_token(&self, client: &Client) -> Result<String, ClusterError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.agent.0);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: i64::try_from(TOKEN_LIFE.as_secs()).ok(),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let created = accounts
            .create_token_request(&self.account, &PostParams::default(), &request)
            .await;
        let what = format!(
            "a token of serviceaccounts/{}/{}",
            self.agent.0, self.account
        );
        let created = created.map_err(|error| ClusterError::api(what, &error))?;
        Ok(created
            .status
            .and_then(|status| status.token)
            .unwrap_or_default())
    }

    /// The plugin's way to the API server, with a token that lasts as long as the agent's account.
    pub(crate) fn api_server(&self) -> ClusterAddress {
        ClusterAddress {
            kubeconfig: Some(self.configs.join(KUBECONFIG)),
            context: None,
        }
    }

    /// One whose configurations are in this folder.
    #[cfg(test)]
    pub(crate) fn in_folder(folder: &Path) -> Self {
        tests::installation(folder, folder.to_owned())
    }

    /// Writes the plugin's way to the API server. An agent outside a cluster knows none.
    fn write_kubeconfig(&self, token: &str) -> Result<(), InstallationError> {
        let host = env::var("KUBERNETES_SERVICE_HOST");
        let (Ok(host), Ok(roots)) = (host, fs::read_to_string(CLUSTER_ROOTS)) else {
            return Ok(());
        };
        let host = match host.contains(':') {
            true => format!("[{host}]"),
            false => host,
        };
        let port = env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".to_owned());
        let roots = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, roots);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "node",
            "clusters": [{"name": "cluster", "cluster": {
                "server": format!("https://{host}:{port}"), "certificate-authority-data": roots,
            }}],
            "users": [{"name": "agent", "user": {"token": token}}],
            "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "agent"}}],
        });
        let file = self.configs.join(KUBECONFIG);
        replace(&file, config.to_string().as_bytes(), SECRET_MODE).map_err(at(&file))
    }
}

/// Tells of each change of a folder's files, or of a file.
pub(crate) fn watch(path: &Path, changed: Arc<Notify>) -> io::Result<RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        // Our own reading is no news.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            changed.notify_one();
        }
    };
    let mut watcher = notify::recommended_watcher(tell).map_err(io::Error::other)?;
    watcher
        .watch(path, RecursiveMode::NonRecursive)
        .map_err(io::Error::other)?;
    Ok(watcher)
}

/// Replaces a file by a rename, so that a reader sees the old one or the new one.
fn replace(file: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    put(file, mode, |new| new.write_all(content))
}

fn copy(source: &Path, file: &Path) -> io::Result<()> {
    put(file, PROGRAM_MODE, |new| {
        io::copy(&mut fs::File::open(source)?, new).map(drop)
    })
}

fn put(
    file: &Path,
    mode: u32,
    write: impl FnOnce(&mut fs::File) -> io::Result<()>,
) -> io::Result<()> {
    // A hidden name without the extension of configurations, which no runtime reads.
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let new = file.with_file_name(format!(".{name}.voile-new"));
    let mut options = fs::OpenOptions::new();
    let mut opened = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&new)?;
    write(&mut opened)?;
    opened.set_permissions(fs::Permissions::from_mode(mode))?;
    opened.sync_all()?;
    fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn installation(folder: &Path, configs: PathBuf) -> Installation {
        Installation {
            programs: folder.join("bin"),
            configs,
            configs_on_node: "/etc/cni/net.d".into(),
            socket: "/run/voile/cni.sock".into(),
            account: "voile-node".to_owned(),
            agent: ("istio-system".to_owned(), "voile-node-".to_owned()),
            has_node_proxy: true,
        }
    }

    /// A client of no API server.
    fn nobody() -> Client {
        let nowhere = "http://127.0.0.1:1".parse().expect("an address");
        Client::try_from(kube::Config::new(nowhere)).expect("a client")
    }

    #[tokio::test]
    async fn the_plugin_is_chained_stays_when_the_file_is_rewritten_and_goes_when_it_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let installed = installation(folder.path(), folder.path().join("net.d"));
        for folder in [&installed.programs, &installed.configs] {
            fs::create_dir(folder).expect("a folder");
        }
        let list = installed.configs.join("10-pods.conflist");
        let primary = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"}]}"#;
        fs::write(&list, primary).expect("written");
        let has_plugin = || fs::read_to_string(&list).is_ok_and(|text| text.contains(PLUGIN));
        let look = async {
            until(has_plugin).await;
            fs::write(&list, primary).expect("the primary plugin writes it again");
            until(has_plugin).await;
        };
        let client = nobody();
        tokio::select! {
            kept = installed.keep(&client) => panic!("{kept:?}"),
            () = look => {}
        }
        assert!(installed.programs.join(PLUGIN).exists());
        installed.remove().expect("removed");
        assert!(!has_plugin());
        assert!(!installed.programs.join(PLUGIN).exists());
    }

    #[test]
    fn the_first_configuration_by_name_is_the_one_and_a_single_plugin_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let installed = installation(folder.path(), folder.path().join("net.d"));
        fs::create_dir(&installed.configs).expect("a folder");
        let error = installed.primary().expect_err("empty");
        assert!(error.contains("no configuration yet"), "{error}");
        for name in ["20-b.conflist", "10-a.conf", "00-notes.txt"] {
            fs::write(installed.configs.join(name), "{}").expect("written");
        }
        let error = installed.primary().expect_err("a single plugin");
        assert!(error.contains("10-a.conf"), "{error}");
        fs::remove_file(installed.configs.join("10-a.conf")).expect("removed");
        let found = installed.primary().expect("a list");
        assert!(found.ends_with("20-b.conflist"));
    }

    async fn until(condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let limit = Duration::from_secs(10);
        tokio::time::timeout(limit, wait).await.expect("in time");
    }
}
