//! `io.linkerd.proxy.identity`: a certificate for a request and a token.

/// Request of a proxy for a certificate.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CertifyRequest {
    /// The name it asks for, like a DNS name.
    #[prost(string, tag = "1")]
    pub identity: String,
    /// Token that proves the right to this name.
    #[prost(bytes = "vec", tag = "2")]
    pub token: Vec<u8>,
    /// PKCS#10, DER.
    #[prost(bytes = "vec", tag = "3")]
    pub certificate_signing_request: Vec<u8>,
}

/// The certificate that the proxy gets.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CertifyResponse {
    /// DER.
    #[prost(bytes = "vec", tag = "1")]
    pub leaf_certificate: Vec<u8>,
    /// From the leaf's issuer on, without the trust anchor; DER.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub intermediate_certificates: Vec<Vec<u8>>,
    /// End of its validity.
    #[prost(message, optional, tag = "3")]
    pub valid_until: Option<prost_types::Timestamp>,
}
