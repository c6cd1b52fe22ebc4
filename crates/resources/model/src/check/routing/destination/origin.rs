//! `tls` of a DestinationRule: plaintext, mutual TLS of the mesh, or TLS that the proxy originates. Contradictory
//! settings are an error. Istio's proxies would take one of the two, but an author who writes a certificate expects it
//! to be used.

use std::sync::Arc;

use crate::check::values;
use crate::codes;
use crate::decode::Report;
use crate::mesh::traffic::{Authorities, ClientTls, TlsOrigin};
use crate::names::Hostname;
use crate::written::destination as written;

/// Value for the system's own authorities in place of a file.
const SYSTEM: &str = "system";
/// Most names of which a certificate must have one.
const MAX_NAMES: usize = 100;

pub(super) fn tls(written: &written::ClientTls, report: &Report) -> Option<ClientTls> {
    let Some(mode) = &written.mode else {
        // Without a mode it is plaintext, as in Istio.
        return Some(ClientTls::Disable);
    };
    match &*mode.value {
        "DISABLE" => Some(ClientTls::Disable),
        "ISTIO_MUTUAL" => {
            of_mesh(written, report);
            without_effect(
                written,
                "ISTIO_MUTUAL uses the certificates of the mesh",
                report,
            );
            Some(ClientTls::Mutual(server_name(written, report)))
        }
        "SIMPLE" => Some(ClientTls::Originate(origin(written, false, report)?.into())),
        "MUTUAL" => Some(ClientTls::Originate(origin(written, true, report)?.into())),
        // The check of intents reports it.
        _ => None,
    }
}

/// Istio takes these fields and does not look at them in some modes: the resource stays in force, and a warning names the field.
fn without_effect(written: &written::ClientTls, instead: &str, report: &Report) {
    let mutual = [
        ("caCertificates", &written.ca_certificates),
        ("caCrl", &written.ca_crl),
        ("credentialName", &written.credential_name),
    ];
    let own = [
        ("clientCertificate", &written.client_certificate),
        ("privateKey", &written.private_key),
    ];
    let of_mesh = is_mode(written, "ISTIO_MUTUAL");
    let more = mutual.into_iter().filter(|_| of_mesh);
    for (name, text) in own.into_iter().chain(more) {
        if let Some(text) = text.as_ref().filter(|text| !text.value.is_empty()) {
            let message = format!("`{name}` has no effect: {instead}");
            report.warning(codes::NOT_OBEYED, &text.at, message, "remove it");
        }
    }
}

fn is_mode(written: &written::ClientTls, mode: &str) -> bool {
    written
        .mode
        .as_ref()
        .is_some_and(|text| &*text.value == mode)
}

/// The mesh's own certificates cannot be configured.
fn of_mesh(written: &written::ClientTls, report: &Report) {
    if let Some(text) = written.subject_alt_names.first() {
        let message = "`subjectAltNames` with mode ISTIO_MUTUAL is not yet supported";
        let help =
            "remove it: clients verify the identity of each workload from its service account";
        report.error(codes::NOT_YET, &text.at, message, help);
    }
}

fn server_name(written: &written::ClientTls, report: &Report) -> Option<Arc<str>> {
    let text = written.sni.as_ref()?;
    let help = "a host name without a `*`, such as api.example.com";
    let read = |text: &str| Hostname::new(text).filter(|host| !host.is_wildcard());
    let name = report.parsed(text, "a server name", read, help)?;
    Some(name.as_str().into())
}

