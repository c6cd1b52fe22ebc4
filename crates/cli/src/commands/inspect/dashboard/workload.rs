//! Answers about one workload that cost more than its figures: who can call it, the documents that hold for it, and what it wrote.
//! They are given only when the page asks, one at a time.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use voile_analysis::explain;
use voile_model::Source;
use voile_model::mesh::Routing;
use voile_telemetry::admin::{PageRequest, PageResponse};

use crate::commands::inspect::logs::last_lines;
use crate::commands::inspect::monitoring::{WatchedMesh, short, word};
use crate::commands::inspect::named_workloads::services_of;
use crate::commands::inspect::traffic::tap::document_place;
use crate::commands::inspect::who_can::shared_access;

/// Lines of each process.
const LINES: usize = 100;
/// Resources of a proxy about what its own workload receives; the others are about what it calls.
const RECEIVING: [&str; 4] = [
    "ProxyConfiguration",
    "AuthorizationPolicy",
    "Authorization",
    "RequestAuthentication",
];

/// See the module.
#[derive(Debug)]
pub(super) struct WorkloadAnswers {
    watched: WatchedMesh,
    /// Held while an answer is made: a mesh that is read has its size in memory.
    answering: Mutex<()>,
}

impl WorkloadAnswers {
    pub(super) fn new(watched: WatchedMesh) -> Self {
        Self {
            watched,
            answering: Mutex::new(()),
        }
    }

    /// The part of the answer that is asked for. It waits for files and control planes.
    pub(super) fn page(&self, question: &PageRequest) -> PageResponse {
        let name = question.parameter("name").unwrap_or_default();
        let name = percent_decode_str(name).decode_utf8_lossy();
        let _one = self
            .answering
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let answer = match question.parameter("part") {
            Some("callers") => self.callers(&name),
            Some("configuration") => self.configuration(&name),
            Some("logs") => self.logs(&name),
            _ => Err("part: expected callers, configuration or logs".to_owned()),
        };
        match answer {
            Ok(answer) => PageResponse::json(answer.to_string()),
            Err(reason) => PageResponse::text(StatusCode::NOT_FOUND, reason),
        }
    }

    /// The answers of `voile who-can` for every service of the workload.
    fn callers(&self, name: &str) -> Result<Value, String> {
        let mesh = self.watched.mesh()?;
        let services = services_of(&mesh, name).into_iter().map(|called| {
            let mut rows = explain::who_can(&mesh, called.service);
            called.keep_meant(&mut rows, |row| &row.workload);
            let access = shared_access(&rows, &mesh).into_iter().map(|shared| {
                let answers = shared.answers.into_iter();
                let answers = answers
                    .map(|(access, callers)| json!({ "access": access, "callers": callers }));
                json!({ "places": shared.places, "answers": answers.collect::<Vec<_>>() })
            });
            json!({
                "service": format!("{}/{}", called.service.key.namespace, called.service.name),
                "access": access.collect::<Vec<_>>(),
                "entrances": explain::entrances(&mesh, called.service),
            })
        });
        let services: Vec<Value> = services.collect();
        match services.is_empty() {
            true => Err(format!("no service of the mesh selects {name}")),
            false => Ok(Value::Array(services)),
        }
    }

    /// Documents for what the workload receives and calls, of the first of its proxies; and the routes to its services.
    fn configuration(&self, name: &str) -> Result<Value, String> {
        let mesh = self.watched.mesh()?;
        let routing = Routing::new(&mesh);
        let mut to_it = BTreeSet::new();
        let place = |source: &Source| match source.position() {
            None => source.file.to_string(),
            Some((line, _)) => format!("{}:{line}", source.file),
        };
        for called in services_of(&mesh, name) {
            for one in routing.of(called.service) {
                to_it.insert((
                    "VirtualService".to_owned(),
                    one.name.to_string(),
                    place(&one.source),
                ));
            }
            for one in mesh.destination_rules_of(called.service) {
                to_it.insert((
                    "DestinationRule".to_owned(),
                    one.name.to_string(),
                    place(&one.source),
                ));
            }
        }
        let (mut receiving, mut calling) = (BTreeSet::new(), BTreeSet::new());
        if let Some(proxy) = self.proxy_of(name)? {
            for resource in self.watched.held_by(&proxy)? {
                let receives = RECEIVING.contains(&short(word(&resource, "type")));
                let documents = resource["documents"].as_array().into_iter().flatten();
                for document in documents {
                    let kind = word(document, "kind");
                    // Of others it is enough to know how they are called.
                    if receives || !matches!(kind, "workload" | "service" | "PeerAuthentication") {
                        let held = if receives {
                            &mut receiving
                        } else {
                            &mut calling
                        };
                        held.insert((
                            kind.to_owned(),
                            word(document, "name").to_owned(),
                            document_place(document),
                        ));
                    }
                }
            }
        }
        let list = |documents: BTreeSet<(String, String, String)>| {
            let documents = documents.into_iter();
            let documents = documents
                .map(|(kind, name, place)| json!({ "kind": kind, "name": name, "place": place }));
            documents.collect::<Vec<_>>()
        };
        Ok(json!({ "receiving": list(receiving), "to_it": list(to_it), "calling": list(calling) }))
    }

    /// One of the workload's proxies.
    fn proxy_of(&self, name: &str) -> Result<Option<String>, String> {
        if let Some(found) = self.watched.on_this_machine()? {
            let of = |pod: &&Value| {
                let workload = format!("{}/{}", word(pod, "namespace"), word(pod, "workload"));
                pod["proxy"] == true && workload == name
            };
            let mut pods = found.state["pods"].as_array().into_iter().flatten();
            let pod = pods.find(of);
            return Ok(pod.map(|pod| format!("{}/{}", word(pod, "namespace"), word(pod, "name"))));
        }
        let proxies = self.watched.proxies()?.into_iter();
        let mut names = proxies.map(|proxy| proxy.to_string());
        // Kubernetes adds at most two words to the name of a controller.
        Ok(names.find(|proxy| {
            let rest = proxy.strip_prefix(name);
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('-') && rest.matches('-').count() <= 2
            })
        }))
    }

    fn logs(&self, name: &str) -> Result<Value, String> {
        let Some(found) = self.watched.on_this_machine()? else {
            let (namespace, workload) = name.split_once('/').unwrap_or(("default", name));
            return Err(format!(
                "Logs are shown for a mesh on this machine. On a cluster: kubectl -n {namespace} logs deploy/{workload} --all-containers"
            ));
        };
        let folder = &found.running.logs;
        let lines = last_lines(folder, name, LINES);
        let lines = lines.map_err(|error| format!("{}: {error}", folder.display()))?;
        let logs = lines.into_iter();
        let logs = logs.map(|(process, text)| json!({ "process": process, "text": text }));
        Ok(logs.collect())
    }
}
