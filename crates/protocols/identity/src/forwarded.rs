//! A client's certificate for servers: one element of `x-forwarded-client-cert`, as Envoy writes it
//! (`By=…;Hash=…;Cert="…";Chain="…";Subject="…";URI=…;DNS=…`). No text of a certificate can begin another key or element.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use voile_model::mesh::ClientCertificateDetails;
use x509_parser::der_parser::asn1_rs::{Oid, ToDer};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// The longest element: servers take about that much in one field. A longer one goes without the certificate itself, and one that is
/// too long even so with its hash alone.
const MAX_ELEMENT_BYTES: usize = 16 * 1024;
/// Characters of a line of PEM.
const PEM_LINE: usize = 64;

/// The element for a client's chain, its own certificate first, shown to whoever is `by` (may be empty), with these parts. Empty for
/// none.
#[must_use]
pub fn forwarded_certificate(
    chain: &[CertificateDer<'_>],
    by: &str,
    parts: ClientCertificateDetails,
) -> String {
    let mut first = String::new();
    let Some(certificate) = chain.first() else {
        return first;
    };
    if !by.is_empty() {
        first.push_str("By=");
        plain(by, &mut first);
        first.push(';');
    }
    first.push_str("Hash=");
    for byte in Sha256::digest(certificate) {
        hex(byte, b"0123456789abcdef", &mut first);
    }
    let told = said(certificate, parts);
    let mut pem = String::new();
    let own = &chain[..1];
    for (key, all, wanted) in [
        ("Cert", own, parts.certificate),
        ("Chain", chain, parts.chain),
    ] {
        if wanted {
            pem += &format!(";{key}=\"");
            all.iter().for_each(|one| written(one, &mut pem));
            pem.push('"');
        }
    }
    match first.len() + told.len() {
        much if much > MAX_ELEMENT_BYTES => first,
        much if much + pem.len() > MAX_ELEMENT_BYTES => first + &told,
        _ => first + &pem + &told,
    }
}

/// The certificate in PEM as a URL would have it.
fn written(certificate: &CertificateDer<'_>, out: &mut String) {
    let text = STANDARD.encode(certificate);
    out.push_str("-----BEGIN%20CERTIFICATE-----%0A");
    for (index, letter) in text.chars().enumerate() {
        if index > 0 && index % PEM_LINE == 0 {
            out.push_str("%0A");
        }
        match letter {
            '+' => out.push_str("%2B"),
            '/' => out.push_str("%2F"),
            '=' => out.push_str("%3D"),
            letter => out.push(letter),
        }
    }
    out.push_str("%0A-----END%20CERTIFICATE-----%0A");
}

/// Names of the certificate's owner; empty if the certificate cannot be read.
fn said(certificate: &CertificateDer<'_>, parts: ClientCertificateDetails) -> String {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return String::new();
    };
    let mut out = String::new();
    if parts.subject {
        out = format!(";Subject=\"{}\"", subject(certificate.subject()));
    }
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let mut has_uri = false;
    for name in names {
        if let (GeneralName::URI(uri), true) = (name, parts.uri) {
            has_uri = true;
            out.push_str(";URI=");
            plain(uri, &mut out);
        }
    }
    if parts.uri && !has_uri {
        out.push_str(";URI=");
    }
    for name in names {
        if let (GeneralName::DNSName(host), true) = (name, parts.dns) {
            out.push_str(";DNS=");
            plain(host, &mut out);
        }
    }
    out
}

/// A value without quotes around it: what would end it, or is no text, is written as in a URL.
fn plain(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b',' | b';' | b'=' | b'"' | b'\\' => encoded(byte, out),
            b'!'..=b'~' => out.push(byte.into()),
            _ => encoded(byte, out),
        }
    }
}

fn encoded(byte: u8, out: &mut String) {
    out.push('%');
    hex(byte, b"0123456789ABCDEF", out);
}

fn hex(byte: u8, digits: &[u8; 16], out: &mut String) {
    for digit in [byte >> 4, byte & 15] {
        out.push(digits[usize::from(digit)].into());
    }
}

/// A name as RFC 2253 writes it: the last part first, and nothing but ASCII.
fn subject(name: &X509Name<'_>) -> String {
    let parts: Vec<_> = name.iter().collect();
    let part = |part: &&x509_parser::x509::RelativeDistinguishedName<'_>| {
        let mut values: Vec<String> = part.iter().map(attribute).collect();
        values.reverse();
        values.join("+")
    };
    let parts: Vec<String> = parts.iter().rev().map(part).collect();
    parts.join(",")
}

fn attribute(one: &AttributeTypeAndValue<'_>) -> String {
    let kind = one.attr_type();
    match (short(kind), one.as_str()) {
        (Some(kind), Ok(text)) => format!("{kind}={}", escaped(text)),
        (kind, _) => {
            let dotted = kind.map_or_else(|| one.attr_type().to_id_string(), ToOwned::to_owned);
            let mut out = dotted + "=#";
            for byte in one.attr_value().to_der_vec().unwrap_or_default() {
                hex(byte, b"0123456789ABCDEF", &mut out);
            }
            out
        }
    }
}

/// Attributes of names that have a short word for themselves.
fn short(kind: &Oid<'_>) -> Option<&'static str> {
    Some(match &*kind.to_id_string() {
        "2.5.4.3" => "CN",
        "2.5.4.4" => "SN",
        "2.5.4.5" => "serialNumber",
        "2.5.4.6" => "C",
        "2.5.4.7" => "L",
        "2.5.4.8" => "ST",
        "2.5.4.9" => "street",
        "2.5.4.10" => "O",
        "2.5.4.11" => "OU",
        "2.5.4.12" => "title",
        "2.5.4.13" => "description",
        "2.5.4.15" => "businessCategory",
        "2.5.4.17" => "postalCode",
        "2.5.4.42" => "GN",
        "2.5.4.43" => "initials",
        "2.5.4.46" => "dnQualifier",
        "2.5.4.65" => "pseudonym",
        "2.5.4.97" => "organizationIdentifier",
        "0.9.2342.19200300.100.1.1" => "UID",
        "0.9.2342.19200300.100.1.25" => "DC",
        "1.2.840.113549.1.9.1" => "emailAddress",
        _ => return None,
    })
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let last = text.len().saturating_sub(1);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                out.push('\\');
                out.push(byte.into());
            }
            b'#' | b' ' if index == 0 => {
                out.push('\\');
                out.push(byte.into());
            }
            b' ' if index == last => out.push_str("\\ "),
            b' '..=b'~' => out.push(byte.into()),
            // Writing to a string cannot fail.
            _ => drop(write!(out, "\\{byte:02X}")),
        }
    }
    out
}
