//! Workloads of a Service without a selector: the endpoints of its slices, with all known properties.

use std::sync::Arc;

use voile_model::check::{CheckOutcome, Checker, MeshPatch};
use voile_model::mesh::{MeshService, WorkloadKind};
use voile_model::{Mesh, SourceFile};

use crate::good;

const SERVICE: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\n\
     spec: {clusterIP: 10.96.0.1, ports: [{name: tcp, port: 5432, targetPort: 1}, {name: http, port: 80}]}\n";
const POD: &str = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n\
     ---\napiVersion: v1\nkind: Pod\nmetadata: {name: db-0, namespace: shop}\n\
     spec: {serviceAccountName: keeper, containers: [{name: app, image: none}]}\nstatus: {podIP: 10.0.0.1, phase: Running}\n";
const ENTRY: &str = "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: shop}\n\
     spec: {address: 10.0.0.2, serviceAccount: vm, labels: {security.istio.io/tlsMode: istio}}\n";
const ELSEWHERE: &str = "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vault, namespace: bank}\n\
     spec: {address: 10.0.0.3}\n";

/// A slice of the Service with these ports and endpoints.
fn slice(name: &str, ports: &str, endpoints: &str) -> String {
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}, namespace: shop, labels: {{kubernetes.io/service-name: db}}}}\naddressType: IPv4\n\
         ports: [{ports}]\nendpoints: [{endpoints}]\n"
    )
}

fn db(mesh: &Mesh) -> &Arc<MeshService> {
    let mut services = mesh.services.values();
    services.find(|one| &*one.name == "db").unwrap()
}

/// `ADDRESS[!] as ACCOUNT of KIND: PORT-TARGET …`, a line for each member; `!` is not called, `+` has a sidecar.
fn members(mesh: &Mesh) -> Vec<String> {
    let all = mesh.workloads_of(db(mesh)).into_iter();
    let shown = all.map(|member| {
        let one = &member.workload;
        let at = one.addresses.first().map(ToString::to_string);
        let at = at.or_else(|| one.hostname.as_ref().map(ToString::to_string));
        let kind = match one.kind {
            WorkloadKind::Pod => "pod",
            WorkloadKind::WorkloadEntry => "entry",
            WorkloadKind::ServiceEntryEndpoint(_) => "endpoint",
            WorkloadKind::SliceEndpoint(_) => "stranger",
        };
        let ports = member
            .ports
            .iter()
            .map(|(port, to)| format!(" {port}-{to}"));
        format!(
            "{}{} {kind}{} {}:{}",
            at.unwrap(),
            if one.ready { "" } else { "!" },
            if one.has_sidecar { "+" } else { "" },
            one.service_account,
            ports.collect::<String>(),
        )
    });
    let mut shown: Vec<String> = shown.collect();
    shown.sort();
    shown
}

#[test]
fn whom_slices_name_is_what_is_known_of_the_address_and_a_stranger_otherwise() {
    let text = [POD, ENTRY, ELSEWHERE, SERVICE].concat();
    let all = "{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}, {addresses: [10.0.0.3]}, {addresses: [192.0.2.1]}, \
               {addresses: [127.0.0.1]}";
    let mesh = good(&(text + &slice("one", "{name: tcp, port: 6000}", all)));
    // Neither the Service's target, nor a port that the slice does not have; neither another namespace's, nor each proxy's own.
    assert_eq!(
        members(&mesh),
        [
            "10.0.0.1 pod+ keeper: 5432-6000",
            "10.0.0.2 entry+ vm: 5432-6000",
            "192.0.2.1 stranger default: 5432-6000"
        ]
    );
    for member in mesh.workloads_of(db(&mesh)) {
        let services = mesh.services_of(&member.workload);
        assert_eq!(services.len(), 1);
        assert_eq!(services[0].ports, member.ports);
    }
    assert_eq!(mesh.endpoints_in_slices(db(&mesh)), 5);
}

