//! Bootstrap file of a stock gRPC (gRFC A27, A29, A36, A65). It names the control plane, the program's own node, and the folder
//! of the certificates.

use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{CHAIN, KEY, ROOTS};

/// Resource name of a gRPC server's listener, as Istio has it. gRPC replaces `%s` with the address
/// that the server listens on.
const SERVER_LISTENER: &str = "xds.istio.io/grpc/lds/inbound/%s";
/// The plugin by the name that the control plane's clusters and listeners have for it.
const PLUGIN: &str = "default";
/// Readers look at the files so many times in a certificate's life: a renewal, at half of it, is seen with time to spare.
const LOOKS_IN_A_LIFE: u32 = 20;
/// The longest between two looks; gRPC's own default.
const RAREST_LOOK: Duration = Duration::from_secs(600);
/// The shortest.
const OFTENEST_LOOK: Duration = Duration::from_secs(1);

pub(super) struct Bootstrap<'a> {
    pub(super) control: &'a [String],
    pub(super) folder: &'a Path,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) address: IpAddr,
    pub(super) life: Duration,
}

impl Bootstrap<'_> {
    pub(super) fn text(&self) -> Result<String, String> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let look = (self.life / LOOKS_IN_A_LIFE).clamp(OFTENEST_LOOK, RAREST_LOOK);
        let files = json!({
            "certificate_file": file(CHAIN),
            "private_key_file": file(KEY),
            "ca_certificate_file": file(ROOTS),
            "refresh_interval": format!("{}s", look.as_secs()),
        });
        let (namespace, name) = (self.namespace, self.name);
        let server = |control: &String| {
            let place = control.strip_prefix("https://");
            let place = place.ok_or_else(|| format!("`{control}` does not begin with https://"))?;
            Ok(json!({
                "server_uri": place.trim_end_matches('/'),
                "channel_creds": [{ "type": "tls", "config": files }],
                "server_features": ["xds_v3"],
            }))
        };
        let servers = self.in_own_order().map(server);
        let servers = servers.collect::<Result<Vec<Value>, String>>()?;
        let bootstrap: Value = json!({
            "xds_servers": servers,
            "node": {
                "id": format!("sidecar~{}~{name}.{namespace}~{namespace}.svc.cluster.local", self.address),
                "cluster": format!("{name}.{namespace}"),
                "metadata": { "GENERATOR": "grpc", "NAME": name, "NAMESPACE": namespace },
            },
            "certificate_providers": {
                PLUGIN: { "plugin_name": "file_watcher", "config": files },
            },
            "server_listener_resource_name_template": SERVER_LISTENER,
        });
        let text = serde_json::to_string_pretty(&bootstrap).map_err(|error| error.to_string())?;
        Ok(text + "\n")
    }

    /// gRPC asks the first, and the next when that is away (gRFC A71): workloads begin with different ones, and each always with
    /// the same, so that a renewal changes nothing.
    fn in_own_order(&self) -> impl Iterator<Item = &String> {
        let mut hasher = DefaultHasher::new();
        (self.namespace, self.name).hash(&mut hasher);
        let first = hasher.finish() as usize % self.control.len().max(1);
        self.control[first..].iter().chain(&self.control[..first])
    }
}

/// Writes a public file in the place of one that may be there.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("not a file name"))?;
    let draft = path.with_file_name(format!(".{}.{:016x}", name.display(), fastrand::u64(..)));
    let written = (|| {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&draft)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&draft, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}
