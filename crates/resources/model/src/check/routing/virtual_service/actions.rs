//! Check of what a route does besides sending requests on: answers, rewrites, headers, faults, CORS, copies.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use voile_traffic::route::REDIRECT_STATUSES;

use super::RuleReader;
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue, Text};
use crate::mesh::action::{
    Abort, AbortStatus, Cors, Delay, DirectResponse, Fault, HeaderEdits, HeaderRules, Mirror,
    Origin, OriginMatch, PathRewrite, Redirect, RedirectPort, Regex, RegexRewrite, RequestShare,
    Rewrite,
};
use crate::text::clip;

/// Longest body of a `directResponse`, in bytes: Istio's bound.
const MAX_BODY: usize = 1 << 20;

/// gRPC's statuses, by their number.
const GRPC_STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Allowed statuses of a direct response.
const STATUSES: std::ops::RangeInclusive<i64> = 200..=599;

impl RuleReader<'_> {
    /// `redirect` or `directResponse`.
    pub(super) fn answer(&self, fields: &mut Fields<'_>) -> Option<DirectResponse> {
        let redirect = fields.inner("redirect").map(|one| self.redirect(one));
        let direct = fields.inner("directResponse").map(|one| self.direct(one));
        redirect.or(direct).flatten()
    }

    fn redirect(&self, mut fields: Fields<'_>) -> Option<DirectResponse> {
        let at = fields.at().clone();
        let uri = fields.text("uri").and_then(|text| self.path(&text, true));
        let prefix = fields.text("prefixRewrite");
        let prefix = prefix.and_then(|text| self.path(&text, true));
        let authority = fields
            .text("authority")
            .and_then(|text| self.authority(&text));
        let scheme = fields.text("scheme");
        let scheme = scheme.and_then(|text| {
            self.report
                .one_of(&text, &[("http", "http"), ("https", "https")])
        });
        let port = fields.integer("port");
        let derived = fields.text("derivePort").and_then(|text| {
            let words = [
                ("FROM_PROTOCOL_DEFAULT", RedirectPort::Request),
                ("FROM_REQUEST_PORT", RedirectPort::Listener),
            ];
            self.report.one_of(&text, &words)
        });
        let status = fields.integer("redirectCode");
        let status = status.map_or(Some(301), |code| self.redirect_status(&code));
        fields.finish();
        self.at_most_one(&at, "uri", "prefixRewrite", (&uri, &prefix));
        self.at_most_one(&at, "port", "derivePort", (&port, &derived));
        if uri.is_none()
            && prefix.is_none()
            && authority.is_none()
            && scheme.is_none()
            && port.is_none()
            && derived.is_none()
        {
            let message = "this redirect has the request's own target: it would never end";
            let help = "set another uri, authority, scheme or port";
            self.report.error(codes::MISSING, &at, message, help);
        }
        let port = port.and_then(|number| self.report.port(&number));
        let path = uri.map(PathRewrite::Full);
        Some(DirectResponse::Redirect {
            to: Redirect {
                scheme: scheme.map(str::to_owned),
                host: authority.map(|text| text.to_string()),
                port: port.map_or(derived.unwrap_or_default(), |port| {
                    RedirectPort::Exact(port.get())
                }),
                path: path.or(prefix.map(PathRewrite::Prefix)),
            },
            status: status?,
        })
    }

    fn redirect_status(&self, code: &SpannedValue<i64>) -> Option<u16> {
        let status = u16::try_from(code.value).ok();
        let status = status.filter(|status| REDIRECT_STATUSES.contains(status));
        if status.is_none() {
            let message = format!("{} is no redirect status", code.value);
            let help = "write 301, 302, 303, 307 or 308";
            self.report.error(codes::BAD_VALUE, &code.at, message, help);
        }
        status
    }

    fn direct(&self, mut fields: Fields<'_>) -> Option<DirectResponse> {
        let at = fields.at().clone();
        let status = self
            .report
            .required(fields.integer("status"), &at, "status");
        let body = fields.inner("body").map(|mut body| {
            let at = body.at().clone();
            let (text, bytes) = (body.text("string"), body.text("bytes"));
            body.finish();
            self.at_most_one(&at, "string", "bytes", (&text, &bytes));
            let decoded = bytes.and_then(|text| {
                let decode = |text: &str| STANDARD.decode(text).ok();
                let help = "write bytes in base64";
                self.report.parsed(&text, "bytes", decode, help)
            });
            let body = text.map(|text| text.value.as_bytes().to_vec());
            let body = body.or(decoded).unwrap_or_default();
            if body.len() > MAX_BODY {
                let message = format!("a body of {} bytes is too long", body.len());
                let help = format!("write at most {MAX_BODY} bytes");
                self.report.error(codes::BAD_VALUE, &at, message, help);
            }
            body
        });
        fields.finish();
        Some(DirectResponse::Direct {
            status: self.status(&status?)?,
            body: body.unwrap_or_default().into(),
        })
    }

    fn status(&self, number: &SpannedValue<i64>) -> Option<u16> {
        let fits = STATUSES.contains(&number.value);
        if !fits {
            let message = format!("{} is no status of a response", number.value);
            let help = "write one from 200 to 599";
            self.report
                .error(codes::BAD_VALUE, &number.at, message, help);
        }
        u16::try_from(number.value).ok().filter(|_| fits)
    }

    /// A path as it goes on the wire; one that replaces all of it begins with a slash.
    fn path(&self, text: &Text, whole: bool) -> Option<String> {
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        let read = |path: &str| {
            let good = path.bytes().all(plain) && (!whole || path.starts_with('/'));
            good.then(|| path.to_owned())
        };
        let help = "a path begins with `/` and has no blanks; other letters are written as %XX";
        self.report.parsed(text, "a path", read, help)
    }

    fn authority(&self, text: &Text) -> Option<Arc<str>> {
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"@/?#\\\"<>^`{|}%".contains(&byte);
        let good = |name: &str| !name.is_empty() && name.bytes().all(plain);
        let read = |name: &str| good(name).then(|| Arc::from(name));
        let help = "write HOST or HOST:PORT";
        self.report.parsed(text, "an authority", read, help)
    }

    fn at_most_one<A, B>(
        &self,
        at: &FieldPath,
        one: &str,
        other: &str,
        said: (&Option<A>, &Option<B>),
    ) {
        if said.0.is_some() && said.1.is_some() {
            let message = format!("`{one}` and `{other}` exclude each other");
            self.report
                .error(codes::CONTRADICTION, at, message, "keep one");
        }
    }

    /// `rewrite`.
    pub(super) fn rewrite(&self, mut fields: Fields<'_>) -> Rewrite {
        let at = fields.at().clone();
        // The replacement of a prefix may be empty.
        let uri = fields.text("uri").and_then(|text| self.path(&text, false));
        let authority = fields.text("authority");
        let authority = authority.and_then(|text| self.authority(&text));
        let regex = fields.inner("uriRegexRewrite").map(|mut regex| {
            let at = regex.at().clone();
            let pattern = self.report.required(regex.text("match"), &at, "match");
            let becomes = regex.text("rewrite");
            regex.finish();
            let pattern = pattern?;
            let becomes = becomes.map(|text| text.value).unwrap_or_default();
            let read = RegexRewrite::new(&pattern.value, &becomes);
            if let Err(error) = &read {
                let help = "expressions are RE2's; \\1 to \\9 stand for their groups";
                let message = error.to_string();
                self.report
                    .error(codes::BAD_VALUE, &pattern.at, message, help);
            }
            read.ok()
        });
        fields.finish();
        self.at_most_one(&at, "uri", "uriRegexRewrite", (&uri, &regex));
        if uri.is_none() && regex.is_none() && authority.is_none() {
            self.report.required(None::<()>, &at, "uri");
        }
        let regex = regex.flatten().map(PathRewrite::Regex);
        Rewrite {
            path: uri.map(PathRewrite::Prefix).or(regex),
            authority,
        }
    }

    /// `headers` of a route or a destination.
    pub(super) fn headers(&self, fields: &mut Fields<'_>) -> HeaderRules {
        let Some(mut both) = fields.inner("headers") else {
            return HeaderRules::default();
        };
        let request = both.inner("request").map(|one| self.edits(one, true));
        let response = both.inner("response").map(|one| self.edits(one, false));
        both.finish();
        HeaderRules {
            request: request.unwrap_or_default(),
            response: response.unwrap_or_default(),
        }
    }

    fn edits(&self, mut fields: Fields<'_>, of_request: bool) -> HeaderEdits {
        let at = fields.at().clone();
        let values = |list: Vec<(Text, Text)>| {
            let one = |(name, value): (Text, Text)| {
                let value = self.header_value(&value)?;
                Some((name.value.to_string(), value))
            };
            list.into_iter().filter_map(one).collect()
        };
        let edits = HeaderEdits {
            set: values(fields.text_map("set")),
            add: values(fields.text_map("add")),
            remove: fields
                .texts("remove")
                .iter()
                .map(|text| text.value.to_string())
                .collect(),
        };
        fields.finish();
        let authority = edits.authority().filter(|_| !of_request);
        if authority.is_some() {
            let message = "a response has no authority";
            let help = "`Host` and `:authority` are headers of requests";
            self.report.error(codes::BAD_VALUE, &at, message, help);
        }
        if let Err(error) = edits.check() {
            let help = "write an application header, or remove it";
            self.report
                .error(codes::BAD_VALUE, &at, error.to_string(), help);
        }
        edits
    }

    /// Envoy puts in what `%NAME%` stands for; nothing does so here, and `%%` is a plain sign there.
    fn header_value(&self, text: &Text) -> Option<String> {
        let plain = text.value.replace("%%", "");
        if plain.contains('%') {
            let message = format!(
                "`{}`: variables in `%` are not yet supported",
                clip(&text.value)
            );
            let help = "write a plain value; `%%` is one `%`";
            self.report.error(codes::NOT_YET, &text.at, message, help);
            return None;
        }
        Some(text.value.replace("%%", "%"))
    }

    /// `fault`.
    pub(super) fn fault(&self, mut fields: Fields<'_>) -> Fault {
        let delay = fields.inner("delay").and_then(|mut delay| {
            let at = delay.at().clone();
            delay.not_yet(&["exponentialDelay"]);
            let fixed = self
                .report
                .required(delay.text("fixedDelay"), &at, "fixedDelay");
            let share = self.share(&mut delay, "percentage", "percent", None);
            delay.finish();
            Some(Delay {
                fixed: self.report.duration(&fixed?)?,
                share: share?,
            })
        });
        let abort = fields.inner("abort").and_then(|mut abort| {
            let at = abort.at().clone();
            abort.not_yet(&["http2Error"]);
            let (http, grpc) = (abort.integer("httpStatus"), abort.text("grpcStatus"));
            self.at_most_one(&at, "httpStatus", "grpcStatus", (&http, &grpc));
            let share = self.share(&mut abort, "percentage", "percent", None);
            abort.finish();
            let with = match (&http, &grpc) {
                (Some(http), _) => AbortStatus::Http(self.status(http)?),
                (None, Some(grpc)) => AbortStatus::Grpc(self.grpc_status(grpc)?),
                (None, None) => return self.report.required(None, &at, "httpStatus"),
            };
            Some(Abort {
                with,
                share: share?,
            })
        });
        fields.finish();
        Fault { delay, abort }
    }

    fn grpc_status(&self, text: &Text) -> Option<u16> {
        let words = GRPC_STATUSES.iter().zip(0_u16..);
        let words: Vec<_> = words.map(|(word, number)| (*word, number)).collect();
        self.report.one_of(text, &words)
    }

    /// A percentage, as `{value: 0.1}` or, in the older form, a whole number. Istio takes a missing percentage of a
    /// fault for zero, which is hardly ever intended.
    fn share(
        &self,
        fields: &mut Fields<'_>,
        name: &'static str,
        once: &'static str,
        missing: Option<RequestShare>,
    ) -> Option<RequestShare> {
        let at = fields.at().clone();
        let whole = fields.integer(once);
        let said = fields.inner(name).map(|mut inner| {
            // Nothing said is nothing, as in every message of its kind.
            let value = inner.number("value");
            let at = inner.at().clone();
            inner.finish();
            value.unwrap_or(SpannedValue { value: 0.0, at })
        });
        self.at_most_one(&at, name, once, (&said, &whole));
        let whole = whole.map(|number| SpannedValue {
            value: number.value as f64,
            at: number.at,
        });
        let Some(number) = said.or(whole) else {
            return missing.or_else(|| self.report.required(None, &at, name));
        };
        let share = RequestShare::percent(number.value);
        if let Err(error) = &share {
            let help = "write a number from 0 to 100";
            self.report
                .error(codes::BAD_VALUE, &number.at, error.to_string(), help);
        }
        share.ok()
    }

    /// `corsPolicy`.
    pub(super) fn cors(&self, mut fields: Fields<'_>) -> Cors {
        let exact = |text: &str| match text {
            "*" => Origin::Any,
            text => Origin::Text(OriginMatch::Exact(text.to_owned())),
        };
        // As it was written once.
        let plain = fields.texts("allowOrigin");
        let plain = plain.iter().map(|text| exact(&text.value));
        let matched = fields.list("allowOrigins", |cursor| self.origin(cursor));
        let list = |texts: Vec<Text>| texts.iter().map(|text| text.value.to_string()).collect();
        let max_age = fields.text("maxAge");
        let max_age = max_age.and_then(|text| self.report.duration(&text));
        let credentials = fields.boolean("allowCredentials");
        let unmatched = fields.text("unmatchedPreflights").and_then(|text| {
            let words = [("FORWARD", true), ("IGNORE", false), ("UNSPECIFIED", true)];
            self.report.one_of(&text, &words)
        });
        let cors = Cors {
            origins: plain.chain(matched).collect(),
            methods: list(fields.texts("allowMethods")),
            headers: list(fields.texts("allowHeaders")),
            expose: list(fields.texts("exposeHeaders")),
            max_age: max_age.map(|age| age.as_secs()),
            credentials: credentials.is_some_and(|flag| flag.value),
            forward_unmatched: unmatched.unwrap_or(true),
        };
        self.tokens(fields.at(), &cors);
        fields.finish();
        cors
    }

    /// Checks the words that the proxy writes into response headers.
    fn tokens(&self, at: &FieldPath, cors: &Cors) {
        let lists = [&cors.methods, &cors.headers, &cors.expose];
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        let good = |word: &&String| !word.is_empty() && word.bytes().all(plain);
        if let Some(word) = lists.into_iter().flatten().find(|word| !good(word)) {
            let message = format!("`{}` is neither a method nor a header", clip(word));
            let help = "write each name as a separate list element";
            self.report.error(codes::BAD_VALUE, at, message, help);
        }
    }

    fn origin(&self, cursor: &Cursor<'_>) -> Option<Origin> {
        use crate::mesh::TextMatch as Said;
        let text = match self.text_match(cursor)? {
            Said::Exact(text) if &*text == "*" => return Some(Origin::Any),
            Said::Exact(text) => OriginMatch::Exact(text.to_string()),
            Said::Prefix(text) => OriginMatch::Prefix(text.to_string()),
            Said::Regex(text) => OriginMatch::Regex(Regex::new(&text).ok()?),
            Said::Present | Said::Segments(_) => {
                return self.report.required(None, cursor.at(), "exact");
            }
        };
        Some(Origin::Text(text))
    }

    /// `mirrors`, and `mirror` as it was written once.
    pub(super) fn mirrors(&self, fields: &mut Fields<'_>) -> Vec<Mirror> {
        let at = fields.at().clone();
        let one = fields.get("mirror");
        let list = fields.get("mirrors");
        self.at_most_one(&at, "mirror", "mirrors", (&one, &list));
        let share = self.mirrored(fields);
        let mut mirrors = fields.list("mirrors", |cursor| {
            let mut mirror = cursor.fields()?;
            let to = mirror.get("destination");
            let to = self.report.required(to, cursor.at(), "destination");
            let share = self.share(
                &mut mirror,
                "percentage",
                "percent",
                Some(RequestShare::ALL),
            );
            mirror.finish();
            Some(Mirror {
                to: self.destination(&to?)?,
                share: share?,
            })
        });
        let one = one.and_then(|at| self.destination(&at)).zip(share);
        mirrors.extend(one.map(|(to, share)| Mirror { to, share }));
        mirrors
    }

    /// `mirrorPercentage`, or the whole number that there was before it.
    fn mirrored(&self, fields: &mut Fields<'_>) -> Option<RequestShare> {
        let oldest = fields.integer("mirror_percent");
        let share = self.share(
            fields,
            "mirrorPercentage",
            "mirrorPercent",
            Some(RequestShare::ALL),
        );
        match oldest {
            None => share,
            Some(number) => RequestShare::percent(number.value as f64).ok(),
        }
    }
}
