//! `x-forwarded-client-cert`, held against what openssl says of the same certificates.

use std::path::Path;
use std::process::Command;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use voile_identity::forwarded_certificate;
use voile_model::mesh::ClientCertificateDetails;

fn openssl(folder: &Path, arguments: &[&str]) -> String {
    let ran = Command::new("openssl")
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("openssl");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{arguments:?}: {said}");
    String::from_utf8(ran.stdout).expect("text")
}

/// Alternative names: kinds and values.
type Names<'a> = &'a [(&'a str, &'a str)];

/// A certificate for this subject, as openssl writes it on its command line, with these alternative names.
fn made(folder: &Path, subject: &str, names: Names<'_>) {
    let mut settings = String::from(
        "[req]\ndistinguished_name=dn\n[dn]\n[more]\nsubjectAltName=@names\n[names]\n",
    );
    for (number, (kind, value)) in names.iter().enumerate() {
        settings += &format!("{kind}.{number} = \"{value}\"\n");
    }
    std::fs::write(folder.join("names.cnf"), settings).expect("written");
    let mut arguments = vec!["req", "-x509", "-newkey", "ec", "-pkeyopt"];
    arguments.extend(["ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-utf8"]);
    arguments.extend(["-config", "names.cnf", "-multivalue-rdn"]);
    arguments.extend(["-keyout", "key.pem", "-out", "crt.pem", "-subj", subject]);
    if !names.is_empty() {
        arguments.extend(["-extensions", "more"]);
    }
    openssl(folder, &arguments);
}

/// A value as a URL has it, read back.
fn decoded(text: &str) -> String {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, more @ ..] = rest {
        rest = more;
        match (*first, more) {
            (b'%', [high, low, more @ ..]) => {
                let digits = [*high, *low].map(|digit| char::from(digit).to_digit(16));
                let [high, low] = digits.map(|digit| digit.expect("a digit"));
                out.push(u8::try_from(high * 16 + low).expect("a byte"));
                rest = more;
            }
            (byte, _) => out.push(byte),
        }
    }
    String::from_utf8(out).expect("text")
}

/// Subjects, alternative names, and what is said after the subject.
const CERTIFICATES: [(&str, Names<'static>, &str); 6] = [
    ("/CN=known", &[], ";URI="),
    (
        "/C=DE/ST=Berlin/L=Berlin/O=A, B + C; D/OU=<x>/CN=he said \"no\"/emailAddress=a@b.example",
        &[
            ("URI", "spiffe://cluster.local/ns/shop/sa/web"),
            ("DNS", "a.example"),
            ("DNS", "*.b.example"),
            ("IP", "192.0.2.1"),
        ],
        ";URI=spiffe://cluster.local/ns/shop/sa/web;DNS=a.example;DNS=*.b.example",
    ),
    (
        "/DC=example/DC=shop/UID=#one/CN= space ",
        &[("DNS", "a")],
        ";URI=;DNS=a",
    ),
    ("/O=Größe\\\\und/CN=a+OU=b/serialNumber=7", &[], ";URI="),
    (
        "/O=x/businessCategory=b/postalCode=1/1.2.3.4.5=other/CN=x",
        &[],
        ";URI=",
    ),
    // Nothing that a certificate says begins another key or another element.
    (
        "/CN=x\",By=evil;URI=evil",
        &[
            ("URI", "x;URI=evil,By=evil"),
            ("DNS", "evil;By=evil,Hash=0"),
        ],
        ";URI=x%3BURI%3Devil%2CBy%3Devil;DNS=evil%3BBy%3Devil%2CHash%3D0",
    ),
];

#[test]
fn an_element_says_of_a_certificate_what_openssl_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    for (subject, names, expected) in CERTIFICATES {
        made(folder, subject, names);
        let pem = openssl(folder, &["x509", "-in", "crt.pem"]);
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
        let own = [certificate];
        let name = [
            "x509", "-in", "crt.pem", "-noout", "-subject", "-nameopt", "RFC2253",
        ];
        let name = openssl(folder, &name);
        let name = name.trim_end().strip_prefix("subject=").expect("a subject");
        let print = [
            "x509",
            "-in",
            "crt.pem",
            "-noout",
            "-fingerprint",
            "-sha256",
        ];
        let print = openssl(folder, &print).trim_end().replace(':', "");
        let print = print
            .rsplit('=')
            .next()
            .expect("a fingerprint")
            .to_lowercase();
        let short = forwarded_certificate(&own, "", ClientCertificateDetails::OF_SIDECARS);
        let begin = format!("Hash={print};Subject=\"{name}\"");
        let rest = short.strip_prefix(&begin);
        let rest = rest.unwrap_or_else(|| panic!("{short} does not begin with {begin}"));
        assert_eq!(rest, expected, "{subject}");
        assert!(
            short.bytes().all(|byte| matches!(byte, b' '..=b'~')),
            "{short}"
        );
        let whole = forwarded_certificate(
            &own,
            "spiffe://a/ns/b/sa/c",
            ClientCertificateDetails::OF_GATEWAYS,
        );
        let begin = format!("By=spiffe://a/ns/b/sa/c;Hash={print};Cert=\"");
        let (text, after) = whole
            .strip_prefix(&begin)
            .and_then(|rest| rest.split_once('"'))
            .unwrap_or_else(|| panic!("{whole} does not begin with {begin}"));
        assert_eq!(decoded(text), pem, "{subject}");
        assert!(!text.contains(['+', '/', '=', ' ', ';', ',']), "{text}");
        assert_eq!(&format!("Hash={print}{after}"), &short);
    }
}

