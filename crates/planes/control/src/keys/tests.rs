//! Key servers as they are in the world: slow, dripping, endless, lying, moved, down; each a real one on loopback.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::fetch::{self, FetchContext};
use super::*;

/// RFC 8037, appendix A.2.
pub(super) const KEYS: &str =
    r#"{"keys":[{"crv":"Ed25519","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
/// RFC 7517, appendix A.1.
const OTHER_KEYS: &str = r#"{"keys":[{"crv":"P-256","kid":"1","kty":"EC","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;

/// Serves each connection with `answer`, which is given the path.
fn serve(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), answer) = (stream, Arc::clone(&answer)) else {
                return;
            };
            std::thread::spawn(move || {
                let path = path(&mut stream);
                answer(&path, &mut stream);
            });
        }
    });
    address
}

/// The path of the request that comes.
fn path(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    head.split(' ').nth(1).unwrap_or_default().to_owned()
}

fn say(stream: &mut TcpStream, head: &str, body: &str) {
    // A client that has heard enough hangs up.
    let _ = write!(
        stream,
        "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
}

fn uri(at: SocketAddr, path: &str) -> Origin {
    Origin::Uri(format!("http://{at}{path}").into())
}

/// Servers of tests are on this machine.
fn outside() -> FetchContext {
    FetchContext {
        loopback: true,
        ..FetchContext::default()
    }
}

async fn fetched(origin: &Origin, limit: Duration) -> Result<Arc<str>, String> {
    fetch(&outside(), origin, limit).await
}

const SOON: Duration = Duration::from_millis(300);
const PATIENT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn bad_servers_end_in_a_reason() {
    let at = serve(|path, stream| match path {
        "/good" => say(stream, "200 OK\r\ncontent-type: application/json", KEYS),
        "/bare" => say(stream, "200 OK", KEYS),
        "/html" => say(stream, "200 OK\r\ncontent-type: text/html", "<html>"),
        "/empty" => say(stream, "200 OK", r#"{"keys":[]}"#),
        "/teapot" => say(stream, "418 no", KEYS),
        "/loop" => say(stream, "302 on\r\nlocation: /loop", ""),
        "/moved" => say(stream, "301 on\r\nlocation: /good", ""),
        "/away" => say(stream, "301 on\r\nlocation: http://169.254.169.254/", ""),
        "/file" => say(stream, "301 on\r\nlocation: file:///etc/passwd", ""),
        "/nowhere" => say(stream, "301 on", ""),
        "/short" => {
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{{");
        }
        "/noise" => {
            let _ = stream.write_all(b"SSH-2.0-x\r\n");
        }
        "/head" => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
            while stream.write_all(b"x-more: and more\r\n").is_ok() {}
        }
        "/huge" => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(&[b' '; 4096]).is_ok() {}
        }
        "/binary" => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n\xff\xfe");
        }
        _ => {}
    });
    for (path, expected) in [
        ("/good", Ok(KEYS)),
        ("/bare", Ok(KEYS)),
        ("/moved", Ok(KEYS)),
        ("/html", Err("content type is `text/html`")),
        ("/empty", Err("empty")),
        ("/teapot", Err("it answered 418")),
        ("/loop", Err("more than 5 redirects")),
        ("/away", Err("169.254.169.254 is not called")),
        ("/file", Err("redirect not followed")),
        ("/nowhere", Err("without a Location")),
        ("/short", Err("")),
        ("/noise", Err("")),
        ("/head", Err("")),
        ("/huge", Err("larger than")),
        ("/binary", Err("not UTF-8")),
        ("/silence", Err("")),
    ] {
        let found = fetched(&uri(at, path), PATIENT).await;
        match (&found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(&**found, expected, "{path}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{path}: {why}"),
            _ => panic!("{path}: {found:?}"),
        }
    }
}

/// A key server over TLS whose certificate, for `name`, an authority of its own signed; and that authority.
fn over_tls(name: &str) -> (SocketAddr, String) {
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).expect("no names");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("an authority").pem();
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = vec![name.to_owned()];
    let params = rcgen::CertificateParams::new(names).expect("a name");
    let leaf = params.signed_by(&key, &issuer).expect("a certificate");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key.into())
        .expect("a configuration");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut tls = rustls::ServerConnection::new(config.clone()).expect("a session");
            let mut stream = rustls::Stream::new(&mut tls, &mut stream);
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            // A client that distrusts this server has hung up.
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{KEYS}",
                KEYS.len()
            );
        }
    });
    (address, authority)
}

