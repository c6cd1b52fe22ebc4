//! VirtualService: the whole of its shape, so that a misspelt field is found, and the meaning of where it sends what.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::destination::whole;
use super::super::values::{self, Meta};
use crate::codes;
use crate::decode::{Cursor, Fields, Report};
use crate::mesh::intent::{
    Criterion, Delegate, HttpMatch, HttpRoute, LayerFourRoute, RouteDestination, TextMatch,
    VirtualService,
};
use crate::names::{Namespace, ResourceName};
use crate::text::clip;
use crate::written::Text;

/// What a VirtualService calls the proxies of the mesh.
const MESH: &str = "mesh";

/// Whose words are read.
struct Reading<'a> {
    name: &'a ResourceName,
    report: &'a Report,
}

pub(super) fn virtual_service(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<VirtualService> {
    fields.ignore(&["status"]);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let reading = Reading {
        name: &meta.name,
        report,
    };
    let hosts = spec.texts("hosts");
    let hosts = hosts
        .iter()
        .filter_map(|host| Some((whole(host, &meta.name, report)?, report.source(&host.at))));
    let hosts = hosts.collect();
    let gateways = gateways(&spec.texts("gateways"), &meta, report);
    let visibility = values::visibility(&spec.texts("exportTo"), &meta.name.namespace, report);
    let http = spec.list("http", |cursor| reading.http(cursor));
    let tls = spec.list("tls", |cursor| reading.layer_four(cursor));
    let tcp = spec.list("tcp", |cursor| reading.layer_four(cursor));
    spec.finish();
    Some(VirtualService {
        hosts,
        gateways,
        visibility,
        http,
        tls,
        tcp,
        name: meta.name,
        source: meta.source,
    })
}

type NamedGateway = (Option<ResourceName>, crate::source::Source);

fn gateways(written: &[Text], meta: &Meta, report: &Report) -> Vec<NamedGateway> {
    if written.is_empty() {
        return vec![(None, meta.source.clone())];
    }
    let read = |text: &Text| {
        let source = report.source(&text.at);
        if &*text.value == MESH {
            return Some((None, source));
        }
        let (namespace, name) = match text.value.split_once('/') {
            None => (meta.name.namespace.clone(), &*text.value),
            Some((".", name)) => (meta.name.namespace.clone(), name),
            Some((namespace, name)) => {
                let read = |_: &str| Namespace::new(namespace);
                let help = "write `mesh`, NAME or NAMESPACE/NAME";
                (report.parsed(text, "a gateway", read, help)?, name)
            }
        };
        Some((Some(ResourceName::new(namespace, name)), source))
    };
    written.iter().filter_map(read).collect()
}

impl Reading<'_> {
    fn http(&self, cursor: &Cursor<'_>) -> Option<HttpRoute> {
        let report = self.report;
        let mut fields = cursor.fields()?;
        let name = fields.text("name").map(|name| name.value);
        let matches = fields.list("match", |cursor| self.http_match(cursor));
        let mut destinations = fields.list("route", |cursor| self.weighted(cursor));
        let routed = !destinations.is_empty();
        destinations.extend(fields.get("mirror").and_then(|at| self.destination(&at)));
        destinations.extend(fields.list("mirrors", |cursor| {
            let mut mirror = cursor.fields()?;
            let to = mirror.get("destination");
            mirror.ignore(&["percentage"]);
            mirror.finish();
            self.destination(&to?)
        }));
        let delegate = fields.get("delegate").and_then(|at| self.delegate(&at));
        let answers = [fields.get("redirect"), fields.get("directResponse")];
        let answered = answers.iter().flatten().count();
        if answered + usize::from(routed) > 1 {
            let help = "keep one of `route`, `redirect` and `directResponse`";
            let message = "a route either sends requests on or answers them";
            report.error(codes::CONTRADICTION, cursor.at(), message, help);
        }
        if let Some(text) = fields.text("timeout") {
            report.duration(&text);
        }
        fields.ignore(&[
            "rewrite",
            "retries",
            "fault",
            "mirrorPercent",
            "mirror_percent",
            "mirrorPercentage",
            "corsPolicy",
            "headers",
        ]);
        fields.finish();
        Some(HttpRoute {
            source: report.source(cursor.at()),
            name,
            matches,
            destinations,
            delegate,
        })
    }

    fn http_match(&self, cursor: &Cursor<'_>) -> Option<HttpMatch> {
        let mut fields = cursor.fields()?;
        let mut criteria = BTreeMap::new();
        for subject in ["uri", "scheme", "method", "authority"] {
            if let Some(text) = fields.get(subject).and_then(|at| self.text_match(&at)) {
                criteria.insert(subject.into(), Criterion::Is(text));
            }
        }
        for (field, negated) in [
            ("headers", false),
            ("withoutHeaders", true),
            ("queryParams", false),
        ] {
            let entries = fields.get(field).map(|at| at.entries());
            for (key, at) in entries.unwrap_or_default() {
                let text = self.text_match(&at)?;
                let key = match field {
                    // Names of headers have no case.
                    "queryParams" => key.value.to_string(),
                    _ => key.value.to_ascii_lowercase(),
                };
                let criterion = match negated {
                    true => Criterion::IsNot(text),
                    false => Criterion::Is(text),
                };
                criteria.insert(format!("{field}[{key}]").into(), criterion);
            }
        }
        self.who(&mut fields, &mut criteria);
        let any_case = fields.boolean("ignoreUriCase");
        fields.ignore(&["name", "statPrefix"]);
        fields.finish();
        Some(HttpMatch {
            source: self.report.source(cursor.at()),
            criteria,
            any_case: any_case.is_some_and(|flag| flag.value),
        })
    }

    /// What matches of every layer have: port, caller, gateways.
    fn who(&self, fields: &mut Fields<'_>, criteria: &mut BTreeMap<Arc<str>, Criterion>) {
        let exact = |text: Arc<str>| Criterion::Is(TextMatch::Exact(text));
        if let Some(number) = fields.integer("port") {
            self.report.port(&number);
            criteria.insert("port".into(), exact(number.value.to_string().into()));
        }
        for (key, value) in fields.text_map("sourceLabels") {
            criteria.insert(
                format!("sourceLabels[{}]", key.value).into(),
                exact(value.value),
            );
        }
        if let Some(text) = fields.text("sourceNamespace") {
            criteria.insert("sourceNamespace".into(), exact(text.value));
        }
        let gateways = fields.texts("gateways");
        if !gateways.is_empty() {
            let gateways = gateways.into_iter().map(|text| text.value).collect();
            criteria.insert("gateways".into(), Criterion::OneOf(gateways));
        }
    }

    fn text_match(&self, cursor: &Cursor<'_>) -> Option<TextMatch> {
        let mut fields = cursor.fields()?;
        let exact = fields.text("exact").map(|t| TextMatch::Exact(t.value));
        let prefix = fields.text("prefix").map(|t| TextMatch::Prefix(t.value));
        let regex = fields.text("regex").map(|t| TextMatch::Regex(t.value));
        fields.finish();
        let mut said = [exact, prefix, regex].into_iter().flatten();
        let first = said.next();
        if said.next().is_some() {
            let message = "one of `exact`, `prefix` and `regex` is wanted";
            let help = "keep one";
            self.report
                .error(codes::CONTRADICTION, cursor.at(), message, help);
        }
        // `{}` asks for presence.
        Some(first.unwrap_or(TextMatch::Present))
    }

    fn layer_four(&self, cursor: &Cursor<'_>) -> Option<LayerFourRoute> {
        let mut fields = cursor.fields()?;
        let matches = fields.list("match", |cursor| {
            let mut fields = cursor.fields()?;
            let mut criteria = BTreeMap::new();
            for list in ["sniHosts", "destinationSubnets"] {
                let texts = fields.texts(list);
                if !texts.is_empty() {
                    let texts = texts.into_iter().map(|text| text.value).collect();
                    criteria.insert(list.into(), Criterion::OneOf(texts));
                }
            }
            if let Some(text) = fields.text("sourceSubnet") {
                let exact = Criterion::Is(TextMatch::Exact(text.value));
                criteria.insert("sourceSubnet".into(), exact);
            }
            self.who(&mut fields, &mut criteria);
            fields.finish();
            Some(criteria)
        });
        let destinations = fields.list("route", |cursor| self.weighted(cursor));
        fields.finish();
        Some(LayerFourRoute {
            source: self.report.source(cursor.at()),
            matches,
            destinations,
        })
    }

    /// One of `route`.
    fn weighted(&self, cursor: &Cursor<'_>) -> Option<RouteDestination> {
        let mut fields = cursor.fields()?;
        let at = fields.at().clone();
        let to = self
            .report
            .required(fields.get("destination"), &at, "destination");
        if let Some(weight) = fields.integer("weight")
            && weight.value < 0
        {
            let message = format!("{} is not a weight", weight.value);
            self.report
                .error(codes::BAD_VALUE, &weight.at, message, "write 0 or more");
        }
        fields.ignore(&["headers"]);
        fields.finish();
        self.destination(&to?)
    }

    fn destination(&self, cursor: &Cursor<'_>) -> Option<RouteDestination> {
        let report = self.report;
        let mut fields = cursor.fields()?;
        let host = report.required(fields.text("host"), cursor.at(), "host");
        let subset = fields
            .text("subset")
            .map(|text| (text.value, report.source(&text.at)));
        let port = fields.inner("port").and_then(|mut port| {
            let number = port.integer("number");
            port.finish();
            let number = number?;
            Some((report.port(&number)?, report.source(&number.at)))
        });
        fields.finish();
        Some(RouteDestination {
            source: report.source(cursor.at()),
            field: cursor.at().path.clone(),
            host: whole(&host?, self.name, report)?,
            subset,
            port,
        })
    }

    fn delegate(&self, cursor: &Cursor<'_>) -> Option<Delegate> {
        let report = self.report;
        let mut fields = cursor.fields()?;
        let name = report.required(fields.text("name"), cursor.at(), "name");
        let namespace = fields.text("namespace");
        fields.finish();
        let namespace = match namespace {
            Some(text) => values::namespace(&text, report)?,
            None => self.name.namespace.clone(),
        };
        let name: Arc<str> = clip(&name?.value).into();
        Some(Delegate {
            name: ResourceName::new(namespace, name),
            source: report.source(cursor.at()),
        })
    }
}
