//! Load over TLS: every protocol through a terminator in front of our echo server; trust in servers, client certificates, and the
//! report of failed handshakes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use voile_load::echo::EchoOptions;
use voile_load::{LoadOptions, LoadResult, LoadTarget, Stop, TlsOptions};

use crate::server::{PATIENCE, Served, loopback, stranger};

/// An authority, a server's certificate for `shop.example`, and a client's, as files.
struct Court {
    folder: tempfile::TempDir,
    server: Arc<ServerConfig>,
}

impl Court {
    /// With `mutual`, clients must show a certificate.
    fn new(mutual: bool) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let leaf = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            (params.signed_by(&key, &authority).unwrap(), key)
        };
        let folder = tempfile::tempdir().unwrap();
        let (client, key) = leaf("client.example");
        for (name, text) in [
            ("ca.pem", authority.pem()),
            ("client.pem", client.pem()),
            ("client.key", key.serialize_pem()),
            ("empty.pem", String::new()),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let (cert, key) = leaf("shop.example");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = if mutual {
            let mut roots = RootCertStore::empty();
            roots.add(authority.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let chain = vec![cert.der().clone()];
        let mut server = builder.with_single_cert(chain, key).unwrap();
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self {
            folder,
            server: Arc::new(server),
        }
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.path().join(name))
    }

    /// Trusts the authority and asks for the server's name.
    fn trusting(&self) -> TlsOptions {
        TlsOptions {
            cacert: self.file("ca.pem"),
            server_name: Some("shop.example".to_owned()),
            ..TlsOptions::default()
        }
    }

    /// A server whose connections are opened and passed on to another. Its threads end with the process.
    fn before(&self, to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind(loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let config = Arc::clone(&self.server);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let config = Arc::clone(&config);
                thread::spawn(move || carry(stream, to, config));
            }
        });
        address
    }
}

/// Both ways until either end is gone.
fn carry(mut outside: TcpStream, to: SocketAddr, config: Arc<ServerConfig>) -> Option<()> {
    let mut tls = ServerConnection::new(config).ok()?;
    let mut inside = TcpStream::connect(to).ok()?;
    for stream in [&outside, &inside] {
        stream.set_nonblocking(true).ok()?;
        stream.set_nodelay(true).ok()?;
    }
    let mut buffer = vec![0; 64 * 1024];
    let mut back = Vec::new();
    loop {
        match tls.read_tls(&mut outside) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(_) => return None,
        }
        if tls.process_new_packets().is_err() {
            let _ = tls.write_tls(&mut outside);
            return None;
        }
        while let Ok(count @ 1..) = tls.reader().read(&mut buffer) {
            inside.set_nonblocking(false).ok()?;
            inside.write_all(&buffer[..count]).ok()?;
            inside.set_nonblocking(true).ok()?;
        }
        if back.is_empty() {
            match inside.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => back.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
        let taken = tls.writer().write(&back).ok()?;
        back.drain(..taken);
        while tls.wants_write() {
            match tls.write_tls(&mut outside) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return None,
            }
        }
    }
}

fn load(url: &str, tls: &TlsOptions) -> Result<LoadOptions, String> {
    let mut options = LoadOptions::new(LoadTarget::parse(url)?);
    options.tls = Some(tls.load(options.protocol, &options.target)?);
    (options.rate, options.connections) = (200.0, 2);
    options.duration = std::time::Duration::from_millis(250);
    options.timeout = PATIENCE;
    Ok(options)
}

fn run(options: &LoadOptions) -> LoadResult {
    voile_load::run(options, &Stop::new().unwrap(), false).unwrap()
}

