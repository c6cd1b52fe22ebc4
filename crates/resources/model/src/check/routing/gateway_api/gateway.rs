//! Check of GatewayClass, Gateway, ListenerSet and ReferenceGrant.

use std::net::IpAddr;
use std::sync::Arc;

use super::gateway_tls;
use crate::check::routing::gateway_api::fields::{GATEWAY, SECRET, at_most, not_done, reference};
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Cursor, Fields, Report, Text};
use crate::mesh::gateway_api::{
    Admission, GROUP, Gateway, GatewayClass, LabelSelector, Listener, ListenerSet, ListenerTls,
    Operator, ReferenceGrant,
};
use crate::mesh::network::GATEWAY_ACCOUNT;
use crate::mesh::routing_intent::ServerTlsMode;
use crate::mesh::waypoint::{INBOUND_BINDING, InboundBinding};
use crate::names::{self, Labels, Namespace};
use crate::source::Source;
use crate::text::clip;

/// Most listeners of one Gateway or ListenerSet, by the API's schema.
const MAX_LISTENERS: usize = 64;

pub(super) fn class(meta: Meta, fields: &mut Fields<'_>, report: &Report) -> Option<GatewayClass> {
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let controller = spec.text("controllerName");
    let controller = report.required(controller, spec.at(), "controllerName");
    let parameters = asked(&mut spec, "parametersRef", report);
    spec.ignore(&["description"]);
    spec.finish();
    Some(GatewayClass {
        name: meta.name.name,
        source: meta.source,
        controller: controller?.value,
        parameters,
    })
}

/// Location of a field, for any value of it.
fn asked(fields: &mut Fields<'_>, name: &'static str, report: &Report) -> Option<Source> {
    let cursor = fields.get(name)?;
    Some(report.source(cursor.at()))
}

/// Location of `parametersRef` where nobody follows it. On a cluster a ConfigMap changes the Gateway's Deployment and Service,
/// which the cluster's objects then show.
fn unused_parameters(fields: &mut Fields<'_>, live: bool, report: &Report) -> Option<Source> {
    let cursor = fields.get("parametersRef")?;
    let mut reference = cursor.fields()?;
    let word = |fields: &mut Fields<'_>, name| fields.text(name).map(|text| text.value);
    let group = word(&mut reference, "group").unwrap_or_default();
    let kind = word(&mut reference, "kind");
    reference.ignore(&["name"]);
    reference.finish();
    let followed = live && group.is_empty() && kind.as_deref() == Some("ConfigMap");
    (!followed).then(|| report.source(cursor.at()))
}

pub(super) fn gateway(meta: Meta, fields: &mut Fields<'_>, report: &Report) -> Option<Gateway> {
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let own = meta.name.namespace.clone();
    let class = report.required(spec.text("gatewayClassName"), spec.at(), "gatewayClassName");
    let listeners = listeners(&mut spec, &own, report);
    let addresses = spec.get("addresses");
    let places = spec.list("addresses", |cursor| place(cursor, report));
    let addresses = addresses.filter(|_| !places.iter().all(|one| is_assigned(one, meta.live)));
    let allowed = spec.inner("allowedListeners").map(|mut allowed| {
        let read = admission(&mut allowed, Admission::Nobody, report);
        allowed.finish();
        read
    });
    let mut infrastructure = spec.inner("infrastructure");
    let map = |fields: &mut Option<Fields<'_>>, name: &'static str| -> Labels {
        let list = fields.as_mut().map(|fields| fields.text_map(name));
        values::labels(&list.unwrap_or_default(), report)
    };
    let labels = map(&mut infrastructure, "labels");
    let annotations = infrastructure.as_mut();
    let annotations = annotations.map(|fields| fields.text_map("annotations"));
    let parameters = infrastructure
        .as_mut()
        .and_then(|fields| unused_parameters(fields, meta.live, report));
    if let Some(fields) = infrastructure {
        fields.finish();
    }
    let tls = spec.inner("tls");
    let tls = tls.map(|tls| gateway_tls::read(tls, &own, report));
    spec.without_effect(&[(
        "defaultScope",
        "name the Gateways in the route's `parentRefs`",
    )]);
    spec.finish();
    let class = class?;
    Some(Gateway {
        class: (class.value, report.source(&class.at)),
        listeners,
        tls: tls.unwrap_or_default(),
        addresses: addresses.map(|cursor| report.source(cursor.at())),
        places,
        account: account(&meta, report),
        binding: binding(&meta, report),
        parameters,
        allowed_listeners: allowed.unwrap_or(Admission::Nobody),
        labels,
        annotations: annotations
            .unwrap_or_default()
            .into_iter()
            .map(|(key, value)| (key.value, value.value))
            .collect(),
        own_labels: meta.labels,
        name: meta.name,
        source: meta.source,
        created: meta.created,
    })
}

