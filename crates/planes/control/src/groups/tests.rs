//! Tests of decisions about joining, without files or a clock, and of documents: a member's document means the
//! same as its group.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant, SystemTime};

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::sync::oneshot;
use voile_identity::CallerProof;
use voile_model::mesh::{Mesh, WorkloadGroup};
use voile_model::{SourceFile, check};
use voile_proto::discovery::{Locality, Node};

use super::claim::Claim;
use super::entry::GroupDocument;
use super::members::{CALM, MAX_MEMBERS, MemberAction, MemberList};
use super::quota::{JOIN_BURST, JOINS_PER_SECOND, MAX_MEMBERS_OF_GROUP, MAX_MEMBERS_OF_IDENTITY};
use super::registrar::ORPHANED;
use crate::snapshot::SnapshotCaller;
use crate::translate::translate;

const GRACE: Duration = Duration::from_secs(10);

const MESH: &str = r#"
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: vm, namespace: shop, labels: {of: the-group}}
spec:
  metadata: {labels: {version: v2}, annotations: {note: hello}}
  template:
    serviceAccount: vm
    labels: {app: echo, version: v1}
    ports: {http: 8080}
    network: far
    weight: 7
  probe: {tcpSocket: {port: 8080}, periodSeconds: 5}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: near, namespace: shop}
