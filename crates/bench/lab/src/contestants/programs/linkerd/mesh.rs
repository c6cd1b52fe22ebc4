//! Input of linkerd2-proxy and its control plane: a trust anchor for the run, each proxy's key, certificate request and token,
//! and the file from which the control plane answers. Also reads the fate of a proxy from the control plane's log.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{
    DIRECT_VIRTUAL, SEALED_HTTP_PORT, SEALED_TCP_PORT, SERVER_VIRTUAL, STAGE_VIRTUAL, STAGES,
};
use crate::contestants::certificates::{self, Leaf};
use crate::network::Echo;
use crate::network::{HTTP_PORT, INBOUND, TCP_PORT};

/// Names in certificates, as Linkerd makes them of service accounts.
pub(super) const CLIENT_NAME: &str = "client.lab.serviceaccount.identity.linkerd.cluster.local";
pub(super) const SERVER_NAME: &str = "server.lab.serviceaccount.identity.linkerd.cluster.local";
pub(super) const CONTROL_NAME: &str =
    "control.linkerd.serviceaccount.identity.linkerd.cluster.local";
const IMPOSTOR_NAME: &str = "impostor.lab.serviceaccount.identity.linkerd.cluster.local";
/// Ports whose bytes no proxy inspects.
const OPAQUE: [u16; 2] = [TCP_PORT, SEALED_TCP_PORT];
/// Random bits of a token, in steps of 64.
const TOKEN_WORDS: usize = 4;

/// Workload name that a proxy sends when it asks about ports and addresses.
pub(super) fn workload(pod: &str) -> String {
    format!("lab/{pod}")
}

/// Paths of the files, and the tokens.
pub(super) struct LinkerdFiles {
    folder: PathBuf,
    root: PathBuf,
    root_key: PathBuf,
    /// The client's and the server's.
    tokens: [String; 2],
}

/// Addresses of control plane, servers and stage.
pub(super) struct LinkerdAddresses {
    pub(super) control: SocketAddr,
    pub(super) server: IpAddr,
    /// The server without a sidecar.
    pub(super) direct: Echo,
    /// Address of the lab's own servers for the impostor's trial.
    pub(super) stage: SocketAddr,
}

impl LinkerdFiles {
    /// Writes all but the mesh; also gives certificates with the server's name and with another, for the impostor's trial.
    pub(super) fn write(folder: &Path) -> Result<(Self, Leaf, Leaf), String> {
        let (root, root_key) = certificates::anchor(folder)?;
        let mut tokens = Vec::new();
        for (pod, name) in [("client", CLIENT_NAME), ("server", SERVER_NAME)] {
            let own = folder.join(pod);
            std::fs::create_dir_all(&own).map_err(|e| format!("{}: {e}", own.display()))?;
            certificates::request(&own, name)?;
            let words = (0..TOKEN_WORDS).map(|_| format!("{:016x}", fastrand::u64(..)));
            let token: String = words.collect();
            crate::record_folder::write(&own.join("token"), &token)?;
            tokens.push(token);
        }
        let names = [("right", SERVER_NAME), ("wrong", IMPOSTOR_NAME)];
        let leaves = certificates::below(&root, &root_key, folder, &names)?;
        let [right, wrong] = <[Leaf; 2]>::try_from(leaves).map_err(|_| "two leaves were made")?;
        let files = Self {
            folder: folder.to_owned(),
            root,
            root_key,
            tokens: <[String; 2]>::try_from(tokens).map_err(|_| "two tokens were made")?,
        };
        Ok((files, right, wrong))
    }

    /// The folder of that pod's proxy.
    pub(super) fn of(&self, pod: &str) -> PathBuf {
        self.folder.join(pod)
    }

    /// The trust anchor, PEM.
    pub(super) fn anchors(&self) -> Result<String, String> {
        std::fs::read_to_string(&self.root)
            .map_err(|e| format!("reading {}: {e}", self.root.display()))
    }

