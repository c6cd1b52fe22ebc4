//! `examples/sticky` does what its page says, asked by curl as there.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::mesh::wait_until;
use crate::up::{Up, example};

/// Head of the answer to curl.
fn curl(at: SocketAddr, host: &str, more: &[&str]) -> String {
    let host = format!("Host: {host}");
    let mut command = Command::new("curl");
    command
        .args(["-si", "--max-time", "20", "-H", &host])
        .args(more);
    let output = command.arg(format!("http://{at}/")).output();
    String::from_utf8_lossy(&output.expect("curl is there").stdout).into_owned()
}

/// The status, and the pod that answered.
fn answer(head: &str) -> (String, String) {
    let status = head.split(' ').nth(1).unwrap_or_default();
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    let pod = lines.find(|(name, _)| name.eq_ignore_ascii_case("x-voile-echo"));
    (status.to_owned(), pod.map_or("", |(_, pod)| pod).to_owned())
}

fn gives_cookie(head: &str) -> bool {
    head.lines().any(|line| {
        let line = line.to_ascii_lowercase();
        line.starts_with("set-cookie: cart=")
            && line.contains("max-age=3600")
            && line.contains("path=/")
    })
}

/// Pods that answer a session of this cookie jar, in so many requests.
fn session(at: SocketAddr, jar: &Path, times: usize) -> BTreeSet<(String, String)> {
    let jar = jar.to_string_lossy();
    let ask = |_| answer(&curl(at, "cart.example", &["-c", &jar, "-b", &jar]));
    (0..times).map(ask).collect()
}

/// The pods that answer new sessions, each of which is answered.
fn anybody(at: SocketAddr, times: usize) -> BTreeSet<String> {
    let ask = |_| {
        let (status, pod) = answer(&curl(at, "cart.example", &[]));
        if status == "200" { pod } else { status }
    };
    (0..times).map(ask).collect()
}

#[test]
fn sessions_stay_at_their_pod_by_cookie_and_by_header_until_it_is_ill() {
    let mut up = Up::start(|folder| example("sticky", folder), &[]);
    let at = up.ready()["sticky/gateway"];
    let all = ["carts-v1-0", "carts-v1-1", "carts-v2-0"].map(str::to_owned);
    wait_until("all pods to answer", || {
        anybody(at, 30) == all.clone().into()
    });
    let folder = tempfile::tempdir().expect("a folder");
    // A session of each pod.
    let mut jars = Vec::new();
    while jars.len() < all.len() {
        let jar = folder.path().join(format!("jar-{}", jars.len()));
        let text = jar.to_string_lossy().into_owned();
        let first = curl(at, "cart.example", &["-c", &text]);
        assert!(gives_cookie(&first), "{first}");
        let (_, pod) = answer(&first);
        if jars.iter().any(|(_, known)| *known == pod) {
            continue;
        }
        let again = curl(at, "cart.example", &["-b", &text]);
        assert!(!gives_cookie(&again), "who has one is given none: {again}");
        assert_eq!(
            session(at, &jar, 5),
            BTreeSet::from([("200".to_owned(), pod.clone())])
        );
        jars.push((jar, pod));
    }
    let tenant = |name: &str| {
        let field = format!("x-tenant: {name}");
        answer(&curl(at, "tenant.example", &["-H", &field])).1
    };
    let tenants: Vec<String> = (0..12).map(|number| tenant(&number.to_string())).collect();
    let again: Vec<String> = (0..12).map(|number| tenant(&number.to_string())).collect();
    assert_eq!(tenants, again, "each has its pod");
    assert!(
        tenants.iter().collect::<BTreeSet<_>>().len() > 1,
        "{tenants:?}"
    );
    up.edit("carts.yaml", "size=17", "status=503");
    let others: BTreeSet<String> = all[..2].iter().cloned().collect();
    wait_until("the ill pod to take nothing", || {
        up.log("sticky.gateway-0.sidecar").contains("is unhealthy") && anybody(at, 30) == others
    });
    for (jar, pod) in &jars {
        let seen = session(at, jar, 5);
        let all_of_one = seen.len() == 1;
        let first = seen.first().expect("an answer");
        assert!(all_of_one && first.0 == "200", "{pod}: {seen:?}");
        assert!(others.contains(&first.1), "{pod}: {seen:?}");
    }
    // Another pod takes its place, at an address of its own: it has a share of all sessions, and each is at one pod.
    up.edit("carts.yaml", "status=503", "size=17");
    wait_until("the new pod to take its share", || {
        anybody(at, 15)
            .iter()
            .any(|pod| pod.starts_with("carts-v2"))
    });
    for (jar, _) in &jars {
        wait_until("each session to have its pod", || {
            let seen = session(at, jar, 5);
            seen.len() == 1 && seen.first().is_some_and(|first| first.0 == "200")
        });
    }
}