#[test]
fn several_slices_are_put_together_by_address_and_the_readiest_word_counts() {
    let ready = |words: &str| format!("{{addresses: [192.0.2.1], conditions: {{{words}}}}}");
    let going = "ready: false, serving: true, terminating: true";
    let two = |one: &str, other: &str| {
        let text = slice("one", "{name: tcp, port: 1}", &ready(one))
            + &slice(
                "two",
                "{name: tcp, port: 2}, {name: http, port: 3}",
                &ready(other),
            );
        members(&good(&(SERVICE.to_owned() + &text)))
    };
    assert_eq!(
        two("", "ready: false"),
        ["192.0.2.1 stranger default: 80-3 5432-1"]
    );
    assert_eq!(
        two("ready: false", "ready: true"),
        ["192.0.2.1 stranger default: 80-3 5432-2"]
    );
    assert_eq!(
        two("ready: false", "ready: false, serving: true"),
        ["192.0.2.1! stranger default: 80-3 5432-1"]
    );
    // A terminating endpoint is called while no other is there.
    assert_eq!(
        two("ready: false", going),
        ["192.0.2.1 stranger default: 80-3 5432-2"]
    );
    let beside = ready(going) + ", {addresses: [192.0.2.2]}";
    let text = SERVICE.to_owned() + &slice("one", "{name: tcp, port: 1}", &beside);
    assert_eq!(
        members(&good(&text)),
        [
            "192.0.2.1! stranger default: 5432-1",
            "192.0.2.2 stranger default: 5432-1"
        ]
    );
}

#[test]
fn an_endpoint_that_is_to_be_a_pod_is_nobody_else() {
    let to_be = |pod: &str| {
        let endpoint = format!("{{addresses: [10.0.0.1], targetRef: {{kind: Pod, name: {pod}}}}}");
        let text = [SERVICE, &slice("one", "{name: tcp, port: 1}", &endpoint)].concat();
        (members(&good(&(text.clone() + POD))), members(&good(&text)))
    };
    let none: Vec<String> = Vec::new();
    let found = vec!["10.0.0.1 pod+ keeper: 5432-1".to_owned()];
    assert_eq!(to_be("db-0"), (found, none.clone()));
    assert_eq!(to_be("db-1"), (none.clone(), none));
}

#[test]
fn slices_count_where_a_service_selects_nobody_and_only_there() {
    let endpoints = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: db, namespace: shop}\n\
         subsets: [{addresses: [{ip: 192.0.2.1}, {ip: 10.0.0.1}], notReadyAddresses: [{ip: 192.0.2.2}], ports: [{name: tcp, port: 1}]}]\n";
    let mesh = good(&[endpoints, SERVICE, POD].concat());
    assert_eq!(
        members(&mesh),
        [
            "10.0.0.1 pod+ keeper: 5432-1",
            "192.0.2.1 stranger default: 5432-1",
            "192.0.2.2! stranger default: 5432-1"
        ]
    );
    let selecting = SERVICE.replace("spec: {", "spec: {selector: {app: db}, ");
    let mesh = good(&[endpoints, &selecting, POD].concat());
    assert!(members(&mesh).is_empty());
    assert_eq!(mesh.workloads.len(), 1);
    let headless = SERVICE.replace("10.96.0.1", "None");
    assert_eq!(members(&good(&[endpoints, &headless].concat())).len(), 3);
    let skipped = endpoints.replace(
        "namespace: shop}",
        "namespace: shop, labels: {endpointslice.kubernetes.io/skip-mirror: \"true\"}}",
    );
    assert!(members(&good(&[&skipped, SERVICE].concat())).is_empty());
    let named = slice(
        "one",
        "{name: tcp, port: 1}",
        "{addresses: [db.example.com]}",
    )
    .replace("IPv4", "FQDN");
    assert_eq!(
        members(&good(&[SERVICE, &named].concat())),
        ["db.example.com stranger default: 5432-1"]
    );
}

/// A mesh and its checker; each step replaces the text of the slices.
struct Kept {
    checker: Checker,
    mesh: Mesh,
    rest: Arc<SourceFile>,
}

