//! Check of `filters`: those of a rule, and those that a backend may have.

use std::sync::Arc;

use voile_traffic::route::REDIRECT_STATUSES;

use crate::check::routing::gateway_api::fields::{SERVICE, at_most, not_done, port, reference};
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report, Text};
use crate::mesh::action::{
    Cors, DirectResponse, HeaderEdits, HeaderRules, Origin, PathRewrite, Redirect, RedirectPort,
    RequestShare, Rewrite,
};
use crate::mesh::gateway_api::BackendTo;
use crate::names::Namespace;

/// Most filters of a rule, by the API's schema.
const MAX_FILTERS: usize = 16;
/// Default time for which a browser caches a preflight, in seconds.
const CORS_MAX_AGE: i64 = 5;

/// The combined filters of a rule.
#[derive(Debug, Default)]
pub(super) struct Filters {
    pub(super) headers: HeaderRules,
    pub(super) mirrors: Vec<(BackendTo, RequestShare)>,
    pub(super) redirect: Option<DirectResponse>,
    pub(super) rewrite: Option<Rewrite>,
    pub(super) cors: Option<Arc<Cors>>,
    /// Something replaces the prefix that matched, of which there must be one.
    pub(super) replaces_prefix: bool,
}

/// Context of the filters under check.
pub(super) struct FilterReader<'a> {
    pub(super) own: &'a Namespace,
    pub(super) report: &'a Report,
    /// HTTPRoute's, of which GRPCRoute has some.
    pub(super) http: bool,
}

/// Types by their field.
const TYPES: [(&str, &str); 6] = [
    ("RequestHeaderModifier", "requestHeaderModifier"),
    ("ResponseHeaderModifier", "responseHeaderModifier"),
    ("RequestMirror", "requestMirror"),
    ("RequestRedirect", "requestRedirect"),
    ("URLRewrite", "urlRewrite"),
    ("CORS", "cors"),
];
/// Known types that Voile does not support.
const NOT_DONE: [(&str, &str); 2] = [
    ("ExtensionRef", "extensionRef"),
    ("ExternalAuth", "externalAuth"),
];

