//! Routing of requests: a table of each condition's meaning, and a property test that the index agrees with trying
//! every route in order, for any routes and any request.

use fastrand::Rng;
use voile_traffic::route::{
    ClaimMatch, FieldMatch, Match, PathMatch, Regex, RouteTable, TextMatch, ValueMatch, naive,
};

use super::sent::Sent;

/// A route in words: `PATH CONDITION…`. PATH is `*`, `=/exact`, `^/prefix`, `/segments`, `~regex` or `{template`, with `i` before it where
/// case does not count. Conditions: `m=GET`, `s=…`, `a=…`, `h:NAME=…`, `-h:NAME=…` (without), `q:NAME=…`, `c:A.B=…`, `-c:A.B=…` (claims); after `=` the text is exact,
/// or `^prefix`, `$suffix`, `~regex`, `+` (present), `!` (absent).
pub(crate) fn route(words: &str) -> Match {
    let mut words = words.split_whitespace();
    let mut path = words.next().expect("a path");
    let mut wanted = Match::default();
    if let Some(rest) = path.strip_prefix('i') {
        (path, wanted.ignore_case) = (rest, true);
    }
    wanted.path = match path.split_at(1) {
        ("*", "") => PathMatch::Any,
        ("=", exact) => PathMatch::Exact(exact.to_owned()),
        ("^", prefix) => PathMatch::Prefix(prefix.to_owned()),
        ("~", regex) => PathMatch::Regex(Regex::new(regex).expect("good")),
        ("{", template) => PathMatch::template(template).expect("good"),
        _ => PathMatch::Segments(path.to_owned()),
    };
    for word in words {
        let (what, value) = word.split_once('=').expect("a condition");
        let field = |name: &str| FieldMatch::new(name, value_match(value));
        let text = || match value_match(value) {
            ValueMatch::Is(text) => Some(text),
            _ => panic!("a text: {value}"),
        };
        match what.split_once(':') {
            None if what == "m" => wanted.method = text(),
            None if what == "s" => wanted.scheme = text(),
            None if what == "a" => wanted.authority = text(),
            Some(("h", name)) => wanted.headers.push(field(name)),
            Some(("-h", name)) => wanted.without_headers.push(field(name)),
            Some(("q", name)) => wanted.query.push(field(name)),
            Some(("c" | "-c", name)) => wanted.claims.push(ClaimMatch {
                path: name.split('.').map(ToOwned::to_owned).collect(),
                value: value_match(value),
                without: what.starts_with('-'),
            }),
            _ => panic!("{word}"),
        }
    }
    wanted
}

fn value_match(words: &str) -> ValueMatch {
    let is = ValueMatch::Is;
    match (words.chars().next(), words.get(1..)) {
        (Some('+'), _) => ValueMatch::Present,
        (Some('!'), _) => ValueMatch::Absent,
        (Some('^'), Some(rest)) => is(TextMatch::Prefix(rest.to_owned())),
        (Some('$'), Some(rest)) => is(TextMatch::Suffix(rest.to_owned())),
        (Some('~'), Some(rest)) => is(TextMatch::Regex(Regex::new(rest).expect("good"))),
        _ => is(TextMatch::Exact(words.to_owned())),
    }
}

/// `METHOD TARGET [NAME:VALUE…]`; of claims `@NAME:VALUE`, where `#` is a value that is no text.
fn sent(words: &str) -> Sent {
    let mut words = words.split_whitespace();
    let method = words.next().expect("a method").to_owned();
    let mut sent = Sent::get(words.next().expect("a target"));
    sent.method = method;
    for word in words {
        let (name, value) = word.split_once(':').expect("a header");
        sent = match name.strip_prefix('@') {
            None => sent.with(name, value),
            Some(claim) => sent.claiming(claim, value),
        };
    }
    sent
}

