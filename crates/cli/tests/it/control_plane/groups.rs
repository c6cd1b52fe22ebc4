//! An undeclared workload, as a virtual machine would be: it joins by its WorkloadGroup, takes traffic, falls sick, takes none,
//! recovers, outlives a control plane and leaves. A workload without the right to join gets the reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::mesh::{
    Client, Mesh, Process, application, free_port, get, local, start_control, wait_until,
    write_private,
};

/// Port of both applications. The server's Sidecar sets it for all workloads with its label.
const APP_PORT: u16 = 18080;
/// Which of the mesh's addresses is the machine's.
const MACHINE: u8 = 3;

/// Calls that must all have the same answer before it counts as the only one: with two endpoints by turns or by chance, so many in
/// a row are of one once in a thousand million times.
const IN_A_ROW: usize = 30;

fn group() -> String {
    format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: vm, namespace: shop}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {{name: vm, namespace: shop}}\n\
         spec:\n  metadata: {{labels: {{app: server, version: v2}}}}\n  template: {{serviceAccount: vm, locality: r/z}}\n\
         \x20 probe: {{httpGet: {{path: /healthz, port: {APP_PORT}}}, periodSeconds: 1, failureThreshold: 1}}\n"
    )
}

/// Answers with its name, and says that it is well while it is.
fn machine(mesh: &Mesh, last: u8, name: &'static str) -> Arc<AtomicBool> {
    let well = Arc::new(AtomicBool::new(true));
    let is_well = Arc::clone(&well);
    let listener = std::net::TcpListener::bind(mesh.address(last, APP_PORT)).expect("an address");
    application::serve(listener, move |stream| {
        let mut reader = std::io::BufReader::new(stream);
        while let Some((head, _)) = application::read_request(&mut reader) {
            let sick = head.starts_with("GET /healthz") && !is_well.load(Ordering::Relaxed);
            let status = if sick {
                "503 Service Unavailable"
            } else {
                "200 OK"
            };
            let length = name.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{name}");
            if std::io::Write::write_all(reader.get_mut(), answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    well
}

/// A sidecar that joins.
fn join(mesh: &Mesh, account: &str, last: u8, control: &[u16]) -> Process {
    let state = mesh.state();
    let printed = Process::output(|voile| {
        voile.args(["token", "create", "--service-account", account]);
        voile.arg("--state").arg(&state);
    });
    assert!(printed.status.success());
    let token = state.join(format!("{last}-{}.token", account.replace('/', "-")));
    write_private(&token, &printed.stdout);
    Process::start("machine", |voile| {
        voile.args(["proxy", "--workload-group", "shop/vm"]);
        voile.args(["--address", &mesh.address(last, 0).ip().to_string()]);
        for port in control {
            voile.args(["--control", &format!("https://127.0.0.1:{port}")]);
        }
        voile.arg("--root-cert").arg(state.join("root-cert.pem"));
        voile.arg("--token-file").arg(&token);
        for page in ["--admin", "--metrics", "--readiness"] {
            voile.args([page, &local(free_port()).to_string()]);
        }
    })
}

/// Name of the application that answers a call of the client.
fn answer(mesh: &Mesh) -> String {
    match get(mesh.http(), "/") {
        Ok(answer) => format!(
            "{} {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        ),
        Err(error) => error.to_string(),
    }
}

fn answers_only(mesh: &Mesh, name: &str) -> bool {
    let wanted = format!("200 {name}");
    (0..IN_A_ROW).all(|_| answer(mesh) == wanted)
}

/// The entries that the state directory holds.
fn entries(mesh: &Mesh) -> Vec<Value> {
    let folder = std::fs::read_dir(mesh.state().join("workloads"));
    let files = folder.expect("the folder of entries").flatten();
    let files = files.filter(|file| file.path().extension().is_some_and(|is| is == "json"));
    let read =
        |file: std::fs::DirEntry| serde_json::from_slice(&std::fs::read(file.path()).ok()?).ok();
    files.filter_map(read).collect()
}

fn members(monitoring: u16) -> Value {
    let page = get(local(monitoring), "/debug/status");
    let page: Option<Value> = page
        .ok()
        .and_then(|page| serde_json::from_slice(&page.body).ok());
    page.map(|page| page["workload_groups"][0]["members"].clone())
        .unwrap_or_default()
}

fn started(grace: &str) -> Mesh {
    let how = Client {
        control: vec!["--workload-grace".to_owned(), grace.to_owned()],
        ..Client::default()
    };
    let mesh = Mesh::start_as("STRICT", &how);
    std::fs::write(mesh.config().join("group.yaml"), group()).expect("the group");
    mesh
}

#[test]
fn a_machine_joins_takes_traffic_while_it_is_well_and_leaves() {
    let mesh = started("300ms");
    let monitoring = mesh.monitoring().port();
    machine(&mesh, 2, "pod");
    let well = machine(&mesh, MACHINE, "machine");
    wait_until("the pod answers", || answers_only(&mesh, "pod"));
    let xds = mesh.management()[0].port();
    let mut sidecar = join(&mesh, "shop/vm", MACHINE, &[xds]);
    wait_until("the machine answers", || answer(&mesh) == "200 machine");
    let [entry] = &entries(&mesh)[..] else {
        panic!("one entry: {:?}", entries(&mesh));
    };
    let address = mesh.address(MACHINE, 0).ip().to_string();
    assert_eq!(entry["metadata"]["name"], format!("vm-{address}"));
    assert_eq!(entry["spec"]["address"], address);
    assert_eq!(entry["spec"]["serviceAccount"], "vm");
    assert_eq!(entry["spec"]["locality"], "r/z");
    wait_until("the status page shows it", || {
        let members = members(monitoring);
        members[0]["healthy"] == true && members[0]["address"] == address
    });

    well.store(false, Ordering::Relaxed);
    wait_until("who is sick takes no traffic", || {
        answers_only(&mesh, "pod")
    });
    // An endpoint with bad answers takes no traffic even before its entry reports it as sick.
    let mut told = Value::Null;
    wait_until("its entry says that it is sick", || {
        told = entries(&mesh)[0]["status"]["conditions"][0].clone();
        told["status"] == "False"
    });
    assert_eq!(told["type"], "Healthy");
    assert!(
        told["message"].as_str().unwrap_or("").contains("503"),
        "{told}"
    );
    wait_until("the status page shows that", || {
        members(monitoring)[0]["healthy"] == false
    });
    well.store(true, Ordering::Relaxed);
    wait_until("who is well again takes traffic", || {
        answer(&mesh) == "200 machine"
    });

    sidecar.kill();
    wait_until("who is gone has left", || entries(&mesh).is_empty());
    wait_until("and is not called", || answers_only(&mesh, "pod"));
    let sidecar = join(&mesh, "shop/vm", MACHINE, &[xds]);
    wait_until("who left may come back", || answer(&mesh) == "200 machine");
    std::fs::remove_file(mesh.config().join("group.yaml")).expect("the group is there");
    wait_until("without its group it is not in the mesh", || {
        entries(&mesh).is_empty()
    });
    wait_until("nor called", || answers_only(&mesh, "pod"));
    drop(sidecar);
}

#[test]
fn whoever_may_not_join_is_told_why_and_is_not_in_the_mesh() {
    let mesh = started("10s");
    let xds = mesh.management()[0].port();
    let refused = |account: &str, last: u8, why: &str| {
        let sidecar = join(&mesh, account, last, &[xds]);
        wait_until(why, || sidecar.log().contains(why));
        assert_eq!(entries(&mesh), Vec::<Value>::new());
    };
    refused(
        "shop/server",
        MACHINE,
        "is for service account vm, not for server",
    );
    refused(
        "other/vm",
        MACHINE,
        "spiffe://cluster.local/ns/other/sa/vm is in another namespace",
    );
    refused(
        "shop/vm",
        2,
        "is the address of Kubernetes//Pod/shop/server",
    );
    std::fs::remove_file(mesh.config().join("group.yaml")).expect("the group is there");
    refused("shop/vm", MACHINE, "WorkloadGroup shop/vm does not exist");
}

#[test]
fn a_machine_outlives_the_control_plane_that_took_it_in() {
    let mut mesh = started("1s");
    let other = [free_port(), free_port(), free_port()];
    let folder = mesh
        .config()
        .parent()
        .expect("the mesh's folder")
        .to_owned();
    let second = start_control(
        &folder,
        other,
        None,
        &["--workload-grace".to_owned(), "1s".to_owned()],
    );
    machine(&mesh, MACHINE, "machine");
    let xds = mesh.management()[0].port();
    let sidecar = join(&mesh, "shop/vm", MACHINE, &[xds, other[0]]);
    let is_well = |monitoring| members(monitoring)[0]["healthy"] == true;
    wait_until("both know it", || {
        is_well(mesh.monitoring().port()) && is_well(other[2])
    });
    let holder = |mesh: &Mesh| {
        let held = entries(mesh);
        held.first()
            .map(|entry| entry["metadata"]["annotations"]["istio.io/workloadController"].clone())
    };
    let first = holder(&mesh);
    // Either control plane may hold the member at first; the second holds it at the end.
    mesh.kill_control();
    wait_until("the other holds it, and it is well", || {
        let held: Value = get(local(other[2]), "/metrics").map_or(Value::Null, |page| {
            let text = String::from_utf8_lossy(&page.body).into_owned();
            crate::mesh::series(&text, "voile_control_joined_workloads", &[]).into()
        });
        held == 1.0 && is_well(other[2])
    });
    assert!(first.is_some() && holder(&mesh).is_some());
    drop((sidecar, second));
}
