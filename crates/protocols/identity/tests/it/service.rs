//! The certificate service on a real socket, over TLS: who gets what, and who is told why not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost_types::value::Kind;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Identity as TlsIdentity, Server, ServerTlsConfig};
use tonic::{Code, Status};
use voile_identity::client::Credential;
use voile_identity::generated::certificate_service::istio_certificate_service_client::IstioCertificateServiceClient;
use voile_identity::state::StateDir;
use voile_identity::{
    AuthenticatedCaller, Authenticator, CertificateService, Identity, JoinTokens, Keys,
    MeshAuthenticator, TOKEN_AUDIENCE, TokenKey, TokenSubject, TrustStore, WorkloadCertificate,
    control_endpoint, request_certificate,
};
use voile_proto::certificate::IstioCertificateRequest;
use voile_testkit::TestAuthority;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A running certificate service.
pub(crate) struct Control {
    pub(crate) mesh: TestAuthority,
    pub(crate) tokens: TokenKey,
    pub(crate) joins: JoinTokens,
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

/// The mesh's authenticator, with a node that may ask for the cart.
struct NodeForCart(MeshAuthenticator);

impl Authenticator for NodeForCart {
    fn authenticate(
        &self,
        metadata: &MetadataMap,
        peer: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<AuthenticatedCaller, Status> {
        self.0.authenticate(metadata, peer, now)
    }

    fn may_stand_for(&self, caller: &AuthenticatedCaller, asked: &Identity) -> Result<(), String> {
        let vouched = *caller.identity.service_account == *"node"
            && asked.to_string().ends_with("/ns/shop/sa/cart");
        match vouched {
            true => Ok(()),
            false => self.0.may_stand_for(caller, asked),
        }
    }
}

impl Control {
    pub(crate) async fn start() -> Self {
        Self::start_at(TestAuthority::new(), "127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(mesh: TestAuthority, address: SocketAddr) -> Self {
        let state = StateDir::open(&mesh.state()).unwrap();
        let trust = Arc::new(TrustStore::new(mesh.trust()));
        let joins = JoinTokens::open(&state).unwrap();
        let authenticator = NodeForCart(MeshAuthenticator::new(
            Arc::new(TokenKey::open(&state).unwrap()),
            Arc::clone(&trust),
        ));
        let service = CertificateService::new(
            Arc::clone(mesh.authority()),
            authenticator,
            joins.clone(),
            trust,
        );
        let own = mesh
            .authority()
            .issue_server(&["localhost", "127.0.0.1"], SystemTime::now());
        let own = own.unwrap();
        let tls = ServerTlsConfig::new()
            .identity(TlsIdentity::from_pem(own.chain_pem, own.key_pem))
            .client_ca_root(Certificate::from_pem(mesh.authority().root_pem()))
            .client_auth_optional(true);
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::builder().tls_config(tls).unwrap();
        let serving = server.serve_with_incoming_shutdown(
            service.into_server(),
            TcpListenerStream::new(listener),
            async { drop(stopped.await) },
        );
        let task = tokio::spawn(async move { serving.await.unwrap() });
        let tokens = TokenKey::open(&state).unwrap();
        Self {
            mesh,
            tokens,
            joins,
            address,
            stop: Some(stop),
            task,
        }
    }

    pub(crate) async fn stop(mut self) -> (TestAuthority, SocketAddr) {
        drop(self.stop.take());
        self.task.await.unwrap();
        (self.mesh, self.address)
    }

    pub(crate) fn uri(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn token(&self, service_account: &str) -> String {
        let subject = subject(service_account);
        self.tokens
            .mint(&subject, TOKEN_AUDIENCE, SystemTime::now(), HOUR)
            .unwrap()
    }

    async fn ask(
        &self,
        credential: &Credential,
        shown: Option<&WorkloadCertificate>,
        csr: String,
    ) -> Result<Vec<String>, Status> {
        let root = self.mesh.authority().root_pem();
        let channel = control_endpoint(&self.uri(), root, shown).unwrap();
        let channel = channel.connect().await;
        let channel = channel.map_err(|error| Status::unavailable(format!("{error:?}")))?;
        request_certificate(channel, credential, csr, None).await
    }
}

pub(crate) fn subject(service_account: &str) -> TokenSubject {
    TokenSubject {
        namespace: "shop".into(),
        service_account: service_account.into(),
        pod: None,
    }
}

fn csr() -> String {
    Keys::generate().unwrap().request(None).unwrap()
}

#[tokio::test]
async fn a_token_gets_a_certificate_and_the_certificate_renews_itself() {
    let control = Control::start().await;
    let cart = control.mesh.identity("shop", "cart");
    let keys = Keys::generate().unwrap();
    let request = keys.request(Some(&cart)).unwrap();
    let bearer = Credential::Bearer(control.token("cart"));
    let chain = control.ask(&bearer, None, request).await.unwrap();
    let first = keys.certify(&chain).unwrap();
    assert_eq!(first.identity(), &cart);
    let keys = Keys::generate().unwrap();
    let request = keys.request(None).unwrap();
    let chain = control
        .ask(&Credential::Certificate, Some(&first), request)
        .await
        .unwrap();
    let second = keys.certify(&chain).unwrap();
    assert_eq!(second.identity(), &cart);
    assert_ne!(first.serial(), second.serial());
    control.stop().await;
}

#[tokio::test]
async fn a_request_for_somebody_else_is_denied_naming_both() {
    let control = Control::start().await;
    let till = control.mesh.identity("shop", "till");
    let csr = || Keys::generate().unwrap().request(Some(&till)).unwrap();
    let join = control
        .joins
        .create(&subject("cart"), SystemTime::now(), HOUR)
        .unwrap();
    let own = control.mesh.certificate("shop", "cart");
    for (credential, shown) in [
        (Credential::Bearer(control.token("cart")), None),
        (Credential::Bearer(join.clone()), None),
        (Credential::Certificate, Some(&own)),
    ] {
        let denied = control.ask(&credential, shown, csr()).await.unwrap_err();
        assert_eq!(denied.code(), Code::PermissionDenied, "{denied:?}");
        assert!(denied.message().contains("sa/till") && denied.message().contains("sa/cart"));
    }
    let good = control
        .ask(&Credential::Bearer(join), None, self::csr())
        .await;
    assert!(
        good.is_ok(),
        "a denied request did not cost the join token: {good:?}"
    );
    control.stop().await;
}

#[tokio::test]
async fn a_join_token_buys_one_certificate() {
    let control = Control::start().await;
    let join = control
        .joins
        .create(&subject("cart"), SystemTime::now(), HOUR)
        .unwrap();
    let bearer = Credential::Bearer(join);
    let asked = (0..4).map(|_| control.ask(&bearer, None, csr()));
    let mut won = 0;
    for answer in futures_join(asked).await {
        match answer {
            Ok(_) => won += 1,
            Err(status) => assert_eq!(status.code(), Code::Unauthenticated, "{status:?}"),
        }
    }
    assert_eq!(won, 1);
    let again = control.ask(&bearer, None, csr()).await.unwrap_err();
    assert_eq!(again.code(), Code::Unauthenticated);
    assert!(again.message().contains("used before"), "{again:?}");
    control.stop().await;
}

/// Polls all, as `join_all` would, without another dependency.
async fn futures_join<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pending: Vec<_> = futures.map(Box::pin).map(Some).collect();
    let mut done = Vec::new();
    std::future::poll_fn(|context| {
        for slot in &mut pending {
            if let Some(future) = slot
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                done.push(value);
                *slot = None;
            }
        }
        match pending.iter().all(Option::is_none) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done
}

#[tokio::test]
async fn callers_without_a_believable_proof_are_refused() {
    let control = Control::start().await;
    let now = SystemTime::now();
    let cart = subject("cart");
    let stale = control
        .tokens
        .mint(&cart, TOKEN_AUDIENCE, now - 3 * HOUR, HOUR)
        .unwrap();
    let elsewhere = control.tokens.mint(&cart, "vault", now, HOUR).unwrap();
    let own = control.mesh.certificate("shop", "cart");
    let bearer = |token: &str| Credential::Bearer(token.to_owned());
    for (what, credential, shown) in [
        ("nothing", Credential::Certificate, None),
        ("garbage", bearer("garbage"), None),
        ("an empty token", bearer(""), None),
        ("an expired token", bearer(&stale), None),
        ("a token for another audience", bearer(&elsewhere), None),
        ("an unknown join token", bearer("voile-join.00.11"), None),
        (
            "a bad token beside a good certificate",
            bearer("garbage"),
            Some(&own),
        ),
    ] {
        let refused = control.ask(&credential, shown, csr()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{what}: {refused:?}");
    }
    control.stop().await;
}

#[tokio::test]
async fn a_foreign_or_expired_certificate_does_not_renew() {
    let control = Control::start().await;
    let foreign = TestAuthority::new();
    for shown in [
        foreign.certificate("shop", "cart"),
        control.mesh.expired("shop", "cart"),
    ] {
        assert!(
            control
                .ask(&Credential::Certificate, Some(&shown), csr())
                .await
                .is_err()
        );
    }
    control.stop().await;
}

#[tokio::test]
async fn a_bad_request_is_the_callers_fault() {
    let control = Control::start().await;
    let bearer = Credential::Bearer(control.token("cart"));
    for csr in [
        "garbage".to_owned(),
        "A".repeat(50_000),
        include_str!("rsa-request.pem").to_owned(),
    ] {
        let refused = control.ask(&bearer, None, csr).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    control.stop().await;
}

#[tokio::test]
async fn a_strangers_request_is_not_read_beyond_what_an_honest_one_has() {
    let control = Control::start().await;
    for (bytes, code) in [
        (60_000, Code::Unauthenticated),
        (1_000_000, Code::OutOfRange),
    ] {
        let nonsense = Credential::Bearer("nonsense".to_owned());
        let refused = control.ask(&nonsense, None, "x".repeat(bytes)).await;
        assert_eq!(refused.unwrap_err().code(), code, "{bytes} bytes");
    }
    control.stop().await;
}

/// Asks as `account` in the name of `asked`.
async fn ask_for(
    control: &Control,
    account: &str,
    asked: Kind,
    csr: String,
) -> Result<Vec<String>, Status> {
    let root = control.mesh.authority().root_pem();
    let channel = control_endpoint(&control.uri(), root, None)
        .unwrap()
        .connect()
        .await
        .unwrap();
    let value = prost_types::Value { kind: Some(asked) };
    let fields = [("ImpersonatedIdentity".to_owned(), value)].into();
    let mut request = tonic::Request::new(IstioCertificateRequest {
        csr,
        validity_duration: 0,
        metadata: Some(prost_types::Struct { fields }),
    });
    let header = format!("Bearer {}", control.token(account))
        .parse()
        .unwrap();
    request.metadata_mut().insert("authorization", header);
    let mut client = IstioCertificateServiceClient::new(channel);
    let answer = client.create_certificate(request).await?;
    Ok(answer.into_inner().cert_chain)
}

#[tokio::test]
async fn only_who_is_vouched_for_gets_a_certificate_in_anothers_name() {
    let control = Control::start().await;
    let id = |account: &str| format!("spiffe://cluster.local/ns/shop/sa/{account}");
    let name = |account: &str| Kind::StringValue(id(account));
    let request = |account: &str| {
        let identity = id(account).parse::<Identity>().unwrap();
        Keys::generate().unwrap().request(Some(&identity)).unwrap()
    };
    let chain = ask_for(&control, "node", name("cart"), request("cart")).await;
    let chain = chain.unwrap();
    let leaf = CertificateDer::from_pem_slice(chain[0].as_bytes()).unwrap();
    let identity = voile_identity::identity_of(&leaf).unwrap();
    assert_eq!(identity.to_string(), id("cart"));
    for (account, asked, csr, code, part) in [
        (
            "node",
            name("pay"),
            request("pay"),
            Code::PermissionDenied,
            "may only ask for itself",
        ),
        (
            "cart",
            name("pay"),
            request("pay"),
            Code::PermissionDenied,
            "may only ask for itself",
        ),
        // The node may ask for `cart`, but the certificate request must name `cart` as well.
        (
            "node",
            name("cart"),
            request("node"),
            Code::PermissionDenied,
            "asks for",
        ),
        (
            "node",
            name("cart"),
            request("pay"),
            Code::PermissionDenied,
            "asks for",
        ),
        (
            "node",
            Kind::StringValue("cart".into()),
            csr(),
            Code::InvalidArgument,
            "is not a SPIFFE id",
        ),
        (
            "node",
            Kind::StringValue("x".repeat(9000)),
            csr(),
            Code::InvalidArgument,
            "is not a SPIFFE id",
        ),
        (
            "node",
            Kind::BoolValue(true),
            csr(),
            Code::InvalidArgument,
            "is not a SPIFFE id",
        ),
    ] {
        let refused = ask_for(&control, account, asked, csr).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().contains(part), "{refused:?}");
    }
    control.stop().await;
}

/// A request and a token that somebody overheard: the request alone is worth nothing, and with another's token it certifies a key
/// that the thief does not have, for nobody but the thief.
#[tokio::test]
async fn what_is_overheard_and_sent_again_makes_nobody_somebody_else() {
    let control = Control::start().await;
    let overheard = csr();
    let cart = Credential::Bearer(control.token("cart"));
    control.ask(&cart, None, overheard.clone()).await.unwrap();
    let none = Credential::Bearer("overheard".to_owned());
    let refused = control.ask(&none, None, overheard.clone()).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    let thief = Credential::Bearer(control.token("thief"));
    let chain = control.ask(&thief, None, overheard).await.unwrap();
    let leaf = CertificateDer::from_pem_slice(chain[0].as_bytes()).unwrap();
    let identity = voile_identity::identity_of(&leaf).unwrap();
    assert!(identity.to_string().ends_with("/sa/thief"), "{identity}");
    control.stop().await;
}
