//! Check of Istio's Gateway. An unsupported field of a server is refused by name, and the Gateway is not in force.

use std::net::IpAddr;
use std::sync::Arc;

use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report, Text};
use crate::mesh::routing_intent::{
    DeclaredServer, Gateway, ServerFiles, ServerHost, ServerTls, ServerTlsMode, TlsVersion,
};
use crate::names::{Hostname, Namespace, Port};
use crate::source::Source;

/// Plaintext protocols whose requests the gateway parses.
const PLAIN: [&str; 3] = ["HTTP", "HTTP2", "GRPC"];
/// The same in TLS.
const HTTPS: &str = "HTTPS";
/// Bytes, in TLS or without.
const OPAQUE: [&str; 2] = ["TLS", "TCP"];
/// Protocols that Istio supports and Voile does not yet.
const NOT_YET: [&str; 4] = ["GRPC-WEB", "MONGO", "MYSQL", "REDIS"];
/// Servers of these need `tls`.
const ENCRYPTED: [&str; 2] = [HTTPS, "TLS"];

const MODES: [(&str, ServerTlsMode); 6] = [
    ("PASSTHROUGH", ServerTlsMode::Passthrough),
    ("SIMPLE", ServerTlsMode::Simple),
    ("MUTUAL", ServerTlsMode::Mutual),
    ("OPTIONAL_MUTUAL", ServerTlsMode::OptionalMutual),
    ("ISTIO_MUTUAL", ServerTlsMode::IstioMutual),
    ("AUTO_PASSTHROUGH", ServerTlsMode::AutoPassthrough),
];

/// Versions by Istio's words. Voile never speaks versions older than 1.2.
const VERSIONS: [(&str, Option<TlsVersion>); 3] = [
    ("TLS_AUTO", None),
    ("TLSV1_2", Some(TlsVersion::V12)),
    ("TLSV1_3", Some(TlsVersion::V13)),
];

/// The suites of TLS 1.2 that can be spoken, by OpenSSL's names; those of 1.3 are not chosen among, as in Envoy.
const SUITES: [&str; 6] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-CHACHA20-POLY1305",
];

/// The suites of TLS 1.3, by both of their spellings.
const SUITES_OF_1_3: [&str; 3] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

/// Older suites that Istio knows: without forward secrecy, or with CBC.
const WEAK_SUITES: [&str; 13] = [
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-ECDSA-AES128-SHA256",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA256",
    "ECDHE-RSA-AES256-SHA",
    "AES128-GCM-SHA256",
    "AES128-SHA",
    "AES128-SHA256",
    "AES256-GCM-SHA384",
    "AES256-SHA",
    "AES256-SHA256",
    "DES-CBC3-SHA",
];

/// The suites of TLS 1.2 among those that are written. The others that Istio knows are named by a warning: they are never negotiated
/// (weak ones), or always are where TLS 1.3 is (its own).
pub(in crate::check) fn suites(written: &[Text], report: &Report) -> Vec<Arc<str>> {
    let mut known = Vec::with_capacity(written.len());
    for text in written {
        let name = &*text.value;
        let instead = if SUITES.contains(&name) {
            known.push(text.value.clone());
            continue;
        } else if SUITES_OF_1_3.contains(&name) {
            "TLS 1.3 cipher suites are always enabled and not configurable"
        } else if WEAK_SUITES.contains(&name) {
            "this suite is not supported"
        } else {
            let help = format!("there are {}", SUITES.join(", "));
            report.bad(text, " as a suite of TLS 1.2 here", help);
            continue;
        };
        let message = format!("`{name}` in `cipherSuites` has no effect: {instead}");
        report.warning(codes::NOT_OBEYED, &text.at, message, "remove it");
    }
    known
}

pub(super) fn of_istio(meta: Meta, fields: &mut Fields<'_>, report: &Report) -> Option<Gateway> {
    fields.ignore(&["status"]);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let selector = spec
        .get("selector")
        .map(|at| values::labels(&at.text_map(), report));
    let own = meta.name.namespace.clone();
    let servers = spec.list("servers", |cursor| server(cursor, &own, report));
    if servers.is_empty() {
        report.required(None::<()>, spec.at(), "servers");
    }
    spec.finish();
    Some(Gateway {
        selector: Some(selector.unwrap_or_default()),
        namespace: None,
        servers,
        name: meta.name,
        source: meta.source,
        created: meta.created,
    })
}

