//! Answers of an external service, checked. An approval may change fields of the request and of its response; a denial
//! may choose the response. Neither may touch fields that frame, route or identify a request. An approval that tries
//! counts as no answer.

use voile_model::mesh::HttpAuthorizer;
use voile_model::mesh::authorization::StringMatch;
use voile_proto::external_authorization as wire;
use wire::check_response::HttpResponse;

use crate::http::{ExternalReply, FieldPlacement, HeadAmendment, HttpHead};
use crate::http2::travels;
use crate::worker::policy::request_changes::PlanChanges;

/// Most bytes of fields that one approval may add to a request, and to its answer: the rest of the head that
/// servers usually accept.
const MAX_CHANGED_BYTES: usize = 32 * 1024;

/// Statuses that a no may have.
const STATUSES: std::ops::RangeInclusive<i32> = 200..=599;

/// Fields of HTTP that only the engines write, besides the fields of a connection.
const RESERVED: [&str; 8] = [
    "host",
    "content-length",
    "expect",
    "trailer",
    "te",
    "http2-settings",
    "sec-websocket-key",
    "sec-websocket-accept",
];

/// Prefix of Voile's own fields between sidecars.
const OURS: &str = "x-voile-";

/// Checked answer of an external service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AuthorizerResponse {
    /// Yes.
    Allowed(Box<AllowedChanges>),
    /// No, in these words.
    Denied {
        status: u16,
        told: Box<ExternalReply>,
    },
    /// No service could be asked, or none answered.
    Failed(Box<str>),
    /// The answer cannot be applied. It never lets a request pass.
    Unusable(Box<str>),
}

/// Changes that an approval makes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct AllowedChanges {
    /// Fields of the request, in place of its own.
    set: Vec<(Box<str>, Box<[u8]>)>,
    /// Fields beside its own, where it has any of that name.
    append: Vec<(Box<str>, Box<[u8]>)>,
    /// Fields that do not go on.
    remove: Vec<Box<str>>,
    amends: Vec<HeadAmendment>,
    /// Query parameters, in place of its own.
    parameters: Vec<(Box<str>, Box<str>)>,
    without_parameters: Vec<Box<str>>,
}

impl AuthorizerResponse {
    pub(super) fn failed(why: impl Into<Box<str>>) -> Self {
        Self::Failed(why.into())
    }
}

/// Returns true if a field states an identity, in any spelling that an application may read as such a field. Identity fields
/// are dropped from every source.
pub(super) fn claims_identity(name: &str) -> bool {
    let mut fields = crate::http2::IDENTITY_FIELDS.iter();
    fields.any(|field| voile_http1::loosely_equal(name.as_bytes(), field.as_bytes()))
}

/// A name that may be written, in lower case.
pub(in crate::worker) fn lawful_name(name: &str) -> Option<Box<str>> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let free = travels(&name, b"")
        && !claims_identity(&name)
        && !RESERVED.contains(&&*name)
        && !name.starts_with(OURS);
    free.then(|| name.into())
}

/// A value that is one: no control characters, so no second line.
pub(in crate::worker) fn lawful_value(value: &[u8]) -> Option<Box<[u8]>> {
    let visible = |byte: &u8| matches!(byte, b'\t' | 0x20..=0x7e | 0x80..);
    value.iter().all(visible).then(|| value.trim_ascii().into())
}

fn field(option: &wire::HeaderValueOption) -> Option<(Box<str>, Box<[u8]>)> {
    let header = option.header.as_ref()?;
    let value = match header.raw_value.is_empty() {
        true => header.value.as_bytes(),
        false => &header.raw_value,
    };
    Some((lawful_name(&header.key)?, lawful_value(value)?))
}

fn name_of(option: &wire::HeaderValueOption) -> String {
    let name = option.header.as_ref().map_or("", |header| &*header.key);
    name.chars()
        .take(64)
        .flat_map(char::escape_default)
        .collect()
}

