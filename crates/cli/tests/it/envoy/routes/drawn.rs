//! Random VirtualServices of many services, and requests to them. All words come from a small set, so that requests often match
//! routes.

use std::fmt::Write as _;

use fastrand::Rng;
use voile_model::SourceFile;

/// The client's label and namespace are the first; the second are those of other workloads.
pub(crate) const LABELS: [&str; 2] = ["client", "other"];
const NAMESPACES: [&str; 2] = ["shop", "elsewhere"];

/// Resources of a mesh with so many routed services, and a client that calls them on a listener of its
/// own.
pub(crate) fn mesh(random: &mut Rng, services: usize, listener: ([u8; 3], u16)) -> String {
    let ([a, b, c], port) = listener;
    let mut text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n\
         ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: client, namespace: shop, labels: {{app: client, sidecar.istio.io/inject: \"true\"}}}}\n\
         spec: {{serviceAccountName: client, containers: [{{name: app}}]}}\nstatus: {{phase: Running, podIP: {a}.{b}.{c}.1}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: client, namespace: shop}}\n\
         spec:\n  egress:\n  - {{port: {{number: {port}, protocol: HTTP, name: http}}, bind: {a}.{b}.{c}.100, captureMode: NONE, hosts: [\"*/*\"]}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: one, namespace: shop}}\n\
         spec: {{host: one, subsets: [{{name: v1, labels: {{version: v1}}}}, {{name: v2, labels: {{version: v2}}}}]}}\n"
    );
    let service = |name: &str, port: u16| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: {port}}}]}}\n"
        )
    };
    for name in ["one", "two"] {
        text += &service(name, port);
    }
    // Another port than the one that is called.
    text += &service("three", port + 1);
    for number in 0..services {
        text += &service(&host(number), port);
        text += &virtual_service(random, number, port);
    }
    text
}

/// The short name of a routed service.
pub(crate) fn host(number: usize) -> String {
    format!("s{number}")
}

fn one<'w>(random: &mut Rng, words: &[&'w str]) -> &'w str {
    words[random.usize(..words.len())]
}

fn virtual_service(random: &mut Rng, number: usize, port: u16) -> String {
    let name = host(number);
    let mut text = format!(
        "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  hosts: [{name}]\n  http:\n"
    );
    for route in 0..random.usize(1..9) {
        let _ = writeln!(text, "  - name: r{route}");
        // Now and then one that takes everything, and hides what follows.
        let alternatives = if random.u8(..30) == 0 {
            0
        } else {
            random.usize(1..3)
        };
        if alternatives > 0 {
            text += "    match:\n";
        }
        for _ in 0..alternatives {
            let asked = matching(random, &name, port).join(", ");
            let _ = writeln!(text, "    - {{{asked}}}");
        }
        text += "    route:\n";
        let shares = if random.u8(..4) == 0 { 3 } else { 1 };
        for share in 0..shares {
            let weight = if share == 0 { 1 } else { random.u8(..3) };
            let to = destination(random);
            let _ = writeln!(text, "    - {{destination: {{{to}}}, weight: {weight}}}");
        }
    }
    text
}

/// A destination that exists, or one that does not.
fn destination(random: &mut Rng) -> String {
    one(
        random,
        &[
            "host: one",
            "host: one, subset: v1",
            "host: one, subset: v2",
            "host: two",
            "host: two.shop.svc.cluster.local",
            "host: three",
            "host: one, subset: v3",
            "host: nobody",
            "host: two, port: {number: 9}",
        ],
    )
    .to_owned()
}

fn path(random: &mut Rng) -> String {
    let mut path = String::new();
    for _ in 0..random.usize(..4) {
        path += one(
            random,
            &["/a", "/b", "/A", "/ab", "/", "/a%2Fb", "/..", "/.", "/a;x"],
        );
    }
    if path.is_empty() {
        path += "/";
    }
    path
}

/// A match on the path.
fn uri(random: &mut Rng) -> Vec<String> {
    let mut asked = Vec::new();
    if random.u8(..8) > 0 {
        let kind = one(random, &["exact", "exact", "prefix", "regex"]);
        let wanted = match kind {
            "regex" if expressions() => one(
                random,
                &[
                    "/a.*",
                    ".*b",
                    "/(a|b)/.*",
                    "/a/a",
                    "(?i)/AB",
                    "/[^/]+",
                    "/a\\\\d?",
                ],
            )
            .to_owned(),
            _ => path(random),
        };
        let kind = match kind {
            "regex" if !expressions() => "prefix",
            kind => kind,
        };
        asked.push(format!("uri: {{{kind}: \"{wanted}\"}}"));
        if random.u8(..3) == 0 {
            asked.push("ignoreUriCase: true".to_owned());
        }
    }
    asked
}

