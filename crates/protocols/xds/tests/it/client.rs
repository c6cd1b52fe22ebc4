//! Requests of the client, and its held resources.

use std::sync::Arc;

use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Resource};
use voile_xds::client::{PendingChanges, Rejection, Subscriptions};

const TYPE: &str = "type.googleapis.com/test";

fn names(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| (*name).into()).collect()
}

fn resource(name: &str, version: &str) -> Resource {
    Resource {
        name: name.to_owned(),
        version: version.to_owned(),
        resource: Some(prost_types::Any {
            type_url: TYPE.to_owned(),
            value: Vec::new(),
        }),
        ..Resource::default()
    }
}

fn response(nonce: &str, resources: Vec<Resource>, removed: &[&str]) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        type_url: TYPE.to_owned(),
        nonce: nonce.to_owned(),
        resources,
        removed_resources: removed.iter().map(ToString::to_string).collect(),
        ..DeltaDiscoveryResponse::default()
    }
}

/// A client that wants `a` and `b` on an open stream.
fn client() -> Subscriptions {
    let mut client = Subscriptions::new(Node::default());
    assert_eq!(
        client.change(TYPE, names(&["a", "b"]), []),
        None,
        "no stream, nothing to say"
    );
    assert_eq!(client.open()[0].resource_names_subscribe, ["a", "b"]);
    client
}

fn apply(
    client: &mut Subscriptions,
    response: DeltaDiscoveryResponse,
    rejected: &[&str],
) -> DeltaDiscoveryRequest {
    let update = client.receive(response);
    let rejections = rejected.iter().map(|name| Rejection {
        name: (*name).into(),
        reason: "bad".to_owned(),
    });
    client.finish(update, rejections.collect())
}

/// Versions the client would announce on a new stream, as `name=version`.
fn held(client: &mut Subscriptions) -> Vec<String> {
    client.closed();
    let first = client.open();
    let versions = &first[0].initial_resource_versions;
    versions
        .iter()
        .map(|(name, version)| format!("{name}={version}"))
        .collect()
}

#[test]
fn only_news_is_said_and_only_on_an_open_stream() {
    let mut client = client();
    assert_eq!(
        client.change(TYPE, names(&["a"]), []),
        None,
        "asked for already"
    );
    assert_eq!(
        client.change(TYPE, [], names(&["z"])),
        None,
        "never asked for"
    );
    let request = client.change(TYPE, names(&["c"]), names(&["a"])).unwrap();
    assert_eq!(request.resource_names_subscribe, ["c"]);
    assert_eq!(request.resource_names_unsubscribe, ["a"]);
    client.closed();
    assert_eq!(client.change(TYPE, names(&["d"]), []), None);
    assert_eq!(client.open()[0].resource_names_subscribe, ["b", "c", "d"]);
}

#[test]
fn what_is_applied_is_held_and_what_is_refused_keeps_its_old_version() {
    // (responses with what the handler rejects) → what is held after
    type Step = (
        Vec<Resource>,
        &'static [&'static str],
        &'static [&'static str],
    );
    let table: Vec<(Vec<Step>, &[&str])> = vec![
        (vec![(vec![resource("a", "1")], &[], &[])], &["a=1"]),
        (
            vec![(vec![resource("a", "1"), resource("b", "1")], &[], &["b"])],
            &["a=1"],
        ),
        (
            vec![
                (vec![resource("a", "1")], &[], &[]),
                (vec![resource("a", "2")], &[], &["a"]),
            ],
            &["a=1"],
        ),
        (
            vec![
                (vec![resource("a", "1"), resource("b", "1")], &[], &[]),
                (vec![], &["a", "never-there"], &[]),
            ],
            &["b=1"],
        ),
        // A duplicate of an old response does no harm but what it says.
        (
            vec![
                (vec![resource("a", "2")], &[], &[]),
                (vec![resource("a", "2")], &[], &[]),
            ],
            &["a=2"],
        ),
    ];
    for (steps, wanted) in table {
        let mut client = client();
        for (nonce, (resources, removed, rejected)) in steps.into_iter().enumerate() {
            let nonce = nonce.to_string();
            let answer = apply(&mut client, response(&nonce, resources, removed), rejected);
            assert_eq!(answer.response_nonce, nonce);
            assert_eq!(answer.error_detail.is_some(), !rejected.is_empty());
        }
        assert_eq!(held(&mut client), wanted);
    }
}

#[test]
fn a_refusal_names_each_resource_and_its_reason() {
    let mut client = client();
    let resources = vec![resource("a", "1"), resource("b", "1")];
    let answer = apply(&mut client, response("7", resources, &[]), &["a", "b"]);
    assert_eq!(answer.error_detail.unwrap().message, "a: bad; b: bad");
}

#[test]
fn resources_that_are_no_resources_are_refused_and_the_rest_is_applied() {
    let mut foreign = resource("a", "1");
    foreign.resource.as_mut().unwrap().type_url = "type.googleapis.com/other".to_owned();
    let bodiless = Resource {
        resource: None,
        ..resource("a", "1")
    };
    for (bad, reason) in [
        (foreign, "another type"),
        (bodiless, "without a body"),
        (resource("", "1"), "without a name"),
        (resource("b", "2"), "twice"),
    ] {
        let mut client = client();
        let answer = apply(
            &mut client,
            response("1", vec![resource("b", "1"), bad], &[]),
            &[],
        );
        let message = answer.error_detail.unwrap().message;
        assert!(message.contains(reason), "{message}");
        let wanted: &[&str] = if reason == "twice" { &[] } else { &["b=1"] };
        assert_eq!(held(&mut client), wanted, "{reason}");
    }
}

