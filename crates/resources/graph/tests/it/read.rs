//! Valid documents and their graphs, and the problems of invalid documents.

use std::time::Duration;

use voile_graph::{Memory, Probability, ScriptStep, ServiceProtocol, Step};

use crate::{good, read, said};

const EVERY_FIELD: &str = r#"
apiVersion: v1alpha1
kind: MockServiceGraph
defaults:
  type: grpc
  errorRate: 0.01%
  requestSize: 1 KB
  responseSize: 16 KB
  numReplicas: 2
  numRbacPolicies: 3
  computeUsage: 10%
  memoryUsage: 80%
  script: [{call: b}]
services:
- name: a
  namespace: far
  cluster: one
  type: http
  isEntrypoint: true
  errorRate: 0.05
  responseSize: 128
  numReplicas: 1
  computeUsage: 0
  memoryUsage: 1Mi
  numRbacPolicies: 0
  labels: {team: blue, level: "1"}
  script:
  - sleep: 10ms
  - cpu: 250us
  - memory: 64k
  - call: b
  - - call: {service: b, size: 10K, probability: 50}
    - call: {service: b, payloadSize: 80B, probability: 0.5%}
    - sleep: 1.5s
  - call:
      service: b
      hostname: b.far.svc.cluster.local:8080
      extra-header: {X-Foo: bar}
- name: b
  script: []
"#;

#[test]
fn every_field_of_isotope_and_of_its_readme_is_read() {
    let graph = good(EVERY_FIELD);
    let [a, b] = &graph.services[..] else {
        panic!("two services");
    };
    assert_eq!(
        (a.protocol, b.protocol),
        (ServiceProtocol::Http, ServiceProtocol::Grpc)
    );
    assert_eq!((a.entry, b.entry), (true, false));
    assert_eq!((a.replicas, b.replicas), (1, 2));
    assert_eq!((a.response_size, b.response_size), (128, 16384));
    assert_eq!((a.error_rate.get(), b.error_rate.get()), (0.05, 0.0001));
    assert_eq!((a.policies, b.policies), (0, 3));
    assert_eq!((a.compute, b.compute.get()), (Probability::NONE, 0.1));
    let share = Probability::new(0.8).expect("a share");
    assert_eq!(
        (a.memory, b.memory),
        (Memory::Bytes(1 << 20), Memory::OfLimit(share))
    );
    assert_eq!(
        (a.namespace.as_deref(), a.cluster.as_deref()),
        (Some("far"), Some("one"))
    );
    assert_eq!(a.labels.len(), 2);
    assert!(
        b.script.is_empty(),
        "an empty script overrides that of the defaults"
    );
}

#[test]
fn every_command_of_a_script_is_read() {
    let graph = good(EVERY_FIELD);
    let a = &graph.services[0];
    let [
        Step::One(sleep),
        Step::One(cpu),
        Step::One(memory),
        Step::One(ScriptStep::Call(plain)),
        Step::Together(at_once),
        Step::One(ScriptStep::Call(named)),
    ] = &a.script[..]
    else {
        panic!("{:?}", a.script);
    };
    assert_eq!(*sleep, ScriptStep::Sleep(Duration::from_millis(10)));
    assert_eq!(*cpu, ScriptStep::Cpu(Duration::from_micros(250)));
    assert_eq!(*memory, ScriptStep::Memory(65536));
    assert_eq!(
        (plain.service, plain.size, plain.probability),
        (1, 1024, Probability::ALL)
    );
    let calls: Vec<(u64, f64)> = at_once
        .iter()
        .filter_map(|command| match command {
            ScriptStep::Call(call) => Some((call.size, call.probability.get())),
            _ => None,
        })
        .collect();
    assert_eq!(calls, [(10240, 0.5), (80, 0.005)]);
    assert_eq!(at_once[2], ScriptStep::Sleep(Duration::from_millis(1500)));
    assert_eq!(
        named.hostname.as_deref(),
        Some("b.far.svc.cluster.local:8080")
    );
    assert_eq!(named.headers, [("x-foo".into(), "bar".into())]);
}

