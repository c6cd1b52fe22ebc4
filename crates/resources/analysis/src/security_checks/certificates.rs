//! Secrets that gateways name: are they certificates and keys, do these belong together, and does a client take them?

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING,
    EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use voile_model::mesh::Secret;
use voile_model::{Diagnostic, Hostname};
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::codes;

/// Accepted names of a certificate and of its key in a Secret.
pub(crate) const PAIRS: [(&str, &str); 2] = [("tls.crt", "tls.key"), ("cert", "key")];
/// The same of authorities.
pub(crate) const AUTHORITIES: [&str; 2] = ["ca.crt", "cacert"];

/// A certificate is reported when less than this remains of it.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 24 * 3600);
/// The same as a part of its whole lifetime, for certificates of a few days.
const EXPIRES_SOON_PART: u32 = 5;

/// Reports a Secret whose certificate or key cannot be used, or whose certificate clients refuse. `hosts` are those that a
/// gateway serves with it.
pub(crate) fn check(
    secret: &Secret,
    hosts: &[&Hostname],
    now: SystemTime,
    found: &mut Vec<Diagnostic>,
) {
    let held = |key: &'static str| {
        let bytes: &[u8] = secret.data.get(key)?;
        (!bytes.is_empty()).then_some((key, bytes))
    };
    let mut pairs = PAIRS.iter();
    let pair = pairs.find_map(|(certificate, key)| Some((held(certificate)?, held(key)?)));
    let shown = pair.and_then(|(certificate, key)| misfit(certificate, key));
    if let (None, Some(((key, pem), _))) = (shown, pair) {
        for (is_error, what) in refusals(pem, hosts, now) {
            let said = format!("`{key}` of the Secret {} {what}", secret.name);
            let make = match is_error {
                true => Diagnostic::error,
                false => Diagnostic::warning,
            };
            let diagnostic = make(codes::REFUSED_CERTIFICATE, secret.source.clone(), said);
            let help = "replace it with a certificate that is valid now, for these hosts, with its full chain";
            found.push(diagnostic.field(format!("data[{key}]")).help(help));
        }
    }
    let authorities = AUTHORITIES.into_iter().find_map(held);
    let believed = authorities.filter(|(_, pem)| !are_certificates(pem));
    let believed = believed.map(|(key, _)| {
        (
            key,
            "contains no PEM certificates: every peer certificate is rejected",
        )
    });
    for (key, what) in shown.into_iter().chain(believed) {
        let said = format!("`{key}` of the Secret {} {what}", secret.name);
        let diagnostic = Diagnostic::error(codes::UNKNOWN_CREDENTIAL, secret.source.clone(), said);
        let help = "put a valid value there; until then a running gateway keeps the previous one, and a new gateway has none";
        found.push(diagnostic.field(format!("data[{key}]")).help(help));
    }
}

/// The first fault of a certificate and its key: the name of the faulty entry, and the reason.
fn misfit(
    (certificate, pem): (&'static str, &[u8]),
    (key, its): (&'static str, &[u8]),
) -> Option<(&'static str, &'static str)> {
    if !are_certificates(pem) {
        let what = "contains no PEM certificate: no TLS handshake succeeds";
        return Some((certificate, what));
    }
    let Ok(parsed) = PrivateKeyDer::from_pem_slice(its) else {
        return Some((key, "contains no PEM key: no TLS handshake succeeds"));
    };
    let Some(public) = public_key(&parsed) else {
        return Some((key, "contains a key of an unsupported type"));
    };
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, leaf) = parse_x509_certificate(&der).ok()?;
    let certified = &leaf.public_key().subject_public_key.data;
    (certified.as_ref() != public).then_some((
        key,
        "does not match the certificate in the Secret: every TLS handshake fails",
    ))
}

/// The public half of a key, as a certificate holds it (`subjectPublicKey`, RFC 5280 section 4.1.2.7).
fn public_key(key: &PrivateKeyDer<'_>) -> Option<Vec<u8>> {
    let der = key.secret_der();
    let curves = [
        &ECDSA_P256_SHA256_ASN1_SIGNING,
        &ECDSA_P384_SHA384_ASN1_SIGNING,
        &ECDSA_P521_SHA512_ASN1_SIGNING,
    ];
    let on_curve = || {
        curves.into_iter().find_map(|curve| match key {
            PrivateKeyDer::Pkcs8(_) => EcdsaKeyPair::from_pkcs8(curve, der).ok(),
            _ => EcdsaKeyPair::from_private_key_der(curve, der).ok(),
        })
    };
    let of_rsa = || match key {
        PrivateKeyDer::Pkcs8(_) => RsaKeyPair::from_pkcs8(der).ok(),
        _ => RsaKeyPair::from_der(der).ok(),
    };
    let of_ed25519 = || Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok();
    on_curve()
        .map(|pair| pair.public_key().as_ref().to_vec())
        .or_else(|| of_rsa().map(|pair| pair.public_key().as_ref().to_vec()))
        .or_else(|| of_ed25519().map(|pair| pair.public_key().as_ref().to_vec()))
}

/// Why clients refuse a certificate, or will soon; whether each is an error.
fn refusals(pem: &[u8], hosts: &[&Hostname], now: SystemTime) -> Vec<(bool, String)> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .collect();
    let chain: Vec<_> = chain
        .iter()
        .filter_map(|der| Some(parse_x509_certificate(der).ok()?.1))
        .collect();
    let Some(leaf) = chain.first() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    found.extend(chain.iter().find_map(|one| out_of_time(one, now)));
    let unnamed: Vec<&str> = hosts
        .iter()
        .filter(|host| !names(leaf, host.as_str()))
        .map(|host| host.as_str())
        .collect();
    if !unnamed.is_empty() {
        let unnamed = unnamed.join(", ");
        found.push((
            false,
            format!("does not name {unnamed}: clients of that host reject it"),
        ));
    }
    if chain.windows(2).any(|pair| !may_issue(&pair[1], &pair[0])) {
        let what = "is not a valid chain: each certificate must be followed by its issuer's";
        found.push((false, what.to_owned()));
    }
    found
}