#[test]
fn a_type_nobody_asked_for_is_refused_and_not_held() {
    let mut client = Subscriptions::new(Node::default());
    client.open();
    let answer = apply(
        &mut client,
        response("1", vec![resource("a", "1")], &[]),
        &[],
    );
    assert!(
        answer
            .error_detail
            .unwrap()
            .message
            .contains("does not subscribe")
    );
    assert_eq!(client.held(TYPE), 0);
}

#[test]
fn what_is_wanted_no_more_is_held_until_the_server_takes_it_away() {
    let mut client = client();
    apply(
        &mut client,
        response("1", vec![resource("a", "1"), resource("b", "1")], &[]),
        &[],
    );
    client.change(TYPE, [], names(&["a"]));
    assert_eq!(held(&mut client), ["a=1", "b=1"]);
    apply(&mut client, response("2", vec![], &["a"]), &[]);
    assert_eq!(held(&mut client), ["b=1"]);
}

#[test]
fn a_name_let_go_and_asked_for_again_at_once_is_asked_for_again() {
    type Word = (bool, &'static str);
    let (want, let_go) = (true, false);
    // (what is said between two turns) -> (subscribed, unsubscribed), of a client that wants `a` and `b`
    let table: &[(&[Word], &[&str], &[&str])] = &[
        (&[(let_go, "a"), (want, "a")], &["a"], &[]),
        (&[(let_go, "a"), (want, "a"), (want, "a")], &["a"], &[]),
        (&[(let_go, "a"), (want, "a"), (let_go, "a")], &[], &["a"]),
        (&[(want, "c"), (let_go, "c"), (want, "c")], &["c"], &[]),
        (&[(let_go, "b"), (want, "c")], &["c"], &["b"]),
    ];
    for (said, subscribed, unsubscribed) in table {
        let mut client = client();
        let mut changes = PendingChanges::default();
        for (wanted, name) in *said {
            match wanted {
                true => changes.want(&TYPE.into(), (*name).into()),
                false => changes.let_go(&TYPE.into(), (*name).into()),
            }
        }
        let requests = changes.apply(&mut client);
        assert_eq!(requests.len(), 1, "{said:?}");
        let request = &requests[0];
        assert_eq!(request.resource_names_subscribe, *subscribed, "{said:?}");
        let gone = &request.resource_names_unsubscribe;
        assert_eq!(gone, unsubscribed, "{said:?}");
    }
    for quiet in [vec![(want, "a")], vec![(want, "z"), (let_go, "z")]] {
        let mut changes = PendingChanges::default();
        for (wanted, name) in quiet {
            match wanted {
                true => changes.want(&TYPE.into(), name.into()),
                false => changes.let_go(&TYPE.into(), name.into()),
            }
        }
        assert_eq!(changes.apply(&mut client()), []);
    }
}

/// A server that is told what we hold does not send it again, but who asked for a name anew has forgotten what it held.
#[test]
fn names_that_nobody_answered_are_asked_for_apart_when_the_stream_comes_back() {
    let mut client = client();
    apply(
        &mut client,
        response("1", vec![resource("a", "1"), resource("b", "1")], &[]),
        &[],
    );
    client.closed();
    let mut changes = PendingChanges::default();
    changes.let_go(&TYPE.into(), "a".into());
    changes.want(&TYPE.into(), "a".into());
    assert_eq!(changes.apply(&mut client), []);
    let first = client.open();
    assert_eq!(first.len(), 2);
    assert_eq!(first[0].resource_names_subscribe, ["b"]);
    // To istiod a name that we say we hold is asked for already, and who asks for that again gets no answer.
    let held: Vec<_> = first[0].initial_resource_versions.keys().collect();
    assert_eq!(held, ["b"]);
    assert_eq!(first[1].resource_names_subscribe, ["a"]);
    assert!(first[1].initial_resource_versions.is_empty());
    apply(
        &mut client,
        response("2", vec![resource("a", "1")], &[]),
        &[],
    );
    client.closed();
    assert_eq!(client.open().len(), 1);
}

#[test]
fn a_name_is_answered_by_itself_by_an_alias_and_by_there_being_none() {
    let first = |client: &Subscriptions| {
        let first = client.unanswered();
        first.map(|first| (first.turn, first.name.to_owned()))
    };
    let named = |turn, name: &str| Some((turn, name.to_owned()));
    let mut client = Subscriptions::new(Node::default());
    client.change(TYPE, names(&["a", "/b", "c", "*"]), []);
    assert_eq!(first(&client), None, "no stream, nobody to answer");
    client.open();
    assert_eq!(first(&client), named(1, "/b"));
    client.change(TYPE, names(&["d"]), []);
    assert_eq!(client.turn(), 2);
    let mut b = resource("b", "1");
    b.aliases.push("/b".to_owned());
    apply(&mut client, response("1", vec![b], &["a"]), &[]);
    assert_eq!(first(&client), named(1, "c"));
    // Refused is answered, too; and what is wanted no more need not be.
    apply(
        &mut client,
        response("2", vec![resource("c", "1")], &[]),
        &["c"],
    );
    assert_eq!(first(&client), named(2, "d"));
    client.change(TYPE, [], names(&["d"]));
    assert_eq!(first(&client), None);
    // Of `a` nothing is known for sure: it may have been there before it was asked for.
    client.closed();
    client.open();
    assert_eq!(first(&client), named(3, "a"));
}