/// A service `a` whose given line stands at 4:3 of the file.
fn service(line: &str) -> String {
    format!("services:\n- name: b\n- name: a\n  {line}\n  isEntrypoint: true\n")
}

/// A wrong line of a service, and its error.
const WRONG: &[(&str, &str)] = &[
    (
        "errorrate: 1%",
        "g.yaml:4:3: error[V0101]: unknown field `errorrate` (field services[1].errorrate)\n  help: did you mean `errorRate`?",
    ),
    (
        "errorRate: 5",
        "4:14: error[V0104]: `5` is not allowed for a share (field services[1].errorRate)\n  help: a percentage such as 0.1%, or a number from 0 to 1",
    ),
    ("errorRate: 101%", "`101%` is not allowed for a share"),
    ("errorRate: inf%", "`inf%` is not allowed for a share"),
    ("errorRate: NaN", "`NaN` is not allowed for a share"),
    (
        "responseSize: 10 XB",
        "4:17: error[V0104]: `10 XB` is not allowed for a size",
    ),
    (
        "responseSize: 2 GiB",
        "2147483648 bytes are more than the 1073741824 allowed",
    ),
    (
        "responseSize: [1]",
        "text or a number is expected here, not a list",
    ),
    (
        "type: htpp",
        "`htpp` is not allowed (field services[1].type)\n  help: did you mean `http`?",
    ),
    ("numReplicas: 0", "0 is not allowed: expected 1 to 1000"),
    ("numReplicas: 1.5", "a whole number is expected here"),
    ("namespace: A_b", "`A_b` is not allowed for a name"),
    ("memoryUsage: 120%", "`120%` is not allowed for a share"),
    (
        "script: [{call: bb}]",
        "4:19: error[V0703]: the graph has no service `bb` (field services[1].script[0].call)\n  help: did you mean `b`?",
    ),
    ("script: [{calls: b}]", "unknown field `calls`"),
    ("script: [call]", "`call` is not allowed for a command"),
    ("script: [{}]", "a command is missing"),
    (
        "script: [{call: b, sleep: 1s}]",
        "several commands in one step",
    ),
    (
        "script: [{sleep: 10}]",
        "text is expected here, not a number",
    ),
    (
        "script: [{sleep: 10x}]",
        "`10x` is not allowed for a duration",
    ),
    ("script: [{sleep: 2h}]", "is longer than the 3600s allowed"),
    ("script: [{cpu: 11s}]", "is longer than the 10s allowed"),
    (
        "script: [[[{call: b}]]]",
        "error[V0708]: a list of concurrent commands within another",
    ),
    (
        "script: {call: b}",
        "a list is expected here, not a mapping",
    ),
    ("script: [{call: {size: 1}}]", "`service` is missing"),
    (
        "script: [{call: {service: b, probability: 0}}]",
        "isotope takes 0 for always",
    ),
    (
        "script: [{call: {service: b, probability: 101}}]",
        "`101` is not allowed for a probability",
    ),
    (
        "script: [{call: {service: b, probability: 0.5}}]",
        "a whole number of percent from 1 to 100",
    ),
    (
        "script: [{call: {service: b, size: 1, payloadSize: 1}}]",
        "`size` and `payloadSize` are both there",
    ),
    (
        "script: [{call: {service: b, hostname: 'a b'}}]",
        "`a b` is not allowed for a hostname",
    ),
    (
        "script: [{call: {service: b, hostname: 'b:99999'}}]",
        "`b:99999` is not allowed for a hostname",
    ),
    (
        "script: [{call: {service: b, extra-header: {Content-Length: '5'}}}]",
        "`Content-Length` is not allowed for a header field",
    ),
    (
        "script: [{call: {service: b, extra-header: {x: \"a\\nb\"}}}]",
        "is not allowed for a header value",
    ),
];