fn server(cursor: &Cursor<'_>, own: &Namespace, report: &Report) -> Option<DeclaredServer> {
    let mut fields = cursor.fields()?;
    let at = fields.at().clone();
    let port = report.required(fields.inner("port"), &at, "port");
    let port = port.map(|port| listener_port(port, report));
    let hosts = fields.texts("hosts");
    if hosts.is_empty() {
        report.required(None::<()>, &at, "hosts");
    }
    let hosts = hosts.iter();
    let hosts = hosts.filter_map(|text| server_host(text, own, report));
    let hosts = hosts.collect();
    let mut credentials = Vec::new();
    let tls = fields.inner("tls");
    let mut tls = tls.and_then(|tls| server_tls(tls, &mut credentials, report));
    let name = fields.text("name").map(|name| name.value);
    let bind = fields.text("bind").filter(|text| !text.value.is_empty());
    let bind = bind.and_then(|text| bound(&text, report));
    fields.not_yet(&["defaultEndpoint"]);
    fields.finish();
    let (number, protocol, port_name) = port??;
    let files = tls.as_ref().is_some_and(|tls| tls.files.is_some());
    let nameless = credentials.is_empty() && !files;
    encryption(&protocol, tls.as_ref(), nameless, &at, report);
    // As Istio, which warns too.
    if let Some(tls) = tls.as_mut().filter(|tls| passes_through(tls.mode)) {
        credentials.clear();
        tls.files = None;
    }
    let name = name.or(port_name);
    Some(DeclaredServer {
        source: report.source(&at),
        name: name.unwrap_or_else(|| "".into()),
        port: number,
        protocol,
        bind,
        hosts,
        tls,
        credentials,
        granted: false,
        listens: None,
    })
}

/// Number, protocol in upper case, and name.
type ServerPort = (Port, Arc<str>, Option<Arc<str>>);

fn listener_port(mut port: Fields<'_>, report: &Report) -> Option<ServerPort> {
    let at = port.at().clone();
    let number = report.required(port.integer("number"), &at, "number");
    let protocol = report.required(port.text("protocol"), &at, "protocol");
    let name = port.text("name").map(|name| name.value);
    // Istio has taken no notice of it since 1.7.
    port.ignore(&["targetPort"]);
    port.finish();
    let protocol = protocol?;
    let said: Arc<str> = protocol.value.to_ascii_uppercase().into();
    if NOT_YET.contains(&&*said) {
        let message = format!("a server with protocol {said} is not yet supported");
        let help = format!(
            "{}, {HTTPS} and {} are; remove it, or wait for a later version",
            PLAIN.join(", "),
            OPAQUE.join(", ")
        );
        report.error(codes::NOT_YET, &protocol.at, message, help);
    } else if !PLAIN.contains(&&*said) && !OPAQUE.contains(&&*said) && &*said != HTTPS {
        let words = PLAIN.iter().chain(&[HTTPS]).chain(&OPAQUE);
        let words = words.chain(&NOT_YET).copied();
        let help = crate::text::suggest(&protocol.value, words);
        report.bad(&protocol, " as the protocol of a server", help);
    }
    Some((report.port(&number?)?, said, name))
}

/// Returns true if TLS passes through the gateway.
fn passes_through(mode: ServerTlsMode) -> bool {
    use ServerTlsMode::{AutoPassthrough, Passthrough};
    matches!(mode, Passthrough | AutoPassthrough)
}