/// A CheckResponse.
pub(super) fn of_grpc(said: wire::CheckResponse) -> AuthorizerResponse {
    let code = said.status.as_ref().map_or(0, |status| status.code);
    match (code, said.http_response) {
        (0, Some(HttpResponse::OkResponse(ok))) => match allowed(&ok) {
            Ok(allowed) => AuthorizerResponse::Allowed(Box::new(allowed)),
            Err(why) => AuthorizerResponse::Unusable(why),
        },
        (0, _) => AuthorizerResponse::Allowed(Box::default()),
        (_, Some(HttpResponse::ErrorResponse(_))) => {
            AuthorizerResponse::failed("the service answered with an error response")
        }
        (_, Some(HttpResponse::DeniedResponse(no))) => denied(&no),
        (_, _) => AuthorizerResponse::Denied {
            status: 403,
            told: Box::new(ExternalReply {
                body: Some(Vec::new()),
                ..ExternalReply::default()
            }),
        },
    }
}

fn denied(no: &wire::DeniedHttpResponse) -> AuthorizerResponse {
    let code = no.status.as_ref().map_or(0, |status| status.code);
    let status = match STATUSES.contains(&code) {
        true => u16::try_from(code).unwrap_or(403),
        false => 403,
    };
    let mut told = ExternalReply {
        body: Some(no.body.clone().into_bytes()),
        ..ExternalReply::default()
    };
    // A denial stays one, whatever its further content.
    for (name, value) in no.headers.iter().filter_map(field) {
        write(&mut told, &name, &value);
    }
    AuthorizerResponse::Denied {
        status,
        told: Box::new(told),
    }
}

fn write(told: &mut ExternalReply, name: &str, value: &[u8]) {
    if told.lines.len() + name.len() + value.len() <= MAX_CHANGED_BYTES {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            told.lines.extend_from_slice(part);
        }
    }
}

fn allowed(ok: &wire::OkHttpResponse) -> Result<AllowedChanges, Box<str>> {
    let mut allowed = AllowedChanges::default();
    let mut bytes = 0;
    let refused = |option| {
        format!(
            "the response sets `{}`, which is not allowed",
            name_of(option)
        )
    };
    for option in &ok.headers {
        let (name, value) = field(option).ok_or_else(|| refused(option))?;
        bytes += name.len() + value.len();
        match option.append {
            Some(true) => allowed.append.push((name, value)),
            Some(false) | None => allowed.set.push((name, value)),
        }
    }
    for option in &ok.response_headers_to_add {
        let (name, value) = field(option).ok_or_else(|| refused(option))?;
        bytes += name.len() + value.len();
        use wire::AppendAction as Action;
        let manner = match (option.append, option.append_action()) {
            (Some(true), _) | (None, Action::AppendIfExistsOrAdd) => FieldPlacement::Append,
            (Some(false), _) | (None, Action::OverwriteIfExistsOrAdd) => FieldPlacement::Overwrite,
            (None, Action::AddIfAbsent) => FieldPlacement::IfAbsent,
            (None, Action::OverwriteIfExists) => FieldPlacement::IfPresent,
        };
        allowed.amends.push(HeadAmendment {
            name,
            value,
            manner,
        });
    }
    // Fields that an approval may not remove stay, as with Envoy.
    let removed = ok.headers_to_remove.iter();
    allowed.remove = removed.filter_map(|name| lawful_name(name)).collect();
    for parameter in &ok.query_parameters_to_set {
        let lawful = parameter_text(&parameter.key).zip(parameter_text(&parameter.value));
        let lawful = lawful.filter(|(key, _)| !key.is_empty());
        let pair = lawful.ok_or("the response sets an invalid query parameter")?;
        bytes += pair.0.len() + pair.1.len();
        allowed.parameters.push(pair);
    }
    let removed = ok.query_parameters_to_remove.iter();
    allowed.without_parameters = removed.map(|key| key.as_str().into()).collect();
    match bytes > MAX_CHANGED_BYTES {
        true => Err("the response sets too many bytes of headers and parameters".into()),
        false => Ok(allowed),
    }
}

/// A key or value as it stands in a query.
fn parameter_text(text: &str) -> Option<Box<str>> {
    let fine = |byte: u8| matches!(byte, 0x21..=0x7e) && byte != b'#' && byte != b'&';
    text.bytes().all(fine).then(|| text.into())
}

