//! Route actions on requests, as tables: from the wire's form to the forwarded request or the response.

use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::action::{
    Abort, AbortStatus, Cors, Delay, DirectResponse, Fault, HeaderEdits, HeaderRules, Origin,
    PathRewrite, Redirect, RegexRewrite, RequestShare, Rewrite,
};
use voile_traffic::route::RouteInput;
use voile_xds::wire::{RouteDestination, WireRoute};

use super::{Actions, HeadEdits};
use crate::http::ExternalReply;

/// A request by method, path, query and one header.
struct Asked(
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

impl RouteInput for Asked {
    fn method(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn scheme(&self) -> &[u8] {
        b"http"
    }

    fn authority(&self) -> &[u8] {
        b"shop:8080"
    }

    fn path(&self) -> &[u8] {
        self.1.as_bytes()
    }

    fn query(&self) -> &[u8] {
        self.2.as_bytes()
    }

    fn header(&self, name: &str) -> Option<std::borrow::Cow<'_, [u8]>> {
        let found = self.3.iter().find(|(known, _)| *known == name)?;
        Some(found.1.as_bytes().into())
    }
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    list.iter().map(owned).collect()
}

fn edits(remove: &[&str], set: &[(&str, &str)], add: &[(&str, &str)]) -> HeaderEdits {
    HeaderEdits {
        remove: remove.iter().map(|name| (*name).to_owned()).collect(),
        set: pairs(set),
        add: pairs(add),
    }
}

fn route(headers: HeaderRules) -> WireRoute {
    WireRoute::to(vec![RouteDestination {
        to: Err("it".into()),
        weight: 1,
        headers,
    }])
}

fn plain() -> WireRoute {
    route(HeaderRules::default())
}

/// Forwarded request or response, in one line.
fn done(route: &WireRoute, asked: &Asked, matched: Option<usize>) -> String {
    let actions = Actions::of(route, Vec::new()).expect("it does something");
    match actions.decide(asked, (0, matched), 9090, || 0) {
        Ok(changes) => format!(
            "{} {} {:?}",
            changes.path.as_deref().unwrap_or("-"),
            changes.authority.as_deref().unwrap_or("-"),
            changes.cors
        ),
        Err(answered) => {
            let ExternalReply {
                lines,
                body,
                grpc_status,
                ..
            } = answered.told;
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace("\r\n", "|");
            let flag = answered.flag.code();
            format!(
                "{} {flag} {}{}{}",
                answered.status,
                text(lines),
                text(body.unwrap_or_default()),
                grpc_status.map_or_else(String::new, |status| format!(" grpc {status}"))
            )
        }
    }
}

const GET: Asked = Asked("GET", "/old/a", "x=1", &[]);

#[test]
fn a_route_that_says_nothing_costs_nothing() {
    assert!(Actions::of(&plain(), Vec::new()).is_none());
}

#[test]
fn paths_and_authorities_are_rewritten_and_queries_stay() {
    let prefix = |text: &str| Some(PathRewrite::Prefix(text.to_owned()));
    let regex = RegexRewrite::new("/old/(.*)", r"/\1/new").expect("an expression");
    let host = edits(&[], &[("Host", "other")], &[]);
    let table = [
        (prefix("/new"), None, Some(4), "/new/a?x=1 - []"),
        (prefix("/new"), None, None, "/new?x=1 - []"),
        (prefix("/new?y=2"), None, None, "/new?y=2&x=1 - []"),
        (prefix(""), None, Some(4), "/a?x=1 - []"),
        (prefix(""), None, None, "500 - "),
        (
            Some(PathRewrite::Regex(regex)),
            None,
            Some(4),
            "/a/new?x=1 - []",
        ),
        (None, Some("there"), Some(4), "- there []"),
        (None, None, Some(4), "- other []"),
    ];
    for (path, authority, matched, wanted) in table {
        let rules = HeaderRules {
            request: match wanted {
                "- other []" => host.clone(),
                _ => HeaderEdits::default(),
            },
            response: HeaderEdits::default(),
        };
        let route = WireRoute {
            rewrite: Some(Rewrite {
                path,
                authority: authority.map(Into::into),
            }),
            ..route(rules)
        };
        assert_eq!(done(&route, &GET, matched), wanted);
    }
    // The result of a regular expression must still be a path.
    let blank = RegexRewrite::new("x", "é").expect("an expression");
    let route = WireRoute {
        rewrite: Some(Rewrite {
            path: Some(PathRewrite::Regex(blank)),
            authority: None,
        }),
        ..plain()
    };
    assert_eq!(done(&route, &Asked("GET", "/x", "", &[]), None), "500 - ");
}

#[test]
fn redirects_and_answers_are_given_with_the_headers_of_their_route() {
    let headers = HeaderRules {
        request: edits(&["gone"], &[], &[]),
        response: edits(&["never"], &[("A", "1")], &[("b", "2"), ("b", "3")]),
    };
    let answering = |answer| WireRoute {
        destinations: Vec::new(),
        answer: Some(answer),
        headers: headers.clone(),
        ..plain()
    };
    let to = Redirect {
        scheme: Some("https".to_owned()),
        path: Some(PathRewrite::Full("/there".to_owned())),
        ..Redirect::default()
    };
    let redirect = answering(DirectResponse::Redirect { to, status: 308 });
    let wanted = "308 - location: https://shop:8080/there?x=1|a: 1|b: 2|b: 3|";
    assert_eq!(done(&redirect, &GET, None), wanted);
    let direct = answering(DirectResponse::Direct {
        status: 418,
        body: b"tea".as_slice().into(),
    });
    assert_eq!(done(&direct, &GET, None), "418 - a: 1|b: 2|b: 3|tea");
}

#[test]
fn a_destination_edits_headers_before_its_route_does() {
    let of = |rules: &[&HeaderRules]| {
        let made = HeadEdits::of(rules);
        let lines = String::from_utf8(made.lines).expect("text");
        let amends = made.amends.iter().map(|one| {
            let value = String::from_utf8_lossy(&one.value);
            format!("{:?} {} {value}", one.manner, one.name)
        });
        (
            made.leaves_out.join(" "),
            lines.replace("\r\n", "|"),
            amends.collect::<Vec<_>>().join("|"),
        )
    };
    let request = |request: HeaderEdits| HeaderRules {
        request,
        response: HeaderEdits::default(),
    };
    let destination = request(edits(&["a"], &[("B", "1")], &[("c", "1")]));
    let route = request(edits(&["c"], &[("b", "2")], &[("a", "2")]));
    let wanted = ("a b c b".to_owned(), "b: 2|a: 2|".to_owned(), String::new());
    assert_eq!(of(&[&destination, &route]), wanted);
    let wanted = ("c b a b".to_owned(), "b: 1|c: 1|".to_owned(), String::new());
    assert_eq!(of(&[&route, &destination]), wanted);
    let answers = HeaderRules {
        request: HeaderEdits::default(),
        response: edits(&["x"], &[("Y", "1")], &[("z", "2")]),
    };
    assert_eq!(of(&[&answers]).2, "Remove x |Overwrite y 1|Append z 2");
}

#[test]
fn faults_hit_their_share_and_come_before_everything_else() {
    let share = |percent| RequestShare::percent(percent).expect("a share");
    let with = |with| WireRoute {
        fault: Some(Fault {
            delay: Some(Delay {
                fixed: Duration::from_secs(3),
                share: share(25.0),
            }),
            abort: Some(Abort {
                with,
                share: share(50.0),
            }),
        }),
        answer: Some(DirectResponse::Direct {
            status: 200,
            body: Arc::default(),
        }),
        ..plain()
    };
    let http = with(AbortStatus::Http(503));
    assert_eq!(done(&http, &GET, None), "503 FI fault filter abort");
    // As with Envoy the route's edits of answers hold for these, too.
    let told = WireRoute {
        headers: HeaderRules {
            response: edits(&[], &[("x", "1")], &[]),
            ..HeaderRules::default()
        },
        ..with(AbortStatus::Http(503))
    };
    assert_eq!(done(&told, &GET, None), "503 FI x: 1|fault filter abort");
    let grpc = with(AbortStatus::Grpc(14));
    assert_eq!(done(&grpc, &GET, None), "200 FI fault filter abort grpc 14");
    let actions = Actions::of(&http, Vec::new()).expect("faults");
    let mut random = fastrand::Rng::with_seed(3);
    let (mut waited, mut aborted) = (0, 0);
    const DRAWS: u32 = 20_000;
    for _ in 0..DRAWS {
        waited += u32::from(actions.delay(|| random.u64(..)) == Some(Duration::from_secs(3)));
        let decided = actions.decide(&GET, (0, None), 80, || random.u64(..));
        let flag = decided.expect_err("answered").flag.code();
        aborted += u32::from(flag == "FI");
    }
    // Five deviations of a half.
    for (count, wanted) in [(waited, DRAWS / 4), (aborted, DRAWS / 2)] {
        assert!(count.abs_diff(wanted) < 360, "{count} of {DRAWS}");
    }
}

#[test]
fn pages_of_other_origins_are_told_what_they_may() {
    let cors = |forward| WireRoute {
        cors: Some(Arc::new(Cors {
            origins: vec![Origin::gateway("https://shop.example")],
            methods: vec!["GET".to_owned(), "PUT".to_owned()],
            max_age: Some(60),
            credentials: true,
            forward_unmatched: forward,
            ..Cors::default()
        })),
        ..plain()
    };
    const GOOD: (&str, &str) = ("origin", "https://shop.example");
    const METHOD: (&str, &str) = ("access-control-request-method", "PUT");
    let leave = r#"("access-control-allow-origin", "https://shop.example"), ("vary", "origin"), ("access-control-allow-credentials", "true")"#;
    let asked = Asked("GET", "/", "", &[GOOD]);
    assert_eq!(done(&cors(true), &asked, None), format!("- - [{leave}]"));
    let preflight = Asked("OPTIONS", "/", "", &[GOOD, METHOD]);
    assert_eq!(
        done(&cors(true), &preflight, None),
        "200 - access-control-allow-origin: https://shop.example|vary: origin|access-control-allow-credentials: true|\
         access-control-allow-methods: GET,PUT|access-control-max-age: 60|"
    );
    let other = Asked("OPTIONS", "/", "", &[("origin", "https://evil"), METHOD]);
    assert_eq!(done(&cors(true), &other, None), "- - []");
    assert_eq!(done(&cors(false), &other, None), "200 - ");
}
