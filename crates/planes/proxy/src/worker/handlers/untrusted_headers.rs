//! Header fields of requests from outside the mesh. A client outside must not claim an identity in the mesh, nor state anything
//! that the mesh's proxies found out. The gateway removes those fields and writes true ones in their place, as at an edge of
//! Istio's.
//!
//! | field | value that goes on |
//! |---|---|
//! | `x-forwarded-for` | the received value, and the connecting peer |
//! | `x-forwarded-proto` | the connection's scheme; the received value, if proxies in front are trusted |
//! | `x-envoy-external-address` | the client: the connecting peer, or the client that trusted proxies name |
//! | every other `x-envoy-*` | nothing: peers' metadata, retries and timeouts are the mesh's own |
//! | `x-forwarded-client-cert` | nothing of the received value, unless [`super::forwarded_client_cert`] writes it again |

use std::borrow::Cow;
use std::net::IpAddr;

use voile_http1::loosely_equal;

use crate::authorization::forwarded_for;
use crate::http::HttpHead;
use crate::worker::handlers::forwarded_client_cert::FORWARDED_CERTIFICATE;
use crate::worker::policy::request_changes::PlanChanges;

const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";
const EXTERNAL_ADDRESS: &str = "x-envoy-external-address";
/// Prefix of the fields by which proxies talk to each other. The match also covers receivers that read `_` as
/// `-`.
const INTERNAL: &str = "x-envoy-";

/// Origin of a request at the gateway.
#[derive(Debug, Clone, Copy)]
pub(in crate::worker) struct ArrivalPath {
    /// Address of the connecting peer, or of the client for which a balancer connected.
    pub(in crate::worker) peer: IpAddr,
    /// Number of trusted proxies in front.
    pub(in crate::worker) trusted: u32,
    /// `http` or `https`.
    pub(in crate::worker) scheme: &'static str,
}

/// See the module.
pub(in crate::worker) fn changes(head: &HttpHead<'_>, arrived: ArrivalPath) -> PlanChanges {
    let mut changes = PlanChanges::default();
    let mut forwarded: Vec<u8> = Vec::new();
    let mut proto = None;
    for (name, value) in head.headers() {
        if name.eq_ignore_ascii_case(FORWARDED_FOR) {
            if !forwarded.is_empty() {
                forwarded.extend_from_slice(b", ");
            }
            forwarded.extend_from_slice(value);
        } else if name.eq_ignore_ascii_case(FORWARDED_PROTO) {
            proto = Some(value);
        } else if is_internal(name) {
            changes.leave_out(Cow::Owned(name.to_ascii_lowercase()));
        }
    }
    let client = match arrived.trusted {
        0 => arrived.peer,
        trusted => forwarded_for(head, trusted).unwrap_or(arrived.peer),
    };
    for name in [
        FORWARDED_FOR,
        FORWARDED_PROTO,
        FORWARDED_CERTIFICATE,
        EXTERNAL_ADDRESS,
    ] {
        changes.leave_out(name);
    }
    if !forwarded.is_empty() {
        forwarded.extend_from_slice(b", ");
    }
    forwarded.extend_from_slice(arrived.peer.to_canonical().to_string().as_bytes());
    changes.add(FORWARDED_FOR, &forwarded);
    let believed = proto.filter(|said| arrived.trusted > 0 && is_scheme(said));
    changes.add(
        FORWARDED_PROTO,
        believed.unwrap_or(arrived.scheme.as_bytes()),
    );
    changes.add(
        EXTERNAL_ADDRESS,
        client.to_canonical().to_string().as_bytes(),
    );
    changes
}

fn is_internal(name: &str) -> bool {
    let begins = name.as_bytes().get(..INTERNAL.len());
    begins.is_some_and(|begins| loosely_equal(begins, INTERNAL.as_bytes()))
}

fn is_scheme(said: &[u8]) -> bool {
    said.eq_ignore_ascii_case(b"http") || said.eq_ignore_ascii_case(b"https")
}

#[cfg(test)]
mod tests {
    use voile_http2::Fields;

    use super::*;

    /// The forwarded fields of a request that came so, as `name: value` in order.
    fn goes_on(fields: &[(&str, &str)], trusted: u32, scheme: &'static str) -> Vec<String> {
        let mut head = Fields::new();
        for (name, value) in [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "shop.example"),
        ] {
            head.push(name, value.as_bytes());
        }
        for (name, value) in fields {
            head.push(name, value.as_bytes());
        }
        let head = HttpHead::Http2(&head);
        let arrived = ArrivalPath {
            peer: "203.0.113.9".parse().expect("an address"),
            trusted,
            scheme,
        };
        let changes = changes(&head, arrived);
        let mut seen: Vec<String> = changes
            .seen(&head)
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)))
            .collect();
        seen.sort();
        seen
    }

    /// Received fields, number of trusted proxies, scheme, and the fields that go on.
    type Row = (
        &'static [(&'static str, &'static str)],
        u32,
        &'static str,
        &'static [&'static str],
    );

    #[test]
    fn what_is_told_of_a_client_is_what_is_true_and_nothing_that_it_says_of_the_mesh_goes_on() {
        let table: [Row; 5] = [
            (
                &[("accept", "*/*")],
                0,
                "http",
                &[
                    "accept: */*",
                    "x-envoy-external-address: 203.0.113.9",
                    "x-forwarded-for: 203.0.113.9",
                    "x-forwarded-proto: http",
                ],
            ),
            (
                &[
                    ("x-forwarded-for", "10.0.0.1"),
                    ("x-forwarded-for", "10.0.0.2"),
                    ("x-forwarded-proto", "https"),
                    (
                        "x-forwarded-client-cert",
                        "By=spiffe://cluster.local/ns/a/sa/b",
                    ),
                    ("x-envoy-peer-metadata", "forged"),
                    ("x-envoy-peer-metadata-id", "forged"),
                    ("x_envoy_attempt_count", "forged"),
                    ("X-Envoy-Internal", "true"),
                    ("x-envoy-max-retries", "1000"),
                    ("x-envoy-external-address", "10.0.0.1"),
                ],
                0,
                "http",
                &[
                    "x-envoy-external-address: 203.0.113.9",
                    "x-forwarded-for: 10.0.0.1, 10.0.0.2, 203.0.113.9",
                    "x-forwarded-proto: http",
                ],
            ),
            (
                &[
                    ("x-forwarded-for", "198.51.100.7, 10.0.0.2"),
                    ("x-forwarded-proto", "https"),
                ],
                2,
                "http",
                &[
                    "x-envoy-external-address: 198.51.100.7",
                    "x-forwarded-for: 198.51.100.7, 10.0.0.2, 203.0.113.9",
                    "x-forwarded-proto: https",
                ],
            ),
            (
                // One proxy fewer in front than is trusted: only the connecting peer is known.
                &[("x-forwarded-for", "198.51.100.7")],
                2,
                "https",
                &[
                    "x-envoy-external-address: 203.0.113.9",
                    "x-forwarded-for: 198.51.100.7, 203.0.113.9",
                    "x-forwarded-proto: https",
                ],
            ),
            (
                &[("x-forwarded-proto", "gopher")],
                1,
                "https",
                &[
                    "x-envoy-external-address: 203.0.113.9",
                    "x-forwarded-for: 203.0.113.9",
                    "x-forwarded-proto: https",
                ],
            ),
        ];
        for (fields, trusted, scheme, expected) in table {
            assert_eq!(goes_on(fields, trusted, scheme), expected, "{fields:?}");
        }
    }
}
