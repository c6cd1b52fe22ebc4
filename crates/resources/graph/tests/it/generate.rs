//! Generated graphs have the shape that was asked for, are free of problems, and are the same for the same seed.

use voile_graph::generate::{GraphShape, ShapeKind, generate};
use voile_graph::weigh::weigh;
use voile_graph::{Probability, ServiceProtocol, check, to_yaml};

use crate::{good, said};

fn plan(shape: ShapeKind, services: usize) -> GraphShape {
    GraphShape {
        shape,
        services,
        request_size: 128,
        response_size: 1024,
        replicas: 1,
        protocol: ServiceProtocol::Http,
        error_rate: Probability::NONE,
        work: Vec::new(),
        seed: 1,
    }
}

#[test]
fn shapes_are_what_their_names_say() {
    for (shape, services, total, depth) in [
        (ShapeKind::Tree(vec![9, 1]), 19, 19.0, 3),
        (ShapeKind::Tree(vec![3]), 13, 13.0, 3),
        (ShapeKind::Tree(vec![10]), 111, 111.0, 3),
        (ShapeKind::Tree(vec![2]), 6, 6.0, 3),
        (ShapeKind::Chain, 10, 10.0, 10),
        (ShapeKind::Chain, 1, 1.0, 1),
        (ShapeKind::Star, 10, 10.0, 2),
        (ShapeKind::Star, 1, 1.0, 1),
    ] {
        let graph = generate(&plan(shape.clone(), services)).expect("made");
        let weights = weigh(&graph, 0);
        assert_eq!(
            (graph.services.len(), weights.total(), weights.depth),
            (services, total, depth),
            "{shape:?}"
        );
    }
}

#[test]
fn meshes_of_any_size_and_seed_are_free_of_problems() {
    for shape in [ShapeKind::Multitier, ShapeKind::Realistic] {
        for services in [1, 2, 3, 5, 8, 19, 100, 1000] {
            for seed in 0..5 {
                let plan = GraphShape {
                    seed,
                    ..plan(shape.clone(), services)
                };
                let graph = generate(&plan).expect("made");
                assert_eq!(graph.services.len(), services);
                let problems = check(&graph);
                assert!(
                    problems.is_empty(),
                    "{shape:?} {services} {seed}: {}",
                    said(&problems)
                );
                assert_eq!(
                    weigh(&graph, 0).reached(),
                    services,
                    "{shape:?} {services} {seed}"
                );
                let text = to_yaml(&graph);
                assert_eq!(
                    text,
                    to_yaml(&generate(&plan).expect("made")),
                    "the same again"
                );
                let mut again = good(&text);
                crate::read::forget_places(&mut again);
                assert_eq!(again, graph);
            }
        }
    }
}

/// Every pair calls each other, and a request still ends: two at each service but the first, on average.
#[test]
fn in_a_full_mesh_every_pair_calls_each_other_and_requests_end() {
    for services in [1, 2, 3, 10, 100] {
        let graph = generate(&plan(ShapeKind::Mesh, services)).expect("made");
        let problems = check(&graph);
        assert!(
            !problems.iter().any(voile_model::Diagnostic::is_error),
            "{}",
            said(&problems)
        );
        let others = services.saturating_sub(1);
        let calls: usize = graph
            .services
            .iter()
            .map(|service| service.calls().count())
            .sum();
        assert_eq!(calls, others * others, "{services} services");
        let expected = match services {
            2 => 2.0, // nobody is left to be called by the second
            _ => 1.0 + 2.0 * others as f64,
        };
        let total = weigh(&graph, 0).total();
        assert!(
            (total / expected - 1.0).abs() < 0.001,
            "{services}: {total}"
        );
        let text = to_yaml(&graph);
        assert_eq!(text, to_yaml(&good(&text)), "reads back");
    }
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    for (shape, services) in [
        (ShapeKind::Chain, 0),
        (ShapeKind::Chain, 5001),
        (ShapeKind::Tree(vec![0]), 5),
        (ShapeKind::Tree(vec![]), 5),
        (ShapeKind::Tree(vec![1]), 200),
        (ShapeKind::Mesh, 201),
    ] {
        let refused = generate(&plan(shape.clone(), services));
        assert!(refused.is_err(), "{shape:?} {services}");
    }
}