impl Kept {
    fn new(rest: &str, slices: &str) -> Self {
        let mut checker = Checker::default();
        let rest = Arc::new(SourceFile::new("a.yaml", rest));
        let files = [rest.clone(), Arc::new(SourceFile::new("b.yaml", slices))];
        let CheckOutcome::Whole(mesh, problems) = checker.check(&files, None) else {
            panic!("nothing was there before");
        };
        assert_eq!(problems, []);
        Self {
            checker,
            mesh: *mesh,
            rest,
        }
    }

    /// The changes of the step.
    fn step(&mut self, slices: &str) -> MeshPatch {
        let files = [
            self.rest.clone(),
            Arc::new(SourceFile::new("b.yaml", slices)),
        ];
        let CheckOutcome::Patched(_, changes) = self.checker.check(&files, Some(&mut self.mesh))
        else {
            panic!("it is put together anew");
        };
        let (anew, _) = voile_model::check(&[(*files[0]).clone(), (*files[1]).clone()], None);
        assert!(self.mesh == anew, "{slices}");
        *changes
    }
}

/// The workloads that changes concern, by name.
fn concerned(changes: &MeshPatch) -> Vec<String> {
    assert!(!changes.everything && changes.routes.is_none() && changes.services.is_empty());
    changes
        .workloads
        .keys()
        .map(|key| key.name.to_string())
        .collect()
}

#[test]
fn an_endpoint_that_comes_or_goes_is_a_change_of_endpoints_and_of_nothing_else() {
    let route = "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: db, namespace: shop}\n\
         spec: {hosts: [db], http: [{route: [{destination: {host: db, port: {number: 80}}}]}]}\n";
    let rest = [POD, SERVICE, route].concat();
    let of = |endpoints: &str| slice("one", "{name: tcp, port: 1}", endpoints);
    let mut kept = Kept::new(&rest, &of("{addresses: [192.0.2.1]}"));
    let key = db(&kept.mesh).key.clone();
    let came = kept.step(&of("{addresses: [192.0.2.1]}, {addresses: [192.0.2.2]}"));
    assert_eq!(concerned(&came), ["db/slice/192.0.2.2"]);
    assert!(came.endpoints.contains(&key));
    // A known pod stays unchanged and gets one more service.
    let known = kept.step(&of("{addresses: [10.0.0.1]} , {addresses: [192.0.2.2]}"));
    assert_eq!(concerned(&known), ["db-0", "db/slice/192.0.2.1"]);
    assert_eq!(
        known.workloads.values().next().unwrap().0,
        known.workloads.values().next().unwrap().1
    );
    let gone = kept.step(&of("{addresses: [10.0.0.1], conditions: {ready: false}}"));
    assert_eq!(concerned(&gone), ["db-0", "db/slice/192.0.2.2"]);
    assert!(members(&kept.mesh).is_empty());
    let none = kept.step("");
    assert_eq!(concerned(&none), ["db-0"]);
    assert!(none.endpoints.contains(&key) && kept.mesh.endpoint_slices.is_empty());
}

#[test]
fn whoever_comes_to_an_address_that_slices_name_takes_the_strangers_place() {
    let rest = SERVICE.to_owned()
        + &slice(
            "one",
            "{name: tcp, port: 1}",
            "{addresses: [10.0.0.1]}, {addresses: [10.0.0.3]}",
        );
    let mut kept = Kept::new(&rest, "");
    assert_eq!(members(&kept.mesh).len(), 2);
    let entry = ELSEWHERE.replace("bank", "shop");
    let came = kept.step(&entry);
    assert_eq!(concerned(&came), ["db/slice/10.0.0.3", "vault"]);
    assert_eq!(
        members(&kept.mesh),
        [
            "10.0.0.1 stranger default: 5432-1",
            "10.0.0.3 entry default: 5432-1"
        ]
    );
    // A workload of another namespace is not called, and its removal frees the address.
    kept.step(ELSEWHERE);
    assert_eq!(members(&kept.mesh), ["10.0.0.1 stranger default: 5432-1"]);
    kept.step("");
    assert_eq!(members(&kept.mesh).len(), 2);
}
