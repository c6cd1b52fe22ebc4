//! A tunnel that the other proxy certainly did nothing with is asked for once more: who leaves says so on a connection that is in use.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use voile_identity::{CertificateStore, mesh_server_config};
use voile_transport::{TLS_HANDSHAKE_TIMEOUT, TcpIo, accept_tls};

use super::hostile::certified;
use super::*;

/// Another program in place of the server's proxy. It refuses so many tunnels unprocessed, and then sends a word in each. Returns
/// the number of tunnels that it was asked for.
fn takes_back(
    listener: TcpListener,
    store: &Arc<CertificateStore>,
    unheard: usize,
) -> Arc<AtomicUsize> {
    let config = mesh_server_config(store, &[b"h2"]).expect("TLS");
    let asked = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async move {
            listener.set_nonblocking(true).expect("a listener");
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let (tcp, _) = listener.accept().await.expect("a node proxy");
            let io = TcpIo::from(tcp);
            let stream = accept_tls(config, io, TLS_HANDSHAKE_TIMEOUT).await;
            let stream = stream.expect("a handshake");
            let mut connection = h2::server::handshake(stream).await.expect("a preface");
            let mut open = Vec::new();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                if counted.fetch_add(1, Ordering::SeqCst) < unheard {
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                    continue;
                }
                let answer = respond.send_response(http::Response::new(()), false);
                let mut send = answer.expect("answered");
                send.send_data(Bytes::from_static(b"first\n"), false)
                    .expect("said");
                open.push(send);
            }
        });
    });
    asked
}

#[test]
fn a_tunnel_that_was_taken_back_unheard_is_asked_for_once_more_and_no_oftener() {
    for (unheard, heard) in [(1, Some("first")), (9, None)] {
        let Some(mut mesh) = mesh(&on_two_nodes(&[("first", FIRST)])) else {
            return;
        };
        let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
        let store = certified(&mesh, "server", async |store| store);
        let asked = takes_back(listen(&first.inside, (FIRST, 15008)), &store, unheard);
        let _node = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
        assert_eq!(name(&client.inside, (VIP, 80)).as_deref(), heard);
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