#[test]
fn every_protocol_goes_over_tls() {
    let court = Court::new(false);
    let server = Served::echo(EchoOptions::default());
    let tcp = Served::at(EchoOptions {
        tcp: vec![loopback()],
        ..EchoOptions::default()
    });
    let (http, tcp) = (court.before(server.address), court.before(tcp.address));
    for (url, size, agreed) in [
        (format!("https://{http}/?size=300000"), 300_000, "http/1.1"),
        (format!("h2://{http}/?size=300000"), 300_000, "h2"),
        (
            format!("grpcs://{http}/voile.echo.v1.Echo/Unary"),
            100_003,
            "h2",
        ),
        (format!("tls://{tcp}"), 100_000, "TLSv1_3"),
    ] {
        let mut options = load(&url, &court.trusting()).unwrap();
        options.expect_size = Some(size);
        if !url.contains("size") {
            options.body = vec![b'x'; 100_000];
        }
        if url.starts_with("grpcs") {
            options.expect_size = None;
        }
        let result = run(&options);
        assert_eq!(result.ok, 50, "{url}: {:?}", result.errors);
        let told = result.tls.clone().unwrap();
        assert!(told.contains("TLSv1_3") && told.contains(agreed), "{told}");
        assert_eq!((result.connect_us.count, result.tls_us.count), (2, 2));
        assert_eq!(result.first_byte_us.count, 50);
        assert!(result.first_byte_us.mean <= result.service_us.mean);
        assert!(result.to_table().contains("TLS "), "{}", result.to_table());
    }
}

#[test]
fn a_connection_for_each_request_is_a_handshake_for_each() {
    let court = Court::new(true);
    let server = Served::echo(EchoOptions::default());
    let url = format!("https://{}/", court.before(server.address));
    let mutual = TlsOptions {
        cert: court.file("client.pem"),
        key: court.file("client.key"),
        ..court.trusting()
    };
    let mut options = load(&url, &mutual).unwrap();
    options.keepalive = false;
    let result = run(&options);
    assert_eq!(
        (result.ok, result.tls_us.count),
        (50, 50),
        "{:?}",
        result.errors
    );
    assert!(result.service_us.p50 >= result.tls_us.p50.min(result.service_us.p50));
}

#[test]
fn strangers_are_not_believed_and_say_why() {
    let court = Court::new(true);
    let server = Served::echo(EchoOptions::default());
    let address = court.before(server.address);
    let nobody = court.trusting();
    let another = TlsOptions {
        server_name: Some("bank.example".to_owned()),
        ..court.trusting()
    };
    let plain = stranger(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let stranger = TlsOptions {
        cacert: None,
        ..court.trusting()
    };
    for (url, tls, cause) in [
        // The alert of a server that wants a certificate may come after the handshake, or be lost.
        (format!("https://{address}/"), &nobody, ""),
        (
            format!("https://{address}/"),
            &another,
            "certificate not valid for name",
        ),
        (
            format!("https://{address}/"),
            &stranger,
            "certificate of an unknown issuer: --cacert FILE, or -k to accept any",
        ),
        (
            format!("https://{plain}/"),
            &nobody,
            "the server does not speak TLS here",
        ),
    ] {
        let result = run(&load(&url, tls).unwrap());
        assert_eq!((result.ok, result.valid), (0, false));
        let failed = result.errors.get("tls").copied().unwrap_or(0);
        let reset = result.errors.get("reset").copied().unwrap_or(0);
        assert!(failed + reset > 0, "{url}: {:?}", result.errors);
        let mut causes = result.causes.keys();
        let is_told = cause.is_empty() || causes.any(|one| one.starts_with(cause));
        assert!(is_told, "{url}: {cause}: {:?}", result.causes);
    }
    let anybody = Court::new(false);
    let insecure = TlsOptions {
        insecure: true,
        ..TlsOptions::default()
    };
    let url = format!("https://{}/", anybody.before(server.address));
    assert_eq!(run(&load(&url, &insecure).unwrap()).ok, 50);
}

#[test]
fn what_does_not_belong_together_is_refused_by_name() {
    let court = Court::new(false);
    let with = |change: fn(&Court, &mut TlsOptions)| {
        let mut tls = court.trusting();
        change(&court, &mut tls);
        load("https://127.0.0.1:1/", &tls).expect_err("refused")
    };
    for (why, word) in [
        (
            with(|_, tls| tls.cacert = Some("/no/such.pem".into())),
            "such.pem",
        ),
        (
            with(|court, tls| tls.cacert = court.file("empty.pem")),
            "empty.pem",
        ),
        (
            with(|court, tls| tls.cert = court.file("client.pem")),
            "its key",
        ),
        (
            with(|_, tls| tls.server_name = Some("a b".to_owned())),
            "a b",
        ),
    ] {
        assert!(why.contains(word), "{word}: {why}");
    }
    let target = LoadTarget::parse("https://127.0.0.1:1/").unwrap();
    let without = LoadOptions::new(target)
        .check()
        .expect_err("TLS is missing");
    assert!(without.contains("TLS"), "{without}");
}
