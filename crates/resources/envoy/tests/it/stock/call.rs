//! Connections to a stock Envoy from any loopback address, as if from any client to any destination (by the PROXY
//! protocol), over TLS with any identity and server name, and requests on them two at a time.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};
use voile_testkit::{TestAuthority, hostile_client_config};

use super::{Envoy, PATIENCE, typed};

/// Addresses and TLS of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// To which listener.
    pub(crate) listener: String,
    /// From which address of ours.
    pub(crate) from: IpAddr,
    /// As if from this client.
    pub(crate) client: IpAddr,
    /// As if to this destination.
    pub(crate) destination: SocketAddr,
    /// Over TLS.
    pub(crate) tls: Option<Handshake>,
}

impl Call {
    /// In plaintext, as if to this destination, from loopback to the listener that is there for it.
    pub(crate) fn plain(destination: SocketAddr) -> Self {
        let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
        Self {
            listener: "plain4".to_owned(),
            from: localhost,
            client: localhost,
            destination,
            tls: None,
        }
    }
}

/// Certificate and names of a client's handshake.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Handshake {
    /// The URI in its certificate; no certificate without.
    pub(crate) identity: Option<String>,
    /// The server name it asks for.
    pub(crate) sni: Option<String>,
}

/// Certificates of any identity, each made once.
pub(crate) struct Certificates {
    authority: TestAuthority,
    clients: Mutex<HashMap<Handshake, Arc<ClientConfig>>>,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        Self {
            authority: TestAuthority::new(),
            clients: Mutex::default(),
        }
    }

    /// The server's side, as Envoy reads it: a certificate is asked for and none is fine.
    pub(crate) fn transport_socket(&self) -> Value {
        let server = self.authority.certificate("shop", "server");
        let inline = |pem: &str| json!({ "inline_string": pem });
        typed(
            "tls",
            "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            json!({
                "common_tls_context": {
                    "tls_certificates": [{
                        "certificate_chain": inline(server.chain_pem()),
                        "private_key": inline(server.private_key_pem()),
                    }],
                    "validation_context": { "trusted_ca": inline(self.authority.authority().root_pem()) },
                },
            }),
        )
    }

    fn client(&self, handshake: &Handshake) -> Arc<ClientConfig> {
        let named = Handshake {
            sni: None,
            ..handshake.clone()
        };
        let mut all = self.clients.lock().expect("no thread failed");
        let config = all.entry(named).or_insert_with(|| {
            let identity = handshake.identity.as_deref();
            let shown = identity.map(|uri| self.authority.with_names(&[uri], &[]));
            let mut config = Arc::unwrap_or_clone(hostile_client_config(shown.as_ref()));
            // Each handshake shows its certificate anew.
            config.resumption = Resumption::disabled();
            Arc::new(config)
        });
        match handshake.sni {
            Some(_) => Arc::clone(config),
            None => {
                let mut config = ClientConfig::clone(config);
                config.enable_sni = false;
                Arc::new(config)
            }
        }
    }
}

trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

impl Envoy {
    /// Connects.
    pub(crate) fn connect(&self, call: &Call, certificates: &Certificates) -> Asking {
        let to = self.at(&call.listener);
        let domain = socket2::Domain::for_address(to);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket");
        socket
            .bind(&SocketAddr::new(call.from, 0).into())
            .expect("an address of ours");
        socket.connect(&to.into()).expect("connected");
        let mut stream = TcpStream::from(socket);
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("an open socket");
        stream.set_nodelay(true).expect("an open socket");
        let family = if call.client.is_ipv4() { 4 } else { 6 };
        let (client, ip, port) = (call.client, call.destination.ip(), call.destination.port());
        write!(stream, "PROXY TCP{family} {client} {ip} 4321 {port}\r\n").expect("sent");
        let wire: Box<dyn Wire> = match &call.tls {
            None => Box::new(stream),
            Some(handshake) => {
                let name = handshake.sni.clone().unwrap_or("none.invalid".to_owned());
                let name = ServerName::try_from(name).expect("a server name");
                let client = ClientConnection::new(certificates.client(handshake), name);
                Box::new(StreamOwned::new(client.expect("a client"), stream))
            }
        };
        Asking(BufReader::new(wire))
    }
}

/// One connection with one or two requests at a time.
pub(crate) struct Asking(BufReader<Box<dyn Wire>>);

/// The response.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl Answer {
    /// A header as JSON; null when it is missing.
    pub(crate) fn json(&self, header: &str) -> Value {
        let text = self.headers.get(header).map(String::as_str);
        serde_json::from_str(text.unwrap_or("null")).unwrap_or(Value::Null)
    }
}

impl Asking {
    /// Sends both, then reads both answers: Envoy hangs up on whoever has three requests under way.
    pub(crate) fn ask(&mut self, requests: &[String; 2]) -> [Answer; 2] {
        let all = requests.concat();
        self.0.get_mut().write_all(all.as_bytes()).expect("sent");
        let answers = [self.answer(), self.answer()];
        assert!(answers[1].status != 0, "Envoy hung up: {all}");
        answers
    }

    /// Sends one and reads the answer.
    pub(crate) fn ask_one(&mut self, request: &str) -> Answer {
        let sent = self.0.get_mut().write_all(request.as_bytes());
        sent.expect("sent");
        let answer = self.answer();
        assert!(answer.status != 0, "Envoy hung up: {request}");
        answer
    }

    /// An answer; status 0 when there is none.
    fn answer(&mut self) -> Answer {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let mut answer = Answer {
            status: status.unwrap_or_default(),
            ..Answer::default()
        };
        if status.is_none() {
            return answer;
        }
        loop {
            line.clear();
            self.0.read_line(&mut line).expect("a head");
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            let value = value.trim().to_owned();
            answer.headers.insert(name.to_ascii_lowercase(), value);
        }
        let length = answer.headers.get("content-length");
        let length = length.map_or(0, |length| length.parse().expect("a length"));
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("a body");
        answer.body = String::from_utf8_lossy(&body).into_owned();
        answer
    }
}
