//! The proxy's certificate client and an authority beside the control plane. The server obeys the rules of cert-manager's istio-csr:
//! the caller proves itself by its token alone, and the request names exactly the identity that the certificate is for.

use std::sync::Arc;
use std::time::SystemTime;

use prost_types::value::Kind;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity as TlsIdentity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};
use voile_identity::client::ClientError;
use voile_identity::generated::certificate_service::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use voile_identity::state::StateDir;
use voile_identity::{
    CertificateClient, CertificateStore, ClientSettings, TOKEN_AUDIENCE, TokenKey, TrustDomain,
};
use voile_proto::certificate::{IstioCertificateRequest, IstioCertificateResponse};
use voile_testkit::TestAuthority;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509CertificationRequest};

use crate::service::{HOUR, subject};

/// An authority with istio-csr's rules.
struct IstioCsr {
    mesh: TestAuthority,
    tokens: TokenKey,
}

/// The URIs that a request names. Other names are refused.
fn named(csr: &str) -> Option<Vec<String>> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(csr.as_bytes()).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
    let mut uris = Vec::new();
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else {
            return None;
        };
        for name in &names.general_names {
            let GeneralName::URI(uri) = name else {
                return None;
            };
            uris.push((*uri).to_owned());
        }
    }
    let is_nameless = request.certification_request_info.subject.as_raw().len() == 2;
    is_nameless.then_some(uris)
}

#[tonic::async_trait]
impl IstioCertificateService for IstioCsr {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let refused = || Status::unauthenticated("request authenticate failure");
        let token = request.metadata().get("authorization");
        let token = token.and_then(|token| token.to_str().ok()?.strip_prefix("Bearer "));
        let token = token.ok_or_else(refused)?;
        let found = self.tokens.verify(token, TOKEN_AUDIENCE, SystemTime::now());
        let found = found.map_err(|_| refused())?;
        let caller = self.mesh.identity(&found.namespace, &found.service_account);
        let asked = request.into_inner();
        let fields = asked.metadata.unwrap_or_default().fields;
        let subject = match fields.get("ImpersonatedIdentity").map(|value| &value.kind) {
            Some(Some(Kind::StringValue(text))) if *caller.service_account == *"node" => {
                text.parse().map_err(|_| refused())?
            }
            Some(_) => return Err(refused()),
            None => caller,
        };
        if named(&asked.csr) != Some(vec![subject.to_string()]) || asked.validity_duration == 0 {
            return Err(refused());
        }
        let now = SystemTime::now();
        let issued = self.mesh.authority().issue(&asked.csr, &subject, None, now);
        let cert_chain = issued.map_err(|_| refused())?.chain;
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}

#[tokio::test]
async fn an_authority_that_demands_the_name_gets_it_from_workloads_and_nodes() {
    let mesh = TestAuthority::new();
    let state = StateDir::open(&mesh.state()).unwrap();
    let tokens = TokenKey::open(&state).unwrap();
    let mint = |account: &str| {
        tokens
            .mint(&subject(account), TOKEN_AUDIENCE, SystemTime::now(), HOUR)
            .unwrap()
    };
    let token_file = mesh.folder().join("token");
    let (cart, root) = (
        mesh.identity("shop", "cart"),
        mesh.state().join("root-cert.pem"),
    );
    let own = mesh
        .authority()
        .issue_server(&["127.0.0.1"], SystemTime::now())
        .unwrap();
    let tls = ServerTlsConfig::new().identity(TlsIdentity::from_pem(own.chain_pem, own.key_pem));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let (cart_token, node_token) = (mint("cart"), mint("node"));
    let service = IstioCsr { mesh, tokens };
    let serving = Server::builder()
        .tls_config(tls)
        .unwrap()
        .serve_with_incoming(
            IstioCertificateServiceServer::new(service),
            TcpListenerStream::new(listener),
        );
    let serving = tokio::spawn(serving);
    let settings = ClientSettings {
        control: vec!["https://127.0.0.1:1".to_owned()],
        root_cert: root,
        token_file: Some(token_file.clone()),
        join_token_file: None,
        ttl: None,
    };
    let client = || {
        let settings = settings.clone().at_authority(address.clone());
        CertificateClient::new(settings, Arc::new(CertificateStore::new()))
    };
    let domain = TrustDomain::new("cluster.local").unwrap();

    std::fs::write(&token_file, &cart_token).unwrap();
    let nameless = client().obtain().await.unwrap_err();
    assert!(
        matches!(&nameless, ClientError::Refused(status) if status.code() == Code::Unauthenticated),
        "{nameless}"
    );
    let named = client().naming_itself(domain.clone());
    for _ in 0..2 {
        assert_eq!(named.obtain().await.unwrap().identity(), &cart);
    }
    std::fs::write(&token_file, &node_token).unwrap();
    let node = client().in_the_name_of(cart.clone());
    assert_eq!(node.obtain().await.unwrap().identity(), &cart);

    std::fs::write(&token_file, "nobody").unwrap();
    let nobody = client().naming_itself(domain).obtain().await.unwrap_err();
    assert!(matches!(nobody, ClientError::NamesNobody), "{nobody}");
    serving.abort();
}
