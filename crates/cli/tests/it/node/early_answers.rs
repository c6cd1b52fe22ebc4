//! Answers that come before the request's body is over, through node proxies and a waypoint.

use super::*;
use crate::captured::connect;
use crate::node::waypoint::hostile::started_with;
use crate::traffic::early_answers::{all_are_answered, refuse};

/// Services whose application refuses: behind the waypoint, and behind node proxies only. A policy of the waypoint's
/// refuses a path of the first.
const REFUSING: &str = r#"---
apiVersion: v1
kind: Service
metadata: {name: refusing, namespace: shop, labels: {istio.io/use-waypoint: gate}}
spec:
  clusterIP: 10.96.0.21
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8082}]
---
apiVersion: v1
kind: Service
metadata: {name: near, namespace: shop}
spec:
  clusterIP: 10.96.0.22
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8082}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: refusing, namespace: shop}
spec:
  targetRefs: [{group: "", kind: Service, name: refusing}]
  action: DENY
  rules: [{to: [{operation: {paths: [/denied]}}]}]
"#;

const REFUSED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 96, 0, 21)), 80);
const NEAR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 96, 0, 22)), 80);

#[test]
fn through_a_waypoint_an_uploader_reads_the_early_answer() {
    let Some((_mesh, _node, [client, first, _gate])) = started_with(REFUSING) else {
        return;
    };
    refuse(listen(&first.inside, (FIRST, 8082)));
    let asked = |to: SocketAddr, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let mut stream = connect(&client.inside, to);
        let mut answer = String::new();
        let written = stream.write_all(request.as_bytes());
        written
            .and_then(|()| stream.read_to_string(&mut answer))
            .ok();
        answer
    };
    wait_until("both services", || {
        asked(REFUSED, "/").contains(" 413 ")
            && asked(REFUSED, "/denied").contains(" 403 ")
            && asked(NEAR, "/").contains(" 413 ")
    });
    let to = |to: SocketAddr| connect(&client.inside, to);
    all_are_answered("the waypoint", ("/denied", "", 403), || to(REFUSED));
    all_are_answered("behind node proxies", ("/", "", 413), || to(NEAR));
    all_are_answered("behind a waypoint", ("/", "", 413), || to(REFUSED));
}
