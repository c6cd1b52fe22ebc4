//! Random VirtualServices with every route action, and requests to them. Shares are all or nothing, so that no proxy draws by
//! chance. The choice among several destinations is the one exception.

use std::fmt::Write as _;

use fastrand::Rng;

/// Last bytes of the addresses of the two pods with proxies.
pub(super) const OURS: u8 = 1;
pub(super) const THEIRS: u8 = 2;
/// The pods that are called: the last byte of each's address, and its name.
pub(super) const PODS: [(u8, &str); 3] = [(11, "one-v1"), (12, "one-v2"), (13, "two-v1")];

/// The short name of a routed service.
pub(super) fn host(number: usize) -> String {
    format!("s{number}")
}

fn one<'w>(random: &mut Rng, words: &[&'w str]) -> &'w str {
    words[random.usize(..words.len())]
}

/// One in so many.
fn seldom(random: &mut Rng, among: u8) -> bool {
    random.u8(..among) == 0
}

/// Resources of a mesh with so many routed services.
pub(super) fn mesh(random: &mut Rng, services: usize, (net, port): ([u8; 3], u16)) -> String {
    let base = format!("{}.{}.{}", net[0], net[1], net[2]);
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n".to_owned();
    for (last, pod) in [(OURS, "ours"), (THEIRS, "theirs")] {
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {pod}, namespace: shop}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: shop, labels: {{app: client, pod: {pod}, sidecar.istio.io/inject: \"true\"}}}}\n\
             spec: {{serviceAccountName: {pod}, containers: [{{name: app}}]}}\nstatus: {{phase: Running, podIP: {base}.{last}}}\n\
             ---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: {pod}, namespace: shop}}\n\
             spec:\n  workloadSelector: {{labels: {{pod: {pod}}}}}\n  egress:\n\
             \x20 - {{port: {{number: {port}, protocol: HTTP, name: http}}, bind: {base}.{}, captureMode: NONE, hosts: [\"*/*\"]}}\n",
            100 + last
        );
    }
    for (last, name) in PODS {
        let (app, version) = name.split_once('-').expect("a version");
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {app}, version: {version}}}}}\n\
             spec: {{containers: [{{name: app}}]}}\nstatus: {{phase: Running, podIP: {base}.{last}}}\n"
        );
    }
    let service = |name: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: {port}}}]}}\n"
        )
    };
    text += &service("one");
    text += &service("two");
    text += "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: one, namespace: shop}\n\
         spec: {host: one, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}\n";
    for number in 0..services {
        text += &service(&host(number));
        text += &virtual_service(random, number);
    }
    text
}

fn virtual_service(random: &mut Rng, number: usize) -> String {
    let name = host(number);
    let head = |name: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n"
        )
    };
    let mut text = format!("{}  hosts: [{name}]\n  http:\n", head(&name));
    let mut delegates = String::new();
    let routes = random.usize(2..7);
    for number in 0..routes {
        let last = number + 1 == routes;
        let _ = writeln!(text, "  - name: r{number}");
        if !last || random.bool() {
            let asked = matching(random);
            let _ = writeln!(text, "    match: [{}]", asked.join(", "));
        }
        if seldom(random, 12) {
            let part = format!("{name}-{number}");
            let _ = writeln!(text, "    delegate: {{name: {part}}}");
            // One in some is not there, and leads nowhere.
            if !seldom(random, 6) {
                delegates += &head(&part);
                delegates += "  http:\n  - name: own\n";
                delegates += &acting(random);
            }
        } else {
            text += &acting(random);
        }
    }
    text + &delegates
}

fn matching(random: &mut Rng) -> Vec<String> {
    let alternatives = random.usize(1..3);
    let each = (0..alternatives).map(|_| {
        let kind = one(random, &["exact", "prefix", "prefix", "regex"]);
        let wanted = match kind {
            "regex" => one(random, &["/a.*", "/(a|b)/.*", "/[ab]+", ".*b"]),
            _ => one(random, &["/a", "/b", "/a/", "/", "/a/b", "/ab"]),
        };
        let mut asked = format!("uri: {{{kind}: \"{wanted}\"}}");
        if kind != "regex" && seldom(random, 5) {
            asked += ", ignoreUriCase: true";
        }
        if seldom(random, 5) {
            asked += ", headers: {x: {exact: \"1\"}}";
        }
        format!("{{{asked}}}")
    });
    each.collect()
}

