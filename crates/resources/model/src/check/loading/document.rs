//! Reads one document: its kind, its name, and the check for its kind.

use std::sync::Arc;

use crate::check::controller::controller;
use crate::check::header::Header;
use crate::check::kinds::{
    self, GATEWAY, KINDS, ResourceKind, ResourceScope, SECURITY, SECURITY_KINDS, UNREAD,
    UnreadReason,
};
use crate::check::values::{self, DocumentName, Meta};
use crate::check::{
    CheckedResource, LostDocument, ReadFiles, ResourceId, StoredResource, authorization, config,
    destination, endpoint_slice, fail_closed, health_check, intents, kubernetes, networking,
    peer_authentication, pod, rate_limit, request_authentication, service_entry, sidecar,
    telemetry, virtual_service, workload_group,
};
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report, TextMap};
use crate::diagnostic::Diagnostic;
use crate::mesh::ControllerKind;
use crate::mesh::routing_intent::RoutingIntent;
use crate::names::{Namespace, ResourceName, is_object_name};
use crate::source::{Source, SourceFile};
use crate::text::{clip, suggest};
use crate::yaml::{self, Document, SourcePosition, YamlError, YamlNode};

/// Most documents of one file: a file of nothing but `---` lines and scalars must not take minutes.
const MAX_DOCUMENTS_PER_FILE: usize = 50_000;

/// A text that cannot be read may be a security resource when it has this in it: the first letters of the kind, so that one
/// cut off in the middle of its kind is taken for one too.
const POLICY_WORDS: [(&str, &str); 3] = [
    ("PeerAuth", "PeerAuthentication"),
    ("AuthorizationPol", "AuthorizationPolicy"),
    ("RequestAuth", "RequestAuthentication"),
];

