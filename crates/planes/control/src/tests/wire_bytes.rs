//! A hash of each resource that proxies are sent: by the meshes of `examples/`, and by a small mesh with each document of the
//! model's tables. A change of the wire is a line of `wire_bytes.txt` that names the resource. With `VOILE_BLESS=1` the file is
//! rewritten; read the difference before you commit it. What our own proxies read there encodes to the same bytes again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use prost::Message;
use serde_json::{Value, json};
use voile_envoy::{GATEWAY_NODE, SIDECAR_NODE};
use voile_model::mesh::{Deployment, Mesh, Workload};
use voile_model::{Namespace, SourceFile, check, files};
use voile_proto::type_url;
use voile_xds::server::{Resolution, Resource, Snapshot};
use voile_xds::wire::{ProxyConfiguration, Routes, ServicePolicy, WireError, WireType};

use crate::foreign_proxies::envoy::TYPES;
use crate::keys::Texts;
use crate::snapshot::{MeshSnapshot, SnapshotCaller};
use crate::translate::translate;

/// The first line of a mesh or document.
const RECORD: &str = "=== ";
/// The recorded hashes.
const HASHES: &str = "src/tests/wire_bytes.txt";
const EXAMPLES: &str = "../../../examples";
const TABLES: &str = "../../resources/model/tests/it";

/// The small mesh: documents are about hosts of these names. One gateway, and an ambient pod.
const SMALL: &str = include_str!("small_mesh.yaml");

/// What a proxy reads, as it would be sent again; none of types that proxies only read.
fn sent_again(of: &str, body: &[u8]) -> Option<Result<Vec<u8>, WireError>> {
    Some(match of {
        type_url::PROXY_CONFIGURATION => {
            ProxyConfiguration::decode(body).map(|one| one.to_wire().encode_to_vec())
        }
        type_url::SERVICE_POLICY => {
            ServicePolicy::decode(body).map(|one| one.to_wire().encode_to_vec())
        }
        type_url::SERVICE_ROUTES => Routes::decode(body).map(|one| one.to_wire().encode_to_vec()),
        _ => return None,
    })
}

/// By proxies, type and name: the hash, or each hash with its receivers if they differ.
type Hashes = BTreeMap<String, String>;

/// By proxies, type and name, then by hash: the receivers.
#[derive(Default)]
struct Recorder(BTreeMap<String, BTreeMap<Arc<str>, BTreeSet<String>>>);

impl Recorder {
    fn put(&mut self, proxies: &str, of: &str, name: &str, hash: &str, receiver: &str) {
        let kind = of.rsplit('.').next().unwrap();
        let receivers = self
            .0
            .entry(format!("{proxies} {kind} {name}"))
            .or_default();
        let receivers = receivers.entry(hash.into()).or_default();
        receivers.insert(receiver.to_owned());
    }

    fn add(&mut self, proxies: &str, of: &str, resource: &Resource, receiver: &str) {
        if let Some(again) = sent_again(of, &resource.body) {
            assert_eq!(again, Ok(resource.body.to_vec()), "{of} {}", resource.name);
        }
        // Maps of foreign messages have no order on the wire: the version is a hash of the same content.
        self.put(proxies, of, &resource.name, &resource.version, receiver);
    }

    fn own_proxies(&mut self, snapshot: &MeshSnapshot) {
        for (of, all) in [
            (type_url::ADDRESS, &snapshot.all_addresses),
            (type_url::SERVICE_POLICY, &snapshot.policies),
            (type_url::AUTHORIZATION_POLICY, &snapshot.authorization),
            (type_url::REQUEST_AUTHENTICATION, &snapshot.tokens),
            (type_url::KEY_SET, &snapshot.key_sets),
        ] {
            for resource in all.values() {
                self.add("voile", of, resource, "others");
            }
        }
        for (of, all) in [
            (type_url::SERVICE_POLICY, &snapshot.policies_apart),
            (type_url::SERVICE_ROUTES, &snapshot.routes),
        ] {
            for service in all.values() {
                let apart = service.apart.iter();
                let apart = apart.map(|(namespace, told)| (namespace.as_str(), told));
                for (receiver, told) in apart.chain([("others", &service.general)]) {
                    if let Some(resource) = told {
                        self.add("voile", of, resource, receiver);
                    }
                }
            }
        }
        for own in snapshot.configurations.values() {
            self.add("voile", type_url::PROXY_CONFIGURATION, &own.resource, "");
        }
        for policy in snapshot.node_policies.values() {
            self.add("node", type_url::AUTHORIZATION, &policy.resource, "");
        }
        for address in snapshot.plain.values() {
            self.add("node", type_url::ADDRESS, address, "");
        }
    }