/// route | requests it takes | requests it does not take; requests are parted by commas.
const TABLE: &str = "
*                    | GET /, GET /a?b, OPTIONS *      |
=/a                  | GET /a, GET /a?x=1, POST /a     | GET /a/, GET /A, GET /ab, GET /
i=/Ab                | GET /ab, GET /AB                | GET /abc
^/a                  | GET /a, GET /ab, GET /a/b       | GET /, GET /A, GET /b
i^/A                 | GET /a, GET /AB                 | GET /b
/a                   | GET /a, GET /a/, GET /a/b       | GET /ab, GET /, GET /A
/a/                  | GET /a, GET /a/, GET /a/b       | GET /ab
/                    | GET /, GET /a                   | OPTIONS *
i/a/B                | GET /A/b/c, GET /a/b            | GET /a/bc
~/a[0-9]+            | GET /a1, GET /a12?x             | GET /a, GET /a1/, GET x/a1
i~/a                 | GET /a                          | GET /A
{/a/{*}/c            | GET /a/b/c                      | GET /a//c, GET /a/b/b/c
* m=GET              | GET /                           | POST /, get /
* m=~(GET)?(PUT)?    | PUT /                           | PUTS /
* s=http a=shop.example | GET /                        |
* s=https            |                                 | GET /
* a=^shop.           | GET /                           |
* a=$.example        | GET /                           |
* h:x=1              | GET / x:1                       | GET /, GET / x:2, GET / x:1 x:1
* h:x=1,1            | GET / x:1 x:1                   | GET / x:1
* h:x=+              | GET / x:1, GET / x:             | GET /
* h:x=!              | GET /                           | GET / x:
* h:x=^a h:y=$b      | GET / x:ab y:ab                 | GET / x:ab, GET / y:ab, GET / x:ba y:ab
* -h:x=1             | GET /, GET / x:2                | GET / x:1
* -h:x=+             | GET /                           | GET / x:1
* -h:x=1 -h:y=1      | GET /, GET / x:2                | GET / x:1, GET / y:1, GET / x:1 y:1
* -h:x=~a*           | GET / x:b                       | GET / x:a, GET /
* q:a=1              | GET /?a=1, GET /?b&a=1&a=2      | GET /, GET /?a, GET /?a=2&a=1, GET /?ba=1
* q:a=+              | GET /?a, GET /?a=, GET /?b&a=1  | GET /?b=a, GET /?ab, GET /
* q:a=               | GET /?a, GET /?a=&a=1           | GET /?a=1
* q:a=!              | GET /?b                         | GET /?a
* q:a=^1 q:b=~2+     | GET /?b=22&a=12                 | GET /?a=12
* c:g=1              | GET / @g:1, GET / @g:2 @g:1     | GET /, GET / g:1, GET / @g:#, GET / @g.x:1, GET / @G:1
* c:g.h=^1           | GET / @g.h:12                   | GET / @g:12, GET / @h:12
* c:g=+              | GET / @g:1, GET / @g:#          | GET /, GET / @h:1
* -c:g=1             | GET /, GET / @g:2, GET / @g:#   | GET / @g:1, GET / @g:2 @g:1
* -c:g=+             | GET /                           | GET / @g:#
* c:g=1 -c:h=~[12]   | GET / @g:1, GET / @g:1 @h:3     | GET / @g:1 @h:3 @h:2, GET / @h:3
";

#[test]
fn a_route_takes_what_its_conditions_describe() {
    for row in TABLE.trim().lines() {
        let [words, taken, left] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("not three columns: {row}");
        };
        let routes = vec![vec![route(words)]];
        let table = RouteTable::new(routes.clone());
        for (requests, wanted) in [(taken, Some(0)), (left, None)] {
            for request in requests.split(", ").filter(|request| !request.is_empty()) {
                let request = sent(request);
                assert_eq!(naive(&routes, &request), wanted, "{words}: {request:?}");
                assert_eq!(table.choose(&request), wanted, "{words}: {request:?}");
            }
        }
    }
}

