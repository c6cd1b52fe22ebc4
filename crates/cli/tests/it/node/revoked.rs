//! Certificates that are taken back while their pods are connected: what they carry ends, new ones are asked for, and traffic
//! goes on by those; through a tunnel and by the short way alike.

use std::sync::Arc;

use tokio::io::AsyncReadExt;
use voile_identity::{CertificateStore, mesh_client_config};
use voile_transport::{Origin, TLS_HANDSHAKE_TIMEOUT, TcpIo, connect_tls};

use super::*;

/// The certificate that was issued last for this account, as the log names it.
pub(super) fn serial(log: &str, account: &str) -> String {
    let identity = format!("identity=spiffe://cluster.local/ns/shop/sa/{account} ");
    let mut lines = log
        .lines()
        .filter(|line| line.contains("new certificate") && line.contains(&identity));
    let line = lines.next_back().expect("a certificate");
    let (_, serial) = line.split_once("serial=\"").expect("its serial number");
    serial.trim_end().trim_end_matches('"').to_owned()
}

pub(super) fn revoke(mesh: &Mesh, serial: &str) {
    let output = Process::output(|voile| {
        voile.args(["revoke", "--serial", serial, "--state"]);
        voile.arg(mesh.folder.path().join("state"));
    });
    assert!(output.status.success(), "{output:?}");
}

/// Revokes the one end's certificate, then the other's.
fn ends_and_goes_on(mesh: &Mesh, client: &Pod, nodes: &[(&str, &Node)]) {
    let service = SocketAddr::from((VIP, 80));
    for (account, node) in nodes {
        // One worker after the other hears of a certificate in place of the last one.
        let mut found = None;
        wait_until("it may", || {
            found = answers(&client.inside, service);
            found.is_some()
        });
        let (said, mut open) = found.expect("waited for");
        assert_eq!(said, "first");
        open.set_read_timeout(Some(Duration::from_secs(20)))
            .expect("open");
        revoke(mesh, &serial(&node.log(mesh), account));
        let cut = open.read(&mut [0; 16]);
        let reset = cut.expect_err("the open connection is cut, and does not look finished");
        assert_eq!(
            reset.kind(),
            std::io::ErrorKind::ConnectionReset,
            "{account}"
        );
        wait_until("another certificate carries on", || {
            name(&client.inside, service).as_deref() == Some("first")
        });
        let replaced = format!("sa/{account}");
        wait_until("another was asked for", || {
            node.log(mesh)
                .lines()
                .any(|line| line.contains("requesting another") && line.contains(&replaced))
        });
    }
}

/// Of a connection that carried something and was taken back with the other end's certificate, in ztunnel's word.
fn is_told_of_revocation(log: &str, direction: &str) -> bool {
    log.lines().any(|line| {
        line.contains("connection complete")
            && line.contains(&format!("direction=\"{direction}\""))
            && line.contains("response_flags=\"CERT_REVOKED\"")
            && !line.contains("bytes_sent=0 bytes_recv=0")
    })
}

#[test]
fn what_a_revoked_certificate_carries_between_two_nodes_is_cut_at_either_end() {
    let Some(mut mesh) = mesh(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let one = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
    let two = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &[]);
    ends_and_goes_on(&mesh, &client, &[("client", &one), ("server", &two)]);
    wait_until("whoever cut it says why, at either end", || {
        is_told_of_revocation(&one.log(&mesh), "outbound")
            && is_told_of_revocation(&two.log(&mesh), "inbound")
    });
}

#[test]
fn a_revoked_caller_is_cut_on_the_short_way_too() {
    let Some(mut mesh) = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL)) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let pods = [(&client, "client"), (&first, "server")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    ends_and_goes_on(&mesh, &client, &[("client", &node)]);
    wait_until("the log says why", || {
        is_told_of_revocation(&node.log(&mesh), "inbound")
    });
}

#[test]
fn a_revoked_caller_is_refused_within_its_handshake() {
    let Some(mut mesh) = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL)) else {
        return;
    };
    let first = pod(&mesh, "first", FIRST);
    serve(&first, FIRST);
    let _node = Node::start(&mut mesh, "ztunnel-one", 0, &[(&first, "server")], &[]);
    hostile::certified(&mesh, "client", async |store| {
        revoke(&mesh, store.current().expect("obtained").serial());
        let refused = async {
            let mut seen = String::new();
            while !seen.contains("CertificateRevoked") {
                seen = first_word(&store).await;
            }
        };
        let patience = Duration::from_secs(20);
        let refused = tokio::time::timeout(patience, refused).await;
        refused.expect("an alert that the certificate is revoked");
    });
}

/// What a caller with this certificate hears first.
async fn first_word(store: &Arc<CertificateStore>) -> String {
    let config = mesh_client_config(store, &[b"h2"]).expect("TLS");
    let to = SocketAddr::from((FIRST, 15008));
    let tcp = voile_transport::connect(to, Origin::default(), TLS_HANDSHAKE_TIMEOUT);
    let io = TcpIo::from(tcp.await.expect("accepted"));
    let stream = connect_tls(config, to.ip().into(), io, TLS_HANDSHAKE_TIMEOUT).await;
    let read = async { stream?.read_u8().await.map_err(Into::into) };
    let heard: Result<u8, Box<dyn std::error::Error>> = read.await;
    format!("{heard:?}")
}