    fn foreign(
        &mut self,
        proxies: &str,
        (of, name): (&str, &str),
        answer: Resolution,
        receiver: &str,
    ) {
        match answer {
            Resolution::Found(all) => {
                for resource in all {
                    self.add(proxies, of, &resource, receiver);
                }
            }
            Resolution::Refused(_) => self.put(proxies, of, name, "refused", receiver),
            Resolution::Unknown | Resolution::Lacking(_) => {}
        }
    }

    fn envoy(&mut self, mesh: &Mesh, snapshot: &MeshSnapshot, workload: &Workload) {
        let kind = match workload.gateway {
            true => GATEWAY_NODE,
            false => SIDECAR_NODE,
        };
        let identity = workload.identity(&mesh.config.trust_domain);
        let caller = super::envoy(snapshot, kind, identity, &workload.key.name);
        for of in TYPES {
            let answer = snapshot.everything(&caller, of);
            self.foreign("envoy", (of, "*"), answer, &workload.key.to_string());
        }
    }

    fn grpc_client(&mut self, mesh: &Mesh, snapshot: &MeshSnapshot, caller: &SnapshotCaller) {
        for service in mesh.services.values() {
            let host = &service.key.hostname;
            for port in &service.ports {
                let (target, part) = (
                    format!("{host}:{}", port.number),
                    format!("grpc|{}||{host}", port.number),
                );
                for (of, name) in [
                    (type_url::LISTENER, &target),
                    (type_url::ROUTES, &part),
                    (type_url::CLUSTER, &part),
                    (type_url::ENDPOINTS, &part),
                ] {
                    let answer = snapshot.resolve(caller, of, name);
                    let receiver = caller.namespace().as_str();
                    self.foreign("grpc", (of, name), answer, receiver);
                }
            }
        }
    }

    fn finish(self) -> Hashes {
        let line = |(name, hashes): (String, BTreeMap<Arc<str>, BTreeSet<String>>)| {
            let only = hashes.len() == 1;
            let each = hashes.into_iter().map(|(hash, receivers)| match only {
                true => hash.to_string(),
                false => format!("{hash} for {}", Vec::from_iter(receivers).join(", ")),
            });
            (name, Vec::from_iter(each).join("; "))
        };
        self.0.into_iter().map(line).collect()
    }
}

/// A Pod with an address, as a controller makes it.
fn pod(number: usize, deployment: &Deployment) -> Value {
    let template = &deployment.template;
    let texts = |labels: &voile_model::Labels| -> serde_json::Map<String, Value> {
        let texts = labels.iter();
        texts
            .map(|(key, value)| (key.to_string(), json!(**value)))
            .collect()
    };
    let containers = template.containers.iter().map(|container| {
        let ports = container.ports.iter();
        let ports = ports
            .map(|port| json!({"name": port.name.as_deref(), "containerPort": port.number.get()}));
        json!({"name": *container.name, "ports": Vec::from_iter(ports)})
    });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": *deployment.name.name,
            "namespace": deployment.name.namespace.as_str(),
            "labels": texts(&template.labels),
            "annotations": texts(&template.annotations),
        },
        "spec": {
            "serviceAccountName": *template.service_account,
            "containers": Vec::from_iter(containers),
        },
        "status": {"phase": "Running", "podIP": format!("10.0.{}.{}", number / 250, number % 250 + 1)},
    })
}