#[tokio::test]
async fn over_tls_a_server_is_believed_by_an_authority_of_ours_and_by_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let (at, authority) = over_tls("localhost");
    let (_, another) = over_tls("localhost");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        Some(path)
    };
    let both = format!("{another}{authority}");
    for (authorities, host, wanted) in [
        (file("own.pem", &authority), "localhost", Ok(())),
        (file("both.pem", &both), "localhost", Ok(())),
        (file("other.pem", &another), "localhost", Err("TLS: ")),
        (None, "localhost", Err("")),
        // Its certificate is for another name.
        (file("own.pem", &authority), "127.0.0.1", Err("TLS: ")),
        (file("none.pem", "nothing"), "localhost", Err("")),
        (
            Some(folder.path().join("absent.pem")),
            "localhost",
            Err("absent.pem"),
        ),
    ] {
        let outside = FetchContext {
            authorities: authorities.clone(),
            ..outside()
        };
        let origin = Origin::Uri(format!("https://{host}:{}/keys", at.port()).into());
        let got = fetch(&outside, &origin, PATIENT).await;
        match (wanted, got) {
            (Ok(()), Ok(keys)) => assert!(keys.contains("11qYAYKx"), "{keys}"),
            (Err(part), Err(why)) => assert!(why.contains(part), "{authorities:?}: {why}"),
            (wanted, got) => panic!("{authorities:?} {host}: {got:?}, not {wanted:?}"),
        }
    }
    // Plaintext is no TLS.
    let origin = uri(at, "/keys");
    assert!(fetched(&origin, PATIENT).await.is_err());
}

#[tokio::test]
async fn slow_servers_are_left_in_time() {
    let (stop, stopped) = mpsc::channel::<()>();
    let stopped = Mutex::new(stopped);
    let at = serve(move |path, stream| {
        if path == "/drip" {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n");
            // A byte now and then, for as long as somebody listens.
            let pause = Duration::from_millis(20);
            while stream.write_all(b" ").is_ok() {
                std::thread::park_timeout(pause);
            }
            return;
        }
        // Says nothing, and holds the line until the test is over.
        let _ = stopped.lock().map(|stopped| stopped.recv());
    });
    for path in ["/drip", "/silent"] {
        let why = fetched(&uri(at, path), SOON).await.expect_err(path);
        assert!(why.contains("no complete answer within"), "{path}: {why}");
    }
    drop(stop);
}

#[tokio::test]
async fn nobody_there_is_a_reason_too() {
    // The local end of a connection is a port that refuses connections and that no other test can get.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let holder =
        TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    let at = holder.local_addr().expect("its address");
    let why = fetched(&uri(at, "/"), PATIENT).await.expect_err("nobody");
    assert!(why.contains("cannot connect"), "{why}");
}

#[tokio::test]
async fn blocked_addresses_are_not_even_called() {
    let called = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&called);
    let at = serve(move |_, stream| {
        heard.store(true, Ordering::SeqCst);
        say(stream, "200 OK", KEYS);
    });
    let outside = FetchContext {
        blocked: vec![AddressRange {
            address: at.ip(),
            prefix: 8,
        }],
        ..outside()
    };
    for host in [at.to_string(), format!("localhost:{}", at.port())] {
        let found = fetch::get(&outside, &format!("http://{host}/"), PATIENT).await;
        let why = found.expect_err("blocked");
        assert!(
            why.contains("`--jwks-block` forbids the address") || why.contains("connect"),
            "{why}"
        );
    }
    assert!(!called.load(Ordering::SeqCst));
}

/// By its address, by a name that leads to it, and by a redirect; nobody there hears of it.
#[tokio::test]
async fn this_machine_is_not_asked_unless_that_is_allowed() {
    let called = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&called);
    let at = serve(move |_, stream| {
        heard.store(true, Ordering::SeqCst);
        say(stream, "200 OK", KEYS);
    });
    for host in [
        at.to_string(),
        format!("localhost:{}", at.port()),
        format!("[::ffff:127.0.0.1]:{}", at.port()),
    ] {
        let origin = Origin::Uri(format!("http://{host}/").into());
        let found = fetch(&FetchContext::default(), &origin, PATIENT).await;
        let why = found.expect_err("refused");
        assert!(why.contains("--jwks-loopback allow"), "{host}: {why}");
    }
    assert!(!called.load(Ordering::SeqCst), "it was called");
}