spec: {template: {serviceAccount: vm, locality: r/z}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata:
  name: routed
  namespace: shop
  annotations: {voile.dev/member-addresses: "10.20.0.0/16, fd00:20::/32"}
spec: {template: {serviceAccount: vm}}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop}
spec: {clusterIP: 10.9.0.1, selector: {app: echo}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Pod
metadata: {name: echo-1, namespace: shop, labels: {app: echo}}
spec: {containers: [{name: app, image: none}]}
status: {podIP: 10.0.0.5}
"#;

fn mesh(more: &str) -> Mesh {
    let files = [
        SourceFile::new("mesh.yaml", MESH),
        SourceFile::new("more.json", more),
    ];
    let (mesh, diagnostics) = check(&files, None);
    assert!(
        !diagnostics.iter().any(voile_model::Diagnostic::is_error),
        "{diagnostics:?}"
    );
    mesh
}

fn caller(identity: &str, pod: Option<&str>) -> SnapshotCaller {
    SnapshotCaller::Known(voile_identity::AuthenticatedCaller {
        identity: format!("spiffe://cluster.local/ns/{identity}")
            .parse()
            .expect("an identity"),
        pod: pod.map(str::to_owned),
        proof: CallerProof::Token,
        until: SystemTime::now(),
        certificates: Box::default(),
    })
}

fn node(id: &str, said: &[(&str, &str)]) -> Node {
    let value = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let fields = said.iter();
    Node {
        id: id.to_owned(),
        metadata: Some(Struct {
            fields: fields
                .map(|(key, text)| ((*key).to_owned(), value(text)))
                .collect(),
        }),
        locality: Some(Locality {
            region: "here".to_owned(),
            ..Locality::default()
        }),
        ..Node::default()
    }
}

const GROUP: (&str, &str) = ("AUTO_REGISTER_GROUP", "vm");
const NEAR: (&str, &str) = ("AUTO_REGISTER_GROUP", "near");

fn named(address: &str) -> String {
    format!("sidecar~{address}~x.shop~shop.svc.cluster.local")
}

/// Outcome of a claim from the address that it claims: the member's name, or the reason of the refusal.
fn claimed(caller: &SnapshotCaller, address: &str, said: &[(&str, &str)]) -> String {
    let listed = said.iter().find(|(key, _)| *key == "INSTANCE_IPS");
    let own = listed.and_then(|(_, list)| list.split(',').next());
    claimed_from(caller, own.unwrap_or(address).parse().ok(), address, said)
}

/// The same of who connects from another.
fn claimed_from(
    caller: &SnapshotCaller,
    peer: Option<IpAddr>,
    address: &str,
    said: &[(&str, &str)],
) -> String {
    let (snapshot, _) = translate(&mesh(""), None);
    let claim = match Claim::of(caller, peer, &node(&named(address), said)) {
        None => return "joins nothing".to_owned(),
        Some(Err(refusal)) => return refusal.message().to_owned(),
        Some(Ok(claim)) => claim,
    };
    match claim.check(caller, &snapshot) {
        Ok(()) => claim.member(),
        Err(refusal) => refusal.message().to_owned(),
    }
}

#[test]
fn a_claim_is_good_for_whom_the_group_is_and_for_an_address_that_is_free() {
    let vm = caller("shop/sa/vm", None);
    assert_eq!(claimed(&vm, "10.0.0.7", &[]), "joins nothing");
    let listed = [
        GROUP,
        ("INSTANCE_IPS", "10.0.0.8,fe80::1"),
        ("NAMESPACE", "shop"),
    ];
    for (address, said, member) in [
        ("10.0.0.7", &[GROUP][..], "vm-10.0.0.7"),
        ("fd00::7", &[GROUP], "vm-fd00-0-0-0-0-0-0-7"),
        ("::ffff:10.0.0.7", &[GROUP], "vm-10.0.0.7"),
        // The same address in another network is another host's.
        ("10.0.0.5", &[GROUP], "vm-10.0.0.5"),
        ("0.0.0.0", &listed, "vm-10.0.0.8"),
    ] {
        assert_eq!(claimed(&vm, address, said), member);
    }
    let bound = caller("shop/sa/vm", Some("vm-10.0.0.7"));
    assert_eq!(claimed(&bound, "10.0.0.7", &[GROUP]), "vm-10.0.0.7");
}

#[test]
fn a_claim_that_is_not_good_is_refused_with_its_reason() {
    let vm = caller("shop/sa/vm", None);
    let other = caller("shop/sa/echo", None);
    let far = caller("bank/sa/vm", None);
    let bound = caller("shop/sa/vm", Some("vm-10.0.0.6"));
    let pod = "10.0.0.5 is the address of Kubernetes//Pod/shop/echo-1";
    let service = "10.9.0.1 is the address of shop/echo.shop.svc.cluster.local";
    let unknown = ("AUTO_REGISTER_GROUP", "vn");
    for (caller, address, said, why) in [
        (&vm, "10.0.0.5", &[NEAR][..], pod),
        (&vm, "10.9.0.1", &[NEAR], service),
        (&vm, "0.0.0.0", &[GROUP], "has an address"),
        (&vm, "ff02::1", &[GROUP], "not the address of a single host"),
        (
            &vm,
            "10.0.0.7",
            &[unknown],
            "WorkloadGroup shop/vn does not exist",
        ),
        (
            &vm,
            "10.0.0.7",
            &[GROUP, ("NAMESPACE", "bank")],
            "is in another namespace",
        ),
        (&other, "10.0.0.7", &[GROUP], "for service account vm, not"),
        (
            &far,
            "10.0.0.7",
            &[GROUP],
            "WorkloadGroup bank/vm does not exist",
        ),
        (&bound, "10.0.0.7", &[GROUP], "bound to pod vm-10.0.0.6"),
    ] {
        let refused = claimed(caller, address, said);
        assert!(refused.contains(why), "{address} {said:?}: {refused}");
    }
}

/// The mesh that is read from a member's document.
fn member(group: &str, health: Option<Result<(), String>>) -> (Mesh, GroupDocument) {
    let before = mesh("");
    let node = node(&named("10.0.0.7"), &[("AUTO_REGISTER_GROUP", group)]);
    let claim = Claim::of(
        &caller("shop/sa/vm", None),
        Some([10, 0, 0, 7].into()),
        &node,
    )
    .expect("a claim")
    .expect("a good one");
    let group = &before.workload_groups[&claim.group];
    let mut entry = GroupDocument::of(group, &claim, health.as_ref());
    entry.set_holder("0123456789abcdef");
    let text = entry.text();
    assert_eq!(
        GroupDocument::parse(&text).as_ref(),
        Some(&entry),
        "what is written is read again"
    );
    (mesh(std::str::from_utf8(&text).expect("text")), entry)
}

#[test]
fn a_members_document_says_what_its_group_says() {
    let (mesh, entry) = member("vm", Some(Ok(())));
    assert_eq!(entry.file(), "10.0.0.7@666172.json");
    let workload = mesh
        .workloads
        .values()
        .find(|one| one.group.is_some())
        .expect("the member");
    assert_eq!(workload.key.to_string(), "shop/vm-10.0.0.7");
    assert_eq!(workload.addresses, [IpAddr::from([10, 0, 0, 7])]);
    let labels: Vec<String> = workload
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    assert_eq!(
        labels,
        ["app=echo", "security.istio.io/tlsMode=istio", "version=v2"]
    );
    assert_eq!(
        (
            &*workload.service_account,
            &*workload.network,
            workload.weight
        ),
        ("vm", "far", Some(7))
    );
    assert_eq!(&*workload.locality, "here", "the group says nothing of it");
    assert!(workload.has_sidecar);
    let echo = mesh
        .services
        .values()
        .find(|one| &*one.name == "echo")
        .expect("the service");
    assert_eq!(mesh.workloads_of(echo).len(), 2);
    // The proxy is told how to probe its application.
    let (snapshot, _) = translate(&mesh, None);
    let private = snapshot
        .configurations
        .get("shop/vm-10.0.0.7")
        .expect("a configuration");
    let body = voile_xds::wire::ProxyConfiguration::decode(&private.resource.body).expect("good");
    let asked = body.health_probe.expect("a probe");
    assert_eq!(
        (asked.address, asked.probe.period),
        ([10, 0, 0, 7].into(), Duration::from_secs(5))
    );
    let (mesh, entry) = member("near", None);
    assert_eq!(entry.file(), "10.0.0.7.json");
    let workload = mesh
        .workloads
        .values()
        .find(|one| one.group.is_some())
        .expect("the member");
    assert_eq!(&*workload.locality, "r/z");
}

#[test]
fn who_is_asked_how_it_is_takes_traffic_only_once_it_said_that_it_is_well() {
    let sick = || Some(Err("no".to_owned()));
    for (group, health, ready) in [
        ("vm", None, false),
        ("vm", sick(), false),
        ("vm", Some(Ok(())), true),
        // Nobody asks: a complaint has no meaning.
        ("near", None, true),
        ("near", sick(), true),
    ] {
        let (mesh, _) = member(group, health.clone());
        let workload = mesh
            .workloads
            .values()
            .find(|one| one.group.is_some())
            .expect("the member");
        assert_eq!(workload.ready, ready, "{group} {health:?}");
    }
    let (_, mut silent) = member("vm", None);
    let (_, told) = member("vm", sick());
    silent.keep_health(&told);
    assert_eq!(
        silent, told,
        "who comes back and has not said otherwise is as it was"
    );
}

/// The group that a claim names.
pub(super) fn group_of(claim: &Claim) -> WorkloadGroup {
    WorkloadGroup::clone(&mesh("").workload_groups[&claim.group])
}

pub(super) fn claim(address: &str) -> Claim {
    let caller = caller("shop/sa/vm", None);
    Claim::of(
        &caller,
        address.parse().ok(),
        &node(&named(address), &[GROUP]),
    )
    .expect("a claim")
    .expect("a good one")
}

/// All that is to be done now; each document is written at once.
fn settled(roll: &mut MemberList, now: Instant) -> Vec<String> {
    let mut done = Vec::new();
    while let Some(act) = roll.next(now) {
        done.push(match act {
            MemberAction::Write(key) => {
                let health = roll.member(&key).and_then(|member| member.health.clone());
                let file = key.replace("shop/", "");
                roll.wrote(&key, Ok(Some(file)), now);
                format!("write {key} {health:?}")
            }
            MemberAction::Remove(file) => format!("remove {file}"),
            MemberAction::Look => {
                roll.looked(&BTreeSet::new(), None);
                "look".to_owned()
            }
        });
    }
    done
}

#[test]
fn who_has_no_stream_for_a_while_leaves_and_who_comes_back_in_time_stays() {
    let begin = Instant::now();
    let after = |seconds| begin + Duration::from_secs(seconds);
    let mut roll = MemberList::new(GRACE, begin);
    assert_eq!(settled(&mut roll, begin), ["look"]);
    assert_eq!(roll.due(), None, "nobody there, nothing to wait for");
    let (answer, mut answered) = oneshot::channel();
    roll.joins(1, claim("10.0.0.7"), answer, begin);
    assert_eq!(settled(&mut roll, begin), ["write shop/vm-10.0.0.7 None"]);
    assert!(matches!(answered.try_recv(), Ok(Ok(()))));
    // The second stream comes before the first ends, as when a proxy hands over.
    roll.joins(2, claim("10.0.0.7"), oneshot::channel().0, begin);
    roll.ended(1, after(1));
    settled(&mut roll, after(1));
    assert_eq!(settled(&mut roll, after(100)), Vec::<String>::new());
    roll.ended(2, after(100));
    assert_eq!(roll.due(), Some(after(110)));
    assert_eq!(settled(&mut roll, after(109)), Vec::<String>::new());
    roll.joins(3, claim("10.0.0.7"), oneshot::channel().0, begin);
    assert_eq!(
        settled(&mut roll, after(200)),
        ["write shop/vm-10.0.0.7 None"]
    );
    roll.ended(3, after(200));
    roll.ended(3, after(205));
    assert_eq!(settled(&mut roll, after(210)), ["remove vm-10.0.0.7"]);
    assert_eq!((roll.len(), roll.due()), (0, None));
}

#[test]
fn of_news_within_a_moment_only_the_last_is_written() {
    let begin = Instant::now();
    let mut roll = MemberList::new(GRACE, begin);
    assert_eq!(settled(&mut roll, begin), ["look"]);
    roll.joins(1, claim("10.0.0.7"), oneshot::channel().0, begin);
    roll.joins(2, claim("10.0.0.8"), oneshot::channel().0, begin);
    settled(&mut roll, begin);
    let calm = begin + CALM;
    for round in 0..100 {
        roll.is(
            1,
            if round % 2 == 0 {
                Ok(())
            } else {
                Err("no".to_owned())
            },
        );
    }
    // No member's stream.
    roll.is(9, Ok(()));
    assert_eq!(settled(&mut roll, begin), Vec::<String>::new());
    assert_eq!(roll.due(), Some(calm));
    assert_eq!(
        settled(&mut roll, calm),
        ["write shop/vm-10.0.0.7 Some(Err(\"no\"))"]
    );
    roll.is(1, Err("no".to_owned()));
    assert_eq!(
        settled(&mut roll, calm + CALM),
        Vec::<String>::new(),
        "that is no news"
    );
}

#[test]
fn who_is_refused_is_forgotten_and_who_is_in_is_written_again_when_its_file_is_gone() {
    let begin = Instant::now();
    let mut roll = MemberList::new(GRACE, begin);
    assert_eq!(settled(&mut roll, begin), ["look"]);
    let (answer, mut answered) = oneshot::channel();
    roll.joins(1, claim("10.0.0.7"), answer, begin);
    let refused = || Err(tonic::Status::permission_denied("no"));
    assert_eq!(
        roll.next(begin),
        Some(MemberAction::Write("shop/vm-10.0.0.7".to_owned()))
    );
    roll.wrote(&"shop/vm-10.0.0.7".to_owned(), refused(), begin);
    assert!(matches!(answered.try_recv(), Ok(Err(_))));
    assert_eq!(roll.len(), 0);

    roll.joins(2, claim("10.0.0.8"), oneshot::channel().0, begin);
    settled(&mut roll, begin);
    roll.others_changed(begin);
    let look = roll.due().expect("what others did is looked at");
    assert!(look <= begin + GRACE);
    // `settled` finds nothing there.
    assert_eq!(
        settled(&mut roll, look),
        ["look", "write shop/vm-10.0.0.8 None"]
    );
    // A disk that is full is tried again, and the member stays meanwhile.
    roll.groups_changed();
    assert_eq!(
        roll.next(look + CALM),
        Some(MemberAction::Write("shop/vm-10.0.0.8".to_owned()))
    );
    roll.wrote(&"shop/vm-10.0.0.8".to_owned(), refused(), look + CALM);
    let again = roll.due().expect("it is tried again");
    assert_eq!(settled(&mut roll, again), ["write shop/vm-10.0.0.8 None"]);
}

/// A member of shop/vm joins, or one of another group.
fn joins_as(
    roll: &mut MemberList,
    (group, account): (&str, &str),
    number: u32,
    now: Instant,
) -> oneshot::Receiver<Result<(), tonic::Status>> {
    let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number));
    let (answer, heard) = oneshot::channel();
    let one = claim("10.0.0.1");
    let claim = Claim {
        address,
        group: voile_model::ResourceName::new(one.group.namespace.clone(), group),
        account: account.into(),
        ..one
    };
    roll.joins(number.into(), claim, answer, now);
    heard
}

