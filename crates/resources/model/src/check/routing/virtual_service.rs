//! Check of VirtualService. One parse serves proxies and analysis; analysis also sees resources with fields that are
//! not yet in force. Such a field is an error by name, and keeps the resource out of force.

mod actions;
mod connections;

use std::collections::BTreeMap;
use std::sync::Arc;

use voile_traffic::route::Regex;

use crate::check::config;
use crate::check::destination::whole;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report, Text};
use crate::mesh::routing_intent::RoutingIntent;
use crate::mesh::{
    CLAIMS, Criterion, Delegate, HttpMatch, HttpRoute, MESH, RetrySettings, RouteDestination,
    Subject, TextMatch, VirtualService, WeightedDestination, gateway_name,
};
use crate::names::ResourceName;
use crate::text::clip;

/// Context of the resource under check.
struct RuleReader<'a> {
    name: &'a ResourceName,
    report: &'a Report,
    /// Default scope of matches that set no gateways.
    place: MatchScope,
}

/// The scope of a match, as far as it determines which proxies verify tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MatchScope {
    /// At gateways alone, or in a delegate.
    AtGateways,
    /// In the mesh, too.
    InMesh,
    /// Not where requests are routed.
    Elsewhere,
}

/// Deepest claim that a match may ask for.
const MAX_CLAIM_DEPTH: usize = 16;

pub(in crate::check) fn virtual_service(
    meta: Meta,
    fields: &mut Fields<'_>,
    intents: &mut Vec<RoutingIntent>,
    report: &Report,
) -> Option<VirtualService> {
    fields.ignore(&["status"]);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let mut reading = RuleReader {
        name: &meta.name,
        report,
        place: MatchScope::AtGateways,
    };
    let hosts = reading.hosts(&mut spec);
    let gateways = gateways(&spec.texts("gateways"), &meta, report);
    if !hosts.is_empty() && gateways.iter().any(|(gateway, _)| gateway.is_none()) {
        reading.place = MatchScope::InMesh;
    }
    let visibility = values::visibility(&spec.texts("exportTo"), &meta.name.namespace, report);
    let http = spec.list("http", |cursor| reading.http(cursor));
    let tls = spec.list("tls", |cursor| reading.tls(cursor, &hosts));
    let tcp = spec.list("tcp", |cursor| reading.tcp(cursor));
    if http.is_empty() && tls.is_empty() && tcp.is_empty() {
        report.required(None::<()>, spec.at(), "http");
    }
    spec.finish();
    let read = VirtualService {
        hosts,
        gateways,
        visibility,
        http,
        tls,
        tcp,
        name: meta.name,
        source: meta.source,
        created: meta.created,
    };
    intents.push(RoutingIntent::VirtualService(Arc::new(read.clone())));
    Some(read)
}

/// A match of another kind of ours that asks requests the same things.
pub(in crate::check) fn limited_match(
    name: &ResourceName,
    cursor: &Cursor<'_>,
    report: &Report,
) -> Option<HttpMatch> {
    let place = MatchScope::Elsewhere;
    let reading = RuleReader {
        name,
        report,
        place,
    };
    reading.http_match(cursor)
}

/// The name of a claim, of which these are the names within it: `.A.B` or `[A][B]`.
fn claim_name(rest: &str) -> Option<Arc<str>> {
    let path: Vec<&str> = match rest.strip_prefix('.') {
        Some(dotted) => dotted.split('.').collect(),
        None => rest
            .strip_prefix('[')?
            .strip_suffix(']')?
            .split("][")
            .collect(),
    };
    let fine = |name: &&str| !name.is_empty() && !name.contains(['[', ']']);
    let good = path.len() <= MAX_CLAIM_DEPTH && path.iter().all(fine);
    good.then(|| format!("{CLAIMS}[{}]", path.join("][")).into())
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
        let read = |text: &str| gateway_name(text, &meta.name.namespace);
        let help = "write `mesh`, NAME or NAMESPACE/NAME";
        let name = report.parsed(text, "a gateway", read, help)?;
        Some((Some(name), source))
    };
    written.iter().filter_map(read).collect()
}