/// Checks that the TLS settings fit the protocol.
fn encryption(
    protocol: &str,
    tls: Option<&ServerTls>,
    nameless: bool,
    at: &FieldPath,
    report: &Report,
) {
    let encrypted = ENCRYPTED.contains(&protocol);
    let ends_here = |mode| {
        use ServerTlsMode::{Mutual, OptionalMutual, Simple};
        matches!(mode, Simple | Mutual | OptionalMutual)
    };
    match tls {
        None if encrypted => drop(report.required(None::<()>, at, "tls")),
        Some(tls) if PLAIN.contains(&protocol) && !tls.https_redirect => {
            let message = format!(
                "a server with protocol {protocol} is plaintext: in `tls` only httpsRedirect is allowed"
            );
            let help = "write protocol: HTTPS, or remove `tls`";
            report.error(codes::CONTRADICTION, at, message, help);
        }
        Some(tls) if protocol == "TLS" && tls.https_redirect => {
            let message =
                "`httpsRedirect` has no effect on a TLS server: it serves no plaintext HTTP";
            report.warning(codes::NOT_OBEYED, at, message, "remove it");
        }
        Some(_) if protocol == "TCP" => {
            let message = "a server with protocol TCP is plaintext";
            let help = "write protocol: TLS, or remove `tls`";
            report.error(codes::CONTRADICTION, at, message, help);
        }
        Some(tls) if encrypted && ends_here(tls.mode) && nameless => {
            let message = format!("a server with protocol {protocol} needs a certificate");
            let help = "name its Secret in tls.credentialName, or its files in tls.serverCertificate and tls.privateKey";
            report.error(codes::MISSING, at, message, help);
        }
        Some(tls) if encrypted && passes_through(tls.mode) && !nameless => {
            let message = format!(
                "the certificate of this server has no effect: tls.mode {} uses none",
                word(tls.mode)
            );
            let help = "remove the certificate's fields, or write SIMPLE or MUTUAL";
            report.warning(codes::NOT_OBEYED, at, message, help);
        }
        Some(tls) if encrypted && !ends_here(tls.mode) && !nameless => {
            let message = format!("tls.mode {} uses no configured certificate", word(tls.mode));
            let help = "remove the certificate's fields, or write SIMPLE or MUTUAL";
            report.error(codes::CONTRADICTION, at, message, help);
        }
        _ => {}
    }
}

fn word(mode: ServerTlsMode) -> &'static str {
    let mut modes = MODES.iter();
    modes
        .find(|(_, known)| *known == mode)
        .map_or("", |(word, _)| word)
}

type Credential = (Option<Namespace>, Arc<str>, Source);

/// Most certificates of one server: one for each kind of key.
const MAX_CERTIFICATES: usize = 2;

/// The Secrets by which a server shows itself.
fn named(tls: &mut Fields<'_>, report: &Report) -> Vec<Credential> {
    let (one, several) = (tls.text("credentialName"), tls.texts("credentialNames"));
    if let (Some(_), Some(text)) = (&one, several.first()) {
        let message = "the certificate is set twice";
        let help = "keep `credentialName` or `credentialNames`";
        report.error(codes::CONTRADICTION, &text.at, message, help);
    }
    if let Some(text) = several.get(MAX_CERTIFICATES) {
        let message = format!("more than {MAX_CERTIFICATES} certificates");
        let help = "one with a key of RSA and one with a key of ECDSA";
        report.error(codes::LIMIT, &text.at, message, help);
    }
    for text in one.iter().chain(&several) {
        let scheme = text.value.split_once("://").map(|(scheme, _)| scheme);
        if scheme.is_some_and(|scheme| scheme != "kubernetes") {
            let message = "only Secrets can be named here yet";
            let help = "write the name of a Secret in the namespace of the gateway's Pods";
            report.error(codes::NOT_YET, &text.at, message, help);
        }
    }
    let all = one.into_iter().chain(several);
    all.map(|text| (None, text.value, report.source(&text.at)))
        .collect()
}

fn server_tls(
    mut tls: Fields<'_>,
    credentials: &mut Vec<Credential>,
    report: &Report,
) -> Option<ServerTls> {
    let at = tls.at().clone();
    credentials.extend(named(&mut tls, report));
    let mode = match tls.text("mode") {
        // Istio's default.
        None => ServerTlsMode::Passthrough,
        Some(text) => report.one_of(&text, &MODES)?,
    };
    let files = server_files(&mut tls, mode, !credentials.is_empty(), report);
    let https_redirect = tls.boolean("httpsRedirect").is_some_and(|flag| flag.value);
    let [oldest, newest] = ["minProtocolVersion", "maxProtocolVersion"].map(|field| {
        let text = tls.text(field)?;
        report.one_of(&text, &VERSIONS)?
    });
    let cipher_suites = tls.texts("cipherSuites");
    let cipher_suites = suites(&cipher_suites, report);
    if let Some(unverified) = tls.boolean("insecureSkipVerify").filter(|one| one.value) {
        let message = "`insecureSkipVerify: true` is not yet supported: this server verifies every client certificate";
        let help = "remove it, or write mode SIMPLE to request no client certificates";
        report.error(codes::NOT_YET, &unverified.at, message, help);
    }
    tls.not_yet(&[
        "subjectAltNames",
        "caCertCredentialName",
        "tlsCertificates",
        "verifyCertificateSpki",
        "verifyCertificateHash",
    ]);
    tls.finish();
    let (oldest, newest) = (
        oldest.unwrap_or(TlsVersion::V12),
        newest.unwrap_or(TlsVersion::V13),
    );
    if oldest > newest {
        let message =
            "minProtocolVersion is newer than maxProtocolVersion: every TLS handshake fails";
        report.error(codes::CONTRADICTION, &at, message, "swap them");
    }
    Some(ServerTls {
        mode,
        https_redirect,
        oldest,
        newest,
        cipher_suites,
        files,
        authorities: None,
        unverified: false,
    })
}

