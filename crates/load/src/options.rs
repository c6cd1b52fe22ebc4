//! What the user asked for, checked, and the request bytes that follow from it.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::schedule::Arrival;

/// The most connections of one run: the descriptors that a Linux process may usually have, with room to spare.
pub const MAX_CONNECTIONS: usize = 500_000;
/// The most requests per second that can be scheduled: a period of 100 ns is below what one send costs.
pub const MAX_RATE: f64 = 10_000_000.0;

/// A checked `http://` URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// As written.
    pub url: String,
    /// `host[:port]` as it goes into the Host header.
    pub authority: String,
    /// Where to connect.
    pub address: SocketAddr,
    /// Path and query, never empty.
    pub path: String,
}

impl Target {
    /// Parses and resolves; the first address of a name is taken for the whole run.
    pub fn parse(url: &str) -> Result<Self, String> {
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some((scheme, _)) => {
                return Err(format!(
                    "{url}: scheme `{scheme}` is not supported, only http://"
                ));
            }
            None => url,
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.is_empty() || authority.contains('@') {
            return Err(format!("{url}: expected http://HOST[:PORT][/PATH][?QUERY]"));
        }
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        if let Some(byte) = url.bytes().find(|byte| *byte <= b' ' || *byte >= 0x7f) {
            return Err(format!("{url}: byte {byte:#04x} must be percent-encoded"));
        }
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.contains(']'));
        let named = if has_port {
            authority.to_owned()
        } else {
            format!("{authority}:80")
        };
        let address = named
            .to_socket_addrs()
            .map_err(|error| format!("{url}: cannot resolve {named}: {error}"))?
            .next()
            .ok_or_else(|| format!("{url}: {named} has no address"))?;
        Ok(Self {
            url: url.to_owned(),
            authority: authority.to_owned(),
            address,
            path,
        })
    }
}

/// A load run.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Where requests go.
    pub target: Target,
    /// Requests per second over all connections; 0 is "as fast as they are answered".
    pub rate: f64,
    /// Keep-alive connections.
    pub connections: usize,
    /// The measured time.
    pub duration: Duration,
    /// Load before it, not counted.
    pub warmup: Duration,
    /// Generator threads.
    pub threads: usize,
    /// The arrival pattern.
    pub arrival: Arrival,
    /// Seed of random arrivals.
    pub seed: u64,
    /// Longest service time; the connection is closed after it.
    pub timeout: Duration,
    /// Reuse connections.
    pub keepalive: bool,
    /// Source address.
    pub bind: Option<IpAddr>,
    /// Method.
    pub method: String,
    /// Header fields added; `Host` replaces the one of the URL.
    pub headers: Vec<(String, String)>,
    /// Request body.
    pub body: Vec<u8>,
    /// Length that every body must have.
    pub expect_size: Option<u64>,
    /// The one status that counts as good, instead of any 2xx.
    pub expect_status: Option<u16>,
}

impl LoadOptions {
    /// 100 requests per second for 10 s over 4 connections.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            rate: 100.0,
            connections: 4,
            duration: Duration::from_secs(10),
            warmup: Duration::ZERO,
            threads: 1,
            arrival: Arrival::Uniform,
            seed: 1,
            timeout: Duration::from_secs(3),
            keepalive: true,
            bind: None,
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            expect_size: None,
            expect_status: None,
        }
    }

    /// Refuses what cannot be run, saying which option and why.
    pub fn check(&self) -> Result<(), String> {
        if !self.rate.is_finite() || !(0.0..=MAX_RATE).contains(&self.rate) {
            return Err(format!(
                "rate {}: expected 0 (maximum) to {MAX_RATE} requests per second",
                self.rate
            ));
        }
        if !(1..=MAX_CONNECTIONS).contains(&self.connections) {
            return Err(format!(
                "connections {}: expected 1 to {MAX_CONNECTIONS}",
                self.connections
            ));
        }
        if self.threads == 0 || self.threads > self.connections {
            let (threads, connections) = (self.threads, self.connections);
            return Err(format!(
                "threads {threads}: expected 1 to the number of connections ({connections})"
            ));
        }
        if self.duration.is_zero() || self.timeout.is_zero() {
            return Err("duration and timeout must be longer than 0".to_owned());
        }
        if self
            .bind
            .is_some_and(|source| source.is_ipv4() != self.target.address.is_ipv4())
        {
            return Err(format!(
                "bind: source and {} are of different IP versions",
                self.target.address
            ));
        }
        if !is_token(&self.method) {
            return Err(format!("method `{}` is not an HTTP token", self.method));
        }
        for (name, value) in &self.headers {
            if !is_token(name)
                || value
                    .bytes()
                    .any(|byte| (byte < b' ' && byte != b'\t') || byte == 0x7f)
            {
                return Err(format!("header `{name}: {value}`: not a valid HTTP field"));
            }
            if ["content-length", "transfer-encoding", "connection"]
                .iter()
                .any(|own| name.eq_ignore_ascii_case(own))
            {
                return Err(format!("header `{name}` is set by the generator"));
            }
        }
        Ok(())
    }

    /// The bytes of one request.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target.path);
        let given = |name: &str| {
            self.headers
                .iter()
                .any(|(field, _)| field.eq_ignore_ascii_case(name))
        };
        if !given("host") {
            head += &format!("Host: {}\r\n", self.target.authority);
        }
        if !given("user-agent") {
            head += concat!("User-Agent: voile-load/", env!("CARGO_PKG_VERSION"), "\r\n");
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !self.body.is_empty() || ["POST", "PUT", "PATCH"].contains(&self.method.as_str()) {
            head += &format!("Content-Length: {}\r\n", self.body.len());
        }
        if !self.keepalive {
            head += "Connection: close\r\n";
        }
        head += "\r\n";
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

fn is_token(text: &str) -> bool {
    let special = b"!#$%&'*+-.^_`|~";
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || special.contains(&byte))
}
