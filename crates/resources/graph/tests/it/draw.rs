//! Pictures: every service and call is there once, boxes do not lie on each other, and names cannot break out.

use voile_graph::generate::{GraphShape, ShapeKind, generate};
use voile_graph::{Graph, Probability, ServiceProtocol, draw};

use crate::good;

fn attribute(tag: &str, name: &str) -> f64 {
    let begin = format!(" {name}=\"");
    let (_, rest) = tag.split_once(&begin).expect("the attribute");
    let (value, _) = rest.split_once('"').expect("its end");
    value.parse().expect("a number")
}

fn boxes(svg: &str) -> Vec<(f64, f64, f64, f64)> {
    svg.split("<rect class=\"box\"")
        .skip(1)
        .map(|tag| {
            let tag = tag.split('>').next().expect("a tag");
            let of = |name| attribute(tag, name);
            (
                of("x"),
                of("y"),
                of("x") + of("width"),
                of("y") + of("height"),
            )
        })
        .collect()
}

fn check(graph: &Graph, what: &str) {
    let svg = draw::svg(graph, what);
    let boxes = boxes(&svg);
    assert_eq!(boxes.len(), graph.services.len(), "{what}");
    for (place, a) in boxes.iter().enumerate() {
        for b in &boxes[..place] {
            let apart = a.2 <= b.0 || b.2 <= a.0 || a.3 <= b.1 || b.3 <= a.1;
            assert!(apart, "{what}: boxes on each other: {a:?} {b:?}");
        }
    }
    let size = (attribute(&svg, "width"), attribute(&svg, "height"));
    assert!(
        boxes
            .iter()
            .all(|b| b.0 >= 0.0 && b.1 >= 0.0 && b.2 <= size.0 && b.3 <= size.1),
        "{what}"
    );
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (from, service) in graph.services.iter().enumerate() {
        pairs.extend(service.calls().map(|call| (from, call.service)));
    }
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(
        svg.matches("<path class=\"call").count(),
        pairs.len(),
        "{what}"
    );
    assert!(
        !svg.contains("http://") || svg.matches("http://").count() == 1,
        "only the name of SVG"
    );
    let dot = draw::dot(graph);
    assert_eq!(dot.matches(" -> ").count(), pairs.len(), "{what}");
}

#[test]
fn every_service_and_call_is_drawn_and_no_box_hides_another() {
    for shape in [
        ShapeKind::Tree(vec![9, 2]),
        ShapeKind::Chain,
        ShapeKind::Star,
        ShapeKind::Multitier,
        ShapeKind::Realistic,
    ] {
        for services in [1, 2, 19, 100, 400] {
            let plan = GraphShape {
                shape: shape.clone(),
                services: if shape == ShapeKind::Chain {
                    services.min(60)
                } else {
                    services
                },
                request_size: 1,
                response_size: 1,
                replicas: 2,
                protocol: ServiceProtocol::Grpc,
                error_rate: Probability::new(0.25).expect("a share"),
                work: Vec::new(),
                seed: 3,
            };
            let graph = generate(&plan).expect("made");
            check(&graph, &format!("{shape:?} {services}"));
        }
    }
}

#[test]
fn circles_are_drawn() {
    let graph = good(
        "services:
- {name: a, isEntrypoint: true, script: [{call: b}, {call: {service: a, probability: 10}}]}
- {name: b, script: [{call: c}]}
- {name: c, script: [{call: {service: a, probability: 20}}, {call: {service: b, probability: 20}}]}
",
    );
    check(&graph, "circles");
}

#[test]
fn titles_cannot_break_out() {
    let graph = good("services: [{name: a, isEntrypoint: true}]");
    let svg = draw::svg(&graph, "</title><script>alert(1)</script>");
    assert!(!svg.contains("<script>"), "{svg}");
}
