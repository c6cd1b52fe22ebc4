//! The PROXY header that a DestinationRule wants, in a tunnel to a pod of a node proxy: the first that the application gets.

use super::mixed::sidecar;
use super::*;
use crate::captured::connect;
use crate::gateway::proxied::introduced;
use crate::mesh::application;

const SIDED: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 5);

const SIDECAR: &str = r#"---
apiVersion: v1
kind: ServiceAccount
metadata: {name: sided, namespace: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: sided, namespace: shop, labels: {app: sided, sidecar.istio.io/inject: "true"}}
spec: {serviceAccountName: sided, nodeName: one, containers: [{name: app}]}
status: {phase: Running, podIP: 10.244.0.5}
"#;

fn rule(version: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: server, namespace: shop}}\n\
         spec: {{host: server, trafficPolicy: {{proxyProtocol: {{version: {version}}}}}}}\n"
    )
}

#[test]
fn in_a_tunnel_the_header_is_the_first_that_the_application_gets() {
    let text = [&*resources(&[("first", FIRST)]), ZTUNNEL, SIDECAR].concat();
    let Some(mut mesh) = mesh(&text) else {
        return;
    };
    // Connections without a tunnel are refused.
    mesh.write("strict.yaml", STRICT);
    mesh.write("rule.yaml", &rule("V2"));
    let first = pod(&mesh, "first", FIRST);
    let sided = mesh.pod("sided", SIDED);
    sidecar(&mut mesh, &sided);
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &[(&first, "server")], &[]);
    application::serve(listen(&first.inside, (FIRST, APPLICATION)), |mut stream| {
        let said = introduced(&mut stream).unwrap_or_else(|| "nothing".to_owned());
        let mut byte = [0];
        // The client's own bytes follow the header.
        if stream.read_exact(&mut byte).is_ok() {
            let _ = stream.write_all(format!("{said} {}", char::from(byte[0])).as_bytes());
        }
    });
    let called = SocketAddr::from((VIP, 80));
    let heard = || {
        let mut stream = connect(&sided.inside, called);
        let own = stream.local_addr().expect("an address");
        let mut text = String::new();
        // A client whose connection is cut reads nothing.
        let _ = stream.write_all(b"x");
        let _ = stream.read_to_string(&mut text);
        (own, text)
    };
    for version in ["V2", "V1"] {
        mesh.write("rule.yaml", &rule(version));
        wait_until(version, || {
            let (own, text) = heard();
            text == format!("{version} {own} {called} x")
        });
    }
    wait_until("it came by a tunnel, by the sidecar's identity", || {
        let log = node.log(&mesh);
        log.lines().any(|line| {
            line.contains("direction=\"inbound\"")
                && line.contains("src.identity=\"spiffe://cluster.local/ns/shop/sa/sided\"")
        })
    });
}
