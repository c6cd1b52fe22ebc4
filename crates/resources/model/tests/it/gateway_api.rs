//! Gateway API's resources together: the conditions of each, by the specification's reasons, and the resources
//! generated from attached ones.

use std::fmt::Write as _;
use std::sync::Arc;

use voile_model::mesh::gateway_api::{GATEWAY_NAME, ResourceConditions, StatusCondition};
use voile_model::mesh::traffic::{Authorities, ClientTls};
use voile_model::mesh::{Mesh, RuleClient, Subject, TargetPort, Visibility};
use voile_model::{Namespace, Port, ResourceName, SourceFile, check};

use crate::{good, render};

/// `kind name[ part]: Condition=True|False:Reason …`, a line for each.
fn shown(mesh: &Mesh) -> String {
    let mut text = String::new();
    let conditions = |all: &[StatusCondition]| -> String {
        let one = |one: &StatusCondition| match one.holds {
            true if one.reason == one.kind => format!(" {}", one.kind),
            holds => format!(" {}={holds}:{}", one.kind, one.reason),
        };
        all.iter().map(one).collect()
    };
    for said in mesh.gateway_api.said.iter() {
        let ResourceConditions { kind, name, .. } = said;
        if !said.conditions.is_empty() {
            let sets = match said.listener_sets {
                0 => String::new(),
                count => format!(" ListenerSets={count}"),
            };
            let of = conditions(&said.conditions);
            writeln!(text, "{kind} {name}:{of}{sets}").unwrap();
        }
        for part in &said.parts {
            let attached = match part.attached {
                0 => String::new(),
                count => format!(" ({count})"),
            };
            let of = conditions(&part.conditions);
            if part.name.starts_with("listener ") {
                let kinds = match part.kinds.join(" ") {
                    none if none.is_empty() => "nothing".to_owned(),
                    kinds => kinds,
                };
                writeln!(text, "{kind} {name} {} takes {kinds}", part.name).unwrap();
            }
            writeln!(text, "{kind} {name} {}{attached}:{of}", part.name).unwrap();
        }
    }
    text
}

/// A case: a name, resources, and lines that the status must contain. Lines after `not` must begin no line of the
/// status.
const CASES: &str = include_str!("gateway_api.txt");

#[test]
fn every_resource_has_the_conditions_that_the_specification_wants() {
    let mut wrong = String::new();
    let cases: Vec<&str> = CASES.split("=== ").skip(1).collect();
    assert!(cases.len() >= 15, "the cases are missing");
    for case in cases {
        let (name, rest) = case.split_once('\n').unwrap();
        let (yaml, wanted) = rest.split_once(">>>\n").expect("a case has an answer");
        let (mesh, diagnostics) = check(&[SourceFile::new("mesh.yaml", yaml)], None);
        let errors: Vec<_> = diagnostics
            .into_iter()
            .filter(voile_model::Diagnostic::is_error)
            .collect();
        let found = shown(&mesh) + &render(&errors);
        for line in wanted.lines().filter(|line| !line.trim().is_empty()) {
            let wrong_one = match line.strip_prefix("not ") {
                Some(unsaid) => found.lines().any(|one| one.starts_with(unsaid)),
                None => !found.lines().any(|one| one == line),
            };
            if wrong_one {
                writeln!(wrong, "--- {name}\nwanted:\n{line}\nfound:\n{found}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

const DOOR: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: shop}
spec:
  gatewayClassName: voile
  infrastructure: {labels: {team: edge}, annotations: {note: kept}}
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: other, port: 8080, protocol: HTTP}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80, name: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: door}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
";

/// Pods of a cluster have an owner, and the Service in front of them is the deployer's or the users'.
#[test]
fn a_gateway_listens_where_the_service_before_its_pods_leads() {
    let pods = "
---
apiVersion: v1
kind: Pod
metadata:
  name: door-1
  namespace: shop
  uid: a
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: door, uid: b, controller: true}]
  labels: {gateway.networking.k8s.io/gateway-name: door}
  annotations: {inject.istio.io/templates: gateway}
spec: {containers: [{name: istio-proxy, image: voile}]}
status: {podIP: 10.0.0.9}
---
apiVersion: v1
kind: Service
metadata: {name: door-voile, namespace: shop}
spec:
  selector: {gateway.networking.k8s.io/gateway-name: door}
  ports: [{port: 80, name: http, targetPort: 9000}]
";
    let mesh = good(&format!("{DOOR}{pods}"));
    let mut listens = mesh.gateways.iter().map(|one| one.servers[0].listens);
    assert_eq!(listens.next(), Some(Port::new(9000)));
    // The Service does not have this port yet.
    assert_eq!(listens.next(), Some(None));
}

