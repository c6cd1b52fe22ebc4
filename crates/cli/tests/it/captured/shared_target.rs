//! Two ports of a service with one target port, one declared `http` and the other `grpc`: the server speaks both, and a
//! stream of gRPC is a conversation all the same.

use std::net::Ipv4Addr;

use bytes::Bytes;

use super::{Captured, connect, listen};
use crate::traffic::http2::{call, message, play};

/// The service's own address.
const MIXED: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 11);
const GRPC: u16 = 7002;
const TARGET: u16 = 7070;

/// Echoes every stream chunk by chunk.
async fn echo(listener: std::net::TcpListener) {
    listener.set_nonblocking(true).expect("open");
    let listener = tokio::net::TcpListener::from_std(listener).expect("open");
    while let Ok((stream, _)) = listener.accept().await {
        tokio::task::spawn_local(async move {
            let mut connection = h2::server::handshake(stream).await.expect("HTTP/2 comes");
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                tokio::task::spawn_local(async move {
                    let head = http::Response::new(());
                    let mut send = respond.send_response(head, false).expect("sent");
                    let mut body = request.into_body();
                    while let Some(Ok(chunk)) = body.data().await {
                        let flow = body.flow_control();
                        flow.release_capacity(chunk.len()).expect("released");
                        send.send_data(chunk, false).expect("sent");
                    }
                    send.send_data(Bytes::new(), true).expect("sent");
                });
            }
        });
    }
}

#[test]
fn a_grpc_stream_passes_where_another_port_with_its_target_is_declared_http() {
    let Some(mesh) = Captured::start("STRICT", "") else {
        return;
    };
    mesh.write(
        "mixed.yaml",
        &format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: mixed, namespace: shop}}\n\
             spec: {{clusterIP: {MIXED}, selector: {{app: server}}, ports: [\n\
             {{name: http, port: 7001, targetPort: {TARGET}}}, {{name: grpc, port: {GRPC}, targetPort: {TARGET}}}]}}\n"
        ),
    );
    // The client's sidecar asks when it is called.
    crate::mesh::wait_until("the server's sidecar knows the service", || {
        super::config_dump(&mesh.server).contains(&TARGET.to_string())
    });
    let listener = listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, TARGET));
    play(|| async {
        tokio::task::spawn_local(echo(listener));
        let stream = connect(&mesh.client, (MIXED, GRPC));
        stream.set_nonblocking(true).expect("open");
        let stream = tokio::net::TcpStream::from_std(stream).expect("open");
        let (client, connection) = h2::client::handshake(stream).await.expect("a preface");
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        let mut client = client.ready().await.expect("room");
        let (response, mut send) = client.send_request(call("/talk"), false).expect("sent");
        send.send_data(message("one"), false).expect("sent");
        let mut body = response.await.expect("an answer").into_body();
        for text in ["one", "two", "three"] {
            if text != "one" {
                send.send_data(message(text), false).expect("sent");
            }
            let got = body.data().await.expect("open").expect("a message");
            assert_eq!(got, message(text));
        }
    });
}
