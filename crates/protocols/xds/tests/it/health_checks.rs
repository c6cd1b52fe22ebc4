//! HealthChecks to the wire and back, and those that make no sense.

use std::time::Duration;

use voile_model::mesh::health_check::{CheckQuestion, CheckTerms};
use voile_model::{Hostname, Namespace, Port};
use voile_proto::proxy;
use voile_xds::wire::{HealthCheck, WireType};

fn asking(question: CheckQuestion) -> HealthCheck {
    HealthCheck {
        name: "shop/books".into(),
        host: Hostname::new("books.example.com").unwrap(),
        port: Port::new(443),
        namespace: Namespace::new("shop"),
        terms: CheckTerms {
            question,
            interval: Duration::from_millis(1_500),
            timeout: Duration::from_millis(200),
            jitter_percent: 7,
            healthy_threshold: 2,
            unhealthy_threshold: 5,
            panic_percent: 50,
        },
    }
}

fn http() -> CheckQuestion {
    CheckQuestion::Http {
        path: "/healthz?full".into(),
        host: Some("books".into()),
        expected: vec![200..300, 404..405],
    }
}

#[test]
fn health_checks_come_back_as_they_went() {
    let grpc = CheckQuestion::Grpc {
        service: "shop.Books".into(),
    };
    for question in [http(), grpc, CheckQuestion::Tcp] {
        let said = asking(question);
        assert_eq!(HealthCheck::from_wire(said.to_wire()).unwrap(), said);
        let everywhere = HealthCheck {
            port: None,
            namespace: None,
            ..said
        };
        assert_eq!(
            HealthCheck::from_wire(everywhere.to_wire()).unwrap(),
            everywhere
        );
    }
}

#[test]
fn health_checks_that_make_no_sense_are_refused_by_field() {
    type Spoil = fn(&mut proxy::HealthCheck);
    let spoil: [(&str, Spoil); 14] = [
        ("host: it is not a host name", |c| c.host = "a b".to_owned()),
        ("port: a port is", |c| c.port = 65_536),
        ("namespace: it is not a namespace", |c| {
            c.namespace = "A".to_owned();
        }),
        ("expected one of http, grpc and tcp", |c| c.http = None),
        ("expected one of http, grpc and tcp", |c| {
            c.tcp = Some(proxy::TcpCheck {});
        }),
        ("http.path: it is not valid", |c| {
            c.http.as_mut().unwrap().path = "/ HTTP/1.1\r\nA: b".to_owned();
        }),
        ("http.host: it is not a host name", |c| {
            c.http.as_mut().unwrap().host = "a\r\nb".to_owned();
        }),
        ("http.expected: missing", |c| {
            c.http.as_mut().unwrap().expected.clear();
        }),
        ("http.expected: an empty or invalid range", |c| {
            c.http.as_mut().unwrap().expected[0].end = 200;
        }),
        ("interval_ms: it is 0", |c| c.interval_ms = 0),
        ("timeout_ms: it is longer", |c| c.timeout_ms = 1_501),
        ("healthy_threshold: it is 0", |c| c.healthy_threshold = 0),
        ("unhealthy_threshold: it is 0", |c| {
            c.unhealthy_threshold = 0;
        }),
        ("panic_percent: it is more than 100", |c| {
            c.panic_percent = 101;
        }),
    ];
    for (wanted, change) in spoil {
        let mut message = asking(http()).to_wire();
        change(&mut message);
        let error = HealthCheck::from_wire(message).unwrap_err().to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}
