//! Check of what HTTPRoute and GRPCRoute match: as the criteria that a VirtualService has, so that all further is one.

use std::collections::BTreeMap;
use std::sync::Arc;

use voile_traffic::route::Regex;

use crate::codes;
use crate::decode::{Cursor, Fields, Report, Text};
use crate::mesh::{Criterion, HttpMatch, Subject, TextMatch};
use crate::text::clip;

/// Methods that a match may ask for.
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];
/// Texts that a match's path may not contain: no normalised request path contains them.
const NOT_IN_PATHS: [&str; 6] = ["//", "/./", "/../", "%2f", "%2F", "#"];

pub(super) type Criteria = BTreeMap<Subject, Criterion>;

/// The way a text is compared.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum MatchMethod {
    Exact,
    Regex,
}

/// `type` of a match.
pub(super) fn how(fields: &mut Fields<'_>, report: &Report) -> MatchMethod {
    let words = [
        ("Exact", MatchMethod::Exact),
        ("RegularExpression", MatchMethod::Regex),
    ];
    let said = fields.text("type");
    let said = said.and_then(|text| report.one_of(&text, &words));
    said.unwrap_or(MatchMethod::Exact)
}

/// An expression, if it is one.
pub(super) fn expression(text: &Text, report: &Report) -> Option<TextMatch> {
    if let Err(error) = Regex::new(&text.value) {
        let help = "write an RE2 expression that matches the whole text";
        report.error(codes::BAD_VALUE, &text.at, error.to_string(), help);
        return None;
    }
    Some(TextMatch::Regex(text.value.clone()))
}

/// One of `matches` of an HTTPRoute.
pub(super) fn http(cursor: &Cursor<'_>, report: &Report) -> Option<HttpMatch> {
    let mut fields = cursor.fields()?;
    let mut criteria = Criteria::new();
    let path = match fields.inner("path") {
        Some(path) => self::path(path, report),
        None => Some(everything()),
    };
    named(&mut fields, "headers", &mut criteria, report);
    named(&mut fields, "queryParams", &mut criteria, report);
    if let Some(text) = fields.text("method") {
        let words = METHODS.map(|word| (word, word));
        let method = report.one_of(&text, &words)?;
        let exact = Criterion::Is(TextMatch::Exact(method.into()));
        criteria.insert(Subject::Method, exact);
    }
    fields.finish();
    criteria.insert(Subject::Uri, Criterion::Is(path?));
    Some(HttpMatch {
        source: report.source(cursor.at()),
        name: None,
        criteria,
        any_case: false,
    })
}

/// Default path match: every path.
pub(super) fn everything() -> TextMatch {
    TextMatch::Segments("/".into())
}

fn path(mut fields: Fields<'_>, report: &Report) -> Option<TextMatch> {
    let words = [("PathPrefix", 0), ("Exact", 1), ("RegularExpression", 2)];
    let kind = fields.text("type");
    let kind = match &kind {
        Some(text) => report.one_of(text, &words)?,
        None => 0,
    };
    let value = fields.text("value");
    fields.finish();
    let Some(value) = value else {
        return match kind {
            1 => Some(TextMatch::Exact("/".into())),
            _ => Some(everything()),
        };
    };
    if kind == 2 {
        return expression(&value, report);
    }
    let text = &*value.value;
    let end = ["/.", "/.."].iter().any(|end| text.ends_with(end));
    let wrong = NOT_IN_PATHS.iter().any(|part| text.contains(part)) || end;
    if wrong || !text.starts_with('/') {
        let help = "a path begins with `/`; `//`, `/./`, `/../`, `%2f` and `#` are in none";
        report.bad(&value, " as a path", help);
        return None;
    }
    Some(match kind {
        1 => TextMatch::Exact(text.into()),
        // Its last slash says nothing, but for the root.
        _ => TextMatch::Segments(match text.strip_suffix('/') {
            None | Some("") => text.into(),
            Some(short) => short.into(),
        }),
    })
}

/// `headers` or `queryParams`.
pub(super) fn named(
    fields: &mut Fields<'_>,
    field: &'static str,
    criteria: &mut Criteria,
    report: &Report,
) {
    for cursor in fields.get(field).map(|at| at.items()).unwrap_or_default() {
        let Some(mut fields) = cursor.fields() else {
            continue;
        };
        let how = how(&mut fields, report);
        let name = report.required(fields.text("name"), cursor.at(), "name");
        let value = report.required(fields.text("value"), cursor.at(), "value");
        fields.finish();
        let (Some(name), Some(value)) = (name, value) else {
            continue;
        };
        let text = match how {
            MatchMethod::Exact => TextMatch::Exact(value.value.clone()),
            MatchMethod::Regex => match expression(&value, report) {
                Some(text) => text,
                None => continue,
            },
        };
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.value.is_empty() || !name.value.bytes().all(token) {
            let help = "letters, digits and !#$%&'*+-.^_`|~";
            report.bad(&name, " as a name", help);
            continue;
        }
        let subject = match field {
            // Names of headers have no case.
            "headers" => {
                let lower: Arc<str> = name.value.to_ascii_lowercase().into();
                Subject::Header(lower)
            }
            _ => Subject::QueryParam(name.value.clone()),
        };
        if criteria.insert(subject, Criterion::Is(text)).is_some() {
            let message = format!("`{}` is set twice", clip(&name.value));
            let help = "header names are case-insensitive: keep one";
            report.error(codes::DUPLICATE_KEY, &name.at, message, help);
        }
    }
}
