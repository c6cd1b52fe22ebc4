//! Keys of token issuers that only a waypoint's rules name (`jwksUri`). The control plane fetches them, for the waypoint cannot
//! reach the key server of these tests. It fetches them again, and without keys no token is accepted.

use serde_json::json;

use crate::mesh::issuer::{Issuer, KeyServer, Say};
use crate::node::waypoint::hostile::{WEB, started_by};
use crate::node::waypoint::policies::{AT_GATE, AT_WEB, OTHER, SECOND_SERVICE, believes, status};
use crate::node::*;
use crate::policies::tokens::ISSUER;

#[test]
fn keys_of_a_waypoints_rules_are_fetched_and_fetched_again_and_missing_ones_let_nobody_in() {
    // The key server of this test listens on the control plane's own machine.
    let often = ["--jwks-refresh", "100ms", "--jwks-loopback", "allow"];
    let Some((mesh, _node, [client, ..])) = started_by(SECOND_SERVICE, &often) else {
        return;
    };
    let inside = &client.inside;
    let server = mesh.world.run(|| KeyServer::start(Say::Nothing));
    let server = server.expect("entered");
    let (one, two) = (Issuer::new(ISSUER, "one"), Issuer::new(ISSUER, "two"));
    let bearer = |issuer: &Issuer| {
        let token = issuer.token("me", json!({}));
        format!("authorization: Bearer {token}\r\n")
    };
    let (first, second) = (bearer(&one), bearer(&two));
    let both = |lines: &str| [WEB, OTHER].map(|to| status(inside, to, "/open", lines));
    wait_until("both services are called through the waypoint", || {
        both(&first) == [200, 200]
    });
    let rule = format!(
        "{{issuer: \"{ISSUER}\", jwksUri: \"{}\", timeout: 0.5s}}",
        server.uri()
    );
    mesh.write("tokens.yaml", &believes(AT_WEB, &rule));
    wait_until("tokens are refused without keys", || {
        both(&first) == [401, 200]
    });
    assert_eq!(both(""), [200, 200], "nobody else is concerned");
    let asked_again = || {
        let asked = server.asked();
        wait_until("it was asked", || server.asked() > asked + 1);
    };
    for bad in [
        Say::Status(500),
        Say::Document("<html>sign in</html>".to_owned()),
        Say::Document(r#"{"keys":[]}"#.to_owned()),
    ] {
        server.say(bad.clone());
        asked_again();
        assert_eq!(both(&first), [401, 200], "{bad:?}");
    }
    server.say(Say::Document(one.keys()));
    wait_until("the keys are here", || both(&first) == [200, 200]);
    assert_eq!(both(&second), [401, 200], "of another key");
    server.say(Say::Document(two.keys()));
    wait_until("the keys are others", || both(&second) == [200, 200]);
    assert_eq!(both(&first), [401, 200], "the old one is good no more");
    // Good keys outlive their server.
    server.say(Say::Status(503));
    asked_again();
    assert_eq!((both(&first), both(&second)), ([401, 200], [200, 200]));
    // A rule aimed at the waypoint is for all its services. With a key server that never answered, requests with a token are
    // refused.
    mesh.write("tokens.yaml", &believes(AT_GATE, &rule));
    wait_until("they are for both", || both(&first) == [401, 401]);
    assert_eq!(both(&second), [200, 200]);
    let elsewhere = rule.replace("/keys", "/others");
    mesh.write("tokens.yaml", &believes(AT_GATE, &elsewhere));
    wait_until("nobody has these keys", || both(&second) == [401, 401]);
}