impl RuleReader<'_> {
    fn hosts(&self, spec: &mut Fields<'_>) -> Vec<(crate::names::Hostname, crate::source::Source)> {
        let report = self.report;
        let hosts = spec.texts("hosts");
        let whole = |host: &Text| Some((whole(host, self.name, report)?, report.source(&host.at)));
        hosts.iter().filter_map(whole).collect()
    }

    fn http(&self, cursor: &Cursor<'_>) -> Option<HttpRoute> {
        let report = self.report;
        let mut fields = cursor.fields()?;
        let name = fields.text("name").map(|name| name.value);
        let matches = fields.list("match", |cursor| self.http_match(cursor));
        let route = fields.list("route", |cursor| self.weighted(cursor));
        let answer = self.answer(&mut fields);
        let mirrors = self.mirrors(&mut fields);
        let rewrite = fields.inner("rewrite").map(|one| self.rewrite(one));
        let headers = self.headers(&mut fields);
        let fault = fields.inner("fault").map(|one| self.fault(one));
        let cors = fields.inner("corsPolicy").map(|one| self.cors(one));
        let delegate = fields.get("delegate").and_then(|at| self.delegate(&at));
        self.one_answer(&mut fields, !route.is_empty(), cursor.at());
        let timeout = fields.text("timeout");
        let timeout = timeout.and_then(|text| {
            let limit = report.duration(&text)?;
            Some(limit).filter(|limit| !limit.is_zero())
        });
        let retries = fields.inner("retries").map(|fields| self.retries(fields));
        fields.finish();
        self.sharing(&route, cursor.at());
        let read = HttpRoute {
            source: report.source(cursor.at()),
            name,
            matches,
            route,
            answer,
            mirrors,
            delegate,
            rewrite,
            headers,
            fault,
            cors: cors.map(Arc::new),
            timeout,
            retries,
            missing_status: HttpRoute::MISSING,
        };
        self.answers_alone(&read, cursor.at());
        Some(read)
    }

    /// Refuses actions on forwarded requests in a route that answers itself.
    fn answers_alone(&self, route: &HttpRoute, at: &FieldPath) {
        let said = [
            ("rewrite", route.rewrite.is_some()),
            ("fault", route.fault.is_some()),
            ("mirrors", !route.mirrors.is_empty()),
            ("timeout", route.timeout.is_some()),
            ("retries", route.retries.is_some()),
        ];
        let said = said.into_iter().find(|(_, said)| *said);
        if let Some((name, _)) = said.filter(|_| route.answer.is_some()) {
            let message = format!(
                "`{name}` has no effect: this route answers requests and does not forward them"
            );
            let help = format!("remove `{name}`");
            self.report.error(codes::CONTRADICTION, at, message, help);
        }
    }

    /// A route sends requests on, answers them, or hands over; exactly one of these.
    fn one_answer(&self, fields: &mut Fields<'_>, routed: bool, at: &FieldPath) {
        let answers = ["redirect", "directResponse", "delegate"].map(|name| fields.get(name));
        let answered = answers.iter().flatten().count();
        if answered + usize::from(routed) > 1 {
            let help = "keep one of `route`, `redirect`, `directResponse` and `delegate`";
            let message = "a route either forwards requests or answers them";
            self.report.error(codes::CONTRADICTION, at, message, help);
        }
        if answered == 0 && !routed {
            self.report.required(None::<()>, at, "route");
        }
    }

    /// Several that share requests need something to share.
    fn sharing(&self, route: &[WeightedDestination], at: &FieldPath) {
        let nothing = route.iter().all(|one| one.weight == 0);
        if route.len() > 1 && nothing {
            let message =
                "the weights of these destinations are all 0: no destination gets a request";
            let help = "give each a weight, such as weight: 90 and weight: 10";
            self.report.error(codes::CONTRADICTION, at, message, help);
        }
    }

    fn retries(&self, mut fields: Fields<'_>) -> RetrySettings {
        let report = self.report;
        let at = fields.at().clone();
        let attempts = fields.get("attempts");
        if attempts.is_none() {
            let place = FieldPath {
                path: values::join(&at.path, "attempts"),
                ..at
            };
            let help = "write the number of retries; 0 disables them (Istio's default for a missing number)";
            report.error(codes::MISSING, &place, "`attempts` is missing", help);
        }
        let retries = config::retry(&mut fields);
        fields.finish();
        retries
    }

    fn http_match(&self, cursor: &Cursor<'_>) -> Option<HttpMatch> {
        let mut fields = cursor.fields()?;
        let mut criteria = BTreeMap::new();
        for (field, subject) in [
            ("uri", Subject::Uri),
            ("scheme", Subject::Scheme),
            ("method", Subject::Method),
            ("authority", Subject::Authority),
        ] {
            if let Some(text) = fields.get(field).and_then(|at| self.text_match(&at)) {
                criteria.insert(subject, Criterion::Is(text));
            }
        }
        for field in ["headers", "withoutHeaders", "queryParams"] {
            let entries = fields.get(field).map(|at| at.entries());
            for (key, at) in entries.unwrap_or_default() {
                let text = self.text_match(&at)?;
                let (subject, criterion) = match field {
                    "headers" => (Subject::Header(self.header_name(&key)), Criterion::Is(text)),
                    "withoutHeaders" => {
                        let name = self.header_name(&key);
                        (Subject::WithoutHeader(name), Criterion::IsNot(text))
                    }
                    _ => (Subject::QueryParam(key.value.clone()), Criterion::Is(text)),
                };
                if criteria.insert(subject, criterion).is_some() {
                    let message = format!("`{}` is set twice", clip(&key.value));
                    let help = "header names are case-insensitive: keep one";
                    self.report
                        .error(codes::DUPLICATE_KEY, &key.at, message, help);
                }
            }
        }
        self.who(&mut fields, &mut criteria);
        let any_case = fields.boolean("ignoreUriCase");
        let name = fields.text("name").map(|name| name.value);
        // Istio's proxies name statistics of their own by it; ours have none by match.
        fields.ignore(&["statPrefix"]);
        fields.finish();
        let read = HttpMatch {
            source: self.report.source(cursor.at()),
            name,
            criteria,
            any_case: any_case.is_some_and(|flag| flag.value),
        };
        self.verified(&read, cursor.at());
        Some(read)
    }

    /// Checks that matches on tokens are at gateways: callers in the mesh do not verify tokens.
    fn verified(&self, read: &HttpMatch, at: &FieldPath) {
        let in_mesh = match read.criteria.get(&Subject::Gateways) {
            Some(Criterion::OneOf(names)) => names.iter().any(|name| &**name == MESH),
            _ => true,
        };
        let help = match self.place {
            MatchScope::AtGateways => return,
            MatchScope::InMesh if !in_mesh => return,
            MatchScope::InMesh => {
                "write `gateways` without `mesh`, in the match or in the VirtualService"
            }
            MatchScope::Elsewhere => {
                "match a header that `outputClaimToHeaders` of the RequestAuthentication makes"
            }
        };
        if read.asks_claims() {
            let message = "JWT claims are matched only at gateways";
            self.report.error(codes::NOT_YET, at, message, help);
        }
    }

    /// The name of a header, which has no case, or of a claim, which has.
    fn header_name(&self, key: &Text) -> Arc<str> {
        let begins = key.value.get(..CLAIMS.len());
        if begins.is_some_and(|begins| begins.eq_ignore_ascii_case(CLAIMS)) {
            let read = claim_name(&key.value[CLAIMS.len()..]);
            if read.is_none() {
                let help = "@request.auth.claims.NAME or @request.auth.claims[NAME], and likewise names within it";
                self.report.bad(key, " as a claim", help);
            }
            return read.unwrap_or_else(|| key.value.clone());
        }
        let name: Arc<str> = key.value.to_ascii_lowercase().into();
        self.is_header(&name, key);
        name
    }

    /// Checks that a name is a valid header name, and not that of a separate field.
    fn is_header(&self, name: &str, key: &Text) {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let fields = ["uri", "scheme", "method", "authority"];
        if name.is_empty() || !name.bytes().all(token) || fields.contains(&name) {
            let help = "letters, digits and `-`; `uri`, `method`, `authority` and `scheme` are fields of their own";
            self.report.bad(key, " as the name of a header", help);
        }
    }

    /// Parses the criteria that matches of every layer have: port, caller, gateways.
    fn who(&self, fields: &mut Fields<'_>, criteria: &mut BTreeMap<Subject, Criterion>) {
        let exact = |text: Arc<str>| Criterion::Is(TextMatch::Exact(text));
        if let Some(number) = fields.integer("port") {
            self.report.port(&number);
            criteria.insert(Subject::Port, exact(number.value.to_string().into()));
        }
        let labels = fields.text_map("sourceLabels");
        values::labels(&labels, self.report);
        for (key, value) in labels {
            criteria.insert(Subject::SourceLabel(key.value), exact(value.value));
        }
        if let Some(text) = fields.text("sourceNamespace") {
            values::namespace(&text, self.report);
            criteria.insert(Subject::SourceNamespace, exact(text.value));
        }
        let gateways = fields.texts("gateways");
        if !gateways.is_empty() {
            let gateways = gateways.into_iter().map(|text| text.value).collect();
            criteria.insert(Subject::Gateways, Criterion::OneOf(gateways));
        }
    }

    fn text_match(&self, cursor: &Cursor<'_>) -> Option<TextMatch> {
        let mut fields = cursor.fields()?;
        let texts = ["exact", "prefix", "regex"].map(|field| fields.text(field));
        // Some write Envoy's word for what an empty match says in Istio.
        if let Some(absent) = fields.boolean("presence").filter(|flag| !flag.value) {
            let message = "`presence: false` is not yet supported in a match";
            let help = "write the header under `withoutHeaders`";
            self.report.error(codes::NOT_YET, &absent.at, message, help);
        }
        fields.finish();
        for text in texts.iter().flatten().filter(|text| text.value.is_empty()) {
            let help = "write `{}` to match any value";
            self.report.bad(text, ": it is empty", help);
        }
        if let [_, _, Some(text)] = &texts
            && let Err(error) = Regex::new(&text.value)
        {
            let help = "write an RE2 expression that matches the whole text";
            let message = error.to_string();
            self.report.error(codes::BAD_VALUE, &text.at, message, help);
        }
        let [exact, prefix, regex] = texts.map(|text| text.map(|text| text.value));
        let exact = exact.map(TextMatch::Exact);
        let prefix = prefix.map(TextMatch::Prefix);
        let regex = regex.map(TextMatch::Regex);
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

    /// One of `route`.
    fn weighted(&self, cursor: &Cursor<'_>) -> Option<WeightedDestination> {
        let report = self.report;
        let mut fields = cursor.fields()?;
        let at = fields.at().clone();
        let to = report.required(fields.get("destination"), &at, "destination");
        let weight = self.weight(&mut fields);
        let headers = self.headers(&mut fields);
        fields.finish();
        Some(WeightedDestination {
            to: self.destination(&to?)?,
            weight: weight.unwrap_or(0),
            headers,
        })
    }

    /// The weight; 0 if missing, `None` if invalid.
    fn weight(&self, fields: &mut Fields<'_>) -> Option<u32> {
        let weight = fields.integer("weight");
        weight.map_or(Some(0), |weight| values::weight(&weight, self.report))
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
            nowhere: None,
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
