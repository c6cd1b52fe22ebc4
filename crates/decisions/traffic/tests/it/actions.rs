//! Actions of a chosen route: precedence of rules, redirects, CORS.

use voile_traffic::route::{
    Cors, CorsDecision, Origin, PathRewrite, RankedMatch, Redirect, RedirectPort, Regex, TextMatch,
    by_precedence,
};

use super::routes::route;
use super::sent::Sent;

#[test]
fn rules_are_asked_in_gateway_apis_order() {
    // As they must come out: words of a match, age, name.
    let wanted = [
        ("=/shop/cart", None, "z/z"),
        ("=/shop", None, "z/z"),
        ("/shop/cart m=GET", None, "a/a"),
        ("/shop/cart h:a=1 h:b=1", None, "a/a"),
        ("/shop/cart h:a=1 q:a=1", Some(9), "a/a"),
        ("/shop/cart/ h:a=1", Some(1), "b/a"),
        ("/shop/cart h:a=1", Some(2), "a/a"),
        ("/shop/cart h:b=1", Some(2), "a/b"),
        ("/shop/cart h:c=1", None, "a/a"),
        ("/shop/cart q:a=1", None, "a/a"),
        ("/shop/cart", None, "a/a"),
        ("/shop m=GET h:a=1 h:b=1", Some(0), "a/a"),
        ("/ h:a=1", None, "a/a"),
        ("* q:a=1", None, "a/a"),
        ("~/shop/.* m=GET", Some(0), "a/a"),
        ("~/.*", Some(1), "a/a"),
        ("~/s.*", Some(1), "a/a"),
    ];
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..50 {
        let mut rules: Vec<RankedMatch<usize>> = wanted
            .iter()
            .enumerate()
            .map(|(of, (words, created, name))| RankedMatch {
                wanted: route(words),
                created: *created,
                name: (*name).to_owned(),
                of,
            })
            .collect();
        // The last two are equal but for where they stand.
        let equals = rules.len() - 2;
        random.shuffle(&mut rules[..equals]);
        by_precedence(&mut rules);
        let order: Vec<usize> = rules.iter().map(|rule| rule.of).collect();
        assert_eq!(order, (0..wanted.len()).collect::<Vec<_>>());
    }
}

/// scheme host port path | request's scheme authority target | location. `-` is a value that is not set; a port is
/// `-` (as asked), `listener` (which is 8080), `scheme` or a number; a path is `=full`, `^prefix` or `/segments`,
/// four bytes of it matched.
const REDIRECTS: &str = "
-     -         -        -     | http  a.example      /foo/bar?q | http://a.example/foo/bar?q
https -         -        -     | http  a.example:80   /foo       | https://a.example/foo
https -         -        -     | http  a.example:8080 /foo       | https://a.example:8080/foo
http  -         -        -     | http  a.example:80   /foo       | http://a.example:80/foo
http  -         -        -     | https a.example:443  /foo       | http://a.example/foo
-     b.example -        -     | http  a.example:8080 /foo       | http://b.example/foo
-     b.example:81 -     -     | http  a.example:8080 /foo       | http://b.example:81/foo
-     -         listener -     | http  a.example      /foo       | http://a.example:8080/foo
-     -         listener -     | http  a.example:99   /foo       | http://a.example:8080/foo
https -         scheme   -     | http  a.example:8080 /foo       | https://a.example/foo
https -         443      -     | http  a.example      /foo       | https://a.example/foo
http  -         443      -     | http  a.example      /foo       | http://a.example:443/foo
-     -         80       -     | http  a.example:8080 /foo       | http://a.example/foo
-     -         8443     -     | http  [::1]:80       /foo       | http://[::1]:8443/foo
https -         -        -     | http  [::1]:80       /foo       | https://[::1]/foo
https -         -        -     | http  [::1]          /foo       | https://[::1]/foo
-     -         -        =/new | http  a.example      /foo?q=1   | http://a.example/new?q=1
-     -         -        =/n?x | http  a.example      /foo?q=1   | http://a.example/n?x
-     -         -        ^/new | http  a.example      /foobar    | http://a.example/newbar
-     -         -        /new/ | http  a.example      /foo/bar?q | http://a.example/new/bar?q
-     -         -        ^new  | http  a.example      /foo/bar   | none
";

#[test]
fn a_redirect_leads_where_istio_and_gateway_api_say() {
    for row in REDIRECTS.trim().lines() {
        let mut columns = row
            .split('|')
            .map(|cell| cell.split_whitespace().collect::<Vec<_>>());
        let mut column = || columns.next().expect("three columns");
        let (said, asked, wanted) = (column(), column(), column()[0].to_owned());
        let some = |word: &str| (word != "-").then(|| word.to_owned());
        let redirect = Redirect {
            scheme: some(said[0]),
            host: some(said[1]),
            port: match said[2] {
                "-" => RedirectPort::Request,
                "listener" => RedirectPort::Listener,
                "scheme" => RedirectPort::Scheme,
                number => RedirectPort::Exact(number.parse().expect("a port")),
            },
            path: some(said[3]).map(|path| match path.split_at(1) {
                ("=", full) => PathRewrite::Full(full.to_owned()),
                ("^", prefix) => PathRewrite::Prefix(prefix.to_owned()),
                _ => PathRewrite::Segments(path),
            }),
        };
        let mut sent = Sent::get(asked[2]);
        (sent.scheme, sent.authority) = (asked[0].to_owned(), asked[1].to_owned());
        let location = redirect.location(&sent, Some(4), 8080);
        let location = location.map(|location| String::from_utf8(location).expect("text"));
        assert_eq!(location.as_deref().unwrap_or("none"), wanted, "{row}");
    }
}