fn any(names: &[StringMatch], name: &str) -> bool {
    names.iter().any(|wanted| match wanted {
        StringMatch::Exact(text) => **text == *name,
        StringMatch::Prefix(text) => name.starts_with(&**text),
        StringMatch::Suffix(text) => name.ends_with(&**text),
        StringMatch::Present => true,
    })
}

/// Returns true if the provider's lists send this field of the request to the external service.
pub(super) fn is_told(http: &HttpAuthorizer, name: &str) -> bool {
    name == "authorization" || any(&http.request_headers, name)
}

/// Names that a yes over HTTP takes out of the request.
const TO_REMOVE: &str = "x-envoy-auth-headers-to-remove";

/// An answer over HTTP: 200 is yes, 5xx no answer, all else no.
pub(super) fn of_http<'f>(
    http: &HttpAuthorizer,
    status: u16,
    fields: impl Iterator<Item = (&'f str, &'f [u8])>,
    body: Vec<u8>,
) -> AuthorizerResponse {
    // Fields of one connection do not travel further; the provider's lists choose among the rest.
    let lawful =
        fields.filter_map(|(name, value)| Some((lawful_name(name)?, lawful_value(value)?)));
    match status {
        200 => {
            let mut allowed = AllowedChanges::default();
            let mut bytes = 0;
            for (name, value) in lawful {
                if &*name == TO_REMOVE {
                    let names = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                    let names =
                        names.filter_map(|name| lawful_name(std::str::from_utf8(name).ok()?));
                    allowed.remove.extend(names);
                    continue;
                }
                bytes += name.len() + value.len();
                if any(&http.downstream_on_allow, &name) {
                    allowed.amends.push(HeadAmendment {
                        name: name.clone(),
                        value: value.clone(),
                        manner: FieldPlacement::Append,
                    });
                }
                if any(&http.upstream_on_allow, &name) {
                    allowed.set.push((name, value));
                }
            }
            match bytes > MAX_CHANGED_BYTES {
                true => AuthorizerResponse::Unusable(
                    "the response sets too many bytes of headers and parameters".into(),
                ),
                false => AuthorizerResponse::Allowed(Box::new(allowed)),
            }
        }
        500.. => AuthorizerResponse::Failed(format!("answered {status}").into()),
        _ => {
            let mut told = ExternalReply {
                body: Some(body),
                ..ExternalReply::default()
            };
            let always = ["www-authenticate", "location"];
            for (name, value) in lawful {
                let wanted = http.downstream_on_deny.is_empty()
                    || always.contains(&&*name)
                    || any(&http.downstream_on_deny, &name);
                if wanted && &*name != TO_REMOVE {
                    write(&mut told, &name, &value);
                }
            }
            AuthorizerResponse::Denied {
                status: match status {
                    201.. => status,
                    _ => 403,
                },
                told: Box::new(told),
            }
        }
    }
}

impl AllowedChanges {
    /// Applies the approval to this request. `path` is the request's path if it differs from the path that
    /// came.
    pub(crate) fn applied(
        self,
        head: &HttpHead<'_>,
        path: Option<Box<str>>,
    ) -> (PlanChanges, Option<Box<str>>) {
        let mut changes = PlanChanges::default();
        for name in self.remove {
            changes.leave_out(String::from(name));
        }
        for (name, value) in self.append {
            // As Envoy: beside what is there, never by itself.
            if head.header(&name).is_some() {
                changes.add(&name, &value);
            }
        }
        for (name, value) in self.set {
            changes.add(&name, &value);
            changes.leave_out(String::from(name));
        }
        self.amends
            .into_iter()
            .for_each(|change| changes.amend(change));
        if self.parameters.is_empty() && self.without_parameters.is_empty() {
            return (changes, path);
        }
        let before = path.as_deref().unwrap_or_else(|| head.path_and_query());
        let after = edited(before, &self.parameters, &self.without_parameters);
        (changes, Some(after))
    }
}