#[test]
fn an_element_is_bounded_and_what_is_no_certificate_has_its_hash_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    // Small; too large with its certificate; too large without.
    for (count, certificate, hosts) in [(1, true, 1), (500, false, 500), (900, false, 0)] {
        let names: Vec<String> = (0..count).map(|n| format!("name-{n:04}.example")).collect();
        let names: Vec<_> = names.iter().map(|name| ("DNS", name.as_str())).collect();
        made(folder, "/CN=x", &names);
        let pem = std::fs::read(folder.join("crt.pem")).expect("a file");
        let der = CertificateDer::from_pem_slice(&pem).expect("a certificate");
        let told = forwarded_certificate(&[der], "", ClientCertificateDetails::OF_GATEWAYS);
        assert!(told.len() <= 16 * 1024, "{count}: {}", told.len());
        assert_eq!(told.contains(";Cert=\""), certificate, "{count}");
        assert_eq!(told.matches(";DNS=").count(), hosts, "{count}");
    }
    let told = forwarded_certificate(
        &[CertificateDer::from(b"junk".to_vec())],
        "",
        ClientCertificateDetails::OF_SIDECARS,
    );
    assert_eq!(told.len(), "Hash=".len() + 64, "{told}");
}

/// Those parts by their first letters; a capital is the chain.
fn parts(letters: &str) -> ClientCertificateDetails {
    ClientCertificateDetails {
        subject: letters.contains('s'),
        certificate: letters.contains('c'),
        chain: letters.contains('C'),
        dns: letters.contains('d'),
        uri: letters.contains('u'),
    }
}

#[test]
fn those_parts_are_written_that_are_wished_for_in_envoys_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let read = || {
        let pem = std::fs::read(folder.join("crt.pem")).expect("a file");
        CertificateDer::from_pem_slice(&pem).expect("a certificate")
    };
    let names = [("URI", "spiffe://a/ns/b/sa/c"), ("DNS", "a.example")];
    made(folder, "/CN=own", &names);
    let own = read();
    made(folder, "/CN=above", &[]);
    let chain = [own, read()];
    // Each part by its key, and how many certificates it holds.
    let table: [(&str, &[(&str, usize)]); 8] = [
        ("", &[]),
        ("s", &[("Subject", 0)]),
        ("c", &[("Cert", 1)]),
        ("C", &[("Chain", 2)]),
        ("u", &[("URI", 0)]),
        ("d", &[("DNS", 0)]),
        ("cC", &[("Cert", 1), ("Chain", 2)]),
        ("sdu", &[("Subject", 0), ("URI", 0), ("DNS", 0)]),
    ];
    for (letters, expected) in table {
        let told = forwarded_certificate(&chain, "spiffe://me", parts(letters));
        let mut found = told.split(';');
        assert_eq!(found.next(), Some("By=spiffe://me"), "{told}");
        let hash = found.next().is_some_and(|part| part.starts_with("Hash="));
        assert!(hash, "{told}");
        let found = found.map(|part| {
            let (key, value) = part.split_once('=').expect("a key");
            (key, value.matches("BEGIN%20CERTIFICATE").count())
        });
        assert_eq!(found.collect::<Vec<_>>(), expected, "{told}");
    }
    assert_eq!(forwarded_certificate(&[], "spiffe://me", parts("s")), "");
}