// The suite's GatewayInfrastructureMetadata.
#[test]
fn a_gateway_is_run_by_a_deployment_made_for_it_with_a_service_before_it() {
    let mesh = good(DOOR);
    let name: ResourceName = ResourceName::new(Namespace::new("shop").unwrap(), "door-voile");
    let made = &mesh.deployments[&name];
    assert!(made.template.is_gateway());
    let labels = &made.template.labels;
    assert_eq!(labels.get(GATEWAY_NAME), Some("door"));
    assert_eq!(labels.get("team"), Some("edge"));
    assert_eq!(made.template.annotations.get("note"), Some("kept"));
    let service = mesh
        .services
        .values()
        .find(|one| &*one.name == "door-voile");
    let ports = service.unwrap().ports.iter();
    let ports: Vec<_> = ports
        .map(|port| (port.number.get(), &port.target))
        .collect();
    // A privileged port is taken at a port of our own, and no two at one.
    let at = |number| TargetPort::Number(Port::new(number).unwrap());
    assert_eq!(ports, [(80, &at(8081)), (8080, &at(8080))]);
    let listens = mesh.gateways.iter().map(|one| {
        let server = &one.servers[0];
        (server.port.get(), server.listens.map(Port::get))
    });
    let listens: Vec<_> = listens.collect();
    assert_eq!(listens, [(80, Some(8081)), (8080, None)]);
    // Not that of another namespace with the same name.
    for (namespace, count) in [("shop", 2), ("other", 0)] {
        let namespace = Namespace::new(namespace).unwrap();
        assert_eq!(mesh.gateways_for(&namespace, labels).count(), count);
    }
}