/// A path with other parameters.
fn edited(path: &str, set: &[(Box<str>, Box<str>)], remove: &[Box<str>]) -> Box<str> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let key = |pair: &str| pair.split('=').next().unwrap_or_default().to_owned();
    let replaced = |name: &str| {
        let of = |(key, _): &(Box<str>, Box<str>)| **key == *name;
        remove.iter().any(|key| **key == *name) || set.iter().any(of)
    };
    let kept = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !replaced(&key(pair)));
    let mut pairs: Vec<String> = kept.map(str::to_owned).collect();
    pairs.extend(set.iter().map(|(key, value)| format!("{key}={value}")));
    match pairs.is_empty() {
        true => path.into(),
        false => format!("{path}?{}", pairs.join("&")).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_framing_routing_and_identity_are_nobodys_to_write() {
        for name in [
            "",
            ":path",
            "host",
            "Host",
            "connection",
            "Transfer-Encoding",
            "content-length",
            "te",
            "upgrade",
            "keep-alive",
            "trailer",
            "expect",
            "x-forwarded-client-cert",
            "x-envoy-peer-metadata",
            "X_Forwarded-Client_Cert",
            "x-voile-unprocessed",
            "a b",
            "a:b",
            "a\r\nb",
            "ü",
        ] {
            assert_eq!(lawful_name(name), None, "{name}");
        }
        assert_eq!(lawful_name("X-User").as_deref(), Some("x-user"));
        for value in ["a\r\nb: c", "a\nb", "a\0", "\u{7f}"] {
            assert_eq!(lawful_value(value.as_bytes()), None, "{value:?}");
        }
        assert_eq!(
            lawful_value("  grüß\tdich ".as_bytes()).as_deref(),
            Some("grüß\tdich".as_bytes())
        );
    }

    #[test]
    fn queries_are_edited_by_key() {
        for (path, set, remove, expected) in [
            ("/a", "x=1", "", "/a?x=1"),
            ("/a?x=0&y=2&x=3", "x=1", "", "/a?y=2&x=1"),
            ("/a?x=0&y", "", "y x", "/a"),
            ("/a?x=0&&z=?", "", "x", "/a?z=?"),
            ("/a?xy=1", "", "x", "/a?xy=1"),
        ] {
            let pair = set.split_once('=');
            let set: Vec<_> = pair
                .map(|(key, value)| (key.into(), value.into()))
                .into_iter()
                .collect();
            let remove: Vec<Box<str>> = remove.split_ascii_whitespace().map(Box::from).collect();
            assert_eq!(&*edited(path, &set, &remove), expected, "{path}");
        }
    }

    #[test]
    fn a_status_decides_over_http_and_lists_choose_what_travels() {
        let names = |names: &[&str]| names.iter().map(|name| StringMatch::parse(name)).collect();
        let http = HttpAuthorizer {
            upstream_on_allow: names(&["x-user-*"]),
            downstream_on_deny: names(&["*-why"]),
            ..HttpAuthorizer::default()
        };
        let fields = [
            ("X-User-Id", &b"1"[..]),
            ("x-why", b"2"),
            ("x-user", b"3"),
            ("Connection", b"close"),
            ("location", b"/in"),
        ];
        let answer = |status| of_http(&http, status, fields.into_iter(), b"no".to_vec());
        let AuthorizerResponse::Allowed(allowed) = answer(200) else {
            panic!("{:?}", answer(200));
        };
        assert_eq!(allowed.set, [("x-user-id".into(), (*b"1").into())]);
        assert!(allowed.amends.is_empty() && allowed.remove.is_empty());
        for (status, told) in [(302, 302), (401, 401), (204, 204), (403, 403), (101, 403)] {
            let AuthorizerResponse::Denied {
                status: said,
                told: words,
            } = answer(status)
            else {
                panic!("{status}");
            };
            assert_eq!(said, told);
            assert_eq!(words.lines, b"x-why: 2\r\nlocation: /in\r\n");
        }
        assert!(matches!(answer(500), AuthorizerResponse::Failed(_)));
        let all = of_http(
            &HttpAuthorizer::default(),
            403,
            fields.into_iter(),
            Vec::new(),
        );
        let AuthorizerResponse::Denied { told, .. } = all else {
            panic!("{all:?}");
        };
        assert_eq!(told.fields().count(), 4, "all but the connection's own");
    }
}