fn refusal(mut heard: oneshot::Receiver<Result<(), tonic::Status>>) -> Option<String> {
    let refused = heard
        .try_recv()
        .ok()?
        .expect_err("nobody is told yes at once");
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    Some(refused.message().to_owned())
}

#[test]
fn members_are_bounded_by_group_by_identity_and_in_all_until_somebody_leaves() {
    let begin = Instant::now();
    let mut roll = MemberList::new(GRACE, begin);
    let mut now = begin;
    let mut number = 0;
    let mut fill = |roll: &mut MemberList, group: &str, account: &str, now: &mut Instant| loop {
        *now += Duration::from_secs(1).div_f64(JOINS_PER_SECOND / 2.0);
        number += 1;
        if let Some(why) = refusal(joins_as(roll, (group, account), number, *now)) {
            return why;
        }
    };
    let full = fill(&mut roll, "a", "vm", &mut now);
    assert!(
        full.starts_with("WorkloadGroup shop/a: 5000 workloads of the group"),
        "{full}"
    );
    assert_eq!(roll.len(), MAX_MEMBERS_OF_GROUP);
    fill(&mut roll, "b", "vm", &mut now);
    let full = fill(&mut roll, "c", "vm", &mut now);
    assert!(full.contains("10000 workloads of vm"), "{full}");
    assert_eq!(roll.len(), MAX_MEMBERS_OF_IDENTITY);
    // Others join all the same, until all places are taken.
    fill(&mut roll, "d", "other", &mut now);
    let full = fill(&mut roll, "e", "other", &mut now);
    assert!(full.contains("20000 workloads"), "{full}");
    assert_eq!(roll.len(), MAX_MEMBERS);
    // A member that is present may open one more stream, and that stream waits for the document.
    assert_eq!(refusal(joins_as(&mut roll, ("a", "vm"), 1, now)), None);
    roll.ended(1, now);
    let later = now + GRACE;
    assert!(matches!(roll.next(later), Some(MemberAction::Write(_))));
    assert_eq!(roll.len(), MAX_MEMBERS - 1);
    assert_eq!(
        refusal(joins_as(&mut roll, ("a", "vm"), 1, later)),
        None,
        "there is room again"
    );
}

