//! Policies about connections: what cannot be read closes.

use prost::Message;
use voile_policy::connections::{CallerFacts, ConnectionDenial, ConnectionPolicies, PolicySubject};
use voile_proto::authorization as wire;
use voile_xds::wire::decode_connection_policy;

fn range(octets: &[u8], length: u32) -> wire::Address {
    wire::Address {
        address: octets.to_vec(),
        length,
    }
}

#[test]
fn a_policy_that_cannot_be_read_closes_the_workloads_that_it_is_for() {
    let with = |one: wire::Match| wire::Authorization {
        namespace: "shop".to_owned(),
        scope: wire::Scope::Namespace.into(),
        action: wire::Action::Allow.into(),
        rules: vec![wire::Rule {
            clauses: vec![wire::Clause { matches: vec![one] }],
        }],
        ..wire::Authorization::default()
    };
    let unknown_text = wire::Match {
        principals: vec![wire::StringMatch { match_type: None }],
        ..wire::Match::default()
    };
    let bad_range = wire::Match {
        not_source_ips: vec![range(&[10, 0, 0], 8)],
        ..wire::Match::default()
    };
    let long_range = wire::Match {
        source_ips: vec![range(&[10, 0, 0, 0], 33)],
        ..wire::Match::default()
    };
    let endless_range = wire::Match {
        destination_ips: vec![range(&[0; 16], u32::MAX)],
        ..wire::Match::default()
    };
    let mut bad_action = with(wire::Match::default());
    bad_action.action = 7;
    let mut bad_scope = with(wire::Match::default());
    bad_scope.scope = 7;
    bad_scope.namespace = "elsewhere".to_owned();
    for (message, field) in [
        (with(unknown_text), "rules[0].clauses[0].matches[0]"),
        (with(bad_range), "rules[0].clauses[0].matches[0]"),
        (with(long_range), "rules[0].clauses[0].matches[0]"),
        (with(endless_range), "rules[0].clauses[0].matches[0]"),
        (bad_action, "action"),
        (bad_scope, "scope"),
    ] {
        let read = decode_connection_policy(&message.encode_to_vec());
        let (closed, error) = read.expect_err("it cannot be read");
        assert!(error.field.starts_with(field), "{error}");
        let mut policies = ConnectionPolicies::default();
        policies.set("x".into(), closed);
        let authorize = |namespace| {
            let caller = CallerFacts {
                identity: None,
                source: [10, 244, 0, 2].into(),
                destination: ([10, 244, 0, 3], 8080).into(),
            };
            let named = &[];
            let subject = PolicySubject { namespace, named };
            policies.authorize(&subject, &caller).map(drop)
        };
        let denied = Err(ConnectionDenial::By("x".into()));
        assert_eq!(authorize("shop"), denied, "{message:?}");
        let elsewhere = authorize("other") == denied;
        assert_eq!(elsewhere, field == "scope", "{message:?}");
    }
    let (closed, error) = decode_connection_policy(&[0xff]).expect_err("no message");
    assert!(error.to_string().contains("not a message"), "{error}");
    assert_eq!(closed.scope, voile_policy::connections::PolicyScope::Mesh);
}
