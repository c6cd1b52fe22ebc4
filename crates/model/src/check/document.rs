//! One document: what it is, what it is called, and which check it goes to.

use std::sync::Arc;

use super::kinds::{API_GATEWAY, GATEWAY, KINDS, Kind, Scope, UNREAD, Unread};
use super::values::{self, Meta};
use super::{
    Checked, Read, ResourceId, Stored, authorization, config, destination, endpoint_slice,
    health_check, intents, kubernetes, networking, pod, rate_limit, request_authentication,
    security, service_entry, sidecar, telemetry, virtual_service, workload_group,
};
use crate::codes;
use crate::decode::{At, Cursor, Fields, Report};
use crate::diagnostic::Diagnostic;
use crate::mesh::gateway_api;
use crate::mesh::intent::Intent;
use crate::names::Namespace;
use crate::source::{Source, SourceFile};
use crate::text::{clip, suggest};
use crate::written::TextMap;
use crate::written::header::Header;
use crate::yaml::{self, Document, Node, Place};

/// Most documents of one file: a file of nothing but `---` lines and scalars must not take minutes.
const MAX_DOCUMENTS_PER_FILE: usize = 50_000;

/// A text that cannot be read may be a security policy when it has this in it: the first letters of the kind, so that one
/// cut off in the middle of its kind is taken for one too.
const POLICY_WORDS: [(&str, &str); 3] = [
    ("PeerAuth", "PeerAuthentication"),
    ("AuthorizationPol", "AuthorizationPolicy"),
    ("RequestAuth", "RequestAuthentication"),
];

/// Reads every document of a file.
pub(super) fn read_file(file: &SourceFile, read: &mut Read) {
    let start = Source {
        file: file.name.clone(),
        line: 1,
        column: 1,
    };
    let text = match &file.text {
        Ok(text) => text,
        Err(reason) => {
            read.add_nameless(start.clone());
            let message = format!("the file cannot be read: {reason}");
            read.diagnostics
                .push(Diagnostic::error(codes::UNREADABLE, start, message));
            return;
        }
    };
    let documents = yaml::split(text);
    if documents.len() > MAX_DOCUMENTS_PER_FILE {
        read.add_nameless(start.clone());
        let message = format!(
            "the file has {} documents, more than the {MAX_DOCUMENTS_PER_FILE} allowed",
            documents.len()
        );
        read.diagnostics.push(
            Diagnostic::error(codes::LIMIT, start, message).help("split it into several files"),
        );
        return;
    }
    for document in documents {
        read_document(&file.name, document, read);
    }
}

fn read_document(file: &Arc<str>, document: Document<'_>, read: &mut Read) {
    let origin = Place {
        line: document.first_line,
        column: 1,
    };
    match yaml::parse_document(document.text, origin) {
        Ok(None) => {}
        Ok(Some(root)) if root.is_null() => {}
        Ok(Some(root)) => {
            let at = At {
                place: root.place,
                path: "".into(),
            };
            read_resource(file, &root, at, read);
        }
        Err(error) => {
            let source = Source {
                file: file.clone(),
                line: error.place.line,
                column: error.place.column,
            };
            for (word, kind) in POLICY_WORDS {
                if document.text.contains(word) {
                    read.nameless_policies.push((kind, source.clone()));
                }
            }
            read.add_nameless(source.clone());
            read.diagnostics
                .push(Diagnostic::error(error.code, source, error.message).help(error.help));
        }
    }
}

/// Reads one resource, or each of a List.
fn read_resource(file: &Arc<str>, node: &Node, at: At, read: &mut Read) {
    let report = Report::new(file.clone());
    let cursor = Cursor {
        node,
        at,
        report: &report,
    };
    let source = report.source(&cursor.at);
    let outcome = match cursor.fields() {
        Some(mut fields) => {
            let header = Header::read(&mut fields);
            if header
                .kind
                .as_ref()
                .is_some_and(|kind| &*kind.value == "List")
            {
                read_list(file, &mut fields, read);
                fields.finish();
                Outcome::Nothing
            } else {
                resource(&header, fields, &mut read.intents, &report)
            }
        }
        None => Outcome::Bad(None),
    };
    match outcome {
        Outcome::Good(id, checked) if !report.failed() => {
            let stored = Stored {
                source,
                says_exports: says_exports(node),
                checked,
            };
            read.add_good(id, stored);
        }
        Outcome::Good(id, checked) => {
            match checked {
                Checked::PeerAuthentication(policy) => {
                    read.broken_policies.entry(id.clone()).or_insert(policy);
                }
                Checked::AuthorizationPolicy(policy) => {
                    read.broken_authorization
                        .entry(id.clone())
                        .or_insert(policy);
                }
                Checked::RequestAuthentication(policy) => {
                    read.broken_tokens.entry(id.clone()).or_insert(policy);
                }
                Checked::BackendTls(policy) => {
                    read.broken_backend_tls.entry(id.clone()).or_insert(policy);
                }
                _ => {}
            }
            read.bad.entry(id).or_insert(source);
        }
        Outcome::Bad(Some(id)) => {
            read.bad.entry(id).or_insert(source);
        }
        Outcome::Bad(None) => {
            let said = node.get("kind").map(|kind| &kind.value);
            if let Some(yaml::Value::Scalar(text)) = said {
                let meant = |(word, _): &&(&str, _)| text.text.starts_with(word);
                if let Some((_, kind)) = POLICY_WORDS.iter().find(meant) {
                    read.nameless_policies.push((kind, source.clone()));
                }
            }
            read.add_nameless(source);
        }
        Outcome::Nothing => {}
    }
    read.diagnostics.extend(report.into_diagnostics());
}

