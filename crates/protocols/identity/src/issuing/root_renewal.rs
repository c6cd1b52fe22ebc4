//! A self-signed root is renewed before it ends: another certificate for the same key and the same name. Certificates below the old
//! one are below the new one, too.

use std::time::SystemTime;

use rcgen::string::PrintableString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose,
};
use time::OffsetDateTime;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::authority::{AuthorityFiles, CLOCK_SKEW, ROOT_LIFE, random_serial};
use crate::keys::certificates_of;

/// Share of its life that is left when a self-signed root is renewed: a fifth, as Istio's.
const RENEWED_WITH: u32 = 5;

/// Files with a new root, once a fifth of the old one's life is left; None before.
///
/// # Errors
/// The files do not hold a self-signed root and its key, or signing failed.
pub fn renew_root(
    files: &AuthorityFiles,
    now: SystemTime,
) -> Result<Option<AuthorityFiles>, String> {
    let certificates = certificates_of(&files.certificate).map_err(|error| error.to_string())?;
    let own = certificates
        .first()
        .ok_or("ca-cert.pem holds no certificate")?;
    let (_, parsed) = X509Certificate::from_der(own).map_err(|error| error.to_string())?;
    if parsed.issuer().as_raw() != parsed.subject().as_raw() {
        return Err("ca-cert.pem is not self-signed".to_owned());
    }
    let time = |time: x509_parser::time::ASN1Time| SystemTime::from(time.to_datetime());
    let validity = parsed.validity();
    let (begins, ends) = (time(validity.not_before), time(validity.not_after));
    let life = ends.duration_since(begins).unwrap_or_default();
    if now + life / RENEWED_WITH < ends {
        return Ok(None);
    }
    let pair = KeyPair::from_pem(&files.key).map_err(|error| error.to_string())?;
    let certificate = self_signed(&parsed, &pair, now)?;
    Ok(Some(AuthorityFiles {
        roots: certificate.clone(),
        certificate,
        ..files.clone()
    }))
}

/// A certificate for the same key, with the same name and key identifier as `old`.
fn self_signed(
    old: &X509Certificate<'_>,
    pair: &KeyPair,
    now: SystemTime,
) -> Result<String, String> {
    let failed = |error: rcgen::Error| error.to_string();
    let mut params = CertificateParams::default();
    params.distinguished_name = same_name(old)?;
    params.not_before = OffsetDateTime::from(now - CLOCK_SKEW);
    params.not_after = OffsetDateTime::from(now + ROOT_LIFE);
    params.serial_number = Some(random_serial().map_err(|error| error.to_string())?);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key_id = old
        .extensions()
        .iter()
        .find_map(|one| match one.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
    if let Some(key_id) = key_id {
        params.key_identifier_method = KeyIdMethod::PreSpecified(key_id);
    }
    let root = params.self_signed(pair).map_err(failed)?;
    let (_, made) = X509Certificate::from_der(root.der()).map_err(|error| error.to_string())?;
    if made.subject().as_raw() != old.subject().as_raw() {
        return Err(format!(
            "the name {} cannot be written again",
            old.subject()
        ));
    }
    Ok(root.pem())
}

fn same_name(old: &X509Certificate<'_>) -> Result<DistinguishedName, String> {
    let mut name = DistinguishedName::new();
    for attribute in old.subject().iter_attributes() {
        let kind = attribute
            .attr_type()
            .iter()
            .ok_or("an attribute's type is too long")?;
        let text = attribute.as_str().map_err(|error| error.to_string())?;
        let printable = attribute.attr_value().tag() == x509_parser::asn1_rs::Tag::PrintableString;
        let value = match printable {
            true => {
                let text = PrintableString::try_from(text).map_err(|error| error.to_string())?;
                DnValue::PrintableString(text)
            }
            false => DnValue::Utf8String(text.to_owned()),
        };
        name.push(DnType::from_oid(&kind.collect::<Vec<_>>()), value);
    }
    Ok(name)
}