#[test]
fn what_is_wrong_is_said_with_its_place_and_what_would_be_right() {
    for (line, expected) in WRONG {
        let (graph, problems) = read(&service(line));
        let said = said(&problems);
        assert!(graph.is_none(), "{line}: it was taken");
        assert!(said.contains(expected), "{line}:\n{said}\nnot\n{expected}");
    }
}

#[test]
fn whole_documents_can_be_wrong_too() {
    for (text, expected) in [
        ("", "g.yaml:1:1: error[V0103]: the file is empty"),
        ("services: []", "a graph has 1 to 5000 services, this has 0"),
        ("service: [{name: a}]", "unknown field `service`"),
        ("services: [{nam: a}]", "`name` is missing"),
        ("services: [{name: A}]", "`A` is not allowed for a name"),
        (
            "services: [{name: a}, {name: a}]",
            "a second service is called `a`",
        ),
        ("kind: Mock\nservices: [{name: a}]", "`Mock` is not allowed"),
        (
            "apiVersion: v9\nservices: [{name: a}]",
            "`v9` is not allowed",
        ),
        (
            "default: {}\ndefaults: {}\nservices: [{name: a}]",
            "`default` and `defaults` are both set",
        ),
        (
            "services: [{name: a}]\n---\nservices: [{name: b}]",
            "g.yaml:2:1: error[V0003]: a second document begins here",
        ),
        ("services: [{name: a}", "error[V0002]"),
        ("&a services: *a", "error"),
        ("- 1", "a mapping is expected here, not a list"),
        (
            "services: [{name: a, isEntrypoint: 1}]",
            "true or false is expected",
        ),
    ] {
        let (graph, problems) = read(text);
        let said = said(&problems);
        assert!(graph.is_none(), "{text}: it was taken");
        assert!(said.contains(expected), "{text}:\n{said}\nnot\n{expected}");
    }
}

#[test]
fn all_errors_are_heard_at_once() {
    let (_, problems) =
        read("services: [{name: a, tpye: http, errorRate: 2}, {name: b, script: [{call: c}]}]");
    let errors = problems.iter().filter(|problem| problem.is_error()).count();
    assert_eq!(errors, 3, "{}", said(&problems));
}

#[test]
fn what_is_written_reads_back_the_same() {
    let text = r#"
defaults: {requestSize: 100, responseSize: 1 MiB}
services:
- name: a
  isEntrypoint: true
  labels: {"app.example/x": "yes", "y": "a\"b\\c"}
  errorRate: 0.125%
  computeUsage: 5%
  script:
  - - call: {service: b, size: 77, probability: 33, hostname: "b.x:81", extra-header: {x-a: "no: yes"}}
    - cpu: 1500us
  - []
  - memory: 3 MiB
  - call: {service: "n", probability: 0.25%}
- {name: b, type: grpc, numReplicas: 3, memoryUsage: 12%, namespace: "on"}
- {name: "n", responseSize: 5, cluster: c1, numRbacPolicies: 2}
"#;
    let graph = good(text);
    let written = voile_graph::to_yaml(&graph);
    let mut again = good(&written);
    // Places differ, of course.
    let mut first = graph;
    for graph in [&mut first, &mut again] {
        forget_places(graph);
    }
    assert_eq!(first, again, "{written}");
}

/// Makes two graphs from different texts comparable.
pub(crate) fn forget_places(graph: &mut voile_graph::Graph) {
    for service in &mut graph.services {
        service.at = voile_graph::FieldLocation::nowhere();
        for step in &mut service.script {
            let commands = match step {
                Step::One(command) => std::slice::from_mut(command),
                Step::Together(commands) => commands,
            };
            for command in commands {
                if let ScriptStep::Call(call) = command {
                    call.at = voile_graph::FieldLocation::nowhere();
                }
            }
        }
    }
}