impl FilterReader<'_> {
    /// `filters` of a rule.
    pub(super) fn of_rule(&self, rule: &mut Fields<'_>) -> Filters {
        let mut filters = Filters::default();
        let mut seen: Vec<&str> = Vec::new();
        let items = rule.get("filters").map(|at| at.items()).unwrap_or_default();
        at_most(items.len(), MAX_FILTERS, "filters", rule.at(), self.report);
        for cursor in &items {
            let Some((kind, fields, inner)) = self.filter(cursor) else {
                continue;
            };
            if kind != "RequestMirror" && seen.contains(&kind) {
                let message = format!("{kind} is set twice");
                let help = "a rule has one filter of a type, RequestMirror alone may be repeated";
                self.report
                    .error(codes::CONTRADICTION, cursor.at(), message, help);
            }
            seen.push(kind);
            let Some(inner) = inner else {
                fields.finish();
                continue;
            };
            match kind {
                "RequestHeaderModifier" => filters.headers.request = self.edits(inner),
                "ResponseHeaderModifier" => filters.headers.response = self.edits(inner),
                "RequestMirror" => filters.mirrors.extend(self.mirror(inner)),
                "RequestRedirect" => {
                    filters.redirect = self.redirect(inner, &mut filters.replaces_prefix);
                }
                "URLRewrite" => filters.rewrite = self.rewrite(inner, &mut filters.replaces_prefix),
                _ => filters.cors = Some(self.cors(inner).into()),
            }
            fields.finish();
        }
        if filters.redirect.is_some() && filters.rewrite.is_some() {
            let message = "RequestRedirect and URLRewrite exclude each other: a redirected request is not forwarded";
            let help = "keep RequestRedirect or URLRewrite";
            self.report
                .error(codes::CONTRADICTION, rule.at(), message, help);
        }
        filters
    }

    /// `filters` of a backend: header edits.
    pub(super) fn of_backend(&self, backend: &mut Fields<'_>) -> HeaderRules {
        let mut headers = HeaderRules::default();
        let items = backend
            .get("filters")
            .map(|at| at.items())
            .unwrap_or_default();
        for cursor in &items {
            let Some((kind, fields, inner)) = self.filter(cursor) else {
                continue;
            };
            match (kind, inner) {
                ("RequestHeaderModifier", Some(inner)) => headers.request = self.edits(inner),
                ("ResponseHeaderModifier", Some(inner)) => headers.response = self.edits(inner),
                (_, None) => {}
                (kind, Some(_)) => {
                    let what = format!("{kind} as the filter of one backend");
                    let help = "write it among the filters of a rule of its own; backends may have RequestHeaderModifier and ResponseHeaderModifier";
                    not_done(&what, help, cursor.at(), self.report);
                }
            }
            fields.finish();
        }
        headers
    }

    /// The type of a filter, all its fields, and those of its type.
    fn filter<'c>(
        &self,
        cursor: &Cursor<'c>,
    ) -> Option<(&'static str, Fields<'c>, Option<Fields<'c>>)> {
        let mut fields = cursor.fields()?;
        let text = self
            .report
            .required(fields.text("type"), cursor.at(), "type")?;
        if let Some((kind, _)) = NOT_DONE.iter().find(|(kind, _)| *kind == &*text.value) {
            let help = "remove it";
            not_done(&format!("the filter {kind}"), help, &text.at, self.report);
            return None;
        }
        let of_grpc = |kind: &str| !matches!(kind, "RequestRedirect" | "URLRewrite" | "CORS");
        let known: Vec<_> = TYPES
            .into_iter()
            .filter(|(kind, _)| self.http || of_grpc(kind))
            .map(|(kind, field)| (kind, (kind, field)))
            .collect();
        let (kind, field) = self.report.one_of(&text, &known)?;
        let inner = self
            .report
            .required(fields.inner(field), cursor.at(), field);
        Some((kind, fields, inner))
    }

    fn edits(&self, mut fields: Fields<'_>) -> HeaderEdits {
        let at = fields.at().clone();
        let values = |cursor: &Cursor<'_>| {
            let mut field = cursor.fields()?;
            let name = self
                .report
                .required(field.text("name"), cursor.at(), "name");
            let value = self
                .report
                .required(field.text("value"), cursor.at(), "value");
            field.finish();
            Some((name?.value.to_string(), value?.value.to_string()))
        };
        let edits = HeaderEdits {
            set: fields.list("set", values),
            add: fields.list("add", values),
            remove: fields
                .texts("remove")
                .iter()
                .map(|text| text.value.to_string())
                .collect(),
        };
        fields.finish();
        if let Err(error) = edits.check() {
            let help = "write an application header, or remove it";
            self.report
                .error(codes::BAD_VALUE, &at, error.to_string(), help);
        }
        edits
    }

    fn mirror(&self, mut fields: Fields<'_>) -> Option<(BackendTo, RequestShare)> {
        let at = fields.at().clone();
        let report = self.report;
        let backend = report.required(fields.inner("backendRef"), &at, "backendRef");
        let to = backend.and_then(|mut backend| {
            let to = backend_to(&mut backend, self.own, report);
            backend.finish();
            to
        });
        let percent = fields.integer("percent");
        let fraction = fields.inner("fraction").map(|mut fraction| {
            let numerator = fraction.integer("numerator");
            let numerator = report.required(numerator, fraction.at(), "numerator");
            let denominator = fraction.integer("denominator");
            fraction.finish();
            let number = |value: i64| u32::try_from(value).unwrap_or(u32::MAX);
            let under = denominator.map_or(100, |one| number(one.value));
            RequestShare::of(number(numerator.map_or(0, |one| one.value)), under)
        });
        fields.finish();
        let share = match (percent, fraction) {
            (Some(_), Some(_)) => {
                let message = "`percent` and `fraction` exclude each other";
                report.error(codes::CONTRADICTION, &at, message, "keep one");
                return None;
            }
            (Some(percent), None) => RequestShare::percent(percent.value as f64),
            (None, Some(fraction)) => fraction,
            (None, None) => Ok(RequestShare::ALL),
        };
        if let Err(error) = &share {
            let help = "write a fraction from 0 to 1";
            report.error(codes::BAD_VALUE, &at, error.to_string(), help);
        }
        Some((to?, share.ok()?))
    }

    fn redirect(&self, mut fields: Fields<'_>, replaces: &mut bool) -> Option<DirectResponse> {
        let report = self.report;
        let scheme = fields.text("scheme");
        let schemes = [("http", "http"), ("https", "https")];
        let scheme = scheme.and_then(|text| report.one_of(&text, &schemes));
        let host = fields.text("hostname");
        let host = host.and_then(|text| self.precise(&text));
        let number = port(&mut fields, report);
        let path = fields.inner("path");
        let path = path.and_then(|path| self.path(path, replaces));
        let status = fields.integer("statusCode");
        fields.finish();
        let status = match &status {
            None => 302,
            Some(code) => {
                let status = u16::try_from(code.value).ok();
                let status = status.filter(|status| REDIRECT_STATUSES.contains(status));
                if status.is_none() {
                    let message = format!("{} is no redirect status", code.value);
                    let help = "write 301, 302, 303, 307 or 308";
                    report.error(codes::BAD_VALUE, &code.at, message, help);
                }
                status?
            }
        };
        let port = match (number, scheme) {
            (Some(port), _) => RedirectPort::Exact(port.get()),
            (None, Some(_)) => RedirectPort::Scheme,
            (None, None) => RedirectPort::Listener,
        };
        let to = Redirect {
            scheme: scheme.map(str::to_owned),
            host,
            port,
            path,
        };
        Some(DirectResponse::Redirect { to, status })
    }

    fn precise(&self, text: &Text) -> Option<String> {
        let host = crate::check::values::hostname(text, self.report)?;
        if host.is_wildcard() {
            let help = "write a host name";
            self.report.bad(text, ": it is no single host name", help);
            return None;
        }
        Some(host.to_string())
    }

    fn rewrite(&self, mut fields: Fields<'_>, replaces: &mut bool) -> Option<Rewrite> {
        let at = fields.at().clone();
        let host = fields.text("hostname");
        let host = host.and_then(|text| self.precise(&text));
        let path = fields.inner("path");
        let path = path.and_then(|path| self.path(path, replaces));
        fields.finish();
        if host.is_none() && path.is_none() {
            return self.report.required(None, &at, "path");
        }
        Some(Rewrite {
            path,
            authority: host.map(Into::into),
        })
    }

    fn path(&self, mut fields: Fields<'_>, replaces: &mut bool) -> Option<PathRewrite> {
        let at = fields.at().clone();
        let kind = self.report.required(fields.text("type"), &at, "type");
        let full = fields.text("replaceFullPath");
        let prefix = fields.text("replacePrefixMatch");
        fields.finish();
        let words = [("ReplaceFullPath", true), ("ReplacePrefixMatch", false)];
        let whole = self.report.one_of(&kind?, &words)?;
        let (said, other, name) = match whole {
            true => (full, prefix, "replaceFullPath"),
            false => (prefix, full, "replacePrefixMatch"),
        };
        if other.is_some() {
            let message = "this field contradicts `type`";
            let help = format!("keep `{name}`");
            self.report.error(codes::CONTRADICTION, &at, message, help);
        }
        let text = self.report.required(said, &at, name)?;
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        if !text.value.bytes().all(plain) || (whole && !text.value.starts_with('/')) {
            let help = "a path begins with `/` and has no blanks; other letters are written as %XX";
            self.report.bad(&text, " for a path", help);
            return None;
        }
        *replaces |= !whole;
        Some(match whole {
            true => PathRewrite::Full(text.value.to_string()),
            false => PathRewrite::Segments(text.value.to_string()),
        })
    }

    fn cors(&self, mut fields: Fields<'_>) -> Cors {
        let at = fields.at().clone();
        let list = |texts: Vec<Text>| texts.iter().map(|text| text.value.to_string()).collect();
        let origins = fields.texts("allowOrigins");
        let origins = origins.iter().map(|text| Origin::gateway(&text.value));
        let credentials = fields.boolean("allowCredentials");
        let max_age = fields.integer("maxAge");
        let max_age = max_age.map_or(CORS_MAX_AGE, |number| number.value);
        let cors = Cors {
            origins: origins.collect(),
            methods: list(fields.texts("allowMethods")),
            headers: list(fields.texts("allowHeaders")),
            expose: list(fields.texts("exposeHeaders")),
            max_age: u64::try_from(max_age).ok(),
            credentials: credentials.is_some_and(|flag| flag.value),
            forward_unmatched: false,
        };
        fields.finish();
        if max_age < 1 {
            let message = format!("{max_age} is no number of seconds");
            self.report
                .error(codes::BAD_VALUE, &at, message, "write at least 1");
        }
        self.tokens(&at, &cors);
        cors
    }

    /// Checks the words that the proxy writes into response headers.
    fn tokens(&self, at: &FieldPath, cors: &Cors) {
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        let lists = [&cors.methods, &cors.headers, &cors.expose];
        let wrong = |word: &&String| word.is_empty() || !word.bytes().all(plain);
        if let Some(word) = lists.into_iter().flatten().find(wrong) {
            let message = format!("`{word}` is neither a method nor a header");
            let help = "write each name as a separate list element";
            self.report.error(codes::BAD_VALUE, at, message, help);
        }
    }
}

/// A Service and its port.
pub(super) fn backend_to(
    fields: &mut Fields<'_>,
    own: &Namespace,
    report: &Report,
) -> Option<BackendTo> {
    let to = reference(fields, SERVICE, own, report);
    let port = port(fields, report);
    Some(BackendTo { to: to?, port })
}
