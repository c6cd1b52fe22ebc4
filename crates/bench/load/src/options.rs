//! Options of a load run, checked, and the request bytes that follow from them.

mod each;
pub(crate) mod fresh;
mod payload;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::condition::LoadCondition;
use crate::grpc;
use crate::http2::RequestShape;
use crate::profile::{Profile, ProfileSegment};
use crate::schedule::ArrivalPattern;
pub use crate::target::{Bulk, LoadProtocol, LoadTarget, Resolve, Scheme};
use crate::tls::Tls;
use crate::trace::RecordedRequest;
use crate::wire::{PreparedRequest, websocket};
pub use payload::{MAX_PAYLOAD_BYTES, basic, parse_sizes, pattern};

/// The most connections of one run: the descriptors that a Linux process may usually have, with room to spare.
pub const MAX_CONNECTIONS: usize = 500_000;
/// The most requests in flight on one connection: servers commonly allow 100 to 1000.
pub const MAX_STREAMS: usize = 10_000;
/// The most requests per second that can be scheduled: a period of 100 ns is below what one send costs.
pub const MAX_RATE: f64 = 10_000_000.0;

/// The most requests due at once: more is a load test of the generator.
pub const MAX_BURST: u64 = 1_000_000;

/// The most messages of one gRPC call.
pub const MAX_MESSAGES: u32 = 100_000;
/// The most targets of one run.
pub const MAX_TARGETS: usize = 1000;
/// Bytes of a TCP request where none is asked for: a small command, as to a key-value store.
pub const DEFAULT_TCP_BYTES: usize = 64;
/// A server that starts beside the load has so long to answer its first request.
pub const GIVE_UP: Duration = Duration::from_secs(3);
/// The duration of a run that lasts until somebody ends it: ten years.
pub const UNTIL_STOPPED: Duration = Duration::from_secs(10 * 366 * 86_400);
/// The most bytes of a UDP datagram over IPv4.
pub const MAX_DATAGRAM_BYTES: usize = 65_507;
/// Destination of connections.
#[derive(Debug)]
pub(crate) struct TargetAddress {
    /// The address, the protocol, and the server name over TLS.
    pub(crate) key: (SocketAddr, LoadProtocol, Option<String>),
    pub(crate) weight: f64,
    /// The first target there.
    pub(crate) first: usize,
}

/// The requests of a recorded trace.
#[derive(Debug, Clone)]
pub struct ReplayedTrace {
    /// Each once.
    pub requests: Arc<[RecordedRequest]>,
    /// Which of them each instant's is.
    pub which: Arc<[u32]>,
}

