//! `tls` of a DestinationRule: plaintext, mutual TLS of the mesh, or TLS that the proxy originates. Contradictory
//! settings are an error. Istio's proxies would take one of the two, but an author who writes a certificate expects it
//! to be used.

use std::sync::Arc;

use crate::check::values;
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, Text};
use crate::mesh::routing_intent::ClientTlsMode;
use crate::mesh::traffic::{Authorities, ClientTls, TlsOrigin};
use crate::names::Hostname;

/// Value for the system's own authorities in place of a file.
const SYSTEM: &str = "system";
/// Most names of which a certificate must have one.
const MAX_NAMES: usize = 100;

/// The fields of `tls` and their places: the meaning of most depends on others.
pub(super) struct TlsFields {
    pub(super) at: FieldPath,
    pub(super) mode: Option<Text>,
    pub(super) credential_name: Option<Text>,
    pub(super) unverified: bool,
    client_certificate: Option<Text>,
    private_key: Option<Text>,
    ca_certificates: Option<Text>,
    subject_alt_names: Vec<Text>,
    sni: Option<Text>,
    ca_crl: Option<Text>,
}

impl TlsFields {
    pub(super) fn read(fields: &mut Fields<'_>) -> Self {
        Self {
            at: fields.at().clone(),
            mode: fields.text("mode"),
            credential_name: fields.text("credentialName"),
            unverified: fields.flag("insecureSkipVerify"),
            client_certificate: fields.text("clientCertificate"),
            private_key: fields.text("privateKey"),
            ca_certificates: fields.text("caCertificates"),
            subject_alt_names: fields.texts("subjectAltNames"),
            sni: fields.text("sni"),
            ca_crl: fields.text("caCrl"),
        }
    }
}

pub(super) fn tls(written: &TlsFields, mode: ClientTlsMode, report: &Report) -> Option<ClientTls> {
    match mode {
        ClientTlsMode::Disable => Some(ClientTls::Disable),
        ClientTlsMode::IstioMutual => {
            of_mesh(written, report);
            let instead = "ISTIO_MUTUAL uses the certificates of the mesh";
            without_effect(written, true, instead, report);
            Some(ClientTls::Mutual(server_name(written, report)))
        }
        ClientTlsMode::Simple => Some(ClientTls::Originate(origin(written, false, report)?.into())),
        ClientTlsMode::Mutual => Some(ClientTls::Originate(origin(written, true, report)?.into())),
    }
}

/// Istio takes these fields and does not look at them in some modes: the resource stays in force, and a warning names the field.
fn without_effect(written: &TlsFields, of_mesh: bool, instead: &str, report: &Report) {
    let mutual = [
        ("caCertificates", &written.ca_certificates),
        ("caCrl", &written.ca_crl),
        ("credentialName", &written.credential_name),
    ];
    let own = [
        ("clientCertificate", &written.client_certificate),
        ("privateKey", &written.private_key),
    ];
    let more = mutual.into_iter().filter(|_| of_mesh);
    for (name, text) in own.into_iter().chain(more) {
        if let Some(text) = text.as_ref().filter(|text| !text.value.is_empty()) {
            let message = format!("`{name}` has no effect: {instead}");
            report.warning(codes::NOT_OBEYED, &text.at, message, "remove it");
        }
    }
}

/// The mesh's own certificates cannot be configured.
fn of_mesh(written: &TlsFields, report: &Report) {
    if let Some(text) = written.subject_alt_names.first() {
        let message = "`subjectAltNames` with mode ISTIO_MUTUAL is not yet supported";
        let help =
            "remove it: clients verify the identity of each workload from its service account";
        report.error(codes::NOT_YET, &text.at, message, help);
    }
}

fn server_name(written: &TlsFields, report: &Report) -> Option<Arc<str>> {
    let text = written.sni.as_ref()?;
    let help = "a host name without a `*`, such as api.example.com";
    let read = |text: &str| Hostname::new(text).filter(|host| !host.is_wildcard());
    let name = report.parsed(text, "a server name", read, help)?;
    Some(name.as_str().into())
}

fn origin(written: &TlsFields, mutual: bool, report: &Report) -> Option<TlsOrigin> {
    let unverified = written.unverified;
    let credential = credential(written, report);
    if !mutual && credential.is_none() {
        let instead = "mode SIMPLE sends no client certificate; MUTUAL does";
        without_effect(written, false, instead, report);
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
fn revocations(written: &TlsFields, report: &Report) -> Option<Arc<str>> {
    let text = written.ca_crl.as_ref()?;
    if written.credential_name.is_some() {
        let message = "`caCrl` and `credentialName` both set the revocation lists";
        let help = "remove it; a Secret has them as `ca.crl`";
        report.error(codes::CONTRADICTION, &text.at, message, help);
    }
    values::file(text, report)
}

/// A Secret in the namespace of the calling proxy.
fn credential(written: &TlsFields, report: &Report) -> Option<Arc<str>> {
    let text = written.credential_name.as_ref()?;
    let name = text.value.strip_prefix("kubernetes://");
    let name = name.unwrap_or(&text.value);
    if name.contains('/') {
        let message = "only a Secret of the gateway's own namespace can be named here";
        report.error(codes::NOT_YET, &text.at, message, "write the Secret's name");
    }
    Some(name.into())
}

fn names(written: &TlsFields, report: &Report) -> Vec<Arc<str>> {
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