/// One of `addresses`; the default type is an IP address.
fn place(cursor: &Cursor<'_>, report: &Report) -> Option<(Arc<str>, Arc<str>, Source)> {
    let mut fields = cursor.fields()?;
    let kind = fields.text("type").map(|text| text.value);
    let value = fields.text("value");
    let source = report.source(cursor.at());
    fields.finish();
    let value = value.map(|text| text.value).unwrap_or_default();
    Some((kind.unwrap_or_else(|| "IPAddress".into()), value, source))
}

/// Returns true if the address is not for this program to take: without a value any will do, and on a cluster the Service in front
/// of the Pods asks for IP addresses.
fn is_assigned((kind, value, _): &(Arc<str>, Arc<str>, Source), live: bool) -> bool {
    &**kind == "IPAddress" && (value.is_empty() || live && value.parse::<IpAddr>().is_ok())
}

/// The service account of another network's gateway.
fn account(meta: &Meta, report: &Report) -> Option<Arc<str>> {
    let name = meta.annotations.get(GATEWAY_ACCOUNT)?;
    if names::is_dns_subdomain(name) {
        return Some(name.into());
    }
    let message = format!("`{}` is no service account name", clip(name));
    let help = "write the name only; its namespace is the Gateway's";
    report.error(codes::BAD_VALUE, &meta.at, message, help);
    None
}

/// The way a waypoint's pods are called.
fn binding(meta: &Meta, report: &Report) -> Option<InboundBinding> {
    let text = meta.annotations.get(INBOUND_BINDING)?;
    let read = InboundBinding::read(text);
    if read.is_none() {
        let message = format!("`{}` is no valid protocol to call a waypoint", clip(text));
        let help = "write PROXY or NONE, optionally with a port: PROXY/15088";
        report.error(codes::BAD_VALUE, &meta.at, message, help);
    }
    read
}