/// Whether a resource says whom it is exported to. A selector of clients' workloads says it, too: they are of its own namespace.
fn says_exports(node: &Node) -> bool {
    let spec = node.get("spec");
    let spellings = ["exportTo", "export_to"];
    let list = spec.and_then(|spec| spellings.iter().find_map(|name| spec.get(name)));
    let listed = list.is_some_and(|list| match &list.value {
        yaml::Value::List(items) => !items.is_empty(),
        yaml::Value::Scalar(_) | yaml::Value::Map(_) => false,
    });
    let annotations = node.get("metadata").and_then(|one| one.get("annotations"));
    let annotated = annotations.and_then(|one| one.get(kubernetes::EXPORT_TO));
    let of_rule = node.get("kind").is_some_and(
        |kind| matches!(&kind.value, yaml::Value::Scalar(text) if &*text.text == "DestinationRule"),
    );
    let selectors = ["workloadSelector", "workload_selector"];
    let selects =
        of_rule && spec.is_some_and(|spec| selectors.iter().any(|name| spec.get(name).is_some()));
    listed || annotated.is_some() || selects
}

/// `kind: List` holds resources. A List in a List is refused by name, so this does not go deeper.
fn read_list(file: &Arc<str>, fields: &mut Fields<'_>, read: &mut Read) {
    let Some(items) = fields.get("items") else {
        return;
    };
    for item in items.items() {
        if item
            .node
            .get("kind")
            .is_some_and(|kind| matches!(&kind.value, yaml::Value::Scalar(s) if &*s.text == "List"))
        {
            item.report.error(
                codes::BAD_VALUE,
                &item.at,
                "a List inside a List",
                "write its items out",
            );
            continue;
        }
        read_resource(file, item.node, item.at.clone(), read);
    }
}

/// What the groups of Istio end with.
const ISTIO: &str = ".istio.io/";

enum Outcome {
    Good(ResourceId, Checked),
    /// Not in force; by name where there is one.
    Bad(Option<ResourceId>),
    /// Nothing that could be in force.
    Nothing,
}

fn resource(
    header: &Header,
    mut fields: Fields<'_>,
    intents: &mut Vec<Intent>,
    report: &Report,
) -> Outcome {
    let kind = report.required(header.kind.clone(), &header.at, "kind");
    report.required(header.api_version.clone(), &header.at, "apiVersion");
    let Some(kind_text) = kind else {
        return Outcome::Bad(None);
    };
    let name = header
        .metadata
        .name
        .as_ref()
        .map_or_else(String::new, |name| format!(" `{}`", clip(&name.value)));
    // Of the two kinds of this name the group decides.
    let version = header.api_version.as_ref();
    let of_api = version.is_some_and(|one| one.value.starts_with(gateway_api::GROUP));
    let mut known = KINDS.iter().filter(|kind| match kind.name {
        GATEWAY => (kind.id == API_GATEWAY) == of_api,
        _ => true,
    });
    let Some(kind) = known.find(|kind| kind.name == &*kind_text.value) else {
        return unread(&kind_text.value, &name, &kind_text.at, report);
    };
    if let Some(api_version) = &header.api_version
        && !kind.api_versions.contains(&&*api_version.value)
    {
        let message = format!("`{}` has no kind {}", clip(&api_version.value), kind.name);
        report.error(
            codes::API_VERSION,
            &api_version.at,
            message,
            format!("write {}", kind.api_versions.join(" or ")),
        );
    }
    if kind.api_versions.iter().any(|one| one.contains(ISTIO)) {
        report.read_protobuf();
    }
    let Some(meta) = values::meta(header, kind.scope == Scope::Namespaced, report) else {
        // It has no name to be remembered by.
        return Outcome::Bad(None);
    };
    let id = id(kind, &meta);
    let annotations = &header.metadata.annotations;
    let checked = checked(kind.id, (meta, annotations), &mut fields, intents, report);
    fields.finish();
    match checked {
        Some(checked) => Outcome::Good(id, checked),
        None => Outcome::Bad(Some(id)),
    }
}

fn id(kind: &Kind, meta: &Meta) -> ResourceId {
    let namespace: Option<Namespace> =
        (kind.scope == Scope::Namespaced).then(|| meta.name.namespace.clone());
    ResourceId {
        kind: kind.id,
        namespace,
        name: meta.name.name.clone(),
    }
}