/// One route's actions, as its fields.
fn acting(random: &mut Rng) -> String {
    let mut text = String::new();
    let kind = random.u8(..10);
    match kind {
        0 | 1 => {
            let _ = writeln!(text, "    redirect: {{{}}}", redirect(random));
        }
        2 => {
            let status = one(random, &["200", "204", "404", "418", "503", "599"]);
            let body = match (status, random.u8(..3)) {
                ("204", _) | (_, 0) => "",
                (_, 1) => ", body: {string: some text}",
                _ => ", body: {bytes: aGVsbG8=}",
            };
            let _ = writeln!(text, "    directResponse: {{status: {status}{body}}}");
        }
        _ => text += &going_on(random),
    }
    if seldom(random, 3) {
        let _ = writeln!(text, "    headers: {{{}}}", headers(random));
    }
    // Of what a route answers by itself Envoy asks no CORS, and that is a limit.
    if kind > 2 && seldom(random, 3) {
        let _ = writeln!(text, "    corsPolicy: {{{}}}", cors(random));
    }
    text
}

/// A route with destinations.
fn going_on(random: &mut Rng) -> String {
    let mut text = "    route:\n".to_owned();
    let ways = if seldom(random, 4) { 2 } else { 1 };
    for _ in 0..ways {
        let to = one(
            random,
            &[
                "host: one, subset: v1",
                "host: one, subset: v2",
                "host: two",
                "host: two",
                "host: one, subset: v1",
            ],
        );
        let edits = match seldom(random, 3) {
            true => format!(", headers: {{{}}}", headers(random)),
            false => String::new(),
        };
        let _ = writeln!(text, "    - {{destination: {{{to}}}, weight: 1{edits}}}");
    }
    if seldom(random, 3) {
        let path = match random.u8(..3) {
            0 => String::new(),
            1 => format!("uri: {}", one(random, &["/", "/new", "/new/", "/a"])),
            _ => one(
                random,
                &[
                    r"uriRegexRewrite: {match: '^/a(.*)$', rewrite: '/z\1'}",
                    r"uriRegexRewrite: {match: 'a', rewrite: 'xx'}",
                    r"uriRegexRewrite: {match: '/([a-b])', rewrite: '/<\1>\0'}",
                    r"uriRegexRewrite: {match: 'b*', rewrite: ''}",
                    r"uriRegexRewrite: {match: '/', rewrite: '/-'}",
                ],
            )
            .to_owned(),
        };
        let host = match path.is_empty() || seldom(random, 3) {
            true => "authority: rewritten.example",
            false => "",
        };
        let comma = if path.is_empty() || host.is_empty() {
            ""
        } else {
            ", "
        };
        let _ = writeln!(text, "    rewrite: {{{path}{comma}{host}}}");
    }
    if seldom(random, 5) {
        let _ = writeln!(text, "    fault: {{{}}}", fault(random));
    }
    if seldom(random, 5) {
        let to = one(random, &["host: one, subset: v1", "host: two"]);
        let share = one(
            random,
            &["", ", percentage: {value: 0}", ", percentage: {value: 100}"],
        );
        let _ = writeln!(text, "    mirrors: [{{destination: {{{to}}}{share}}}]");
    }
    if seldom(random, 6) {
        text += "    timeout: 120s\n";
    }
    text
}

fn redirect(random: &mut Rng) -> String {
    let mut said = Vec::new();
    match random.u8(..3) {
        0 => said.push(format!(
            "uri: \"{}\"",
            one(random, &["/other", "/", "/other?of=its"])
        )),
        1 => said.push(format!(
            "prefixRewrite: {}",
            one(random, &["/", "/new", "/new/"])
        )),
        _ => {}
    }
    if random.bool() {
        let host = one(random, &["elsewhere.example", "elsewhere.example:99"]);
        said.push(format!("authority: \"{host}\""));
    }
    if random.bool() {
        said.push(format!("scheme: {}", one(random, &["http", "https"])));
    }
    match random.u8(..5) {
        0 => said.push(format!("port: {}", one(random, &["8443", "443", "80"]))),
        1 => said.push("derivePort: FROM_REQUEST_PORT".to_owned()),
        2 => said.push("derivePort: FROM_PROTOCOL_DEFAULT".to_owned()),
        _ => {}
    }
    if said.is_empty() {
        said.push("uri: /other".to_owned());
    }
    if random.bool() {
        let code = one(random, &["301", "302", "303", "307", "308"]);
        said.push(format!("redirectCode: {code}"));
    }
    said.join(", ")
}