/// Reads every document of a file.
pub(in crate::check) fn read_file(file: &SourceFile, read: &mut ReadFiles) {
    let start = Source {
        file: file.name.clone(),
        line: 1,
        column: 1,
    };
    let text = match &file.text {
        Ok(text) => text,
        Err(reason) => {
            read.add_lost(LostDocument::unknown(start.clone()));
            read.add_may_be(SECURITY_KINDS, &start);
            let message = format!("the file cannot be read: {reason}");
            read.diagnostics
                .push(Diagnostic::error(codes::UNREADABLE, start, message));
            return;
        }
    };
    let documents = yaml::split(text, file.first_line);
    if documents.len() > MAX_DOCUMENTS_PER_FILE {
        read.add_lost(LostDocument::unknown(start.clone()));
        read.add_may_be(SECURITY_KINDS, &start);
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

fn read_document(file: &Arc<str>, document: Document<'_>, read: &mut ReadFiles) {
    let origin = SourcePosition {
        line: document.first_line,
        column: 1,
    };
    match yaml::parse_document(document.text, origin) {
        Ok(None) => {}
        Ok(Some(root)) if root.is_null() => {}
        Ok(Some(root)) => {
            let at = FieldPath {
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
            let words = POLICY_WORDS.iter();
            let may_be = words.filter(|(word, _)| document.text.contains(word));
            let may_be: Vec<&'static str> = may_be.map(|(_, kind)| *kind).collect();
            // Templates of a Helm chart may lie beside the mesh's files.
            let is_template = may_be.is_empty() && document.text.contains("{{");
            let help = match may_be.is_empty() {
                true => error.help.to_owned(),
                false => maybe_security(&may_be, error.help),
            };
            match is_template_text(document.text, &error) {
                true => read.add_perhaps(may_be, &source),
                false => read.add_may_be(may_be, &source),
            }
            read.add_lost(LostDocument::unknown(source.clone()));
            let problem = match is_template {
                true => Diagnostic::warning(error.code, source, error.message),
                false => Diagnostic::error(error.code, source, error.message),
            };
            read.diagnostics.push(problem.help(help));
        }
    }
}

/// Returns true if the text is the template of a chart: no cluster reads it either.
fn is_template_text(text: &str, error: &YamlError) -> bool {
    let mut lines = text.lines();
    error.help == yaml::TEMPLATE || lines.any(|line| line.trim_start().starts_with("{{"))
}

fn maybe_security(kinds: &[&str], help: &str) -> String {
    let kinds = kinds.join(" or ");
    let held = format!(
        "it may be {kinds} and is not in force: resources of that kind stay in force until it can be read"
    );
    match help {
        "" => held,
        help => format!("{help}; {held}"),
    }
}

/// Reads one resource, or each of a List.
fn read_resource(file: &Arc<str>, node: &YamlNode, at: FieldPath, read: &mut ReadFiles) {
    let report = Report::new(file.clone());
    let cursor = Cursor {
        node,
        at,
        report: &report,
    };
    let source = report.source(&cursor.at);
    let spec = values::join(&cursor.at.path, "spec");
    let outcome = match &node.value {
        yaml::Value::Map(_) => match cursor.fields() {
            Some(fields) => document(file, (node, fields), &source, read, &report),
            None => DocumentOutcome::Nothing,
        },
        yaml::Value::List(_) => no_resource("a list", &cursor.at, &report),
        // It may be the beginning of a resource.
        yaml::Value::Scalar(_) => {
            no_resource("a text without fields", &cursor.at, &report);
            DocumentOutcome::Lost(None, DocumentName::default())
        }
    };
    match outcome {
        DocumentOutcome::Good(id, checked) if !report.failed() => {
            let stored = StoredResource {
                source,
                says_exports: says_exports(node),
                checked,
            };
            read.add_good(id, stored);
        }
        DocumentOutcome::Good(id, checked) => {
            hold(&id, checked, &source, (&spec, &report), read);
            read.bad.entry(id).or_insert(source);
        }
        DocumentOutcome::Unnamed(id, checked, called) => {
            hold(&id, checked, &source, (&spec, &report), read);
            let kind = Some(id.kind);
            read.add_lost(LostDocument {
                source,
                kind,
                called,
            });
        }
        DocumentOutcome::Bad(id) => {
            read.bad.entry(id).or_insert(source);
        }
        DocumentOutcome::Lost(kind, called) => {
            if called.namespace.is_none()
                && let Some(kind) = kind.filter(|kind| SECURITY_KINDS.contains(kind))
            {
                read.add_may_be([kind], &source);
            }
            read.add_lost(LostDocument {
                source,
                kind,
                called,
            });
        }
        DocumentOutcome::MayBe(group, called) => {
            match group {
                SecurityGroup::Readable => read.add_may_be(SECURITY_KINDS, &source),
                SecurityGroup::Unknown => read.add_perhaps(SECURITY_KINDS, &source),
            }
            read.add_lost(LostDocument {
                source,
                kind: None,
                called,
            });
        }
        DocumentOutcome::Nothing => {}
    }
    read.diagnostics.extend(report.into_diagnostics());
}

/// Keeps the part of an invalid security resource that stays in force.
fn hold(
    id: &ResourceId,
    checked: CheckedResource,
    source: &Source,
    (spec, report): (&str, &Report),
    read: &mut ReadFiles,
) {
    if let Some(checked) = fail_closed::held(checked, spec, report) {
        let stored = StoredResource {
            source: source.clone(),
            says_exports: false,
            checked,
        };
        read.broken.entry(id.clone()).or_insert(stored);
    }
}

/// Reads what may be a resource or a list of them.
fn document(
    file: &Arc<str>,
    (node, mut fields): (&YamlNode, Fields<'_>),
    source: &Source,
    read: &mut ReadFiles,
    report: &Report,
) -> DocumentOutcome {
    let parts = ["kind", "apiVersion", "metadata"].map(|name| fields.has(name));
    if let Some(why) = why_no_resource(&fields, node, parts) {
        no_resource(why, fields.at(), report);
        // One that has lost its kind still has a name.
        return match parts[2] {
            true => DocumentOutcome::Lost(None, called(&Header::read(&mut fields))),
            false => DocumentOutcome::Nothing,
        };
    }
    let is_list = fields
        .plain("kind")
        .and_then(|kind| kind.strip_suffix("List"))
        .is_some_and(|of| of.is_empty() || fields.has("items"));
    if !is_list && is_foreign(&fields, node, report) {
        return DocumentOutcome::Nothing;
    }
    let header = Header::read(&mut fields);
    if is_list {
        read_list(file, &mut fields, read);
        fields.finish();
        return DocumentOutcome::Nothing;
    }
    resource(&header, fields, source, &mut read.intents, report)
}

/// Why a mapping is no resource at all: nothing says that it is one of ours.
fn why_no_resource(
    fields: &Fields<'_>,
    node: &YamlNode,
    [kind, version, metadata]: [bool; 3],
) -> Option<&'static str> {
    let version_text = fields.plain("apiVersion");
    if is_patch(node) {
        return Some("a patch");
    }
    if kind {
        let name = fields.plain("kind")?;
        let stranger = !version && kinds::known(None, name).is_none() && !name.ends_with("List");
        let unread = UNREAD.iter().any(|(_, known, _)| *known == name);
        let policy = POLICY_WORDS.iter().any(|(word, _)| name.starts_with(word));
        // Values of a chart may name the kind that it makes.
        let values = !version && !metadata && !fields.has("spec");
        let is_none = stranger && !unread || values;
        return (is_none && !policy).then_some("a mapping without `apiVersion`");
    }
    // A chart has an apiVersion, and no metadata.
    let ours = version_text.is_some_and(|text| match kinds::group(text) {
        "" => text == "v1" && metadata,
        group => kinds::is_ours(group),
    });
    // Some number the versions of their own files.
    let numbered = version && version_text.is_none() && !metadata;
    (!ours && (!version || version_text.is_some()) || numbered)
        .then_some("a mapping without `kind`")
}

/// Returns true if the node contains a directive of a strategic merge patch. The depth limit of documents bounds the
/// recursion.
fn is_patch(node: &YamlNode) -> bool {
    match &node.value {
        yaml::Value::Map(entries) => {
            let mut entries = entries.iter();
            entries.any(|(key, node)| &*key.text == "$patch" || is_patch(node))
        }
        yaml::Value::List(items) => items.iter().any(is_patch),
        yaml::Value::Scalar(_) => false,
    }
}

/// Returns true if the resource belongs to a foreign API group, and reports that. The rest of the resource is not
/// parsed: its fields may have any form.
fn is_foreign(fields: &Fields<'_>, node: &YamlNode, report: &Report) -> bool {
    let (Some(version), Some(kind)) = (fields.plain("apiVersion"), fields.plain("kind")) else {
        return false;
    };
    let group = kinds::group(version);
    let is_ours = kinds::is_ours(group)
        || kinds::known(Some(version), kind).is_some()
        || misspelt(Some(group), kind).is_some();
    if is_ours {
        return false;
    }
    let named = node
        .get("metadata")
        .and_then(|metadata| metadata.get("name"));
    let name = match named.map(|name| &name.value) {
        Some(yaml::Value::Scalar(name)) => format!(" `{}`", clip(&name.text)),
        _ => String::new(),
    };
    let message = format!(
        "{}{name} has the group {}, which the mesh does not use; ignored",
        clip(kind),
        clip(group)
    );
    report.note(codes::NO_MEANING, fields.at(), message, "");
    true
}

fn no_resource(what: &str, at: &FieldPath, report: &Report) -> DocumentOutcome {
    let message = format!("{what} is no Kubernetes resource; ignored");
    report.note(codes::NO_MEANING, at, message, "");
    DocumentOutcome::Nothing
}

/// The name of a document; reports nothing.
fn called(header: &Header) -> DocumentName {
    let metadata = &header.metadata;
    let name = metadata.name.as_ref().map(|name| name.value.clone());
    let namespace = metadata.namespace.as_ref();
    DocumentName {
        name: name.filter(|name| is_object_name(name)),
        // A document without a namespace may have lost it together with its kind.
        namespace: namespace.and_then(|text| Namespace::new(&text.value)),
    }
}

/// Returns true if the resource sets its own exports. A selector of client workloads counts, too: the clients are in
/// its own namespace.
fn says_exports(node: &YamlNode) -> bool {
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

/// `kind: List` holds resources, and lists of them; how deep is bounded by the depth of a document.
fn read_list(file: &Arc<str>, fields: &mut Fields<'_>, read: &mut ReadFiles) {
    let Some(items) = fields.get("items") else {
        return;
    };
    for item in items.items() {
        read_resource(file, item.node, item.at.clone(), read);
    }
}

/// Suffix of Istio's API groups.
const ISTIO: &str = ".istio.io/";

/// API group of a document whose kind cannot be read.
#[derive(Debug, Clone, Copy)]
enum SecurityGroup {
    /// That of the security resources.
    Readable,
    /// None, or unreadable: the document may be no resource of ours at all.
    Unknown,
}

enum DocumentOutcome {
    Good(ResourceId, CheckedResource),
    /// Not in force.
    Bad(ResourceId),
    /// An invalid security resource with a readable namespace and an unreadable name. It gets a replacement name.
    Unnamed(ResourceId, CheckedResource, DocumentName),
    /// Not in force, and without a whole name; its kind where that can be read.
    Lost(Option<&'static str>, DocumentName),
    /// The same, and it may be a security resource of any kind.
    MayBe(SecurityGroup, DocumentName),
    /// Nothing that could be in force.
    Nothing,
}

fn resource(
    header: &Header,
    mut fields: Fields<'_>,
    source: &Source,
    intents: &mut Vec<RoutingIntent>,
    report: &Report,
) -> DocumentOutcome {
    let kind = report.required(header.kind.clone(), &header.at, "kind");
    report.required(header.api_version.clone(), &header.at, "apiVersion");
    let version = header.api_version.as_ref();
    let group = version.map(|version| kinds::group(&version.value));
    let Some(kind_text) = kind else {
        return match group {
            Some(SECURITY) => DocumentOutcome::MayBe(SecurityGroup::Readable, called(header)),
            None => DocumentOutcome::MayBe(SecurityGroup::Unknown, called(header)),
            Some(_) => DocumentOutcome::Lost(None, called(header)),
        };
    };
    let known = kinds::known(version.map(|version| &*version.value), &kind_text.value);
    let Some(kind) = known.or_else(|| misspelt(group, &kind_text.value)) else {
        return unread(header, group, &kind_text.value, &kind_text.at, report);
    };
    if known.is_none() {
        unknown_kind(&kind_text.value, &kind_text.at, report);
    } else if let Some(api_version) = version
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
    let annotations = &header.metadata.annotations;
    let meta = values::meta(header, kind.scope == ResourceScope::Namespaced, report);
    let (meta, lost) = match meta {
        Ok(meta) => (meta, None),
        Err(called) => {
            let (true, Some(namespace)) = (SECURITY_KINDS.contains(&kind.id), &called.namespace)
            else {
                return DocumentOutcome::Lost(Some(kind.id), self::called(header));
            };
            let name = ResourceName::new(namespace.clone(), fail_closed::unnamed(source));
            // A document without a namespace may have lost it together with its name.
            let written = header.metadata.namespace.is_some();
            let namespace = called.namespace.filter(|_| written);
            let called = DocumentName {
                namespace,
                ..called
            };
            let at = header.at.clone();
            (values::meta_of(header, name, at, report), Some(called))
        }
    };
    let id = id(kind, &meta);
    let checked = checked(kind.id, (meta, annotations), &mut fields, intents, report);
    fields.finish();
    match (checked, lost) {
        (Some(checked), None) => DocumentOutcome::Good(id, checked),
        (Some(checked), Some(called)) => DocumentOutcome::Unnamed(id, checked, called),
        (None, None) => DocumentOutcome::Bad(id),
        (None, Some(called)) => DocumentOutcome::Lost(Some(kind.id), called),
    }
}

/// The security kind that is meant by one that is not known, where that can be told.
fn misspelt(group: Option<&str>, name: &str) -> Option<&'static ResourceKind> {
    if group.is_some_and(|group| group != SECURITY) {
        return None;
    }
    let begins = |(word, _): &&(&str, _)| name.starts_with(word);
    let meant = POLICY_WORDS.iter().find(begins).map(|(_, kind)| *kind);
    let meant = meant.or_else(|| crate::text::nearest(name, SECURITY_KINDS))?;
    KINDS.iter().find(|kind| kind.name == meant)
}

fn id(kind: &ResourceKind, meta: &Meta) -> ResourceId {
    let namespace: Option<Namespace> =
        (kind.scope == ResourceScope::Namespaced).then(|| meta.name.namespace.clone());
    ResourceId {
        kind: kind.id,
        namespace,
        name: meta.name.name.clone(),
    }
}

/// One line a kind.
fn checked(
    kind: &str,
    (meta, annotations): (Meta, &TextMap),
    fields: &mut Fields<'_>,
    intents: &mut Vec<RoutingIntent>,
    report: &Report,
) -> Option<CheckedResource> {
    match kind {
        "AuthorizationPolicy" => Some(CheckedResource::AuthorizationPolicy(
            authorization::authorization_policy(meta, fields, report).into(),
        )),
        "ConfigMap" => config::config_map(meta, fields, report),
        "DaemonSet" => controller(ControllerKind::DaemonSet, meta, fields, report),
        "Deployment" => controller(ControllerKind::Deployment, meta, fields, report),
        "DestinationRule" => {
            destination::destination_rule((meta, annotations), fields, intents, report)
                .map(|rule| CheckedResource::DestinationRule(rule.into()))
        }
        "EndpointSlice" => Some(CheckedResource::EndpointSlice(
            endpoint_slice::endpoint_slice(meta, fields, report).into(),
        )),
        "Endpoints" => Some(CheckedResource::EndpointSlice(
            endpoint_slice::endpoints(meta, fields, report).into(),
        )),
        GATEWAY => intents::gateway(meta, fields, intents, report)
            .map(|one| CheckedResource::Gateway(one.into())),
        "Job" => controller(ControllerKind::Job { indexed: false }, meta, fields, report),
        "StatefulSet" => controller(ControllerKind::StatefulSet, meta, fields, report),
        "IPAddress" => kubernetes::ip_address(meta, fields, report)
            .map(|a| CheckedResource::IpAddress(a.into())),
        "Namespace" => kubernetes::namespace((meta, annotations), fields, report)
            .map(|n| CheckedResource::Namespace(n.into())),
        "PeerAuthentication" => Some(CheckedResource::PeerAuthentication(
            peer_authentication::peer_authentication(meta, fields, report).into(),
        )),
        "Pod" => Some(CheckedResource::Pod(pod::pod(meta, fields, report).into())),
        "ProxyConfig" => Some(CheckedResource::ProxyConfig(
            networking::proxy_config(meta, fields).into(),
        )),
        "HealthCheck" => health_check::health_check(meta, fields, report)
            .map(|one| CheckedResource::HealthCheck(one.into())),
        "RateLimit" => rate_limit::rate_limit(meta, fields, report)
            .map(|one| CheckedResource::RateLimit(one.into())),
        "RequestAuthentication" => Some(CheckedResource::RequestAuthentication(
            request_authentication::request_authentication(meta, fields).into(),
        )),
        "Secret" => Some(CheckedResource::Secret(
            kubernetes::secret(meta, fields, report).into(),
        )),
        "Service" => kubernetes::service((meta, annotations), fields, report)
            .map(|s| CheckedResource::Services(vec![s.into()], Vec::new())),
        "ServiceAccount" => Some(CheckedResource::ServiceAccount(
            kubernetes::service_account(meta, fields).into(),
        )),
        "ServiceEntry" => service_entry::service_entry((meta, annotations), fields, report),
        "Sidecar" => Some(CheckedResource::Sidecar(
            sidecar::sidecar(meta, fields).into(),
        )),
        "Telemetry" => Some(CheckedResource::Telemetry(
            telemetry::telemetry(meta, fields).into(),
        )),
        "VirtualService" => virtual_service::virtual_service(meta, fields, intents, report)
            .map(|one| CheckedResource::VirtualService(one.into())),
        "WorkloadEntry" => networking::workload_entry(meta, fields, report),
        "WorkloadGroup" => workload_group::read(meta, annotations, fields, report)
            .map(|group| CheckedResource::WorkloadGroup(group.into())),
        _ => crate::check::gateway_api::checked(kind, meta, fields, report),
    }
}

/// A kind that is not read, and why.
fn unread(
    header: &Header,
    group: Option<&str>,
    kind: &str,
    at: &FieldPath,
    report: &Report,
) -> DocumentOutcome {
    let name = header.metadata.name.as_ref();
    let name = name.map_or_else(String::new, |name| format!(" `{}`", clip(&name.value)));
    let mut unread = UNREAD.iter();
    let is_known = |(of, known, _): &&(&str, &str, UnreadReason)| {
        *known == kind && group.is_none_or(|group| group == *of || kinds::is_ours(group))
    };
    let Some((_, _, why)) = unread.find(is_known) else {
        return stranger(header, group, (kind, &name), at, report);
    };
    match why {
        UnreadReason::NotYet => {
            let message = format!("{kind}{name} is not yet supported, and is not in force");
            let help = "remove it, or wait for a later version";
            report.error(codes::NOT_YET, at, message, help);
        }
        UnreadReason::NotRun => {
            let message =
                format!("{kind}{name} is not run here: only a cluster starts its Jobs; ignored");
            let help = "write a Job to run one here";
            report.note(codes::NO_MEANING, at, message, help);
        }
        UnreadReason::Elsewhere => {
            let message = format!(
                "{kind}{name} is not enforced by the mesh: on a cluster the network plugin enforces it"
            );
            let help = "write an AuthorizationPolicy";
            report.warning(codes::UNENFORCED_KIND, at, message, help);
        }
        UnreadReason::Refused => {
            let message = format!(
                "{kind}{name} is not supported: it patches Envoy's configuration, which Voile does not have"
            );
            let help = "use other Istio or Gateway API resources, and remove it";
            report.error(codes::REFUSED, at, message, help);
        }
        UnreadReason::NoMeaning => {
            let message = format!("{kind}{name} is not used by the mesh; ignored");
            report.note(codes::NO_MEANING, at, message, "");
        }
        UnreadReason::Installation => {
            let message = format!(
                "{kind}{name} configures the installation of Istio and is ignored: its `meshConfig` is not in force"
            );
            let help = "move its `meshConfig` into the ConfigMap `istio`";
            report.warning(codes::NO_MEANING, at, message, help);
        }
    }
    DocumentOutcome::Nothing
}

/// An unknown kind.
fn stranger(
    header: &Header,
    group: Option<&str>,
    (kind, name): (&str, &str),
    at: &FieldPath,
    report: &Report,
) -> DocumentOutcome {
    match group {
        Some(group)
            if group.ends_with(".istio.io") && KINDS.iter().all(|one| one.group() != group) =>
        {
            let message = format!(
                "{kind}{name} has an API that Istio has removed ({}): it is not in force",
                clip(group)
            );
            let help = "replace it with current Istio resources";
            report.error(codes::UNKNOWN_KIND, at, message, help);
            DocumentOutcome::Nothing
        }
        _ => {
            unknown_kind(kind, at, report);
            // It may be a misspelt kind with a last good version.
            match group {
                Some(SECURITY) => DocumentOutcome::MayBe(SecurityGroup::Readable, called(header)),
                _ => DocumentOutcome::Lost(None, called(header)),
            }
        }
    }
}

fn unknown_kind(kind: &str, at: &FieldPath, report: &Report) {
    let all = KINDS.iter().map(|one| one.name);
    let all = all.chain(UNREAD.iter().map(|(_, name, _)| *name));
    let near = crate::text::nearest(kind, all);
    let near = near.map_or_else(String::new, |near| suggest(kind, [near]));
    let message = format!("unknown kind `{}`", clip(kind));
    report.error(codes::UNKNOWN_KIND, at, message, near);
}