fn origin(written: &written::ClientTls, mutual: bool, report: &Report) -> Option<TlsOrigin> {
    let unverified = written.insecure.as_ref().is_some_and(|flag| flag.value);
    let credential = credential(written, report);
    if !mutual && credential.is_none() {
        let instead = "mode SIMPLE sends no client certificate; MUTUAL does";
        without_effect(written, instead, report);
    }
    let shown = mutual || credential.is_some();
    let [own_certificate, own_key] = [&written.client_certificate, &written.private_key]
        .map(|text| text.as_ref().filter(|text| shown && !text.value.is_empty()));
    let certificate = match (own_certificate, own_key) {
        (Some(certificate), Some(key)) => {
            let files = [certificate, key].map(|text| values::file(text, report));
            let [certificate, key] = files;
            certificate.zip(key)
        }
        (Some(one), None) | (None, Some(one)) => {
            let message = "`clientCertificate` and `privateKey` require each other";
            report.error(codes::MISSING, &one.at, message, "write both");
            None
        }
        (None, None) => None,
    };
    match own_certificate.filter(|_| credential.is_some()) {
        Some(text) => {
            let message = "the certificate is set twice";
            let help = "keep `credentialName`, or `clientCertificate` and `privateKey`";
            report.error(codes::CONTRADICTION, &text.at, message, help);
        }
        None if mutual
            && credential.is_none()
            && own_key.is_none()
            && own_certificate.is_none() =>
        {
            let message = "mode MUTUAL needs a certificate";
            let help = "name its Secret in `credentialName` (at gateways), or its files in `clientCertificate` and `privateKey`";
            report.error(codes::MISSING, &written.at, message, help);
        }
        None => {}
    }
    let authorities = match &written.ca_certificates {
        None => Authorities::System,
        Some(text) if &*text.value == SYSTEM => Authorities::System,
        Some(text) if credential.is_some() => {
            let message = "`caCertificates` and `credentialName` both set the authorities";
            let help = "keep one; a Secret has them as `ca.crt`";
            report.error(codes::CONTRADICTION, &text.at, message, help);
            Authorities::System
        }
        Some(text) => Authorities::File(values::file(text, report)?),
    };
    let names = names(written, report);
    let pointless = written.ca_certificates.as_ref().or(written.ca_crl.as_ref());
    let pointless = pointless.or(written.subject_alt_names.first());
    if let Some(text) = pointless.filter(|_| unverified) {
        let message = "`insecureSkipVerify` disables verification, so this field has no effect";
        let help = "remove one of the two; without `insecureSkipVerify` clients verify the server";
        report.error(codes::CONTRADICTION, &text.at, message, help);
    }
    Some(TlsOrigin {
        mutual,
        authorities,
        revocations: revocations(written, report),
        credential,
        granted: None,
        certificate,
        server_name: server_name(written, report),
        subject_alt_names: names,
        unverified,
    })
}

/// The CRL file.
fn revocations(written: &written::ClientTls, report: &Report) -> Option<Arc<str>> {
    let text = written.ca_crl.as_ref()?;
    if written.credential_name.is_some() {
        let message = "`caCrl` and `credentialName` both set the revocation lists";
        let help = "remove it; a Secret has them as `ca.crl`";
        report.error(codes::CONTRADICTION, &text.at, message, help);
    }
    values::file(text, report)
}

/// A Secret in the namespace of the calling proxy.
fn credential(written: &written::ClientTls, report: &Report) -> Option<Arc<str>> {
    let text = written.credential_name.as_ref()?;
    let name = text.value.strip_prefix("kubernetes://");
    let name = name.unwrap_or(&text.value);
    if name.contains('/') {
        let message = "only a Secret of the gateway's own namespace can be named here";
        report.error(codes::NOT_YET, &text.at, message, "write the Secret's name");
    }
    Some(name.into())
}

fn names(written: &written::ClientTls, report: &Report) -> Vec<Arc<str>> {
    let all = &written.subject_alt_names;
    if let Some(text) = all.get(MAX_NAMES) {
        let message = format!("more than {MAX_NAMES} names");
        report.error(codes::LIMIT, &text.at, message, "say fewer");
    }
    for text in all {
        if !values::is_certificate_name(&text.value) {
            let help = "a host name, an IP address, or a URI such as spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT";
            report.bad(text, " as a name of a certificate", help);
        }
    }
    all.iter().map(|text| text.value.clone()).collect()
}