#[test]
fn the_first_route_in_order_is_chosen_however_it_is_found() {
    let ways = [
        "=/a/b", "^/a", "/a", "~/a/.*", "*", "i=/A/B", "i^/A", "i/A", "{/a/{*}", "* m=GET",
    ];
    for first in ways {
        for second in ways {
            let table = RouteTable::new(vec![vec![], vec![route(first)], vec![route(second)]]);
            assert_eq!(table.choose(&sent("GET /a/b")), Some(1), "{first} {second}");
        }
    }
    let alternatives = RouteTable::new(vec![vec![route("=/x"), route("=/y")], vec![route("=/y")]]);
    assert_eq!(alternatives.choose(&sent("GET /y")), Some(0));
    assert_eq!(RouteTable::new(vec![]).choose(&sent("GET /")), None);
}

/// Draws a word of each list.
fn one<'w>(random: &mut Rng, words: &[&'w str]) -> &'w str {
    words[random.usize(..words.len())]
}

fn path(random: &mut Rng) -> String {
    let depth = random.usize(..4);
    let mut path = String::new();
    for _ in 0..depth {
        path += one(
            random,
            &[
                "/a",
                "/b",
                "/A",
                "/ab",
                "/aB",
                "/",
                "/long-segment",
                "/long-segmenT1",
            ],
        );
    }
    if path.is_empty() {
        "/".to_owned()
    } else {
        path
    }
}

fn words(random: &mut Rng) -> String {
    let case = one(random, &["", "", "i"]);
    let path = path(random);
    let mut words = match random.u8(..10) {
        0..3 => format!("{case}={path}"),
        3..5 => format!("{case}^{path}"),
        5..7 => format!("{case}{path}"),
        7 => one(
            random,
            &[
                "~/a.*",
                "~.*b",
                "~/(a|b)/.*",
                "~/a/a",
                "~(?i)/AB",
                "~/long-segment[0-9]?(/.*)?",
            ],
        )
        .to_owned(),
        8 => one(random, &["{/a/{*}", "{/{**}", "{/a/{**}/b", "{/{*}/a"]).to_owned(),
        _ => "*".to_owned(),
    };
    let value =
        |random: &mut Rng| one(random, &["1", "2", "3", "4", "^1", "$2", "~[12]", "+", "!"]);
    let text = |random: &mut Rng| one(random, &["1", "2", "^1"]);
    while random.u8(..5) < 2 {
        words += &match random.u8(..10) {
            0 => format!(" m={}", one(random, &["GET", "POST", "~G.*", "^P"])),
            1 => format!(
                " a={}",
                one(random, &["shop.example", "$.example", "other"])
            ),
            2 => format!(" h:y={}", text(random)),
            3 => format!(" -h:x={}", value(random)),
            4 | 5 => format!(" h:x={}", value(random)),
            6 => format!(" c:g={}", value(random)),
            7 => format!(" -c:g={}", text(random)),
            _ => format!(" q:q={}", value(random)),
        };
    }
    words
}

fn request(random: &mut Rng) -> Sent {
    let mut sent = Sent::get(&path(random));
    sent.method = one(random, &["GET", "POST"]).to_owned();
    sent.query = one(random, &["", "", "q=1", "q", "q=2&q=1", "r=1"]).to_owned();
    while random.u8(..2) == 0 {
        let (name, value) = (
            one(random, &["x", "y"]),
            one(random, &["1", "2", "3", "12"]),
        );
        sent = sent.with(name, value);
    }
    while random.u8(..3) == 0 {
        sent = sent.claiming("g", one(random, &["1", "2", "12", "#"]));
    }
    sent
}

/// Sets of routes, and requests tried on each; `VOILE_CASES` multiplies the sets.
const SETS: u64 = 1_500;
const REQUESTS: usize = 40;

fn sets() -> u64 {
    let times = std::env::var("VOILE_CASES").ok();
    SETS * times.and_then(|times| times.parse().ok()).unwrap_or(1)
}