#[test]
fn joins_are_bounded_by_group_and_by_identity_and_a_whole_group_comes_back_in_time() {
    let begin = Instant::now();
    let mut roll = MemberList::new(GRACE, begin);
    let mut storm = |group: &str, account: &str, now: Instant| {
        // One address again and again: it is the number of joins that costs.
        let taken = |_: &u32| refusal(joins_as(&mut roll, (group, account), 7, now)).is_none();
        (0..10_000).filter(taken).count()
    };
    assert_eq!(storm("a", "vm", begin), JOIN_BURST as usize);
    assert_eq!(storm("b", "vm", begin), 0, "the identity has had its share");
    assert_eq!(storm("c", "other", begin), JOIN_BURST as usize);
    let later = begin + Duration::from_secs(2);
    assert_eq!(storm("a", "vm", later), 2 * JOINS_PER_SECOND as usize);
    // The products: nobody is orphaned since its group is large, and one credential leaves room for others.
    let back = JOIN_BURST + JOINS_PER_SECOND * ORPHANED.as_secs_f64();
    assert!(back >= MAX_MEMBERS_OF_GROUP as f64, "{back}");
    const { assert!(MAX_MEMBERS_OF_IDENTITY * 2 <= MAX_MEMBERS) };
    const { assert!(MAX_MEMBERS_OF_GROUP <= MAX_MEMBERS_OF_IDENTITY) };
}

