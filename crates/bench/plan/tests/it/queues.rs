//! The simulation against what queueing theory knows.

use std::time::Duration;

use voile_graph::{Graph, GraphService, Probability, ScriptStep, ServiceCall, Step};
use voile_plan::simulate::{
    CallTimes, MAX_EVENTS, Quantiles, SimulatedMesh, SimulatedTraffic, simulate,
};

/// Microseconds of a request's work.
const WORK: f64 = 100.0;

fn exponential(mean: f64) -> Quantiles {
    let knots = 20_000;
    let shares = (0..knots).map(|n| f64::from(n) / f64::from(knots));
    let knots: Vec<(f64, f64)> = shares
        .map(|share| (share, -mean * (1.0 - share).ln()))
        .collect();
    Quantiles::through(&knots)
}

/// One service behind one proxy, loaded from outside.
fn one_queue(work: Quantiles, workers: u32, busy: f64) -> SimulatedTraffic {
    let graph = Graph {
        services: vec![GraphService::named("a")],
    };
    let call = CallTimes {
        server: Some(work),
        ..CallTimes::default()
    };
    let mesh = SimulatedMesh {
        graph: &graph,
        entries: vec![(0, busy * f64::from(workers) * 1e6 / WORK)],
        calls: vec![call.clone()],
        from_outside: vec![call],
        proxies: vec![vec![0]],
        waypoint: None,
        queues: vec![workers],
    };
    simulate(&mesh, 200_000, 7)
}

#[track_caller]
fn near(found: Option<f64>, expected: f64, share: f64) {
    let found = found.expect("samples");
    let apart = (found / expected - 1.0).abs();
    assert!(apart < share, "{found} is not {expected}");
}

#[test]
fn random_work_waits_as_in_m_m_1() {
    for busy in [0.2, 0.8] {
        let found = one_queue(exponential(WORK), 1, busy);
        let mean = WORK / (1.0 - busy);
        near(found.end_to_end.mean, mean, 0.06);
        // The time in the system is exponential.
        near(found.end_to_end.p50, mean * std::f64::consts::LN_2, 0.06);
        near(found.end_to_end.p99, mean * 100f64.ln(), 0.08);
    }
}

#[test]
fn constant_work_waits_as_in_m_d_1() {
    for busy in [0.2, 0.8] {
        let found = one_queue(Quantiles::constant(WORK), 1, busy);
        let mean = WORK + WORK * busy / (2.0 * (1.0 - busy));
        near(found.end_to_end.mean, mean, 0.04);
    }
}

#[test]
fn several_workers_wait_as_in_m_m_2() {
    for busy in [0.3, 0.7] {
        let found = one_queue(exponential(WORK), 2, busy);
        near(found.end_to_end.mean, WORK / (1.0 - busy * busy), 0.06);
    }
}

fn call(service: usize) -> ScriptStep {
    ScriptStep::Call(ServiceCall::to(service, 0))
}

/// `a` calls `b` and, at the same time, `c`; then it sleeps. Each call takes 10 µs at the client, 20 at the server, and 5 besides.
fn small(seed: u64, rate: f64, share: f64) -> (Graph, SimulatedTraffic) {
    let sleep = |millis| Step::One(ScriptStep::Sleep(Duration::from_millis(millis)));
    let mut seldom = ServiceCall::to(2, 0);
    seldom.probability = Probability::new(share).expect("a share");
    let graph = Graph {
        services: vec![
            GraphService {
                script: vec![
                    Step::Together(vec![call(1), ScriptStep::Call(seldom)]),
                    sleep(1),
                ],
                ..GraphService::named("a")
            },
            GraphService {
                script: vec![sleep(2)],
                ..GraphService::named("b")
            },
            GraphService {
                script: vec![sleep(3)],
                ..GraphService::named("c")
            },
        ],
    };
    let call = CallTimes {
        client: Some(Quantiles::constant(10.0)),
        server: Some(Quantiles::constant(20.0)),
        rest: Quantiles::constant(2.0),
        hop: Quantiles::constant(3.0),
        ..CallTimes::default()
    };
    let mesh = SimulatedMesh {
        graph: &graph,
        entries: vec![(0, rate)],
        calls: vec![call.clone(); 3],
        from_outside: vec![
            CallTimes {
                client: None,
                ..call
            };
            3
        ],
        proxies: vec![vec![0], vec![1], vec![2]],
        waypoint: None,
        queues: vec![2; 3],
    };
    let found = simulate(&mesh, 5000, seed);
    (graph, found)
}

#[test]
fn without_load_the_median_is_the_sum_of_the_times() {
    let (_, found) = small(1, 1.0, 0.0);
    near(found.services[1].p50, 2035.0, 1e-9);
    near(found.end_to_end.p50, 25.0 + 2035.0 + 1000.0, 1e-9);
    let (_, both) = small(1, 1.0, 1.0);
    // The step ends with its longest call.
    near(both.end_to_end.p50, 25.0 + 3035.0 + 1000.0, 1e-9);
}

#[test]
fn each_request_is_answered_once_and_calls_come_in_their_shares() {
    for seed in 0..20 {
        let (_, found) = small(seed, 2000.0, 0.3);
        assert_eq!(found.entered, 5000);
        assert_eq!(found.answered, found.entered);
        assert_eq!(found.calls[..2], [5000, 5000]);
        near(Some(found.calls[2] as f64), 1500.0, 0.1);
        assert_eq!(found.end_to_end.samples, 4500);
    }
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    assert_eq!(small(3, 2000.0, 0.3).1, small(3, 2000.0, 0.3).1);
    assert_ne!(small(3, 2000.0, 0.3).1, small(4, 2000.0, 0.3).1);
}

#[test]
fn a_large_graph_is_bounded_in_events() {
    let leaf = GraphService::named("leaf");
    let root = GraphService {
        script: vec![Step::One(call(1)); 2000],
        ..GraphService::named("root")
    };
    let graph = Graph {
        services: vec![root, leaf],
    };
    let mesh = SimulatedMesh {
        graph: &graph,
        entries: vec![(0, 10.0)],
        calls: vec![CallTimes::default(); 2],
        from_outside: vec![CallTimes::default(); 2],
        proxies: vec![Vec::new(), Vec::new()],
        waypoint: None,
        queues: Vec::new(),
    };
    let found = simulate(&mesh, 1_000_000, 1);
    assert!(found.events < MAX_EVENTS + 50_000, "{}", found.events);
    assert_eq!(found.answered, found.entered);
}
