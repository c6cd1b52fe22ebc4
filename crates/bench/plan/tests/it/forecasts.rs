//! Forecasts by curves that are known.

use std::collections::BTreeMap;

use voile_graph::{Graph, GraphService, ScriptStep, ServiceCall, Step};
use voile_plan::curves::{CurvePoint, Curves, FORMAT, LatencyCost, SideCost};
use voile_plan::{Choice, Demand, Forecast, predict, table};
use voile_report::record::{Environment, Estimate};

fn known(median: f64) -> Option<Estimate> {
    Some(Estimate {
        median,
        low: Some(median * 0.75),
        high: Some(median * 1.25),
        rounds: 8,
    })
}

fn point(rate: f64, sides: &[(&str, f64, f64)], p50: f64) -> CurvePoint {
    let sides = sides.iter().map(|(role, cpu, megabytes)| {
        let cost = SideCost {
            cpu_us: known(*cpu),
            memory_bytes: known(megabytes * 1e6),
        };
        ((*role).to_owned(), cost)
    });
    CurvePoint {
        protocol: "http1".to_owned(),
        rate,
        connections: 16,
        body_bytes: 0,
        services: 1,
        amount: 0,
        sides: sides.collect(),
        latency_us: LatencyCost {
            mean: known(p50),
            p50: known(p50),
            p90: known(p50),
            p99: known(p50),
        },
    }
}

/// Of two rates, with the same cost at both.
fn curves() -> Curves {
    let both =
        |sides: &[(&str, f64, f64)], p50| vec![point(100.0, sides, p50), point(1000.0, sides, p50)];
    let sidecars = [("client-sidecar", 40.0, 6.0), ("server-sidecar", 60.0, 5.0)];
    let nodes = [("client-node", 20.0, 9.0), ("server-node", 30.0, 9.0)];
    let waypoint = [&nodes[..], &[("waypoint", 50.0, 7.0)]].concat();
    let extra = [("client-sidecar", 1.0, 0.5), ("server-sidecar", 9.0, 1.0)];
    Curves {
        format: FORMAT,
        machine: Environment::default(),
        workers: 2,
        records: Vec::new(),
        sets: BTreeMap::from([
            ("none".to_owned(), both(&[], 70.0)),
            ("mtls".to_owned(), both(&sidecars, 200.0)),
            ("node".to_owned(), both(&nodes, 100.0)),
            ("waypoint".to_owned(), both(&waypoint, 250.0)),
            ("tracing".to_owned(), both(&extra, 10.0)),
        ]),
    }
}

/// `a` calls `b` twice for each request.
fn graph() -> Graph {
    let call = || Step::One(ScriptStep::Call(ServiceCall::to(1, 0)));
    Graph {
        services: vec![
            GraphService {
                script: vec![call(), call()],
                ..GraphService::named("a")
            },
            GraphService::named("b"),
        ],
    }
}

fn demand(rate: f64) -> Demand {
    Demand {
        entries: vec![(0, rate)],
        connections: 16,
        workers: None,
        nodes: 1,
        seed: 1,
    }
}

fn forecast(with: &str, rate: f64) -> Forecast {
    let choice = Choice::parse(with).expect("a choice");
    predict(&graph(), &demand(rate), &curves(), &choice).expect("a forecast")
}

#[track_caller]
fn near(found: f64, expected: f64) {
    assert!(
        (found - expected).abs() < expected.abs() * 1e-6 + 1e-9,
        "{found}, not {expected}"
    );
}

#[test]
fn cpu_is_that_of_each_side_by_the_requests_that_pass_it() {
    let found = forecast("mtls", 400.0);
    near(found.services[0].served, 400.0);
    near(found.services[0].sent, 800.0);
    // 400 at the server's side, 800 at the client's; b serves 800.
    near(
        found.services[0].costs.vcpu.value,
        400.0 * 60e-6 + 800.0 * 40e-6,
    );
    near(found.services[1].costs.vcpu.value, 800.0 * 60e-6);
    near(found.total.vcpu.value, 0.104);
    near(found.total.vcpu.low.expect("low"), 0.104 * 0.75);
    near(found.total.vcpu.high.expect("high"), 0.104 * 1.25);
    let traced = forecast("mtls,tracing", 400.0);
    near(
        traced.total.vcpu.value,
        0.104 + 1200.0 * 9e-6 + 800.0 * 1e-6,
    );
    let waypoint = forecast("waypoint", 400.0);
    near(waypoint.total.vcpu.value, 1200.0 * 80e-6 + 800.0 * 20e-6);
}

#[test]
fn memory_is_of_each_sidecar_or_of_the_node() {
    near(forecast("mtls", 400.0).total.memory_bytes.value, 11e6);
    near(
        forecast("mtls,tracing", 400.0).total.memory_bytes.value,
        12.5e6,
    );
    near(forecast("node", 400.0).total.memory_bytes.value, 9e6);
    near(forecast("waypoint", 400.0).total.memory_bytes.value, 16e6);
    near(forecast("none", 400.0).total.memory_bytes.value, 0.0);
}

#[test]
fn latency_adds_up_along_the_calls() {
    let none = forecast("none", 10.0);
    near(none.total.p50_us.as_ref().expect("p50").value, 3.0 * 70.0);
    let found = forecast("mtls", 10.0);
    // The request from outside has the server's share of what two sidecars add: 60 of 100.
    let p50 = found.total.p50_us.as_ref().expect("p50");
    near(p50.value, 3.0 * 70.0 + 2.0 * 200.0 + 0.6 * 200.0);
    assert!(p50.low.expect("low") < p50.value && p50.high.expect("high") > p50.value);
    near(
        found.services[1].costs.p50_us.as_ref().expect("p50").value,
        270.0,
    );
}

#[test]
fn a_load_outside_of_the_measured_range_is_said_and_overload_has_no_latency() {
    assert!(forecast("mtls", 400.0).total.vcpu.extrapolated.is_empty());
    let text = table::forecast(&forecast("mtls", 20.0));
    assert!(
        text.contains("* CPU: extrapolated beyond what was measured by rate"),
        "{text}"
    );
    let over = forecast("mtls", 20_000.0);
    assert_eq!(over.total.p50_us, None);
    let text = table::forecast(&over);
    assert!(
        text.contains("its queue grows without end; cure: more replicas"),
        "{text}"
    );
}

#[test]
fn a_set_that_was_not_measured_is_refused_by_name() {
    let choice = Choice::parse("mtls,policies").expect("a choice");
    let why = predict(&graph(), &demand(1.0), &curves(), &choice).expect_err("refused");
    assert!(
        why.contains("no `policies`") && why.contains("voile bench curves"),
        "{why}"
    );
}

#[test]
fn a_file_of_curves_reads_back_and_another_is_refused() {
    let text = curves().to_json().expect("JSON");
    assert_eq!(Curves::parse(&text), Ok(curves()));
    let newer = text.replacen("\"format\": 1", "\"format\": 2", 1);
    assert!(
        Curves::parse(&newer).is_err_and(|why| why.contains("format 2") && why.contains("cure"))
    );
    assert!(Curves::parse("{}").is_err_and(|why| why.contains("no file of curves")));
}
