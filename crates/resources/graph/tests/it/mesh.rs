//! The model accepts the folder of a mesh without a complaint, for every graph.

use voile_graph::generate::{GraphShape, ShapeKind, generate};
use voile_graph::mesh::{MeshOptions, Mtls, mesh};
use voile_graph::{Graph, Probability, ServiceProtocol};
use voile_model::SourceFile;

use crate::{good, said};

fn options(mtls: Mtls, sidecars: bool) -> MeshOptions {
    MeshOptions {
        namespace: "graph".to_owned(),
        mtls,
        sidecars,
        node_port: 30080,
        seed: Some(1),
        threads: 2,
        client: Some((50.0, 4)),
    }
}

fn check(graph: &Graph, what: &str) {
    for mtls in [
        Mtls::Strict,
        Mtls::StrictEverywhere,
        Mtls::Permissive,
        Mtls::Disable,
    ] {
        for sidecars in [true, false] {
            let files = mesh(graph, &options(mtls, sidecars)).expect("made");
            assert_eq!(files.len(), graph.services.len() + 2);
            let files: Vec<SourceFile> = files
                .into_iter()
                .map(|file| SourceFile::new(file.name, file.text))
                .collect();
            let (_, problems) = voile_model::check(&files, None);
            assert!(problems.is_empty(), "{what} {mtls:?}: {}", said(&problems));
        }
    }
}

#[test]
fn the_model_takes_what_is_made() {
    let plan = GraphShape {
        shape: ShapeKind::Realistic,
        services: 30,
        request_size: 1,
        response_size: 1,
        replicas: 2,
        protocol: ServiceProtocol::Http,
        error_rate: Probability::new(0.01).expect("a share"),
        work: Vec::new(),
        seed: 3,
    };
    check(&generate(&plan).expect("made"), "realistic");
    let named = good(
        r#"
services:
- {name: "on", isEntrypoint: true, namespace: "yes", labels: {version: "1", "example.org/a": "b"}, script: [{call: mesh}, {call: client}]}
- {name: mesh, type: grpc, labels: {app: other}}
- {name: client, script: [{call: {service: mesh, extra-header: {x: "a: b"}}}]}
"#,
    );
    check(&named, "names that mean something else");
}

#[test]
fn a_service_gets_as_many_policies_as_it_says_and_the_last_lets_all_in() {
    let graph = good(
        "defaults: {numRbacPolicies: 3}\nservices: [{name: a, isEntrypoint: true, script: [{call: b}]}, {name: b, numRbacPolicies: 0}]",
    );
    check(&graph, "policies");
    for (sidecars, counts) in [(true, [3, 0]), (false, [0, 0])] {
        let files = mesh(&graph, &options(Mtls::Strict, sidecars)).expect("made");
        let of = |name: &str| {
            let file = files.iter().find(|file| file.name == name).expect("a file");
            let text = &file.text;
            assert_eq!(
                text.matches("- {}").count(),
                text.matches("a-policy-3").count()
            );
            text.matches("kind: AuthorizationPolicy").count()
        };
        assert_eq!([of("service-a.yaml"), of("service-b.yaml")], counts);
    }
}

#[test]
fn each_service_gets_its_own_piece_and_no_more() {
    let graph = good(
        "services:
- {name: a, isEntrypoint: true, script: [{call: b}]}
- {name: b, type: grpc, script: [{call: c}], responseSize: 7}
- {name: c}
",
    );
    let piece = graph.excerpt(0);
    let names: Vec<&str> = piece
        .services
        .iter()
        .map(|service| &*service.name)
        .collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(piece.services[1].protocol, ServiceProtocol::Grpc);
    assert!(piece.services[1].script.is_empty() && piece.services[1].response_size == 0);
    assert_eq!(piece.services[0].script, graph.services[0].script);
}
