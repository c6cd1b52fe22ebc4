//! Headers whose lines form one value, joined by commas, before policies see them. Envoy stores each of these headers
//! in one place, as observed with stock Envoy 1.40. For every other header each line is compared by itself, and one
//! matching line is enough.

/// In order.
const JOINED: [&str; 36] = [
    "accept",
    "accept-encoding",
    "access-control-request-headers",
    "access-control-request-method",
    "access-control-request-private-network",
    "authorization",
    "cache-control",
    "content-encoding",
    "content-type",
    "expect",
    "grpc-accept-encoding",
    "grpc-timeout",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "origin",
    "pragma",
    "referer",
    "user-agent",
    "via",
    "x-client-trace-id",
    "x-envoy-attempt-count",
    "x-envoy-decorator-operation",
    "x-envoy-downstream-service-cluster",
    "x-envoy-downstream-service-node",
    "x-envoy-external-address",
    "x-envoy-is-timeout-retry",
    "x-envoy-original-host",
    "x-envoy-original-path",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-request-id",
];

/// Returns true if all lines of the header form one value. `name` is in lower case.
pub(super) fn are_joined(name: &str) -> bool {
    JOINED.binary_search(&name).is_ok()
}

/// The one value of several lines. Empty ones add nothing, not even a comma.
pub(super) fn joined(lines: &[&[u8]]) -> Vec<u8> {
    let lines = lines.iter().copied().filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(&b","[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_in_lower_case() {
        assert!(JOINED.is_sorted());
        for name in JOINED {
            assert!(are_joined(name) && !name.bytes().any(|byte| byte.is_ascii_uppercase()));
        }
        assert!(!are_joined("x-custom") && !are_joined("cookie"));
    }

    #[test]
    fn empty_lines_add_nothing() {
        let table: [(&[&str], &str); 6] = [
            (&["one", "two"], "one,two"),
            (&["one", ""], "one"),
            (&["", "one"], "one"),
            (&["one", "", "two"], "one,two"),
            (&["", ""], ""),
            (&["one", " ", "two,"], "one, ,two,"),
        ];
        for (lines, value) in table {
            let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
            assert_eq!(joined(&bytes), value.as_bytes(), "{lines:?}");
        }
    }
}