/// One line a kind: as written, then checked.
fn checked(
    kind: &str,
    (meta, annotations): (Meta, &TextMap),
    fields: &mut Fields<'_>,
    intents: &mut Vec<Intent>,
    report: &Report,
) -> Option<Checked> {
    match kind {
        "AuthorizationPolicy" => Some(Checked::AuthorizationPolicy(
            authorization::authorization_policy(meta, fields, report).into(),
        )),
        "ConfigMap" => config::config_map(meta, fields, report),
        "Deployment" => {
            pod::deployment(meta, fields, report).map(|d| Checked::Deployment(d.into()))
        }
        "DestinationRule" => {
            destination::destination_rule((meta, annotations), fields, intents, report)
                .map(|rule| Checked::DestinationRule(rule.into()))
        }
        "EndpointSlice" => endpoint_slice::endpoint_slice(meta, fields, report)
            .map(|one| Checked::EndpointSlice(one.into())),
        "Endpoints" => Some(Checked::EndpointSlice(
            endpoint_slice::endpoints(meta, fields, report).into(),
        )),
        GATEWAY => {
            intents::gateway(meta, fields, intents, report).map(|one| Checked::Gateway(one.into()))
        }
        "IPAddress" => {
            kubernetes::ip_address(meta, fields, report).map(|a| Checked::IpAddress(a.into()))
        }
        "Namespace" => kubernetes::namespace((meta, annotations), fields, report)
            .map(|n| Checked::Namespace(n.into())),
        "PeerAuthentication" => Some(Checked::PeerAuthentication(
            security::peer_authentication(meta, fields, report).into(),
        )),
        "Pod" => pod::pod(meta, fields, report).map(|p| Checked::Pod(p.into())),
        "ProxyConfig" => {
            networking::proxy_config(meta, fields, report).map(|p| Checked::ProxyConfig(p.into()))
        }
        "HealthCheck" => health_check::health_check(meta, fields, report)
            .map(|one| Checked::HealthCheck(one.into())),
        "RateLimit" => {
            rate_limit::rate_limit(meta, fields, report).map(|one| Checked::RateLimit(one.into()))
        }
        "RequestAuthentication" => Some(Checked::RequestAuthentication(
            request_authentication::request_authentication(meta, fields, report).into(),
        )),
        "Secret" => kubernetes::secret(meta, fields, report).map(|s| Checked::Secret(s.into())),
        "Service" => kubernetes::service((meta, annotations), fields, report)
            .map(|s| Checked::Services(vec![s.into()], Vec::new())),
        "ServiceAccount" => Some(Checked::ServiceAccount(
            kubernetes::service_account(meta, fields).into(),
        )),
        "ServiceEntry" => service_entry::service_entry((meta, annotations), fields, report),
        "Sidecar" => sidecar::sidecar(meta, fields, report).map(|s| Checked::Sidecar(s.into())),
        "Telemetry" => Some(Checked::Telemetry(
            telemetry::telemetry(meta, fields, report).into(),
        )),
        "VirtualService" => virtual_service::virtual_service(meta, fields, intents, report)
            .map(|one| Checked::VirtualService(one.into())),
        "WorkloadEntry" => networking::workload_entry(meta, fields, report),
        "WorkloadGroup" => workload_group::workload_group(meta, fields, report)
            .map(|group| Checked::WorkloadGroup(group.into())),
        _ => super::gateway_api::checked(kind, meta, fields, report),
    }
}

fn unread(kind: &str, name: &str, at: &At, report: &Report) -> Outcome {
    match UNREAD
        .iter()
        .find(|(known, _)| *known == kind)
        .map(|(_, why)| *why)
    {
        Some(Unread::NotYet) => {
            let message = format!("{kind}{name} is not yet supported, and is not in force");
            report.error(
                codes::NOT_YET,
                at,
                message,
                "remove it, or wait for a later version",
            );
        }
        Some(Unread::NotYetSecurity) => {
            let message = format!(
                "{kind}{name} is not yet supported: it is NOT ENFORCED, what it forbids is allowed"
            );
            report.error(
                codes::UNENFORCED_KIND,
                at,
                message,
                "do not rely on it; remove it, or wait for a later version",
            );
        }
        Some(Unread::Refused) => {
            let message = format!(
                "{kind}{name} is refused: it patches the inside of another proxy, which Voile does not have"
            );
            report.error(
                codes::REFUSED,
                at,
                message,
                "say what you want with Istio's or Gateway API's resources, and remove it",
            );
        }
        Some(Unread::NoMeaning) => {
            report.warning(
                codes::NO_MEANING,
                at,
                format!("{kind}{name} means nothing to the mesh; ignored"),
                "",
            );
        }
        None => {
            let known = KINDS
                .iter()
                .map(|k| k.name)
                .chain(UNREAD.iter().map(|(name, _)| *name));
            let near = crate::text::nearest(kind, known)
                .map_or_else(String::new, |near| suggest(kind, [near]));
            report.error(
                codes::UNKNOWN_KIND,
                at,
                format!("unknown kind `{}`", clip(kind)),
                near,
            );
            // It may be a misspelt kind whose good version is remembered.
            return Outcome::Bad(None);
        }
    }
    Outcome::Nothing
}