#[tokio::test]
async fn discovery_leads_to_keys_of_its_own_issuer() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let own = listener.local_addr().expect("its address");
    let issuer = format!("http://{own}/one");
    let said = issuer.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let body = match &*path(&mut stream) {
                "/one/.well-known/openid-configuration" => {
                    format!(r#"{{"issuer":"{said}","jwks_uri":"http://{own}/keys"}}"#)
                }
                "/two/.well-known/openid-configuration" => {
                    format!(r#"{{"issuer":"{said}","jwks_uri":"http://{own}/keys"}}"#)
                }
                _ => KEYS.to_owned(),
            };
            say(&mut stream, "200 OK", &body);
        }
    });
    let good = fetched(&Origin::Discovery(issuer.into()), PATIENT).await;
    assert_eq!(good, Ok(KEYS.into()));
    let other = Origin::Discovery(format!("http://{own}/two").into());
    let why = fetched(&other, PATIENT).await.expect_err("another's word");
    assert!(why.contains("belongs to the issuer"), "{why}");
}

/// A mesh whose one rule wants keys from there.
fn mesh(uri: &str) -> Mesh {
    let text = format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: t, namespace: a}}\n\
         spec: {{jwtRules: [{{issuer: \"https://issuer.example\", jwksUri: \"{uri}\"}}]}}\n"
    );
    let files = [voile_model::SourceFile::new("a.yaml", text)];
    let (mesh, problems) = voile_model::check(&files, None);
    let wrong = problems.iter().any(voile_model::Diagnostic::is_error);
    assert!(!wrong, "{problems:?}");
    mesh
}

#[tokio::test]
async fn good_keys_stay_while_their_server_is_down_and_over_a_restart() {
    let turn = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&turn);
    let at = serve(move |_, stream| match told.load(Ordering::SeqCst) {
        0 => say(stream, "200 OK", KEYS),
        1 => say(stream, "500 no", ""),
        2 => say(stream, "200 OK", "<html>"),
        _ => say(stream, "200 OK", OTHER_KEYS),
    });
    let folder = tempfile::tempdir().expect("a folder");
    let options = KeyOptions {
        refresh: Duration::from_millis(20),
        loopback: true,
        ..KeyOptions::default()
    };
    let mesh = mesh(&format!("http://{at}/keys"));
    let keys = Keys::new(folder.path(), &options);
    let known = |keys: &Keys| keys.texts().into_values().next();
    keys.want(&mesh);
    assert_eq!(known(&keys), None);
    let running = tokio::spawn(keys.clone().run());
    keys.changed().await;
    assert_eq!(known(&keys).as_deref(), Some(KEYS));
    for lie in [1, 2] {
        turn.store(lie, Ordering::SeqCst);
        let failing = |keys: &Keys| keys.status().iter().any(|one| one.failures >= 2);
        while !failing(&keys) {
            tokio::task::yield_now().await;
        }
        assert_eq!(known(&keys).as_deref(), Some(KEYS), "{:?}", keys.status());
        assert!(keys.missing().is_empty());
    }
    // Another control plane begins where this one ended, with nobody to ask.
    running.abort();
    let again = Keys::new(folder.path(), &options);
    again.want(&mesh);
    assert_eq!(known(&again).as_deref(), Some(KEYS));
    let running = tokio::spawn(again.clone().run());
    turn.store(3, Ordering::SeqCst);
    again.changed().await;
    assert_eq!(known(&again).as_deref(), Some(OTHER_KEYS));
    running.abort();
    again.want(&Mesh::default());
    assert!(again.texts().is_empty(), "nobody wants them any more");
}

#[tokio::test]
async fn missing_keys_are_said_with_their_place_and_reason() {
    let at = serve(|_, stream| say(stream, "404 no", ""));
    let folder = tempfile::tempdir().expect("a folder");
    let options = KeyOptions {
        loopback: true,
        ..KeyOptions::default()
    };
    let keys = Keys::new(folder.path(), &options);
    keys.want(&mesh(&format!("http://{at}/keys")));
    assert!(keys.missing().is_empty(), "nobody was asked yet");
    let running = tokio::spawn(keys.clone().run());
    keys.changed().await;
    let said = keys.missing().concat();
    assert!(
        said.contains(&format!("http://{at}/keys: it answered 404")),
        "{said}"
    );
    running.abort();
}