/// The next moment at which a check of this Secret may judge its certificates otherwise, without an edit.
pub(crate) fn next_change(secret: &Secret, now: SystemTime) -> Option<SystemTime> {
    let mut moments = Vec::new();
    for key in PAIRS.iter().map(|(certificate, _)| *certificate) {
        for der in secret
            .data
            .get(key)
            .into_iter()
            .flat_map(|pem| CertificateDer::pem_slice_iter(pem))
            .flatten()
        {
            let Ok((_, certificate)) = parse_x509_certificate(&der) else {
                continue;
            };
            let validity = certificate.validity();
            let (from, until) = (
                validity.not_before.timestamp(),
                validity.not_after.timestamp(),
            );
            moments.extend([from, until - soon(from, until), until + 1]);
        }
    }
    let moments = moments.into_iter().filter_map(|at| {
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(at).ok()?))?;
        (at > now).then_some(at)
    });
    moments.min()
}

/// Seconds before its end in which a certificate is reported.
fn soon(from: i64, until: i64) -> i64 {
    let lifetime = Duration::from_secs(until.saturating_sub(from).unsigned_abs());
    let soon = EXPIRES_SOON.min(lifetime / EXPIRES_SOON_PART);
    i64::try_from(soon.as_secs()).unwrap_or(i64::MAX)
}

/// Returns true unless the issuer has another name or key. A signature of an algorithm that is not known here may be right.
fn may_issue(issuer: &X509Certificate<'_>, certificate: &X509Certificate<'_>) -> bool {
    let signed = certificate.verify_signature(Some(issuer.public_key()));
    let forged = matches!(signed, Err(X509Error::SignatureVerificationError));
    certificate.issuer() == issuer.subject() && !forged
}

fn out_of_time(certificate: &X509Certificate<'_>, now: SystemTime) -> Option<(bool, String)> {
    let validity = certificate.validity();
    let seconds = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let now = i64::try_from(seconds).ok()?;
    let (from, until) = (
        validity.not_before.timestamp(),
        validity.not_after.timestamp(),
    );
    let subject = certificate.subject();
    if until < now {
        let at = validity.not_after;
        return Some((
            true,
            format!("expired at {at} ({subject}): clients reject it"),
        ));
    }
    if now < from {
        let at = validity.not_before;
        return Some((
            true,
            format!("is not valid before {at} ({subject}): clients reject it"),
        ));
    }
    (until.saturating_sub(now) < soon(from, until)).then(|| {
        let at = validity.not_after;
        (false, format!("expires at {at} ({subject})"))
    })
}

/// Returns true if a certificate is valid for a host. For a wildcard host the certificate needs at least one name of
/// its domain.
fn names(certificate: &X509Certificate<'_>, host: &str) -> bool {
    if host == "*" {
        return true;
    }
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let mut names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    match host.strip_prefix('*') {
        Some(domain) => names.any(|name| name.ends_with(domain)),
        None => names.any(|name| match name.strip_prefix('*') {
            // A wildcard stands for one label (RFC 6125, section 6.4.3).
            Some(domain) => host
                .strip_suffix(domain)
                .is_some_and(|label| !label.is_empty() && !label.contains('.')),
            None => name == host,
        }),
    }
}

fn are_certificates(pem: &[u8]) -> bool {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let is_one = |der: &CertificateDer<'_>| {
        parse_x509_certificate(der).is_ok_and(|(rest, _)| rest.is_empty())
    };
    all.is_ok_and(|all| !all.is_empty() && all.iter().all(is_one))
}
