//! Headers: what may be one, and the one that has another value in each request.

use std::sync::Arc;

use super::{LoadOptions, LoadProtocol};
use crate::wire::PreparedRequest;

/// Values of a header that differs from request to request; each is a request made ready.
const MAX_VALUES: usize = 100_000;

impl LoadOptions {
    /// A request for each of its values, where there is such a header.
    pub(super) fn with_each_value(&self) -> Option<Arc<[PreparedRequest]>> {
        let (name, values) = self.each.as_ref()?;
        let one = |value: &String| {
            let mut one = self.only(0);
            one.headers.push((name.clone(), value.clone()));
            PreparedRequest {
                weight: 1.0,
                ..one.one_request()
            }
        };
        Some(values.iter().map(one).collect())
    }

    pub(super) fn check_each(&self) -> Result<(), String> {
        let Some((name, values)) = &self.each else {
            return Ok(());
        };
        if values.is_empty() || values.len() > MAX_VALUES {
            let count = values.len();
            return Err(format!(
                "header-each {name}: {count} values; expected 1 to {MAX_VALUES}"
            ));
        }
        let heads = matches!(
            self.protocol,
            LoadProtocol::Http1 | LoadProtocol::Http2 | LoadProtocol::Grpc
        );
        if !heads || !self.more.is_empty() || !self.sizes.is_empty() || self.recorded.is_some() {
            return Err(
                "header-each: requires HTTP or gRPC, one target, one payload and no replay"
                    .to_owned(),
            );
        }
        values
            .iter()
            .try_for_each(|value| self.check_header(name, value))
    }

    pub(super) fn check_header(&self, name: &str, value: &str) -> Result<(), String> {
        let control = |byte: u8| (byte < b' ' && byte != b'\t') || byte == 0x7f;
        if !is_token(name) || value.bytes().any(control) {
            return Err(format!("header `{name}: {value}`: not a valid HTTP field"));
        }
        if ["content-length", "transfer-encoding", "connection"]
            .iter()
            .any(|own| name.eq_ignore_ascii_case(own))
        {
            return Err(format!("header `{name}` is set by the generator"));
        }
        let hop = ["te", "upgrade", "keep-alive", "proxy-connection"];
        if self.protocol.multiplexed() && hop.iter().any(|hop| name.eq_ignore_ascii_case(hop)) {
            return Err(format!("header `{name}` is not allowed in HTTP/2"));
        }
        Ok(())
    }
}

pub(super) fn is_token(text: &str) -> bool {
    let special = b"!#$%&'*+-.^_`|~";
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || special.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::LoadTarget;

    fn options(values: &[&str]) -> LoadOptions {
        let target = LoadTarget::parse("http://127.0.0.1:1/").expect("a target");
        let mut options = LoadOptions::new(target);
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        options.each = Some(("x-token".to_owned(), values.into()));
        options
    }

    #[test]
    fn each_value_is_a_request_of_its_own_in_either_version_of_http() {
        let mut options = options(&["one", "two"]);
        options.check().expect("good");
        let requests = options.requests();
        for (request, value) in requests.iter().zip(["one", "two"]) {
            let text = String::from_utf8_lossy(&request.bytes);
            let line = format!("x-token: {value}\r\n");
            assert_eq!(text.matches("x-token").count(), 1, "{text}");
            assert!(text.contains(&line), "{text}");
        }
        options.protocol = LoadProtocol::Http2;
        let shapes: Vec<String> = options
            .requests()
            .iter()
            .map(|request| format!("{:?}", request.shape))
            .collect();
        assert!(shapes[0].contains("one") && shapes[1].contains("two"));
    }

    #[test]
    fn what_cannot_be_a_header_or_has_none_is_refused() {
        for (values, words) in [
            (&[][..], "0 values"),
            (&["good", "bad\u{1}"], "not a valid HTTP field"),
        ] {
            let why = options(values).check().expect_err("refused");
            assert!(why.contains(words), "{why}");
        }
        let mut bare = options(&["one"]);
        bare.target = LoadTarget::parse("tcp://127.0.0.1:1").expect("a target");
        bare.protocol = LoadProtocol::TcpRr;
        bare.body = vec![0];
        let why = bare.check().expect_err("refused");
        assert!(why.contains("requires HTTP or gRPC"), "{why}");
    }
}
