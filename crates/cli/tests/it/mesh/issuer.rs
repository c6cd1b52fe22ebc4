//! An issuer of tokens, and the server that its keys are fetched from, both as good or as bad as a test wants them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Signs with one key on P-256.
pub(crate) struct Issuer {
    pub(crate) name: String,
    key_id: String,
    pair: EcdsaKeyPair,
}

impl Issuer {
    pub(crate) fn new(name: &str, key_id: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        Self {
            name: name.to_owned(),
            key_id: key_id.to_owned(),
            pair,
        }
    }

    /// Its public key.
    pub(crate) fn key(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let half = |range| URL_SAFE_NO_PAD.encode(&point[range]);
        json!({
            "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": self.key_id,
            "x": half(1..33), "y": half(33..65),
        })
    }

    /// A JSON Web Key Set with its key.
    pub(crate) fn keys(&self) -> String {
        json!({ "keys": [self.key()] }).to_string()
    }

    /// A token of a subject that is good for an hour, with further claims.
    pub(crate) fn token(&self, subject: &str, more: Value) -> String {
        let now = seconds();
        let mut claims = json!({ "iss": self.name, "sub": subject, "iat": now, "exp": now + 3600 });
        for (name, value) in more.as_object().into_iter().flatten() {
            claims[name] = value.clone();
        }
        self.sign(
            &json!({ "alg": "ES256", "typ": "JWT", "kid": self.key_id }),
            &claims,
        )
    }

    /// A token as the test says.
    pub(crate) fn sign(&self, head: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(head), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = signature.expect("signed");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

/// Seconds since 1970.
pub(crate) fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("after 1970").as_secs()
}

/// Behaviour of a key server.
#[derive(Debug, Clone)]
pub(crate) enum Say {
    /// These bytes as the body of a good answer.
    Document(String),
    /// This status.
    Status(u16),
    /// Nothing, with the line held.
    Nothing,
    /// A byte now and then.
    Drip,
}

/// A key server on a port of its own.
pub(crate) struct KeyServer {
    pub(crate) address: SocketAddr,
    say: Arc<Mutex<Say>>,
    asked: Arc<AtomicUsize>,
}

impl KeyServer {
    pub(crate) fn start(first: Say) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let say = Arc::new(Mutex::new(first));
        let asked = Arc::new(AtomicUsize::new(0));
        let (saying, asking) = (Arc::clone(&say), Arc::clone(&asked));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let say = saying.lock().expect("whole").clone();
                asking.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || answer(&mut stream, &say));
            }
        });
        Self {
            address,
            say,
            asked,
        }
    }

    /// Says something else from now on.
    pub(crate) fn say(&self, say: Say) {
        *self.say.lock().expect("whole") = say;
    }

    /// Number of requests so far.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}/keys", self.address)
    }
}

fn answer(stream: &mut TcpStream, say: &Say) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
    }
    // The client may have hung up.
    let _ = match say {
        Say::Document(body) => write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ),
        Say::Status(status) => write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n"),
        Say::Nothing => stream.read(&mut byte).map(drop),
        Say::Drip => {
            let mut told = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n");
            while told.is_ok() {
                std::thread::park_timeout(Duration::from_millis(50));
                told = stream.write_all(b" ");
            }
            told
        }
    };
}