#[test]
fn pods_that_somebody_wrote_for_a_gateway_take_the_place_of_a_deployment_of_its_own() {
    let own = "---
apiVersion: apps/v1
kind: Deployment
metadata: {name: edge, namespace: shop}
spec:
  selector: {matchLabels: {app: edge}}
  template:
    metadata: {labels: {app: edge, gateway.networking.k8s.io/gateway-name: door, sidecar.istio.io/inject: \"true\"}, annotations: {inject.istio.io/templates: gateway}}
    spec: {containers: [{name: istio-proxy}]}
---
apiVersion: v1
kind: Service
metadata: {name: edge, namespace: shop}
spec: {selector: {app: edge}, ports: [{name: http, port: 80, targetPort: 9080}, {name: http-other, port: 8080}]}
";
    let mesh = good(&(DOOR.to_owned() + own));
    let names = mesh.deployments.keys().map(|name| &*name.name);
    assert_eq!(names.collect::<Vec<_>>(), ["edge"]);
    // It listens at the target port of its Service.
    let listens = mesh
        .gateways
        .iter()
        .map(|one| one.servers[0].listens.map(Port::get));
    assert_eq!(listens.collect::<Vec<_>>(), [Some(9080), None]);
}

#[test]
fn clients_of_a_namespace_have_their_own_routes_of_a_service_before_those_of_all() {
    let routes = "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: consumer, namespace: other}
spec:
  parentRefs: [{group: '', kind: Service, name: web, namespace: shop}]
  rules: [{filters: [{type: RequestRedirect, requestRedirect: {hostname: a.example}}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: producer, namespace: shop, creationTimestamp: '2020-01-01T00:00:00Z'}
spec:
  parentRefs: [{group: '', kind: Service, name: web}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
";
    let mesh = good(&(DOOR.to_owned() + routes));
    let routing = voile_model::mesh::Routing::new(&mesh);
    let web = mesh
        .services
        .values()
        .find(|one| &*one.name == "web")
        .unwrap();
    let all = routing.of(web);
    let holds = |namespace: Option<&str>| {
        let namespace = namespace.map(|name| Namespace::new(name).unwrap());
        let one = voile_model::mesh::holding(&all, web, namespace.as_ref()).unwrap();
        (
            one.visibility == Visibility::Public,
            one.http[0].answer.is_some(),
        )
    };
    assert_eq!(holds(None), (true, false));
    assert_eq!(holds(Some("shop")), (true, false));
    assert_eq!(holds(Some("other")), (false, true));
}

#[test]
fn a_service_that_comes_later_is_led_to_and_one_that_goes_is_not() {
    let before = DOOR.replace(
        "metadata: {name: web, namespace: shop}\nspec: {ports",
        "metadata: {name: late, namespace: shop}\nspec: {ports",
    );
    let mut checker = check::Checker::default();
    let file = |text: &str| Arc::new(SourceFile::new("mesh.yaml", text));
    let mut mesh = None;
    for (text, led) in [(DOOR, true), (&*before, false), (DOOR, true)] {
        let outcome = checker.check(&[file(text)], mesh.as_mut());
        if let check::CheckOutcome::Whole(whole, _) = outcome {
            mesh = Some(*whole);
        }
        let mesh = mesh.as_ref().unwrap();
        let mut leads = mesh
            .virtual_services
            .iter()
            .flat_map(|one| one.destinations());
        assert_eq!(leads.all(|to| to.nowhere.is_none()), led, "{text}");
    }
}

// The suite's GatewayModifyListeners.
#[test]
fn listeners_that_are_added_and_taken_away_are_said_and_counted() {
    let listener = "  - {name: other, port: 8080, protocol: HTTP}\n";
    let hosted = "  - {name: other, port: 8080, protocol: HTTP, hostname: data.example}\n";
    let fewer = DOOR.replace(listener, "");
    let renamed = DOOR.replace(listener, hosted);
    let mut checker = check::Checker::default();
    let file = |text: &str| Arc::new(SourceFile::new("mesh.yaml", text));
    let mut mesh = None;
    for (text, other) in [
        (&*fewer, None),
        (DOOR, Some("*")),
        (&*renamed, Some("data.example")),
        (&*fewer, None),
    ] {
        let outcome = checker.check(&[file(text)], mesh.as_mut());
        if let check::CheckOutcome::Whole(whole, _) = outcome {
            mesh = Some(*whole);
        }
        let mesh = mesh.as_ref().expect("a mesh");
        let said = shown(mesh);
        let line = |name: &str| {
            let good = "Accepted Programmed ResolvedRefs Conflicted=false:NoConflicts";
            let wanted = format!("Gateway shop/door listener {name} (1): {good}");
            said.lines().any(|line| line == wanted)
        };
        assert!(line("http"), "{said}");
        assert_eq!(line("other"), other.is_some(), "{said}");
        // The status matches the listening servers.
        let servers = mesh.gateways.iter().map(|one| &one.servers[0]);
        let found = servers.filter(|server| server.port.get() == 8080);
        let found: Vec<_> = found.map(|server| server.hosts[0].host.as_str()).collect();
        assert_eq!(found, other.as_slice());
    }
}

#[test]
fn routes_of_connections_of_a_service_are_for_their_names_and_port() {
    let route = |kind: &str, name: &str, namespace: &str, rest: &str| {
        format!(
            "---\n{{apiVersion: gateway.networking.k8s.io/v1, kind: {kind}, metadata: {{name: {name}, namespace: {namespace}}}, spec: {{parentRefs: [{{group: \"\", kind: Service, name: db, namespace: shop{rest}, rules: [{{backendRefs: [{{name: db, namespace: shop, port: 443}}]}}]}}}}\n"
        )
    };
    let text = "{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {ports: [{name: tls, port: 443}, {name: tcp, port: 444}]}}\n".to_owned()
        + &route("TLSRoute", "names", "shop", ", port: 443}], hostnames: [a.example, \"*.b.example\"]")
        + &route("TCPRoute", "bytes", "shop", ", port: 444}]")
        + &route("TCPRoute", "own", "far", "}]");
    let mesh = good(&text);
    let [own, all] = mesh.virtual_services.as_slice() else {
        panic!("{:?}", mesh.virtual_services);
    };
    assert!(all.http.is_empty() && own.http.is_empty() && own.tls.is_empty());
    assert_eq!(
        own.visibility,
        Visibility::Namespaces(vec![Namespace::new("far").expect("a name")])
    );
    let said = |matches: &[voile_model::mesh::Criteria]| {
        let one = |criteria: &voile_model::mesh::Criteria| format!("{criteria:?}");
        matches.iter().map(one).collect::<String>()
    };
    let names = said(&all.tls[0].matches);
    for part in ["a.example", "*.b.example", "443"] {
        assert!(names.contains(part), "{names}");
    }
    assert!(all.tls[0].matches[0].contains_key(&Subject::SniHosts));
    let bytes = said(&all.tcp[0].matches);
    assert!(
        bytes.contains("444") && !bytes.contains("SniHosts"),
        "{bytes}"
    );
    // Without a port it is for all of them.
    assert!(own.tcp[0].matches.is_empty());
}

#[test]
fn a_policy_of_tls_to_backends_leaves_what_else_is_said_of_the_service() {
    let text = "
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {ports: [{name: a, port: 443}, {name: b, port: 444}]}}
---
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: db, namespace: shop}, spec: {host: db, trafficPolicy: {tls: {mode: DISABLE}, connectionPool: {tcp: {maxConnections: 7}}}, subsets: [{name: new, labels: {version: v2}, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: BackendTLSPolicy, metadata: {name: db, namespace: shop}, spec: {targetRefs: [{group: \"\", kind: Service, name: db, sectionName: a}], validation: {hostname: db.example, wellKnownCACertificates: System}}}
";
    let mesh = good(text);
    let service = mesh.services.values().next().expect("a service");
    let rule = mesh
        .destination_rule(service, RuleClient::default())
        .expect("a rule");
    let port = |number: u16| Port::new(number).expect("a port");
    for part in [None, Some("new")] {
        let traffic = rule.traffic(port(443), part);
        assert_eq!(traffic.pool.max_connections, Some(7));
        let Some(ClientTls::Originate(origin)) = traffic.tls else {
            panic!("{part:?}: {:?}", traffic.tls);
        };
        assert_eq!(origin.server_name.as_deref(), Some("db.example"));
        assert_eq!(origin.authorities, Authorities::System);
        // The other port is spoken to as before.
        let other = rule.traffic(port(444), part).tls;
        assert!(
            matches!(other, Some(ClientTls::Disable | ClientTls::Mutual(_))),
            "{other:?}"
        );
    }
}

/// The authorities that callers of the one Service trust, given its policy and the resource that the policy refers to.
fn believed(policy: &str, map: &str) -> Option<Authorities> {
    let service = "{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {ports: [{name: a, port: 443}]}}";
    let policy = format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: BackendTLSPolicy, metadata: {{name: db, namespace: shop}}, spec: {{targetRefs: [{{group: \"\", kind: Service, name: db}}], validation: {policy}}}}}"
    );
    let files = [("a", service), ("b", &policy), ("c", map)];
    let files = files.map(|(name, text)| SourceFile::new(name, text));
    spoken(&check(&files, None).0)
}

fn spoken(mesh: &Mesh) -> Option<Authorities> {
    let service = mesh.services.values().next().expect("a service");
    let port = Port::new(443).expect("a port");
    match mesh
        .destination_rule(service, RuleClient::default())?
        .traffic(port, None)
        .tls?
    {
        ClientTls::Originate(origin) => Some(origin.authorities.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_policy_of_tls_to_backends_that_cannot_be_obeyed_believes_nobody() {
    let by =
        "{hostname: db.example, caCertificateRefs: [{group: \"\", kind: ConfigMap, name: ca}]}";
    let map = |text: &str| {
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: ca, namespace: shop}}, data: {{ca.crt: \"{text}\"}}}}"
        )
    };
    let pem = "-----BEGIN CERTIFICATE-----";
    let nobody = Some(Authorities::Pem([].into()));
    let somebody = Some(Authorities::Pem(format!("{pem}\n").as_bytes().into()));
    assert_eq!(believed(by, &map(pem)), somebody);
    for (policy, map) in [
        (by, String::new()),
        (by, map("no PEM")),
        (
            "{hostname: db.example, wellKnownCACertificates: mine}",
            String::new(),
        ),
        // Unreadable policies.
        (
            "{hostname: \"*.example\", wellKnownCACertificates: System}",
            String::new(),
        ),
        (
            "{hostname: db.example, wellKnownCACertificates: System, surprise: 1}",
            String::new(),
        ),
    ] {
        assert_eq!(believed(policy, &map), nobody, "{policy} {map}");
    }
}

#[test]
fn authorities_that_are_written_anew_are_not_patched_past_their_policies() {
    let base = "{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {ports: [{name: a, port: 443}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: BackendTLSPolicy, metadata: {name: db, namespace: shop}, spec: {targetRefs: [{group: \"\", kind: Service, name: db}], validation: {hostname: db.example, caCertificateRefs: [{group: \"\", kind: ConfigMap, name: ca}]}}}
";
    let map = |text: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: ca, namespace: shop}}, data: {{ca.crt: \"-----BEGIN CERTIFICATE-----{text}\"}}}}"
        );
        Arc::new(SourceFile::new("map", &text))
    };
    let base = Arc::new(SourceFile::new("base", base));
    let mut checker = check::Checker::default();
    let check::CheckOutcome::Whole(mut mesh, problems) =
        checker.check(&[base.clone(), map("one")], None)
    else {
        panic!("there was nothing to patch");
    };
    assert!(problems.is_empty() && checker.is_plain(), "{problems:?}");
    let again = checker.check(&[base, map("two")], Some(&mut mesh));
    let check::CheckOutcome::Whole(mesh, _) = again else {
        panic!("patched");
    };
    let anew = "-----BEGIN CERTIFICATE-----two\n".as_bytes();
    assert_eq!(spoken(&mesh), Some(Authorities::Pem(anew.into())));
}

#[test]
fn a_gateway_between_networks_is_made_as_a_waypoint_is_where_it_is_our_own_networks() {
    for (network, made) in [("west", true), ("east", false)] {
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: istio-system, labels: {{topology.istio.io/network: west}}}}\n---\n\
             apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: gate, namespace: edge, labels: \
             {{topology.istio.io/network: {network}}}}}\nspec:\n  gatewayClassName: istio-east-west\n  listeners: [{{name: mesh, port: \
             15008, protocol: HBONE}}]\n"
        );
        let mesh = good(&text);
        let edge = Namespace::new("edge").expect("a name");
        let deployment = mesh.deployments.get(&ResourceName::new(edge, "gate"));
        assert_eq!(deployment.is_some(), made, "{network}");
        assert!(deployment.is_none_or(|one| one.template.is_waypoint()));
        let mut services = mesh.services.values();
        let service =
            services.find(|one| one.key.to_string() == "edge/gate.edge.svc.cluster.local");
        assert_eq!(service.is_some(), made, "{network}");
        let said = shown(&mesh);
        let accepted = match made {
            true => "Gateway edge/gate: Accepted Programmed=false:Pending",
            false => "Gateway edge/gate: Accepted=false:Invalid Programmed=false:Invalid",
        };
        assert!(said.lines().any(|line| line == accepted), "{said}");
    }
}

#[test]
fn a_port_of_a_service_of_which_a_consumer_says_nothing_is_led_as_the_producer_says() {
    let route = |name: &str, namespace: &str, port: u16, to: u16| {
        format!(
            "---\n{{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {{name: {name}, namespace: {namespace}}}, spec: {{parentRefs: [{{group: \"\", kind: Service, name: web, namespace: shop, port: {port}}}], rules: [{{backendRefs: [{{name: web, namespace: shop, port: {to}}}]}}]}}}}\n"
        )
    };
    let text = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{name: http-a, port: 80}, {name: http-b, port: 81}, {name: http-c, port: 82}]}}
---
{apiVersion: gateway.networking.k8s.io/v1beta1, kind: ReferenceGrant, metadata: {name: all, namespace: shop}, spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: far}], to: [{group: \"\", kind: Service}]}}
"
    .to_owned()
        + &route("consumer", "far", 80, 82)
        + &route("producer", "shop", 81, 82);
    let mesh = good(&text);
    let [consumer, producer] = mesh.virtual_services.as_slice() else {
        panic!("{:?}", mesh.virtual_services);
    };
    // Which port leads to which.
    let led = |one: &voile_model::mesh::VirtualService| -> Vec<(String, u16)> {
        let routes = one.http.iter().map(|route| {
            let called = format!("{:?}", route.matches[0].criteria[&Subject::Port]);
            let digits = called.chars().filter(char::is_ascii_digit).collect();
            let to = route.route[0].to.port.as_ref().expect("a port");
            (digits, to.0.get())
        });
        routes.collect()
    };
    let pairs = |all: &[(&str, u16)]| -> Vec<(String, u16)> {
        let owned = all.iter().map(|(called, to)| ((*called).to_owned(), *to));
        owned.collect()
    };
    assert_eq!(led(consumer), pairs(&[("80", 82), ("81", 82), ("82", 82)]));
    assert_eq!(led(producer), pairs(&[("81", 82), ("80", 80), ("82", 82)]));
}