/// Certificate, key and authorities in files of the proxy's own machine. Contradictory settings are an error; Istio
/// takes one of the two.
fn server_files(
    tls: &mut Fields<'_>,
    mode: ServerTlsMode,
    credential: bool,
    report: &Report,
) -> Option<ServerFiles> {
    let fields = ["serverCertificate", "privateKey", "caCertificates"];
    let written = fields.map(|field| tls.text(field).filter(|text| !text.value.is_empty()));
    if let (true, Some(text)) = (credential, written.iter().flatten().next()) {
        let help = "keep `credentialName`, or the files in `serverCertificate`, `privateKey` and `caCertificates`";
        match &written {
            [Some(_), Some(_), _] => {
                let message = "the certificate is set twice";
                report.error(codes::CONTRADICTION, &text.at, message, help);
            }
            _ => {
                let message = "certificate files have no effect together with `credentialName`";
                report.warning(codes::NOT_OBEYED, &text.at, message, help);
            }
        }
        return None;
    }
    let [certificate, key, authorities] = written;
    let revocations = tls.text("caCrl").filter(|text| !text.value.is_empty());
    let asks = matches!(mode, ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual);
    match &authorities {
        Some(text) if !asks => {
            let mode = word(mode);
            let message = format!(
                "`caCertificates` has no effect: mode {mode} requests no client certificates"
            );
            let help = "write MUTUAL or OPTIONAL_MUTUAL to verify clients, or remove it";
            report.warning(codes::NOT_OBEYED, &text.at, message, help);
        }
        None if asks && (certificate.is_some() || key.is_some()) => {
            let message = format!(
                "mode {} needs certificate authorities to verify client certificates",
                word(mode)
            );
            let help = "name their file in `caCertificates`, or a Secret in `credentialName`";
            report.error(codes::MISSING, tls.at(), message, help);
        }
        _ => {}
    }
    if let Some(text) = revocations.as_ref().filter(|_| authorities.is_none()) {
        let message = "`caCrl` has no effect without `caCertificates`";
        let help = "add `caCertificates`, or put the list into the Secret as `ca.crl`";
        report.error(codes::CONTRADICTION, &text.at, message, help);
    }
    match (certificate, key) {
        (Some(certificate), Some(key)) => Some(ServerFiles {
            certificate: values::file(&certificate, report)?,
            key: values::file(&key, report)?,
            authorities: match &authorities {
                Some(text) => Some(values::file(text, report)?),
                None => None,
            },
            revocations: match &revocations {
                Some(text) => Some(values::file(text, report)?),
                None => None,
            },
        }),
        (Some(one), None) | (None, Some(one)) => {
            let message = "`serverCertificate` and `privateKey` require each other";
            report.error(codes::MISSING, &one.at, message, "write both");
            None
        }
        (None, None) => None,
    }
}

fn bound(text: &Text, report: &Report) -> Option<IpAddr> {
    if text.value.starts_with("unix:") {
        let message = "Unix sockets are not yet supported here";
        report.error(codes::NOT_YET, &text.at, message, "write an IP address");
        return None;
    }
    values::ip(text, report)
}

/// `HOST` or `NAMESPACE/HOST`.
fn server_host(text: &Text, own: &Namespace, report: &Report) -> Option<ServerHost> {
    let (namespace, host) = match text.value.split_once('/') {
        None => (None, &*text.value),
        Some(("*", host)) => (None, host),
        Some((".", host)) => (Some(own.clone()), host),
        Some((namespace, host)) => {
            let read = |_: &str| Namespace::new(namespace);
            let help = "write HOST, NAMESPACE/HOST, ./HOST or */HOST";
            (Some(report.parsed(text, "a host", read, help)?), host)
        }
    };
    let help = "a host name, *.HOST or *";
    let host = report.parsed(text, "a host", |_| Hostname::new(host), help)?;
    Some(ServerHost { namespace, host })
}
