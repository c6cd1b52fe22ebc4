//! Those who connect and never show who they are: they go, and nobody waits behind them.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use voile_proto::type_url::ADDRESS;

use crate::harness::{Mesh, SHOP};

/// More than the control plane keeps.
const CROWD: usize = 300;
/// Far beyond what a loaded machine needs.
const DEADLINE: Duration = Duration::from_secs(60);

fn connector(mesh: &Mesh) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let pem = mesh.folder.path().join("state/root-cert.pem");
    let root = CertificateDer::from_pem_file(pem).unwrap();
    roots.add(root).unwrap();
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn a_crowd_that_finishes_its_handshakes_and_falls_silent_makes_room() {
    let mesh = Mesh::start(SHOP).await;
    let connector = connector(&mesh);
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        let stream = TcpStream::connect(mesh.addresses.tls).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        crowd.push(connector.connect(name, stream).await.unwrap());
    }
    // Not one of them was told to go for its own sake: others came.
    let mut oldest = crowd.swap_remove(0);
    let mut heard = Vec::new();
    let end = tokio::time::timeout(DEADLINE, oldest.read_to_end(&mut heard)).await;
    // A close without the TLS ending is one, too.
    let _ = end.expect("the oldest is closed");
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(ADDRESS, &["*"]);
    let told = client.until(|told| told.updates == 1).await;
    assert_eq!(told.held.len(), 3);
}