/// A load run.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Target of the requests.
    pub target: LoadTarget,
    /// Further targets, each with its weight relative to `target`.
    pub more: Vec<(f64, LoadTarget)>,
    /// TLS of each of `more`, where it is not that of `target`.
    pub more_tls: Vec<Option<Tls>>,
    /// Sizes of payloads with their weights, instead of `body`.
    pub sizes: Vec<(usize, f64)>,
    /// Requests on a connection before it is closed: a number between these, for each connection anew.
    pub reuse: Option<(u64, u64)>,
    /// gRPC: messages that a call sends, and that its answer must bring.
    pub messages: (u32, u32),
    /// gRPC: by target, encoded messages to send in turn, instead of payloads.
    pub ready: Vec<Vec<Vec<u8>>>,
    /// gRPC: each lane keeps a call open, and a request is a message of it that is answered by one; a call ends after so many (0: never).
    pub interleave: Option<u32>,
    /// Protocol of the requests.
    pub protocol: LoadProtocol,
    /// TLS, which URLs such as `https://` need.
    pub tls: Option<Tls>,
    /// Requests per second over all connections; 0 is "as fast as they are answered".
    pub rate: f64,
    /// Keep-alive connections.
    pub connections: usize,
    /// Requests in flight on each connection, at most; more than one needs HTTP/2.
    pub streams: usize,
    /// The measured time.
    pub duration: Duration,
    /// Load before it, not counted.
    pub warmup: Duration,
    /// Generator threads.
    pub threads: usize,
    /// Profile of the rate over the measured time. If empty, the rate is always `rate`; otherwise `rate` is the mean.
    pub parts: Vec<ProfileSegment>,
    /// Requests due at once.
    pub burst: u64,
    /// Recorded instants to send at, in nanoseconds from the start, instead of a rate.
    pub replay: Option<Arc<[u64]>>,
    /// Requests to send at these instants, instead of always the same request.
    pub recorded: Option<ReplayedTrace>,
    /// The arrival pattern.
    pub arrival: ArrivalPattern,
    /// Seed of random arrivals.
    pub seed: u64,
    /// Longest service time; the connection is closed after it.
    pub timeout: Duration,
    /// Which way a bulk run goes.
    pub bulk: Bulk,
    /// Reuse connections.
    pub keepalive: bool,
    /// Source address.
    pub bind: Option<IpAddr>,
    /// Method.
    pub method: String,
    /// Header fields added; `Host` replaces the one of the URL.
    pub headers: Vec<(String, String)>,
    /// A header that has another of these values in each request, in turn and around.
    pub each: Option<(String, Arc<[String]>)>,
    /// HTTP/1: `{uuid}` in path, query and body is another in each request.
    pub uuids: bool,
    /// Request body.
    pub body: Vec<u8>,
    /// Count in intervals of this length as well, each with its histogram; zero: not.
    pub interval: Duration,
    /// End the run when one of these is true of a second.
    pub abort: Vec<LoadCondition>,
    /// Conditions on the whole run that its result shows as met or crossed.
    pub thresholds: Vec<LoadCondition>,
    /// End the run if requests fail and none has been answered for so long from its start; zero: never.
    pub give_up: Duration,
    /// End the run at the first answer with one of these statuses; none is a request that got no answer.
    pub abort_on: Vec<Option<u16>>,
    /// In a closed loop: end the run once so many requests have been sent and answered.
    pub requests: Option<u64>,
    /// Speak HTTP/1.0: a connection for each request, which the server ends.
    pub http10: bool,
    /// Length that every body must have.
    pub expect_size: Option<u64>,
    /// The one status that counts as good, instead of any 2xx.
    pub expect_status: Option<u16>,
}

