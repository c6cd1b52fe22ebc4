//! Lifetime of a stream: no longer than the proof that opened it, nor than its age, nor long after its workload left.
//! Coming back costs no other stream anything.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use voile_identity::client::Credential::Bearer;
use voile_identity::revocation::local;
use voile_identity::{
    Keys, StateDir, TOKEN_AUDIENCE, TokenKey, TokenSubject, WorkloadCertificate, control_endpoint,
    request_certificate,
};
use voile_proto::type_url::{ADDRESS, PROXY_CONFIGURATION, REVOCATION_LISTS, REVOCATIONS};
use voile_xds::client::{ClientState, Credential, CredentialSource};

use crate::harness::{Client, Mesh, SECOND_ECHO, SHOP};

const SERVICE: &str = "shop/echo.shop.svc.cluster.local";

/// As a token file that is rewritten: whoever reads it finds one that is good for a while.
struct Rewritten {
    key: TokenKey,
    ttl: Duration,
}

impl CredentialSource for Rewritten {
    fn credential(&self) -> std::io::Result<Credential> {
        let subject = TokenSubject {
            namespace: "shop".to_owned(),
            service_account: "client".to_owned(),
            pod: Some("client-1".to_owned()),
        };
        let minted = self
            .key
            .mint(&subject, TOKEN_AUDIENCE, SystemTime::now(), self.ttl);
        minted.map(Credential::Token).map_err(std::io::Error::other)
    }
}

fn rewritten(mesh: &Mesh, ttl: Duration) -> Client {
    let state = StateDir::open(&mesh.folder.path().join("state")).unwrap();
    let key = TokenKey::open(&state).unwrap();
    Client::start_from(
        mesh.client_config(),
        Arc::new(Rewritten { key, ttl }),
        |_| None,
    )
}

async fn until_state(client: &Client, fits: impl Fn(&ClientState) -> bool) {
    let mut state = client.xds.state();
    let wait = state.wait_for(|state| fits(state));
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .expect("in time")
        .unwrap();
}

#[tokio::test]
async fn a_stream_ends_with_its_token_or_its_age_and_the_next_goes_on_where_it_was() {
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    for (ttl, age) in [(second * 2, hour), (hour, second)] {
        let mesh = Mesh::start_with(SHOP, |options| options.connection_age = age).await;
        let mut client = rewritten(&mesh, ttl);
        client.ask(PROXY_CONFIGURATION, &["shop/client-1"]);
        client.ask(ADDRESS, &[SERVICE]);
        let errors = Arc::new(Mutex::new(Vec::new()));
        until_state(&client, |state| {
            errors.lock().unwrap().extend(state.last_error.clone());
            state.connections >= 3 && state.connected
        })
        .await;
        assert!(
            errors.lock().unwrap().is_empty(),
            "no trouble: {:?}",
            errors.lock().unwrap()
        );
        let told = client.told.borrow().clone();
        assert!(told.removed.is_empty(), "{:?}", told.removed);
        assert_eq!(told.arrived, 3, "what is held is not sent again");
        // And news still arrive.
        mesh.edit("more.yaml", SECOND_ECHO);
        client.until(|told| told.arrived == 4).await;
    }
}

#[tokio::test]
async fn a_stream_ends_with_a_token_that_nobody_rewrites() {
    let mesh = Mesh::start(SHOP).await;
    let token = mesh.token_for("client", None, Duration::from_secs(1));
    let client = mesh.client(token);
    client.ask(ADDRESS, &[SERVICE]);
    // The clocks' difference is forgiven once more, and no longer.
    until_state(&client, |state| state.connections == 2).await;
}

#[tokio::test]
async fn a_workload_that_left_is_told_nothing_more_and_is_welcome_when_it_is_back() {
    let mesh = Mesh::start_with(SHOP, |options| {
        options.farewell = Duration::from_millis(300);
    })
    .await;
    mesh.edit("more.yaml", SECOND_ECHO);
    let mut other = mesh.client(mesh.token("echo", Some("echo-1")));
    other.ask(PROXY_CONFIGURATION, &["shop/echo-1"]);
    let mut leaving = mesh.client(mesh.token("echo", Some("echo-2")));
    leaving.ask(ADDRESS, &[SERVICE]);
    leaving.ask(PROXY_CONFIGURATION, &["shop/echo-2"]);
    leaving.until(|told| told.held.len() == 4).await;
    std::fs::remove_file(mesh.config().join("more.yaml")).unwrap();
    leaving
        .until_error("PermissionDenied: this workload is no longer in the mesh")
        .await;
    let before = leaving.told.borrow().updates;
    // The other pod of the same identity is told what it asks, as before.
    other.ask(ADDRESS, &[SERVICE]);
    other.until(|told| told.held.len() == 3).await;
    assert_eq!(leaving.told.borrow().updates, before);
    mesh.edit("more.yaml", SECOND_ECHO);
    leaving.until(|told| told.updates > before).await;
}