    /// Writes the file from which the control plane answers. In plaintext an endpoint looks like one without a proxy: it has no
    /// name, and its server's sidecar accepts any client.
    pub(super) fn write_mesh(&self, places: &LinkerdAddresses) -> Result<PathBuf, String> {
        let LinkerdAddresses {
            control,
            server,
            direct,
            stage,
        } = places;
        let service =
            |name: &str, address: IpAddr, port: u16, to: SocketAddr, identity: Option<&str>| {
                json!({
                    "name": name,
                    "address": SocketAddr::new(address, port),
                    "endpoints": [{"address": to, "identity": identity}],
                    "opaque": OPAQUE.contains(&port).then_some(INBOUND),
                })
            };
        let at = |port| SocketAddr::new(*server, port);
        let plain = |port| service("server", SERVER_VIRTUAL, port, at(port), None);
        let sealed = |port| service("server", SERVER_VIRTUAL, port, at(port), Some(SERVER_NAME));
        let beside = |port, to| service("direct", DIRECT_VIRTUAL, port, to, None);
        let [client_token, server_token] = &self.tokens;
        let who = |pod: &str, name: &str, token: &str, ports: &[u16]| {
            json!({
                "identity": name, "token": token, "workload": workload(pod),
                "sealed_ports": ports, "clients": [CLIENT_NAME],
                "opaque_ports": OPAQUE,
            })
        };
        let mut services = vec![
            plain(HTTP_PORT),
            plain(TCP_PORT),
            sealed(SEALED_HTTP_PORT),
            sealed(SEALED_TCP_PORT),
            beside(HTTP_PORT, direct.http),
            beside(TCP_PORT, direct.tcp),
        ];
        let name = Some(SERVER_NAME);
        services.extend(STAGES.map(|port| service("stage", STAGE_VIRTUAL, port, *stage, name)));
        let mesh = json!({
            "listen": control,
            "name": CONTROL_NAME,
            "root": self.root,
            "root_key": self.root_key,
            "workloads": [
                who("client", CLIENT_NAME, client_token, &[]),
                who("server", SERVER_NAME, server_token, &[SEALED_HTTP_PORT, SEALED_TCP_PORT]),
            ],
            "services": services,
        });
        let file = self.folder.join("mesh.json");
        crate::record_folder::write(&file, &mesh.to_string())?;
        Ok(file)
    }
}

/// Requests of a proxy that is not ready, by the control plane's log, in words.
pub(super) fn asked(log: &Path, identity: &str, control: SocketAddr) -> String {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let refusal = format!("refused Certify of {identity:?}");
    if let Some(line) = said.lines().rev().find(|line| line.starts_with(&refusal)) {
        return format!("the lab's control plane {line}");
    }
    let certified = format!("certified {identity}");
    if said.lines().any(|line| line == certified) {
        return "it got its certificate but is not ready: it refuses the certificate; its log has the reason"
            .to_owned();
    }
    format!(
        "it never requested its certificate from the lab's control plane ({control}): it is not a compatible linkerd2-proxy, cannot reach the control plane, or refuses the control plane's own certificate; its log has the reason"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_a_proxy_that_is_not_ready_is_told_from_the_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let control: SocketAddr = "10.210.0.1:8086".parse().expect("an address");
        let refused =
            format!("refused Certify of {CLIENT_NAME:?}: the token is not {CLIENT_NAME}'s");
        for (said, words) in [
            (
                String::new(),
                "never requested its certificate from the lab's control plane (10.210.0.1:8086)",
            ),
            (format!("certified {SERVER_NAME}"), "never requested"),
            (
                format!("certified {CLIENT_NAME}"),
                "refuses the certificate",
            ),
            (refused, "the token is not"),
        ] {
            std::fs::write(&log, &said).expect("written");
            let told = asked(&log, CLIENT_NAME, control);
            assert!(told.contains(words), "{said}: {told}");
        }
    }

    #[test]
    fn each_proxy_has_its_own_key_and_token_and_the_mesh_names_both() {
        let folder = tempfile::tempdir().expect("a folder");
        let (files, right, wrong) = LinkerdFiles::write(folder.path()).expect("written");
        assert_ne!(files.tokens[0], files.tokens[1]);
        for pod in ["client", "server"] {
            for file in ["csr.der", "key.p8", "token"] {
                let path = files.of(pod).join(file);
                assert!(path.is_file(), "{}", path.display());
            }
        }
        assert!(right.certificate.is_file() && wrong.key.is_file());
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let file = files.write_mesh(&LinkerdAddresses {
            control: at("10.210.0.1:1"),
            server: at("10.210.2.3:0").ip(),
            direct: Echo {
                http: at("10.210.1.3:2"),
                tcp: at("10.210.1.3:3"),
            },
            stage: at("10.210.0.1:4"),
        });
        let text = std::fs::read_to_string(file.expect("written")).expect("read");
        let mesh: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let services = mesh["services"].as_array().expect("services");
        assert_eq!(services.len(), 6 + STAGES.count());
        let sealed = services
            .iter()
            .filter(|s| !s["endpoints"][0]["identity"].is_null());
        assert_eq!(sealed.count(), 2 + STAGES.count());
    }
}