#[test]
fn the_index_chooses_as_asking_every_route_in_order_does() {
    let (mut found, mut tried, mut late) = (0, 0, 0);
    for seed in 0..sets() {
        let mut random = Rng::with_seed(seed);
        // Now and then so many that they are asked as sets and by values.
        let most = if seed % 10 == 0 { 200 } else { 20 };
        let said: Vec<Vec<String>> = (0..random.usize(..most))
            .map(|_| {
                (0..random.usize(1..3))
                    .map(|_| words(&mut random))
                    .collect()
            })
            .collect();
        let of = |words: &Vec<String>| words.iter().map(|words| route(words)).collect();
        let routes: Vec<Vec<Match>> = said.iter().map(of).collect();
        let table = RouteTable::new(routes.clone());
        for _ in 0..REQUESTS {
            let sent = request(&mut random);
            let wanted = naive(&routes, &sent);
            assert_eq!(
                table.choose(&sent),
                wanted,
                "seed {seed}: {sent:#?}\n{said:#?}"
            );
            tried += 1;
            found += usize::from(wanted.is_some());
            late += usize::from(wanted > Some(5));
        }
    }
    // A generator that no longer reaches one of the ends proves nothing about it.
    assert!(
        found * 20 > tried && (tried - found) * 20 > tried && late * 50 > tried,
        "{found} {late} of {tried}"
    );
}

#[test]
fn many_routes_of_one_path_are_told_apart_as_asking_each_does() {
    let mut found = 0;
    for seed in 0..sets() / 10 {
        let mut random = Rng::with_seed(seed + 1_000_000);
        let said = |random: &mut Rng| {
            let mut words = one(random, &["*", "/a", "=/a"]).to_owned();
            for _ in 0..random.usize(1..4) {
                let value = random.u8(0..9);
                words += &match random.u8(..6) {
                    0 => format!(" m={}", one(random, &["GET", "POST", "PUT"])),
                    1 => format!(" q:q={value}"),
                    2 => format!(" h:y={value}"),
                    3 => format!(" h:x=^{value}"),
                    _ => format!(" h:x={value}"),
                };
            }
            words
        };
        let said: Vec<String> = (0..random.usize(8..60))
            .map(|_| said(&mut random))
            .collect();
        let routes: Vec<Vec<Match>> = said.iter().map(|words| vec![route(words)]).collect();
        let table = RouteTable::new(routes.clone());
        for _ in 0..REQUESTS {
            let target = format!("/a?q={}", random.u8(0..10));
            let mut sent = Sent::get(&target).with("y", &random.u8(0..10).to_string());
            sent = sent.with("x", &random.u8(0..10).to_string());
            sent.method = one(&mut random, &["GET", "POST"]).to_owned();
            let wanted = naive(&routes, &sent);
            assert_eq!(
                table.choose(&sent),
                wanted,
                "seed {seed}: {sent:#?}\n{said:#?}"
            );
            found += u64::from(wanted.is_some());
        }
    }
    assert!(found * 4 > sets() / 10 * REQUESTS as u64, "{found}");
}

#[test]
fn what_a_rewrite_replaces_is_what_the_alternative_matched() {
    let table = RouteTable::new(vec![
        vec![
            route("=/exact"),
            route("^/prefix"),
            route("/segments/"),
            route("~/re.*"),
        ],
        vec![route("*")],
    ]);
    for (path, wanted) in [
        ("/exact", (0, 0, None)),
        ("/prefixed/x", (0, 1, Some(7))),
        ("/segments/x", (0, 2, Some(9))),
        ("/rest", (0, 3, None)),
        ("/other", (1, 0, Some(1))),
    ] {
        let chosen = table.choose_match(&Sent::get(path)).expect("one");
        assert_eq!(
            (chosen.route, chosen.alternative, chosen.matched),
            wanted,
            "{path}"
        );
    }
}
