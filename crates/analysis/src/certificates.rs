//! Secrets that gateways name: is what they hold certificates and keys? Whether they belong together only proxies find out.

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use voile_model::Diagnostic;
use voile_model::mesh::Secret;
use x509_parser::parse_x509_certificate;

use crate::codes;

/// What a Secret of a certificate may be called by, each with the key beside it.
pub(crate) const PAIRS: [(&str, &str); 2] = [("tls.crt", "tls.key"), ("cert", "key")];
/// The same of authorities.
pub(crate) const AUTHORITIES: [&str; 2] = ["ca.crt", "cacert"];

/// Says what of a Secret is not what it is called.
pub(crate) fn check(secret: &Secret, found: &mut Vec<Diagnostic>) {
    let held = |key: &'static str| {
        let bytes: &[u8] = secret.data.get(key)?;
        (!bytes.is_empty()).then_some((key, bytes))
    };
    let mut pairs = PAIRS.iter();
    let pair = pairs.find_map(|(certificate, key)| Some((held(certificate)?, held(key)?)));
    let shown = pair.and_then(|(certificate, key)| misfit(certificate, key));
    let authorities = AUTHORITIES.into_iter().find_map(held);
    let believed = authorities.filter(|(_, pem)| !are_certificates(pem));
    let believed =
        believed.map(|(key, _)| (key, "holds no certificates in PEM: nobody is believed"));
    for (key, what) in shown.into_iter().chain(believed) {
        let said = format!("`{key}` of the Secret {} {what}", secret.name);
        let diagnostic = Diagnostic::error(codes::UNKNOWN_CREDENTIAL, secret.source.clone(), said);
        let help = "a gateway goes on with what it had before; one that starts has nothing";
        found.push(diagnostic.field(format!("data[{key}]")).help(help));
    }
}

/// What of a certificate and its key is none, by the names of both.
fn misfit(
    (certificate, pem): (&'static str, &[u8]),
    (key, its): (&'static str, &[u8]),
) -> Option<(&'static str, &'static str)> {
    if !are_certificates(pem) {
        let what = "holds no certificate in PEM: nobody is let in by it";
        return Some((certificate, what));
    }
    let readable = PrivateKeyDer::from_pem_slice(its).is_ok();
    (!readable).then_some((
        key,
        "holds no key in PEM: nobody is let in by its certificate",
    ))
}

fn are_certificates(pem: &[u8]) -> bool {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let is_one = |der: &CertificateDer<'_>| {
        parse_x509_certificate(der).is_ok_and(|(rest, _)| rest.is_empty())
    };
    all.is_ok_and(|all| !all.is_empty() && all.iter().all(is_one))
}