/// Everything that proxies of this mesh are sent: our own, and if wanted stock Envoys and gRPCs in their places.
fn hashes(sources: &[SourceFile], foreign: bool) -> Hashes {
    let declared = check(sources, None).0;
    let deployments = declared.deployments.values().enumerate();
    let pods = deployments.map(|(number, one)| format!("---\n{}\n", pod(number, one)));
    let mut sources = sources.to_vec();
    sources.push(SourceFile::new("pods.yaml", pods.collect::<String>()));
    let mesh = Arc::new(check(&sources, None).0);
    let snapshot = translate(&mesh, None).0;
    let envoys = &snapshot.envoys;
    envoys.stand_on(Some(&mesh), None, &Texts::default(), None);
    let mut recorder = Recorder::default();
    recorder.own_proxies(&snapshot);
    let mut clients: BTreeSet<&Namespace> = BTreeSet::new();
    let callers = mesh.workloads.values();
    for workload in callers.filter(|one| foreign && one.has_sidecar) {
        recorder.envoy(&mesh, &snapshot, workload);
        let identity = workload.identity(&mesh.config.trust_domain);
        let caller = super::caller(identity, &workload.key.name);
        let server = (
            type_url::LISTENER,
            "xds.istio.io/grpc/lds/inbound/0.0.0.0:8080",
        );
        let answer = snapshot.resolve(&caller, server.0, server.1);
        recorder.foreign("grpc", server, answer, &workload.key.to_string());
        if clients.insert(&workload.key.namespace) {
            recorder.grpc_client(&mesh, &snapshot, &caller);
        }
    }
    recorder.finish()
}

/// Documents of a table, by title, without what must be told of them.
fn documents(table: &str) -> impl Iterator<Item = (&str, &str)> {
    let cases = table.split(RECORD).skip(1);
    cases.filter_map(|case| {
        let (head, rest) = case.split_once('\n')?;
        let title = head.split(" | ").next()?;
        let text = rest.split_once(">>>\n").map_or(rest, |(text, _)| text);
        Some((title, text))
    })
}

/// The names in a folder, sorted.
fn listed(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

/// Each mesh and document, with what is sent. Of documents only what differs from the small mesh without them, and nothing for
/// foreign proxies: their messages take seconds for each mesh.
fn recorded(root: &Path) -> Vec<(String, Hashes)> {
    let mut all = Vec::new();
    for name in listed(&root.join(EXAMPLES)) {
        let folder = root.join(EXAMPLES).join(&name);
        // Graphs of services are no meshes.
        if folder.is_dir() && name != "graphs" {
            let sources = files::read_directory(&folder).unwrap();
            all.push((format!("examples/{name}"), hashes(&sources, true)));
        }
    }
    let small = SourceFile::new("small.yaml", SMALL);
    let base = hashes(std::slice::from_ref(&small), false);
    let tables = listed(&root.join(TABLES).join("golden"));
    let tables = tables.into_iter().map(|name| format!("golden/{name}"));
    for name in tables.chain(["oracle_documents.txt".to_owned()]) {
        let table = std::fs::read_to_string(root.join(TABLES).join(&name)).unwrap();
        for (title, text) in documents(&table) {
            // The first of two resources of one name holds.
            let sources = [SourceFile::new("mesh.yaml", text), small.clone()];
            let mut found = hashes(&sources, false);
            let gone = base.keys().filter(|key| !found.contains_key(*key));
            let gone: Vec<_> = gone.map(|key| (key.clone(), "gone".to_owned())).collect();
            found.retain(|key, hash| base.get(key) != Some(hash));
            found.extend(gone);
            if !found.is_empty() {
                all.push((format!("{name}: {title}"), found));
            }
        }
    }
    all.push(("the small mesh".to_owned(), hashes(&[small], true)));
    all
}

/// The lines of a text, each with its record.
fn lines(text: &str) -> BTreeSet<(&str, &str)> {
    let records = text.split(RECORD).filter_map(|one| one.split_once('\n'));
    let mut all = BTreeSet::new();
    for (record, lines) in records {
        all.extend(lines.lines().map(|line| (record, line)));
    }
    all
}

#[test]
fn proxies_are_sent_the_recorded_bytes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = recorded(root);
    assert!(found.len() > 80, "{} meshes", found.len());
    let mut text = String::new();
    for (record, hashes) in &found {
        writeln!(text, "{RECORD}{record}").unwrap();
        for (name, hash) in hashes {
            writeln!(text, "{name} {hash}").unwrap();
        }
    }
    let path = root.join(HASHES);
    if std::env::var_os("VOILE_BLESS").is_some() {
        std::fs::write(path, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap();
    let (expected, found) = (lines(&expected), lines(&text));
    let missing = expected.difference(&found).map(|line| ("-", line));
    let new = found.difference(&expected).map(|line| ("+", line));
    let different = missing.chain(new);
    let different: Vec<_> = different
        .map(|(sign, (record, line))| format!("{sign} {record}: {line}"))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}