pub(super) fn listener_set(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<ListenerSet> {
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let own = meta.name.namespace.clone();
    let parent = report.required(spec.inner("parentRef"), spec.at(), "parentRef");
    let parent = parent.and_then(|mut parent| {
        let read = reference(&mut parent, GATEWAY, &own, report);
        parent.finish();
        read
    });
    let listeners = listeners(&mut spec, &own, report);
    spec.finish();
    Some(ListenerSet {
        parent: parent?,
        listeners,
        name: meta.name,
        source: meta.source,
        created: meta.created,
    })
}

fn listeners(spec: &mut Fields<'_>, own: &Namespace, report: &Report) -> Vec<Listener> {
    let at = spec.at().clone();
    let listeners = spec.list("listeners", |cursor| listener(cursor, own, report));
    if listeners.is_empty() {
        report.required(None::<()>, &at, "listeners");
    }
    at_most(listeners.len(), MAX_LISTENERS, "listeners", &at, report);
    let names = listeners.iter().map(|one| (one.name.clone(), &at));
    values::unique("listener", names, report);
    listeners
}

fn listener(cursor: &Cursor<'_>, own: &Namespace, report: &Report) -> Option<Listener> {
    let mut fields = cursor.fields()?;
    let at = fields.at().clone();
    let name = report.required(fields.text("name"), &at, "name");
    let number = report.required(fields.integer("port"), &at, "port");
    let protocol = report.required(fields.text("protocol"), &at, "protocol");
    let hostname = fields
        .text("hostname")
        .filter(|text| !text.value.is_empty());
    let hostname = match &hostname {
        Some(text) => Some(values::hostname(text, report)?),
        None => None,
    };
    let tls = fields.inner("tls").map(|tls| self::tls(tls, own, report));
    let mut allowed = fields.inner("allowedRoutes");
    let from = allowed.as_mut().map_or(Admission::Same, |allowed| {
        admission(allowed, Admission::Same, report)
    });
    let kinds = allowed.as_mut().map(|allowed| {
        allowed.list("kinds", |cursor| {
            let mut fields = cursor.fields()?;
            let group = fields.text("group").map(|text| text.value);
            let kind = report.required(fields.text("kind"), cursor.at(), "kind");
            fields.finish();
            Some((group.unwrap_or_else(|| GROUP.into()), kind?.value))
        })
    });
    if let Some(allowed) = allowed {
        allowed.finish();
    }
    fields.finish();
    let (name, protocol) = (name?, protocol?);
    let spoken = &*protocol.value;
    if matches!(spoken, "HTTP" | "TCP") && tls.is_some() {
        let message = format!("a listener with protocol {spoken} has no TLS");
        let help = "write `protocol: HTTPS` or TLS, or remove `tls`";
        report.error(codes::CONTRADICTION, &at, message, help);
    }
    // The API takes it, and says in the listener's status that there is no certificate.
    let tls = match spoken {
        "HTTPS" | "TLS" => Some(tls.unwrap_or_else(|| ListenerTls {
            source: report.source(&at),
            passthrough: false,
            certificates: Vec::new(),
            mode: ServerTlsMode::Simple,
            cipher_suites: Vec::new(),
        })),
        _ => tls,
    };
    if spoken == "TCP" && hostname.is_some() {
        let message = "plain TCP connections carry no host name";
        let help = "remove `hostname`, or write `protocol: TLS`";
        report.error(codes::CONTRADICTION, &at, message, help);
    }
    Some(Listener {
        source: report.source(&at),
        name: name.value,
        port: report.port(&number?)?,
        protocol: protocol.value,
        hostname,
        tls,
        from,
        kinds: kinds.unwrap_or_default(),
    })
}

fn tls(mut fields: Fields<'_>, own: &Namespace, report: &Report) -> ListenerTls {
    let at = fields.at().clone();
    let mode = fields.text("mode");
    let modes = [("Terminate", false), ("Passthrough", true)];
    let mode = mode.and_then(|text| report.one_of(&text, &modes));
    let mut certificates = fields.list("certificateRefs", |cursor| {
        let mut fields = cursor.fields()?;
        let read = reference(&mut fields, SECRET, own, report);
        fields.finish();
        read
    });
    if certificates.len() > 1 {
        let help = "keep one: a listener has one certificate; add a listener for another host";
        not_done("more than one of `certificateRefs`", help, &at, report);
    }
    let options = fields.text_map("options");
    fields.not_yet(&["frontendValidation"]);
    fields.finish();
    let passthrough = mode.unwrap_or(false);
    let (mode, cipher_suites) = gateway_tls::options(&options, report);
    if passthrough && !options.is_empty() {
        let message = "`options` has no effect: with mode Passthrough the backend terminates TLS";
        report.warning(codes::NOT_OBEYED, &at, message, "remove it");
    }
    if passthrough && !certificates.is_empty() {
        let message =
            "`certificateRefs` has no effect: with mode Passthrough the backend terminates TLS";
        let help = "remove it, or write `mode: Terminate`";
        report.warning(codes::NOT_OBEYED, &at, message, help);
        certificates.clear();
    }
    ListenerTls {
        source: report.source(&at),
        passthrough,
        certificates,
        mode,
        cipher_suites,
    }
}

/// `namespaces` of admitted resources; `usual` is the default.
fn admission(fields: &mut Fields<'_>, usual: Admission, report: &Report) -> Admission {
    let Some(mut namespaces) = fields.inner("namespaces") else {
        return usual;
    };
    let at = namespaces.at().clone();
    let from = namespaces.text("from");
    let selector = namespaces.inner("selector");
    let selected = selector.map(|selector| label_selector(selector, report));
    namespaces.finish();
    let Some(from) = from else {
        return usual;
    };
    let words = [("All", 0), ("Same", 1), ("Selector", 2), ("None", 3)];
    match report.one_of(&from, &words) {
        Some(0) => Admission::All,
        Some(1) => Admission::Same,
        Some(2) => match report.required(selected, &at, "selector") {
            Some(selector) => Admission::Selected(selector),
            None => Admission::Nobody,
        },
        // An invalid selector admits no namespace.
        _ => Admission::Nobody,
    }
}

fn label_selector(mut fields: Fields<'_>, report: &Report) -> LabelSelector {
    let labels = values::labels(&fields.text_map("matchLabels"), report);
    let expressions = fields.list("matchExpressions", |cursor| {
        let mut fields = cursor.fields()?;
        let key = report.required(fields.text("key"), cursor.at(), "key");
        let operator = report.required(fields.text("operator"), cursor.at(), "operator");
        let values: Vec<Text> = fields.texts("values");
        fields.finish();
        let words = [
            ("In", Operator::In),
            ("NotIn", Operator::NotIn),
            ("Exists", Operator::Exists),
            ("DoesNotExist", Operator::DoesNotExist),
        ];
        let values: Vec<Arc<str>> = values.into_iter().map(|text| text.value).collect();
        Some((key?.value, report.one_of(&operator?, &words)?, values))
    });
    fields.finish();
    LabelSelector {
        labels,
        expressions,
    }
}

pub(super) fn grant(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<ReferenceGrant> {
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let at = spec.at().clone();
    let from = spec.list("from", |cursor| {
        let mut fields = cursor.fields()?;
        let texts = ["group", "kind", "namespace"]
            .map(|name| report.required(fields.text(name), cursor.at(), name));
        fields.finish();
        let [group, kind, namespace] = texts;
        Some([group?.value, kind?.value, namespace?.value])
    });
    let to = spec.list("to", |cursor| {
        let mut fields = cursor.fields()?;
        let group = report.required(fields.text("group"), cursor.at(), "group");
        let kind = report.required(fields.text("kind"), cursor.at(), "kind");
        let name = fields.text("name").map(|name| name.value);
        fields.finish();
        Some((group?.value, kind?.value, name))
    });
    if from.is_empty() {
        report.required(None::<()>, &at, "from");
    }
    if to.is_empty() {
        report.required(None::<()>, &at, "to");
    }
    spec.finish();
    Some(ReferenceGrant {
        from,
        to,
        name: meta.name,
        source: meta.source,
    })
}