fn edits(random: &mut Rng, of_request: bool) -> String {
    let mut said = Vec::new();
    let value = |random: &mut Rng| one(random, &["\"1\"", "\"\"", "\"50%% off\"", "\"a, b\""]);
    let names = ["x", "z", "added", "X-Long-Name"];
    if random.bool() {
        let name = one(random, &names);
        said.push(format!("set: {{{name}: {}}}", value(random)));
    }
    if random.bool() {
        let name = one(random, &names);
        said.push(format!("add: {{{name}: {}}}", value(random)));
    }
    if random.bool() {
        said.push(format!("remove: [{}]", one(random, &names)));
    }
    if of_request && said.is_empty() {
        said.push("set: {Host: by-headers.example}".to_owned());
    }
    said.join(", ")
}

fn headers(random: &mut Rng) -> String {
    let request = edits(random, true);
    let response = edits(random, false);
    format!("request: {{{request}}}, response: {{{response}}}")
}

fn share(random: &mut Rng) -> &'static str {
    one(random, &["{value: 100}", "{value: 100}", "{value: 0}"])
}

fn fault(random: &mut Rng) -> String {
    let mut said = Vec::new();
    if random.bool() {
        said.push(format!(
            "delay: {{fixedDelay: 1ms, percentage: {}}}",
            share(random)
        ));
    }
    if said.is_empty() || random.bool() {
        let status = one(
            random,
            &[
                "httpStatus: 418",
                "httpStatus: 503",
                "grpcStatus: UNAVAILABLE",
            ],
        );
        said.push(format!(
            "abort: {{{status}, percentage: {}}}",
            share(random)
        ));
    }
    said.join(", ")
}

fn cors(random: &mut Rng) -> String {
    let origins = one(
        random,
        &[
            "{exact: \"*\"}",
            "{exact: \"https://a.example\"}",
            "{prefix: \"https://a\"}, {exact: \"https://b.example\"}",
            "{regex: \"https://[ab][.]example\"}",
        ],
    );
    let mut said = vec![format!("allowOrigins: [{origins}]")];
    let mut more = |random: &mut Rng, words: &[&str]| {
        if random.bool() {
            said.push(one(random, words).to_owned());
        }
    };
    more(
        random,
        &["allowMethods: [GET, PUT]", "allowMethods: [\"*\"]"],
    );
    more(random, &["allowHeaders: [x, z]", "allowHeaders: [\"*\"]"]);
    more(random, &["exposeHeaders: [x]", "exposeHeaders: [x, z]"]);
    more(random, &["maxAge: 60s", "maxAge: 24h"]);
    more(
        random,
        &["allowCredentials: true", "allowCredentials: false"],
    );
    more(
        random,
        &[
            "unmatchedPreflights: IGNORE",
            "unmatchedPreflights: FORWARD",
        ],
    );
    said.join(", ")
}

/// A request to a service: the bytes of its head, which has no body after it.
pub(super) fn request(random: &mut Rng, number: usize, (port, id): (u16, &str)) -> String {
    let method = one(random, &["GET", "GET", "OPTIONS", "DELETE"]);
    let path = one(
        random,
        &[
            "/", "/a", "/b", "/a/", "/a/b", "/ab", "/A", "/aa/bb", "/c", "/a/b/c",
        ],
    );
    let query = one(random, &["", "", "?q=1", "?", "?q=a/b"]);
    let name = host(number);
    let authority = match random.u8(..3) {
        0 => name,
        1 => format!("{name}:{port}"),
        _ => format!("{name}.shop.svc.cluster.local:{port}"),
    };
    let mut head =
        format!("{method} {path}{query} HTTP/1.1\r\nHost: {authority}\r\nx-case: {id}\r\n");
    if random.u8(..3) > 0 {
        let origin = one(
            random,
            &[
                "https://a.example",
                "https://b.example",
                "https://c.example",
            ],
        );
        let _ = write!(head, "Origin: {origin}\r\n");
        if method == "OPTIONS" && random.u8(..4) > 0 {
            head += "Access-Control-Request-Method: PUT\r\n";
            if random.bool() {
                head += "Access-Control-Request-Headers: x, z\r\n";
            }
        }
    }
    while random.bool() {
        let name = one(random, &["x", "z", "X-Long-Name"]);
        let value = one(random, &["1", "2", "", "a, b"]);
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head + "\r\n"
}