/// Asks the authority as a proxy does; what it says.
async fn certified(mesh: &Mesh, token: Credential) -> Result<(), tonic::Code> {
    let Credential::Token(token) = token else {
        panic!("a token");
    };
    let config = mesh.client_config();
    let root = std::fs::read_to_string(config.root_certificate.unwrap()).unwrap();
    let endpoint = control_endpoint(&config.addresses[0], &root, None).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let request = Keys::generate().unwrap().request(None).unwrap();
    let answer = request_certificate(channel, &Bearer(token), request, None).await;
    answer.map(|_| ()).map_err(|status| status.code())
}

#[tokio::test]
async fn the_authority_certifies_nobody_who_left_and_everybody_who_is_back() {
    let mut mesh = Mesh::start_with(SHOP, |options| {
        options.farewell = Duration::ZERO;
    })
    .await;
    mesh.edit("more.yaml", SECOND_ECHO);
    let mut watching = mesh.client(mesh.token("client", None));
    watching.ask(ADDRESS, &[SERVICE]);
    watching.until(|told| told.held.len() == 3).await;
    let left = |mesh: &Mesh| mesh.token("echo", Some("echo-2"));
    let stayed = |mesh: &Mesh| mesh.token("echo", Some("echo-1"));
    assert_eq!(certified(&mesh, left(&mesh)).await, Ok(()));
    std::fs::remove_file(mesh.config().join("more.yaml")).unwrap();
    watching.until(|told| told.held.len() == 2).await;
    let refused = Err(tonic::Code::PermissionDenied);
    assert_eq!(certified(&mesh, left(&mesh)).await, refused);
    assert_eq!(
        certified(&mesh, stayed(&mesh)).await,
        Ok(()),
        "the other pod"
    );
    // Another process of the control plane knows it, too.
    mesh.stop().await;
    mesh.restart().await;
    assert_eq!(certified(&mesh, left(&mesh)).await, refused);
    assert_eq!(certified(&mesh, stayed(&mesh)).await, Ok(()));
    mesh.edit("more.yaml", SECOND_ECHO);
    watching.until(|told| told.held.len() == 3).await;
    assert_eq!(certified(&mesh, left(&mesh)).await, Ok(()));
}

/// A certificate from the authority, for an account: its chain, its key and its serial number.
pub(crate) async fn certificate(mesh: &Mesh, account: &str) -> (String, String, Vec<u8>) {
    let Credential::Token(token) = mesh.token(account, None) else {
        panic!("a token");
    };
    let config = mesh.client_config();
    let root = std::fs::read_to_string(config.root_certificate.unwrap()).unwrap();
    let endpoint = control_endpoint(&config.addresses[0], &root, None).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key);
    let request = request.unwrap().pem().unwrap();
    let chain = request_certificate(channel, &Bearer(token), request, None).await;
    let chain = chain.unwrap();
    let whole = WorkloadCertificate::new(&key.serialize_pem(), &chain).unwrap();
    let serial = whole.serial().split(':');
    let serial = serial.map(|byte| u8::from_str_radix(byte, 16).unwrap());
    let serial = serial.collect();
    // The root is no part of what a client shows.
    let shown = chain[..chain.len() - 1].concat();
    (shown, key.serialize_pem(), serial)
}

#[tokio::test]
async fn a_stream_ends_at_once_when_the_certificate_that_opened_it_is_revoked() {
    let mesh = Mesh::start(SHOP).await;
    let (chain_pem, key_pem, serial) = certificate(&mesh, "client").await;
    let mut revoked = mesh.client(Credential::Certificate { chain_pem, key_pem });
    let (chain_pem, key_pem, _) = certificate(&mesh, "client").await;
    let mut other = mesh.client(Credential::Certificate { chain_pem, key_pem });
    for client in [&mut revoked, &mut other] {
        client.ask(REVOCATION_LISTS, &[REVOCATIONS]);
        client.until(|told| told.updates == 1).await;
    }
    let state = mesh.folder.path().join("state");
    local::revoke(&state, &[serial], SystemTime::now()).unwrap();
    // It is told why it is refused, and comes back in vain; who has another certificate stays.
    revoked.until_error("revoked").await;
    assert!(
        revoked
            .told
            .borrow()
            .body(REVOCATION_LISTS, REVOCATIONS)
            .is_some()
    );
    revoked.until_error("Unauthenticated").await;
    other
        .until(|told| told.body(REVOCATION_LISTS, REVOCATIONS).is_some())
        .await;
    assert_eq!(other.xds.state().borrow().connections, 1);
}
