//! Identities of workloads and their proof: SPIFFE certificates, the authority that issues them, tokens, and the
//! rustls configurations of mesh mutual TLS. Keys never leave the proxy; the authority sees only requests (CSRs).
//!
//! ```text
//!   proxy: keys ─CSR─> client ──token │ certificate──> service ─> authenticator ─> authority ─> leaf + root
//!   leaf + root ─> CertificateStore ─> mesh_server_config / mesh_client_config (each handshake takes the newest)
//! ```
//!
//! Deciding and issuing is synchronous and takes the time as an argument; only [`service`] and [`client`] know tonic,
//! and only [`client`] sleeps.

pub mod authenticator;
mod chain;
pub mod client;
mod forwarded;
pub mod generated;
mod issuing;
pub mod keys;
mod outside;
pub mod refresh;
pub mod service;
mod spiffe;
pub mod state;
pub mod tls;
mod verifier;

pub use issuing::{authority, join, renew_root, revocation, store, token};
use issuing::{authority_store, csr, external, own_certificate, root_record};

pub use authenticator::{
    AuthenticatedCaller, Authenticator, CallerProof, MeshAuthenticator, PeerCertificates,
};
pub use authority::{
    Authority, AuthorityError, AuthorityFiles, DEFAULT_TTL, IssueError, IssuedCertificate, MAX_TTL,
    MIN_TTL, ServerCertificate,
};
pub use authority_store::AuthorityStore;
pub use chain::{ChainError, verify_client_chain, verify_server_chain};
pub use client::{
    CertificateClient, ClientSettings, control_endpoint, new_certificate, request_certificate,
};
pub use csr::{CsrError, MAX_CSR_BYTES};
pub use external::{ExternalSigner, ExternalSignerError, SignerFuture};
pub use forwarded::forwarded_certificate;
pub use join::{JoinError, JoinTokens};
pub use keys::{KeyError, Keys, WorkloadCertificate};
pub use outside::{OutsideTls, OutsideTlsError, TowardsOutside};
pub use own_certificate::OwnCertificate;
pub use refresh::{next_refresh, retry_delay};
pub use revocation::{CertificateKey, RevocationError, Revocations};
pub use root_record::{NEW_ROOT_FLAG, RootFingerprint, RootLost, RootPolicy, check_root};
pub use service::CertificateService;
pub use spiffe::{PeerError, identity_of};
pub use state::{StateDir, StateError};
pub use store::{CertificateStore, MeshRoots, TrustBundle, TrustStore};
pub use tls::{
    control_server_config, mesh_client_config, mesh_server_config, peer_identity, verify_expected,
};
pub use token::{
    BoundUids, MAX_TOKEN_BYTES, TOKEN_AUDIENCE, TokenError, TokenKey, TokenRules, TokenSubject,
    TokenVerifier,
};
pub use voile_model::{Identity, TrustDomain};