#[test]
fn a_claim_is_for_the_address_of_the_connection_or_for_one_that_the_group_allows() {
    let vm = caller("shop/sa/vm", None);
    let routed = ("AUTO_REGISTER_GROUP", "routed");
    let own: IpAddr = [10, 0, 0, 9].into();
    for (address, said, expected) in [
        ("10.0.0.9", GROUP, "vm-10.0.0.9"),
        ("10.20.3.4", routed, "routed-10.20.3.4"),
        ("::ffff:10.20.3.4", routed, "routed-10.20.3.4"),
        ("fd00:20::1", routed, "routed-fd00-20-0-0-0-0-0-1"),
        (
            "10.20.3.4",
            GROUP,
            "is neither the address that the caller connects from (10.0.0.9)",
        ),
        ("10.21.0.1", routed, "nor in a range that the group allows"),
        ("93.184.216.34", GROUP, "nor in a range"),
        ("169.254.169.254", GROUP, "link-local"),
        ("127.0.0.1", GROUP, "loopback"),
    ] {
        let claimed = claimed_from(&vm, Some(own), address, &[said]);
        assert!(claimed.contains(expected), "{address}: {claimed}");
    }
    // A range that is taken out of the group takes its members along.
    let node = node(&named("10.20.3.4"), &[routed]);
    let claim = Claim::of(&vm, Some(own), &node)
        .expect("a claim")
        .expect("a good one");
    let mut group = group_of(&claim);
    assert!(claim.check_group(&group).is_ok());
    group.member_addresses.clear();
    assert!(claim.check_group(&group).is_err());
}
