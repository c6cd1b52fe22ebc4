//! The vocabulary: what requests carry, attribute by attribute. Policies take their values from the same words.

use super::Random;

pub(super) const TRUST_DOMAINS: &[&str] = &["cluster.local", "td.example", "ns"];
pub(super) const NAMESPACES: &[&str] = &["shop", "shop-2", "a", "ns", "sa"];
pub(super) const ACCOUNTS: &[&str] = &["web", "api", "sa"];
pub(super) const PORTS: &[u16] = &[80, 8080, 15006];
pub(super) const METHODS: &[&str] = &["GET", "POST", "PUT", "DELETE"];
pub(super) const SERVER_NAMES: &[&str] = &["a.example.com", "outbound_.80_._.a.b", "B.Example.com"];
/// The last one's lines are one value.
pub(super) const HEADERS: &[&str] = &["x-a", "x-b", "x-long-name-of-a-header", "user-agent"];
pub(super) const HEADER_VALUES: &[&str] = &["", "one", "two", "one-two", "one,two", "ONE"];
pub(super) const ISSUERS: &[&str] = &[
    "https://issuer.example",
    "https://issuer.example/",
    "issuer",
    "",
];
pub(super) const SUBJECTS: &[&str] = &["user", "user-2", "admin", "*", ""];
pub(super) const CLAIM_VALUES: &[&str] = &["admin", "user", "users", "", "two\nlines"];
pub(super) const V4: &[&str] = &[
    "127.0.0.1",
    "127.0.0.2",
    "127.0.1.1",
    "127.9.0.1",
    "127.200.0.1",
];
pub(super) const V6: &[&str] = &["::1", "fd00::1", "fd00::1:2", "::ffff:127.0.0.1"];
const SEGMENTS: &[&str] = &[
    "a",
    "b",
    "foo",
    "bar",
    "a=b",
    "a%2Fb",
    "a*",
    "",
    "index.html",
    "~x",
];

/// A path, not normalised, with its query now and then.
pub(super) fn path(random: &mut Random, query: bool) -> String {
    let mut path = String::new();
    for _ in 0..=random.below(4) {
        path.push('/');
        path += random.of(SEGMENTS);
    }
    if query && random.one_in(6) {
        path += random.of(&["?x=1", "?", "?a=/b", "?/foo/bar"]);
    }
    path
}

/// A host, with a port now and then, in any case.
pub(super) fn host(random: &mut Random) -> String {
    let mut host = (random.of(&[
        "example.com",
        "a.example.com",
        "Example.com",
        "b",
        "10.0.0.1",
    ]))
    .to_owned();
    if random.one_in(6) {
        host.push('.');
    }
    if random.one_in(3) {
        host += random.of(&[":80", ":8080"]);
    }
    host
}

/// A principal without `spiffe://`.
pub(super) fn principal(random: &mut Random) -> String {
    let domain = random.of(TRUST_DOMAINS);
    let namespace = random.of(NAMESPACES);
    let account = random.of(ACCOUNTS);
    format!("{domain}/ns/{namespace}/sa/{account}")
}
