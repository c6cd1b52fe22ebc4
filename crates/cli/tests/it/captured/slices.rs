//! A Service without a selector: EndpointSlices give its endpoints.

use std::io::{BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};

use super::{Captured, FAR, SERVER, connect, listen};
use crate::mesh::application::{read_request, serve};
use crate::mesh::{series, wait_until};

/// The Service's virtual address.
const SLICED: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 77);

const SERVICE: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: sliced, namespace: shop}\n\
     spec: {clusterIP: 10.96.0.77, ports: [{name: http, port: 80}]}\n";

/// The Service, and a slice with these endpoints.
fn with(endpoints: &str) -> String {
    format!(
        "{SERVICE}---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: sliced-1, namespace: shop, labels: {{kubernetes.io/service-name: sliced}}}}\naddressType: IPv4\n\
         ports: [{{name: http, port: 8080}}]\nendpoints: [{endpoints}]\n"
    )
}

/// Answers every request with a word.
fn answer(listener: TcpListener, word: &'static str) {
    serve(listener, move |stream| {
        let mut reader = BufReader::new(stream);
        while read_request(&mut reader).is_some() {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{word}",
                word.len()
            );
            if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
}

/// Name of the server that answers, or the status from the sidecar.
fn who(mesh: &Captured) -> String {
    let mut stream = connect(&mesh.client, (SLICED, 80));
    let request = b"GET / HTTP/1.1\r\nHost: sliced\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    let _ = stream
        .write_all(request)
        .and_then(|()| stream.read_to_string(&mut answer));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => body.to_owned(),
        other => other.unwrap_or_default().to_owned(),
    }
}

#[test]
fn who_slices_name_is_called_as_what_is_known_of_it() {
    let Some(mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
    else {
        return;
    };
    answer(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 8080)), "pod");
    answer(listen(&mesh.world, (FAR, 8080)), "stranger");
    let pod = format!("{{addresses: [{SERVER}]}}");
    let stranger = format!("{{addresses: [{FAR}]}}");
    // The pod takes nothing but mutual TLS.
    mesh.write("sliced.yaml", &with(&pod));
    wait_until("the pod to be called", || who(&mesh) == "pod");
    let secured = [
        "connection_security_policy=\"mutual_tls\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"",
    ];
    let metrics = mesh.metrics(&mesh.server);
    let counted = series(&metrics, "istio_requests_total", &secured);
    assert!(counted >= Some(1.0), "{metrics}");
    // The sidecar speaks plaintext to an endpoint that the mesh does not know.
    mesh.write("sliced.yaml", &with(&stranger));
    wait_until("the stranger to be called", || who(&mesh) == "stranger");
    let both = |condition: &str| {
        let pod = pod.replace('}', &format!(", conditions: {{ready: {condition}}}}}"));
        with(&format!("{pod}, {stranger}"))
    };
    mesh.write("sliced.yaml", &both("true"));
    wait_until("both to be called", || who(&mesh) == "pod");
    wait_until("both to be called", || who(&mesh) == "stranger");
    mesh.write("sliced.yaml", &both("false"));
    wait_until("nobody who is not ready to be called", || {
        (0..20).all(|_| who(&mesh) == "stranger")
    });
    // Another namespace's workload has this address now.
    mesh.write(
        "bank.yaml",
        &format!(
            "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: vault, namespace: bank}}\nspec: {{address: {FAR}}}\n"
        ),
    );
    wait_until("nobody of another namespace to be called", || {
        who(&mesh) == "503"
    });
    mesh.write("sliced.yaml", &with(&pod));
    wait_until("the pod to be called again", || who(&mesh) == "pod");
    mesh.write("sliced.yaml", SERVICE);
    wait_until("nobody to be there", || who(&mesh) == "503");
}