impl LoadOptions {
    /// 100 requests per second for 10 s over 4 connections.
    #[must_use]
    pub fn new(target: LoadTarget) -> Self {
        Self {
            protocol: target.scheme.protocol(),
            target,
            more: Vec::new(),
            more_tls: Vec::new(),
            sizes: Vec::new(),
            reuse: None,
            messages: (1, 1),
            ready: Vec::new(),
            interleave: None,
            tls: None,
            rate: 100.0,
            connections: 4,
            streams: 1,
            duration: Duration::from_secs(10),
            warmup: Duration::ZERO,
            threads: 1,
            parts: Vec::new(),
            burst: 1,
            replay: None,
            recorded: None,
            arrival: ArrivalPattern::Uniform,
            seed: 1,
            timeout: Duration::from_secs(3),
            bulk: Bulk::Push,
            keepalive: true,
            bind: None,
            method: "GET".to_owned(),
            headers: Vec::new(),
            each: None,
            uuids: false,
            body: Vec::new(),
            interval: Duration::ZERO,
            abort: Vec::new(),
            thresholds: Vec::new(),
            give_up: GIVE_UP,
            abort_on: Vec::new(),
            requests: None,
            http10: false,
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
        self.check_arrival()?;
        self.check_targets()?;
        self.check_protocol()?;
        if self.threads == 0 || self.threads > self.connections {
            let (threads, connections) = (self.threads, self.connections);
            return Err(format!(
                "threads {threads}: expected 1 to the number of connections ({connections})"
            ));
        }
        if self
            .requests
            .is_some_and(|requests| requests == 0 || self.rate > 0.0)
        {
            return Err(
                "requests: a number of requests requires a closed loop (rate 0)".to_owned(),
            );
        }
        if self.http10 && (self.protocol != LoadProtocol::Http1 || self.keepalive) {
            return Err("HTTP/1.0 requires a connection for each request".to_owned());
        }
        if self.protocol == LoadProtocol::TcpBulk && self.duration >= UNTIL_STOPPED {
            return Err("tcp-bulk: requires a duration".to_owned());
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
        if !each::is_token(&self.method) {
            return Err(format!("method `{}` is not an HTTP token", self.method));
        }
        for (name, value) in &self.headers {
            self.check_header(name, value)?;
        }
        self.check_uuids()?;
        self.check_each()
    }

    /// Takes these parts as the rate over time. Without lengths they share the duration; with, the duration is their sum.
    pub fn set_parts(&mut self, parts: Vec<ProfileSegment>) {
        if parts.is_empty() {
            return;
        }
        let lengths: Option<Duration> = parts.iter().map(|part| part.length).sum();
        self.duration = lengths.unwrap_or(self.duration);
        let each = self.duration.as_secs_f64() / parts.len().max(1) as f64;
        let length =
            |part: &ProfileSegment| part.length.map_or(each, |length| length.as_secs_f64());
        let count: f64 = parts.iter().map(|part| part.mean() * length(part)).sum();
        self.rate = count / self.duration.as_secs_f64().max(f64::MIN_POSITIVE);
        // One part at one rate is what a run without parts is.
        let plain = parts.len() < 2 && parts.iter().all(|part| part.from == part.to);
        self.parts = if plain { Vec::new() } else { parts };
    }

    /// Sends at recorded instants: for as long as the trace lasts, and a second more so that its last second is whole.
    pub fn set_replay(&mut self, instants: Vec<u64>) {
        let last = Duration::from_nanos(instants.last().copied().unwrap_or_default());
        self.duration = Duration::from_secs(last.as_secs() + 1);
        self.rate = instants.len() as f64 / self.duration.as_secs_f64();
        self.replay = Some(instants.into());
    }

    /// The rate over time from the start, the warm-up before the parts: at the first part's rate, or the mean if that is 0.
    pub(crate) fn profile(&self) -> Profile {
        if self.parts.is_empty() {
            return Profile::constant(self.rate);
        }
        let first = self.parts[0].from;
        let warm = if first > 0.0 { first } else { self.rate };
        let mut stretches = vec![(warm, warm, self.warmup.as_nanos() as f64)];
        let each = self.duration.as_nanos() as f64 / self.parts.len() as f64;
        stretches.extend(self.parts.iter().map(|part| {
            let length = part.length.map_or(each, |length| length.as_nanos() as f64);
            (part.from, part.to, length)
        }));
        stretches.retain(|(.., length)| *length > 0.0);
        Profile::new(&stretches)
    }

    fn check_arrival(&self) -> Result<(), String> {
        let shaped = !self.parts.is_empty() || self.burst > 1 || self.replay.is_some();
        if !self.parts.is_empty() && self.rate <= 0.0 {
            return Err("rate: a profile that never sends anything".to_owned());
        }
        if !self.parts.is_empty() && self.duration >= UNTIL_STOPPED {
            return Err(
                "rate: a rate that changes over time requires a duration, or lengths of its parts"
                    .to_owned(),
            );
        }
        if let Some(part) = self
            .parts
            .iter()
            .find(|part| part.from.max(part.to) > MAX_RATE)
        {
            let most = part.from.max(part.to);
            return Err(format!(
                "rate {most}: at most {MAX_RATE} requests per second"
            ));
        }
        if shaped && self.arrival == ArrivalPattern::Fortio {
            return Err("arrival fortio requires one constant rate".to_owned());
        }
        if shaped && self.rate <= 0.0 {
            return Err("rate 0 has no schedule: nothing to burst or replay".to_owned());
        }
        if self.burst == 0 || self.burst > MAX_BURST {
            return Err(format!("burst {}: expected 1 to {MAX_BURST}", self.burst));
        }
        if self.replay.is_some() && (!self.parts.is_empty() || self.burst > 1) {
            return Err("a replayed trace has its own rate and bursts".to_owned());
        }
        if self.recorded.is_some() {
            let plain = matches!(self.protocol, LoadProtocol::Http1 | LoadProtocol::Http2);
            if !plain || !self.more.is_empty() || !self.sizes.is_empty() {
                return Err(
                    "replay: recorded requests go to one HTTP target, with one payload at most"
                        .to_owned(),
                );
            }
        }
        if self.replay.is_some() && !self.warmup.is_zero() {
            return Err("warmup: a replayed trace is measured from its first request".to_owned());
        }
        Ok(())
    }

    fn check_protocol(&self) -> Result<(), String> {
        let (name, scheme) = (self.protocol.name(), self.target.scheme);
        if !self.protocol.speaks(scheme) {
            let url = &self.target.url;
            return Err(format!(
                "{url}: protocol {name} is not supported for this URL"
            ));
        }
        if scheme.secure() != self.tls.is_some() {
            let url = &self.target.url;
            return Err(format!(
                "{url}: TLS options require https, h2, grpcs or tls"
            ));
        }
        if !(1..=MAX_STREAMS).contains(&self.streams) {
            let streams = self.streams;
            return Err(format!("streams {streams}: expected 1 to {MAX_STREAMS}"));
        }
        if self.streams > 1 && !self.protocol.multiplexed() {
            return Err(format!(
                "streams: {name} carries one request per connection"
            ));
        }
        if (self.protocol.multiplexed() || self.protocol == LoadProtocol::WebSocket)
            && !self.keepalive
        {
            return Err(format!("no-keepalive: not supported by {name}"));
        }
        self.check_bytes()?;
        let (sent, wanted) = self.messages;
        let wanted = if wanted == grpc::ANY_MESSAGES {
            1
        } else {
            wanted
        };
        if (sent, wanted) != (1, 1)
            && (self.protocol != LoadProtocol::Grpc || sent.max(wanted) > MAX_MESSAGES)
        {
            return Err(format!(
                "messages {sent}:{wanted}: require gRPC, and at most {MAX_MESSAGES} are allowed"
            ));
        }
        if self.interleave.is_some()
            && (self.protocol != LoadProtocol::Grpc
                || self.messages != (1, 1)
                || !self.more.is_empty())
        {
            return Err(
                "interleave: requires gRPC and one target, and excludes messages".to_owned(),
            );
        }
        if self.protocol == LoadProtocol::Grpc
            && self.method_path() == grpc::HEALTH_CHECK
            && !self.body.is_empty()
        {
            let echo = grpc::ECHO_UNARY;
            return Err(format!(
                "{}: a health check has no payload; add a method, such as {echo}",
                self.target.url
            ));
        }
        Ok(())
    }

    /// Checks protocols of bare bytes: the URL has no path, and the payload fits.
    fn check_bytes(&self) -> Result<(), String> {
        let (name, scheme) = (self.protocol.name(), self.target.scheme);
        if scheme.bare() && self.target.path != "/" {
            return Err(format!(
                "{}: a path is not allowed; expected HOST:PORT",
                self.target.url
            ));
        }
        let silent = if self.sizes.is_empty() {
            self.body.is_empty()
        } else {
            self.sizes.iter().any(|(size, _)| *size == 0)
        };
        if self.protocol == LoadProtocol::Udp {
            let sizes = self.sizes.iter().map(|(size, _)| *size);
            let most = sizes.max().unwrap_or(self.body.len());
            if most > MAX_DATAGRAM_BYTES {
                return Err(format!(
                    "payload of {most} bytes: a datagram carries at most {MAX_DATAGRAM_BYTES}"
                ));
            }
        }
        let answered = self.protocol == LoadProtocol::TcpRr && self.expect_size == Some(0);
        if self.protocol.bare() && self.protocol != LoadProtocol::TcpBulk && (silent || answered) {
            return Err(format!(
                "payload: {name} sends and expects at least one byte"
            ));
        }
        Ok(())
    }

    /// The method that is sent; nothing where there is none.
    pub(crate) fn spoken_method(&self) -> &str {
        match self.protocol {
            LoadProtocol::Http1 | LoadProtocol::Http2 => &self.method,
            LoadProtocol::Grpc => "POST",
            LoadProtocol::WebSocket => "GET",
            LoadProtocol::TcpRr | LoadProtocol::TcpBulk | LoadProtocol::Udp => "",
        }
    }

    /// The gRPC method: the path without a query, or the health check where the URL has no path.
    fn method_path(&self) -> &str {
        let path = self.target.path.split('?').next().unwrap_or_default();
        if path == "/" {
            grpc::HEALTH_CHECK
        } else {
            path
        }
    }

    /// All targets with their weights.
    pub(crate) fn targets(&self) -> impl Iterator<Item = (f64, &LoadTarget)> {
        let more = self.more.iter().map(|(weight, target)| (*weight, target));
        std::iter::once((1.0, &self.target)).chain(more)
    }

    /// Returns the protocol of a target: that of the options if the scheme equals the first target's, else that of its scheme.
    #[must_use]
    pub fn spoken_at(&self, target: &LoadTarget) -> LoadProtocol {
        if target.scheme == self.target.scheme {
            self.protocol
        } else {
            target.scheme.protocol()
        }
    }

    /// Destinations of connections: each address and protocol of the targets once, with the sum of their weights.
    pub(crate) fn places(&self) -> Vec<TargetAddress> {
        let mut places: Vec<TargetAddress> = Vec::new();
        for (number, (weight, target)) in self.targets().enumerate() {
            let protocol = self.spoken_at(target);
            let name = target.scheme.secure().then(|| target.host().to_owned());
            let key = (target.address, protocol, name);
            match places.iter_mut().find(|place| place.key == key) {
                Some(place) => place.weight += weight,
                None => places.push(TargetAddress {
                    key,
                    weight,
                    first: number,
                }),
            }
        }
        places
    }

    /// The run as if a target were its only one, and had no payloads yet.
    pub(crate) fn only(&self, number: usize) -> Self {
        let target = self
            .targets()
            .nth(number)
            .map_or(&self.target, |(_, target)| target);
        let alike = target.scheme == self.target.scheme;
        let own = number
            .checked_sub(1)
            .and_then(|more| self.more_tls.get(more)?.clone());
        Self {
            protocol: self.spoken_at(target),
            tls: own.or_else(|| self.tls.clone().filter(|_| alike)),
            target: target.clone(),
            more: Vec::new(),
            more_tls: Vec::new(),
            sizes: Vec::new(),
            replay: None,
            recorded: None,
            ready: self.ready.get(number).cloned().into_iter().collect(),
            ..self.clone()
        }
    }

    /// The place of each connection: shares by weight, and at least one of each thread's.
    pub(crate) fn place_of_connections(&self) -> Vec<usize> {
        let places = self.places();
        let sum: f64 = places.iter().map(|place| place.weight).sum();
        let spare = self.connections - places.len() * self.threads;
        let (mut all, mut given, mut upto) = (Vec::new(), 0, 0.0);
        for (place, TargetAddress { weight, .. }) in places.iter().enumerate() {
            upto += weight / sum;
            let until = (upto * spare as f64).round() as usize;
            all.extend(std::iter::repeat_n(place, self.threads + until - given));
            given = until;
        }
        all
    }

    /// The requests of the run, made ready: targets × payload sizes.
    pub(crate) fn requests(&self) -> Arc<[PreparedRequest]> {
        let places = self.places();
        let mut requests = Vec::new();
        for (number, (weight, target)) in self.targets().enumerate() {
            let mut one = self.only(number);
            let name = target.scheme.secure().then(|| target.host().to_owned());
            let key = (target.address, one.protocol, name);
            let place = places.iter().position(|place| place.key == key);
            let silent = one.body.is_empty() && self.sizes.is_empty();
            if one.protocol.bare() && silent {
                one.body = pattern(DEFAULT_TCP_BYTES);
            }
            let as_it_is = [(one.body.len(), 1.0)];
            let sizes: &[(usize, f64)] = if self.sizes.is_empty() {
                &as_it_is
            } else {
                &self.sizes
            };
            let all: f64 = sizes.iter().map(|(_, share)| share).sum();
            for (size, share) in sizes {
                if !self.sizes.is_empty() {
                    one.body = pattern(*size);
                }
                requests.push(PreparedRequest {
                    weight: weight * share / all,
                    target: number,
                    place: place.unwrap_or(0),
                    ..one.one_request()
                });
            }
        }
        if let Some(recorded) = &self.recorded {
            return self.as_recorded(&recorded.requests);
        }
        self.with_each_value().unwrap_or_else(|| requests.into())
    }

    /// The requests of a trace: its methods and paths, at the one place there is. A body goes with those that have one.
    fn as_recorded(&self, recorded: &[RecordedRequest]) -> Arc<[PreparedRequest]> {
        let one = |asked: &RecordedRequest| {
            let mut one = self.only(0);
            one.method.clone_from(&asked.method);
            one.target.path.clone_from(&asked.path);
            if !["POST", "PUT", "PATCH"].contains(&asked.method.as_str()) {
                one.body.clear();
            }
            PreparedRequest {
                weight: 1.0,
                ..one.one_request()
            }
        };
        recorded.iter().map(one).collect()
    }

    fn one_request(&self) -> PreparedRequest {
        if let Some(request) = self.with_places() {
            return request;
        }
        PreparedRequest {
            head: self.method == "HEAD",
            bytes: self.request(),
            shape: if self.protocol.multiplexed() {
                self.shape()
            } else {
                RequestShape::default()
            },
            answer_bytes: self.expect_size.unwrap_or(self.body.len() as u64),
            ..PreparedRequest::default()
        }
    }

    fn check_targets(&self) -> Result<(), String> {
        for (weight, target) in self.targets() {
            let url = &target.url;
            if !(weight.is_finite() && weight > 0.0) {
                return Err(format!(
                    "target {url}: weight {weight}: expected more than 0"
                ));
            }
            if target.address.is_ipv4() != self.target.address.is_ipv4() && self.bind.is_some() {
                return Err(format!("target {url}: has another IP version than bind"));
            }
        }
        for number in 1..=self.more.len() {
            let mut one = self.only(number);
            if one.protocol.bare() && one.body.is_empty() {
                one.body = pattern(DEFAULT_TCP_BYTES);
            }
            one.check_protocol()?;
        }
        if self.more.len() >= MAX_TARGETS {
            return Err(format!("targets: at most {MAX_TARGETS}"));
        }
        if self.protocol == LoadProtocol::TcpBulk
            && (!self.more.is_empty() || !self.sizes.is_empty())
        {
            return Err("tcp-bulk allows one target and no payloads".to_owned());
        }
        let needed = self.places().len() * self.threads;
        if !self.more.is_empty() && self.connections < needed {
            return Err(format!(
                "connections {}: {needed} are needed, one for each address and thread",
                self.connections
            ));
        }
        if let Some((least, most)) = self.reuse
            && (least == 0 || least > most)
        {
            return Err(format!(
                "connection-reuse {least}:{most}: expected MIN:MAX, from 1"
            ));
        }
        Ok(())
    }

    /// The HTTP/2 form of every request.
    pub(crate) fn shape(&self) -> RequestShape {
        let grpc = self.protocol == LoadProtocol::Grpc;
        let path = match self.target.path.strip_prefix('/') {
            Some(query) if grpc && (query.is_empty() || query.starts_with('?')) => {
                format!("{}{query}", grpc::HEALTH_CHECK)
            }
            _ => self.target.path.clone(),
        };
        let mut authority = self.target.authority.clone();
        let mut body = Vec::new();
        if grpc {
            let payload = [grpc::message(self.method_path(), &self.body)];
            let messages = self.ready.first().map_or(&payload[..], Vec::as_slice);
            for message in messages.iter().cycle().take(self.messages.0 as usize) {
                grpc::put_message(&mut body, message);
            }
        } else {
            body.clone_from(&self.body);
        }
        let mut more = Vec::new();
        for (name, value) in &self.headers {
            let name = name.to_ascii_lowercase();
            if name == "host" {
                authority.clone_from(value);
            } else {
                more.push((name, value.clone()));
            }
        }
        let mut fields = Vec::new();
        let mut add = |name: &str, value: &str| fields.push((name.to_owned(), value.to_owned()));
        add(":method", if grpc { "POST" } else { &self.method });
        let secure = self.target.scheme.secure();
        add(":scheme", if secure { "https" } else { "http" });
        add(":path", &path);
        add(":authority", &authority);
        if !more.iter().any(|(name, _)| name == "user-agent") {
            add(
                "user-agent",
                concat!("voile-load/", env!("CARGO_PKG_VERSION")),
            );
        }
        if grpc {
            add("te", "trailers");
            add("content-type", "application/grpc");
        } else if !body.is_empty() {
            add("content-length", &body.len().to_string());
        }
        fields.append(&mut more);
        let head = !grpc && self.method == "HEAD";
        RequestShape {
            fields,
            body,
            grpc,
            messages: self.messages.1,
            interleave: self.interleave,
            head,
        }
    }

    /// The bytes of one request, where they are always the same: HTTP/1.1, or the payload alone over TCP.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        match self.protocol {
            LoadProtocol::Http1 => {}
            LoadProtocol::Http2 | LoadProtocol::Grpc => return Vec::new(),
            LoadProtocol::WebSocket => return websocket::message(&self.body),
            LoadProtocol::TcpRr | LoadProtocol::TcpBulk | LoadProtocol::Udp => {
                return self.body.clone();
            }
        }
        let version = if self.http10 { "1.0" } else { "1.1" };
        let mut head = format!("{} {} HTTP/{version}\r\n", self.method, self.target.path);
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
        if !self.keepalive && !self.http10 {
            head += "Connection: close\r\n";
        }
        head += "\r\n";
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}