fn shown(decision: &CorsDecision) -> String {
    let fields = |fields: &[(&str, String)]| -> String {
        let short = |name: &&str| name.trim_start_matches("access-control-").to_owned();
        let all = fields
            .iter()
            .map(|(name, value)| format!(" {}={value}", short(name)));
        all.collect()
    };
    match decision {
        CorsDecision::Pass => "pass".to_owned(),
        CorsDecision::Allow(given) => format!("allow{}", fields(given)),
        CorsDecision::Answer(given) => format!("answer{}", fields(given)),
    }
}

fn words(words: &str) -> Vec<String> {
    words.split_whitespace().map(str::to_owned).collect()
}

fn some() -> Cors {
    Cors {
        origins: vec![
            Origin::Text(TextMatch::Exact("https://a.example".to_owned())),
            Origin::Text(TextMatch::Prefix("http://dev.".to_owned())),
            Origin::Text(TextMatch::Regex(
                Regex::new("https://r[0-9].example").expect("good"),
            )),
            Origin::gateway("https://*.wild.example"),
        ],
        methods: words("GET PUT"),
        headers: words("x-a x-b"),
        expose: words("x-c"),
        max_age: Some(60),
        credentials: true,
        forward_unmatched: true,
    }
}

#[test]
fn browsers_are_told_what_pages_of_other_origins_may_do() {
    let some = some();
    let ignoring = Cors {
        forward_unmatched: false,
        ..some.clone()
    };
    let all = Cors {
        origins: vec![Origin::gateway("*")],
        methods: words("*"),
        headers: words("*"),
        expose: words("*"),
        ..Cors::default()
    };
    let known = Cors {
        credentials: true,
        ..all.clone()
    };
    const OWN: &str = "allow-origin=https://a.example vary=origin allow-credentials=true";
    // policy, origin (`-`: none), preflight, decision; `OWN` is the text above
    let table = [
        (&some, "-", false, "pass"),
        (&some, "-", true, "pass"),
        (&some, "https://b.example", false, "pass"),
        (&some, "https://b.example", true, "pass"),
        (&ignoring, "https://b.example", true, "answer"),
        (&ignoring, "https://b.example", false, "pass"),
        (
            &some,
            "https://a.example",
            false,
            "allow OWN expose-headers=x-c",
        ),
        (
            &some,
            "https://a.example",
            true,
            "answer OWN expose-headers=x-c allow-methods=GET,PUT allow-headers=x-a,x-b max-age=60",
        ),
        (
            &all,
            "https://a.example",
            false,
            "allow allow-origin=* expose-headers=*",
        ),
        (
            &all,
            "https://a.example",
            true,
            "answer allow-origin=* expose-headers=* allow-methods=* allow-headers=*",
        ),
        (
            &known,
            "https://a.example",
            true,
            "answer OWN expose-headers=* allow-methods=PUT allow-headers=x-asked",
        ),
    ];
    for (policy, origin, preflight, wanted) in table {
        let mut sent = Sent::get("/");
        if origin != "-" {
            sent = sent.with("origin", origin);
        }
        if preflight {
            sent.method = "OPTIONS".to_owned();
            sent = sent.with("access-control-request-method", "PUT");
            sent = sent.with("access-control-request-headers", "x-asked");
        }
        let wanted = wanted.replace("OWN", OWN);
        assert_eq!(shown(&policy.decide(&sent)), wanted, "{origin} {preflight}");
    }
}

#[test]
fn options_is_no_preflight_without_the_method_it_asks_for() {
    let mut options = Sent::get("/").with("origin", "https://a.example");
    options.method = "OPTIONS".to_owned();
    let decision = some().decide(&options);
    assert!(
        matches!(decision, CorsDecision::Allow(_)),
        "no preflight without its header"
    );
}

#[test]
fn origins_are_whole_and_a_star_stands_within_a_host() {
    for (origin, allowed) in [
        ("http://dev.x", true),
        ("https://r1.example", true),
        ("https://r12.example", false),
        ("https://a.wild.example", true),
        ("https://a.b.wild.example", true),
        ("https://wild.example", false),
        ("https://evil.example/.wild.example", false),
        ("https://a.wild.example.evil", false),
        ("null", false),
    ] {
        let passes = some().decide(&Sent::get("/").with("origin", origin)) == CorsDecision::Pass;
        assert_eq!(!passes, allowed, "{origin}");
    }
}
