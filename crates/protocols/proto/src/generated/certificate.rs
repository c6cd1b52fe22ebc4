//! Messages of package `istio.v1.auth`, generated from `crates/protocols/proto/proto/istio/certificate.proto`.
//! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,
//! and the test `generated_code_is_fresh` keeps it true.

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct IstioCertificateRequest {
    /// PEM-encoded PKCS#10 request.
    #[prost(string, tag = "1")]
    pub csr: ::prost::alloc::string::String,
    /// Seconds.
    #[prost(int64, tag = "3")]
    pub validity_duration: i64,
    #[prost(message, optional, tag = "4")]
    pub metadata: ::core::option::Option<::prost_types::Struct>,
}
impl ::prost::Name for IstioCertificateRequest {
    const NAME: &'static str = "IstioCertificateRequest";
    const PACKAGE: &'static str = "istio.v1.auth";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.v1.auth.IstioCertificateRequest".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.v1.auth.IstioCertificateRequest".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct IstioCertificateResponse {
    /// Leaf first, one certificate a string; the last element is the root bundle.
    #[prost(string, repeated, tag = "1")]
    pub cert_chain: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
impl ::prost::Name for IstioCertificateResponse {
    const NAME: &'static str = "IstioCertificateResponse";
    const PACKAGE: &'static str = "istio.v1.auth";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.v1.auth.IstioCertificateResponse".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.v1.auth.IstioCertificateResponse".into()
    }
}
