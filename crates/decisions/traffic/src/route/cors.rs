//! Cross-origin requests: a route's permissions for browsers, and the fields that carry them. Fetch's protocol
//! (fetch.spec.whatwg.org, "CORS protocol"), with Istio's and Gateway API's ways to name origins.

use std::borrow::Cow;

use super::matching::{RouteInput, TextMatch};

/// Origin whose pages may send requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Any origin: `*`.
    Any,
    /// Those that are so.
    Text(TextMatch),
    /// Gateway API's `https://*.example.com`: the text before and after the star, which is at least one letter of a
    /// host.
    Within(String, String),
}

impl Origin {
    /// Gateway API's words: `*`, an origin, or one with a star in its host.
    #[must_use]
    pub fn gateway(written: &str) -> Self {
        match written.split_once('*') {
            Some(("", "")) => Self::Any,
            Some((before, after)) => Self::Within(before.to_owned(), after.to_owned()),
            None => Self::Text(TextMatch::Exact(written.to_owned())),
        }
    }

    fn allows(&self, origin: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Text(text) => text.matches(origin),
            Self::Within(before, after) => origin
                .strip_prefix(before.as_bytes())
                .and_then(|rest| rest.strip_suffix(after.as_bytes()))
                .is_some_and(|host| {
                    let within = |byte: &u8| byte.is_ascii_alphanumeric() || b"-.".contains(byte);
                    !host.is_empty() && host.iter().all(within)
                }),
        }
    }
}

/// A route's policy. In lists, `*` stands for all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cors {
    /// Origins whose pages may send requests.
    pub origins: Vec<Origin>,
    /// By which methods.
    pub methods: Vec<String>,
    /// With which headers.
    pub headers: Vec<String>,
    /// Which headers of answers they may read.
    pub expose: Vec<String>,
    /// Time for which a browser may cache the answer to a preflight, in seconds.
    pub max_age: Option<u64>,
    /// True if requests may carry the browser's credentials of its user.
    pub credentials: bool,
    /// True if a preflight from another origin goes on to the application (Istio's default). False: the proxy answers
    /// it, without permission.
    pub forward_unmatched: bool,
}

/// Decision on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorsDecision {
    /// It goes on, and its answer stays as it is: it is not from another origin, or from one that has no leave.
    Pass,
    /// It goes on, and its answer gets these fields, in place of any of the same names.
    Allow(Vec<CorsField>),
    /// It is a preflight, answered here with these fields and no body; with no leave in them if there are none.
    Answer(Vec<CorsField>),
}

/// A field of an answer.
pub type CorsField = (&'static str, String);

impl Cors {
    /// Decides on a request.
    #[must_use]
    pub fn decide(&self, request: &(impl RouteInput + ?Sized)) -> CorsDecision {
        let origin = request.header("origin").filter(|origin| !origin.is_empty());
        let Some(origin) = origin else {
            return CorsDecision::Pass;
        };
        let method = request.header("access-control-request-method");
        let preflight = (request.method() == b"OPTIONS")
            .then_some(method)
            .flatten()
            .filter(|method| !method.is_empty());
        if !self.origins.iter().any(|allowed| allowed.allows(&origin)) {
            return match preflight {
                Some(_) if !self.forward_unmatched => CorsDecision::Answer(Vec::new()),
                _ => CorsDecision::Pass,
            };
        }
        let mut fields = self.leave(&origin);
        let (asked, credentials) = (
            request.header("access-control-request-headers"),
            self.credentials,
        );
        push_list(
            &mut fields,
            "access-control-expose-headers",
            &self.expose,
            credentials,
            None,
        );
        // Browsers read these fields in the answer itself. Gateway API requires them in a preflight's answer too, and
        // Envoy sends them.
        let Some(method) = preflight else {
            return CorsDecision::Allow(fields);
        };
        push_list(
            &mut fields,
            "access-control-allow-methods",
            &self.methods,
            credentials,
            Some(method),
        );
        push_list(
            &mut fields,
            "access-control-allow-headers",
            &self.headers,
            credentials,
            asked,
        );
        if let Some(seconds) = self.max_age {
            fields.push(("access-control-max-age", seconds.to_string()));
        }
        CorsDecision::Answer(fields)
    }

    /// Fields that permit an origin. They name the origin, unless any origin may ask without credentials. With a
    /// named origin they tell caches that the answer depends on it.
    fn leave(&self, origin: &[u8]) -> Vec<CorsField> {
        let anybody = !self.credentials && self.origins.contains(&Origin::Any);
        let mut fields = match (anybody, std::str::from_utf8(origin)) {
            (false, Ok(origin)) => vec![
                ("access-control-allow-origin", origin.to_owned()),
                ("vary", "origin".to_owned()),
            ],
            _ => vec![("access-control-allow-origin", "*".to_owned())],
        };
        if self.credentials {
            fields.push(("access-control-allow-credentials", "true".to_owned()));
        }
        fields
    }
}

/// Adds a list. With credentials a star would mean itself (Fetch), so that the requested names are listed instead.
fn push_list(
    fields: &mut Vec<CorsField>,
    name: &'static str,
    list: &[String],
    credentials: bool,
    asked: Option<Cow<'_, [u8]>>,
) {
    let all = list.iter().any(|item| item == "*");
    let value = match asked.as_deref().map(std::str::from_utf8) {
        _ if list.is_empty() => return,
        Some(Ok(asked)) if all && credentials => asked.to_owned(),
        _ if all => "*".to_owned(),
        _ => list.join(","),
    };
    fields.push((name, value));
}