fn matching(random: &mut Rng, name: &str, port: u16) -> Vec<String> {
    let mut asked = uri(random);
    let mut more = |random: &mut Rng, chance: u8, of: &dyn Fn(&mut Rng) -> String| {
        if random.u8(..10) < chance {
            let text = of(random);
            asked.push(text);
        }
    };
    more(random, 2, &|random| {
        let method = one(
            random,
            &["exact: GET", "exact: POST", "prefix: P", "exact: get"],
        );
        format!("method: {{{method}}}")
    });
    more(random, 2, &|random| {
        let authority = one(
            random,
            &[
                "exact: NAME",
                "prefix: NAME.",
                "exact: \"NAME:PORT\"",
                "prefix: x",
            ],
        );
        let authority = authority
            .replace("NAME", name)
            .replace("PORT", &port.to_string());
        format!("authority: {{{authority}}}")
    });
    more(random, 1, &|random| {
        format!(
            "scheme: {{exact: {}}}",
            one(random, &["http", "http", "https"])
        )
    });
    for field in ["headers", "withoutHeaders"] {
        more(random, 3, &|random| {
            let value = value(random);
            let names = one(random, &["x", "y", "X-Long-Name", "user-agent"]);
            format!("{field}: {{{names}: {value}}}")
        });
    }
    more(random, 3, &|random| {
        let value = value(random);
        format!(
            "queryParams: {{{}: {value}}}",
            one(random, &["q", "r", "Q"])
        )
    });
    more(random, 1, &|random| {
        format!("port: {}", if random.bool() { port } else { port + 1 })
    });
    more(random, 1, &|random| {
        format!("sourceLabels: {{app: {}}}", one(random, &LABELS))
    });
    more(random, 1, &|random| {
        format!("sourceNamespace: {}", one(random, &NAMESPACES))
    });
    asked
}

fn value(random: &mut Rng) -> String {
    let plain = [
        "exact: \"1\"",
        "exact: \"2\"",
        "prefix: a",
        "exact: \"1,2\"",
        "prefix: \" \"",
        "",
    ];
    let regex = ["regex: \"[12]\"", "regex: \"a*\"", "regex: \".*\""];
    let text = match expressions() && random.u8(..3) == 0 {
        true => one(random, &regex),
        false => one(random, &plain),
    };
    format!("{{{text}}}")
}

/// A request to a service: the bytes of its head.
pub(crate) fn request(random: &mut Rng, number: usize, port: u16) -> String {
    let method = one(random, &["GET", "GET", "POST", "PUT", "DELETE", "OPTIONS"]);
    let path = path(random);
    let query = one(
        random,
        &[
            "",
            "",
            "?q=1",
            "?q",
            "?q=2&q=1",
            "?r=a&q=ab",
            "?",
            "?q=1%20&Q=1",
            "?r=&&q=",
            "?q=a#x",
        ],
    );
    // Neither engine takes a fragment, and that is another test's.
    let query = query.split('#').next().unwrap_or_default();
    let name = host(number);
    let authority = match random.u8(..4) {
        0 => name,
        1 => format!("{name}.shop"),
        2 => format!("{name}:{port}"),
        _ => format!("{name}.shop.svc.cluster.local:{port}"),
    };
    let mut head = format!("{method} {path}{query} HTTP/1.1\r\nHost: {authority}\r\n");
    // Once at most: of headers that it has a place for Envoy leaves out further values that are empty.
    if random.u8(..4) == 0 {
        let _ = write!(
            head,
            "User-Agent: {}\r\n",
            one(random, &["1", "2", "ab", ""])
        );
    }
    while random.u8(..2) == 0 {
        let name = one(random, &["x", "y", "X", "x-long-name"]);
        let value = one(random, &["1", "2", "ab", "", "1,2", "1, 2", " a "]);
        let _ = write!(head, "{name}:{value}\r\n");
    }
    head + "\r\n"
}

/// Returns true if the checker accepts regular expressions.
fn expressions() -> bool {
    static KNOWN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *KNOWN.get_or_init(|| {
        let text = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: s, namespace: shop}\n\
             spec: {hosts: [s], http: [{match: [{uri: {regex: /a}}], route: [{destination: {host: s}}]}]}\n";
        let (_, diagnostics) = voile_model::check(&[SourceFile::new("s.yaml", text.to_owned())], None);
        !diagnostics.iter().any(voile_model::Diagnostic::is_error)
    })
}
