//! The words of `voile load`: what its options may be, and how they are read.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use voile_load::{LoadProtocol, LoadTarget, Resolve, parse_duration};

/// Examples of the most common uses.
pub(super) const EXAMPLES: &str = "Examples:
  1000 requests a second for 30 s over 16 connections, with the result as JSON:
      voile load http://127.0.0.1:8080/ -r 1000 -c 16 -d 30s --warmup 5s -o json
  Users who arrive at random, at an increasing rate:
      voile load http://127.0.0.1:8080/ -r 100..2000 -d 2m --arrival poisson -c 64
  The maximum rate, from 16 connections:
      voile load http://127.0.0.1:8080/ -r 0 -c 16
  The highest rate at which p99 stays below 5 ms:
      voile load http://127.0.0.1:8080/ -c 64 --find-capacity 'p99<5ms,errors<0.1%'
  A gate for CI, which fails if p99 or the failures are beyond their bound:
      voile load http://127.0.0.1:8080/ -r 500 --threshold 'p99<20ms,errors<0.1%'
  A gRPC method, described by the server itself:
      voile load grpc://127.0.0.1:9000/shop.Cart/Add --data '{\"item\":\"tea\"}' -r 500
  The requests of an access log, ten times as fast:
      voile load http://127.0.0.1:8080/ --replay access.log --replay-requests --replay-speed 10";

/// TLS options of https://, h2://, grpcs:// and tls://.
#[derive(Debug, clap::Args)]
pub(super) struct TlsArgs {
    /// TLS: authorities to trust, in PEM; the system's otherwise.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(super) cacert: Option<PathBuf>,
    /// TLS: the client certificate and its chain, in PEM, for servers that request one (mutual TLS).
    #[arg(long, value_name = "FILE", requires = "key", help_heading = "TLS")]
    pub(super) cert: Option<PathBuf>,
    /// TLS: the key of --cert, in PEM.
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "TLS")]
    pub(super) key: Option<PathBuf>,
    /// TLS: trust any certificate.
    #[arg(long, short = 'k', conflicts_with = "cacert", help_heading = "TLS")]
    pub(super) insecure: bool,
    /// TLS: the name to ask for (SNI) and to find in the certificate, instead of the URL's host.
    #[arg(long, value_name = "NAME", help_heading = "TLS")]
    pub(super) tls_name: Option<String>,
    /// TLS: resume earlier sessions; otherwise each connection does a full handshake.
    #[arg(long, help_heading = "TLS")]
    pub(super) tls_resume: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ProtocolName {
    /// HTTP/1.1.
    Http1,
    /// HTTP/1.0: a connection for each request.
    #[value(name = "http1.0")]
    Http10,
    /// HTTP/2 without TLS, by prior knowledge.
    Http2,
    /// gRPC over it.
    Grpc,
    /// TCP: requests and responses of fixed sizes.
    TcpRr,
    /// The same, with a connection for each: connect, request, close.
    TcpCrr,
    /// TCP: bulk transfer, at the maximum rate.
    TcpBulk,
}

impl ProtocolName {
    pub(super) fn spoken(self) -> LoadProtocol {
        match self {
            Self::Http1 | Self::Http10 => LoadProtocol::Http1,
            Self::Http2 => LoadProtocol::Http2,
            Self::Grpc => LoadProtocol::Grpc,
            Self::TcpRr | Self::TcpCrr => LoadProtocol::TcpRr,
            Self::TcpBulk => LoadProtocol::TcpBulk,
        }
    }
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum ArrivalName {
    /// One even schedule over all connections.
    Uniform,
    /// Seeded exponential gaps.
    Poisson,
    /// All connections in phase, one request in flight each, as fortio sends by default.
    Fortio,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For people.
    #[value(alias = "table")]
    Text,
    /// All figures and histograms.
    Json,
    /// The JSON that Fortio writes.
    Fortio,
}

pub(super) fn parse_target(text: &str, resolve: Resolve) -> Result<(f64, LoadTarget), String> {
    let weight = text.split_once('=').and_then(|(weight, url)| {
        let weight = weight.parse::<f64>().ok()?;
        Some((weight, url))
    });
    let (weight, url) = weight.unwrap_or((1.0, text));
    Ok((weight, LoadTarget::resolved(url, resolve)?))
}

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|e| e.to_string())?;
    if interval.is_zero() || interval >= Duration::from_millis(10) {
        return Ok(interval);
    }
    Err("at least 10ms, and whole milliseconds".to_owned())
}

pub(super) fn parse_messages(text: &str) -> Result<(u32, u32), String> {
    let (sent, wanted) = text.split_once(':').ok_or("expected OUT:IN")?;
    let number = |text: &str| text.parse().map_err(|_| "expected OUT:IN".to_owned());
    Ok((number(sent)?, number(wanted)?))
}

pub(super) fn parse_reuse(text: &str) -> Result<(u64, u64), String> {
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.parse().map_err(|_| "expected MIN:MAX".to_owned());
    Ok((number(least)?, number(most)?))
}

/// The lines of `@FILE`.
pub(super) fn lines(written: &str) -> Result<Arc<[String]>, String> {
    let wrong = |why: String| format!("header-each `{written}`: {why}");
    let path = written
        .strip_prefix('@')
        .ok_or_else(|| wrong("expected @FILE after the name".to_owned()))?;
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

pub(super) fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected `Name: value`")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
