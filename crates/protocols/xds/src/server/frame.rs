//! Responses as the bytes that travel: gRPC's head, and the message behind it. A resource's body was encoded once for all streams; here
//! it is copied once, to where it leaves from, and no message is built on the way: thousands of proxies are told the same at once.

use std::fmt;
use std::sync::Arc;

use prost::encoding::{
    DecodeContext, WireType, decode_key, encode_key, encode_varint, encoded_len_varint, key_len,
    skip_field,
};
use prost_types::Any;
use tonic::Status;
use voile_proto::discovery::{self, DeltaDiscoveryResponse, DiscoveryResponse};

use super::budget::MAX_MESSAGE_BYTES;
use crate::server::snapshot::Resource;

/// gRPC's head: that nothing is compressed, and how long the message is.
pub(super) const HEAD_BYTES: usize = 5;

// Fields of the messages, by their numbers in `envoy/discovery.proto`.
const RESPONSE_VERSION: u32 = 1;
const RESPONSE_RESOURCES: u32 = 2;
const RESPONSE_TYPE: u32 = 4;
const RESPONSE_NONCE: u32 = 5;
const RESPONSE_REMOVED: u32 = 6;
const RESOURCE_VERSION: u32 = 1;
const RESOURCE_ANY: u32 = 2;
const RESOURCE_NAME: u32 = 3;
const RESOURCE_ALIASES: u32 = 4;
const ANY_TYPE: u32 = 1;
const ANY_VALUE: u32 = 2;

/// A resource as one caller is told of it.
#[derive(Debug, Clone)]
pub(super) struct TailoredResource {
    pub(super) resource: Arc<Resource>,
    /// The version as this caller sees it.
    pub(super) version: Arc<str>,
    /// Names asked for that are not among the resource's aliases.
    pub(super) asked: Vec<Arc<str>>,
}

/// The number of a response, which its caller says again when it answers. It travels as decimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nonce(pub(super) u64);

/// Digits of the largest.
const NONCE_DIGITS: usize = 20;

impl Nonce {
    /// Its digits, written where there is room.
    fn digits(self, room: &mut [u8; NONCE_DIGITS]) -> &str {
        let (mut rest, mut at) = (self.0, NONCE_DIGITS);
        loop {
            at -= 1;
            room[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        std::str::from_utf8(&room[at..]).expect("invariant: digits are ASCII")
    }

    /// Returns true if this is the nonce in a request.
    pub(super) fn is(self, said: &str) -> bool {
        self.digits(&mut [0; NONCE_DIGITS]) == said
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.digits(&mut [0; NONCE_DIGITS]))
    }
}

/// A response that is due; what it says is shared until it is written.
#[derive(Debug)]
pub(super) struct DueResponse<R> {
    pub(super) version: Arc<str>,
    pub(super) type_url: Arc<str>,
    pub(super) nonce: Nonce,
    pub(super) resources: Vec<R>,
    /// Names gone; a state-of-the-world response has none.
    pub(super) removed: Vec<Arc<str>>,
}

/// Form of a resource in a response: with its name and version (delta), or its content alone (state of the world).
pub(super) trait ResponseEntry {
    fn length(&self, type_url: &str) -> usize;
    fn write(&self, type_url: &str, out: &mut Vec<u8>);
}

/// Of a field with so many bytes.
fn field_length(number: u32, bytes: usize) -> usize {
    key_len(number) + encoded_len_varint(bytes as u64) + bytes
}

/// As `field_length`; what is empty is not said.
fn text_length(number: u32, text: &str) -> usize {
    match text.is_empty() {
        true => 0,
        false => field_length(number, text.len()),
    }
}

fn begin(number: u32, bytes: usize, out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes as u64, out);
}

fn put_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    begin(number, bytes.len(), out);
    out.extend_from_slice(bytes);
}

fn put_text(number: u32, text: &str, out: &mut Vec<u8>) {
    if !text.is_empty() {
        put_bytes(number, text.as_bytes(), out);
    }
}

fn any_length(type_url: &str, body: &[u8]) -> usize {
    let value = match body.is_empty() {
        true => 0,
        false => field_length(ANY_VALUE, body.len()),
    };
    text_length(ANY_TYPE, type_url) + value
}

fn put_any(type_url: &str, body: &[u8], out: &mut Vec<u8>) {
    put_text(ANY_TYPE, type_url, out);
    if !body.is_empty() {
        put_bytes(ANY_VALUE, body, out);
    }
}

impl TailoredResource {
    fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.resource.aliases.iter().chain(&self.asked)
    }
}

impl ResponseEntry for TailoredResource {
    fn length(&self, type_url: &str) -> usize {
        let any = any_length(type_url, &self.resource.body);
        let names = self.names();
        text_length(RESOURCE_VERSION, &self.version)
            + field_length(RESOURCE_ANY, any)
            + text_length(RESOURCE_NAME, &self.resource.name)
            + names
                .map(|name| field_length(RESOURCE_ALIASES, name.len()))
                .sum::<usize>()
    }

    fn write(&self, type_url: &str, out: &mut Vec<u8>) {
        let body = &self.resource.body;
        put_text(RESOURCE_VERSION, &self.version, out);
        begin(RESOURCE_ANY, any_length(type_url, body), out);
        put_any(type_url, body, out);
        put_text(RESOURCE_NAME, &self.resource.name, out);
        self.names()
            .for_each(|name| put_bytes(RESOURCE_ALIASES, name.as_bytes(), out));
    }
}

impl ResponseEntry for Arc<Resource> {
    fn length(&self, type_url: &str) -> usize {
        any_length(type_url, &self.body)
    }

    fn write(&self, type_url: &str, out: &mut Vec<u8>) {
        put_any(type_url, &self.body, out);
    }
}

impl<R: ResponseEntry> DueResponse<R> {
    fn length(&self) -> usize {
        let resources = self.resources.iter();
        let removed = self.removed.iter();
        text_length(RESPONSE_VERSION, &self.version)
            + resources
                .map(|one| field_length(RESPONSE_RESOURCES, one.length(&self.type_url)))
                .sum::<usize>()
            + text_length(RESPONSE_TYPE, &self.type_url)
            + text_length(RESPONSE_NONCE, self.nonce.digits(&mut [0; NONCE_DIGITS]))
            + removed
                .map(|name| field_length(RESPONSE_REMOVED, name.len()))
                .sum::<usize>()
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_text(RESPONSE_VERSION, &self.version, out);
        for one in &self.resources {
            begin(RESPONSE_RESOURCES, one.length(&self.type_url), out);
            one.write(&self.type_url, out);
        }
        put_text(RESPONSE_TYPE, &self.type_url, out);
        put_text(
            RESPONSE_NONCE,
            self.nonce.digits(&mut [0; NONCE_DIGITS]),
            out,
        );
        for name in &self.removed {
            put_bytes(RESPONSE_REMOVED, name.as_bytes(), out);
        }
    }
}

/// Adds a response, as gRPC frames it. The first takes as much room as it needs, and mostly there is no second.
pub(super) fn put<R: ResponseEntry>(due: &DueResponse<R>, out: &mut Vec<u8>) {
    let length = due.length();
    out.reserve(HEAD_BYTES + length);
    out.push(0);
    // Bodies in a response are bounded far below.
    let head = u32::try_from(length).unwrap_or(u32::MAX);
    out.extend_from_slice(&head.to_be_bytes());
    due.write(out);
}

/// The first message of what came, without its head, if it is whole. Beyond what everybody may say, `most` says how large it may be.
pub(super) fn message(bytes: &[u8], most: impl FnOnce() -> usize) -> Result<Option<&[u8]>, Status> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return Ok(None);
    };
    let [compressed, length @ ..] = *head;
    let length = u32::from_be_bytes(length) as usize;
    if compressed != 0 {
        let reason = "the request is compressed without a grpc-encoding header";
        return Err(Status::unimplemented(reason));
    }
    if length > MAX_MESSAGE_BYTES {
        let most = most();
        if length > most {
            return Err(Status::resource_exhausted(format!(
                "the request has {length} bytes; at most {most} are allowed"
            )));
        }
    }
    Ok(rest.get(..length))
}

/// Number of fields of a message, counted before decoding: each becomes a string of its own, which takes more room than here. The
/// decoder reports an error in a message that cannot be counted.
pub(super) fn fields(mut message: &[u8]) -> usize {
    let mut number = 0;
    while !message.is_empty() {
        number += 1;
        let Ok((tag, wire)) = decode_key(&mut message) else {
            break;
        };
        if skip_field(wire, tag, &mut message, DecodeContext::default()).is_err() {
            break;
        }
    }
    number
}

fn any(type_url: &str, resource: &Resource) -> Any {
    Any {
        type_url: type_url.to_owned(),
        value: resource.body.to_vec(),
    }
}

impl From<DueResponse<TailoredResource>> for DeltaDiscoveryResponse {
    fn from(due: DueResponse<TailoredResource>) -> Self {
        let resource = |told: &TailoredResource| discovery::Resource {
            version: told.version.to_string(),
            name: told.resource.name.to_string(),
            aliases: told.names().map(ToString::to_string).collect(),
            resource: Some(any(&due.type_url, &told.resource)),
            ttl: None,
        };
        Self {
            system_version_info: due.version.to_string(),
            resources: due.resources.iter().map(resource).collect(),
            type_url: due.type_url.to_string(),
            nonce: due.nonce.to_string(),
            removed_resources: due.removed.iter().map(ToString::to_string).collect(),
        }
    }
}

impl From<DueResponse<Arc<Resource>>> for DiscoveryResponse {
    fn from(due: DueResponse<Arc<Resource>>) -> Self {
        let resources = due.resources.iter();
        Self {
            version_info: due.version.to_string(),
            resources: resources.map(|one| any(&due.type_url, one)).collect(),
            type_url: due.type_url.to_string(),
            nonce: due.nonce.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// Lengths on both sides of where a length takes another byte.
    const SIZES: [usize; 9] = [0, 1, 100, 127, 128, 129, 16_383, 16_384, 40_000];

    fn resource(random: &mut fastrand::Rng) -> Arc<Resource> {
        let size = SIZES[random.usize(..SIZES.len())];
        let mut text = |most: usize| -> Arc<str> {
            let length = random.usize(..=most);
            let letters = std::iter::repeat_with(|| random.lowercase());
            letters.take(length).collect::<String>().into()
        };
        let (name, version) = (text(300), text(20));
        let aliases = [text(0), text(5), text(200)];
        Arc::new(Resource {
            name,
            aliases: aliases.into(),
            version,
            body: vec![7; size].into(),
        })
    }

    fn due<R>(resources: Vec<R>, removed: &[&str]) -> DueResponse<R> {
        DueResponse {
            version: "snapshot".into(),
            type_url: "type.googleapis.com/thing".into(),
            nonce: Nonce(17),
            resources,
            removed: removed.iter().map(|name| Arc::from(*name)).collect(),
        }
    }

    /// Messages that a gRPC peer reads.
    fn read<M: Message + Default>(mut bytes: &[u8]) -> Vec<M> {
        let mut all = Vec::new();
        while let Some(whole) = message(bytes, || usize::MAX).expect("a message that may be read") {
            all.push(M::decode(whole).expect("a message"));
            bytes = &bytes[HEAD_BYTES + whole.len()..];
        }
        assert!(bytes.is_empty(), "{} bytes are left", bytes.len());
        all
    }

    #[test]
    fn what_is_written_by_hand_reads_like_the_message() {
        let mut random = fastrand::Rng::with_seed(5);
        for round in 0..200 {
            let resources: Vec<_> = (0..round % 4).map(|_| resource(&mut random)).collect();
            let told = |asked: &[&str]| -> Vec<TailoredResource> {
                let told = |resource: &Arc<Resource>| TailoredResource {
                    resource: resource.clone(),
                    version: "as seen".into(),
                    asked: asked.iter().map(|name| Arc::from(*name)).collect(),
                };
                resources.iter().map(told).collect()
            };
            let removed: &[&str] = if round % 3 == 0 { &["gone", ""] } else { &[] };
            let asked: &[&str] = if round % 5 == 0 { &["*/host"] } else { &[] };
            let mut bytes = Vec::new();
            put(&due(told(asked), removed), &mut bytes);
            put(&due(told(&[]), &[]), &mut bytes);
            let expected: [DeltaDiscoveryResponse; 2] =
                [due(told(asked), removed).into(), due(told(&[]), &[]).into()];
            assert_eq!(read::<DeltaDiscoveryResponse>(&bytes), expected);
            let mut bytes = Vec::new();
            put(&due(resources.clone(), &[]), &mut bytes);
            let expected: DiscoveryResponse = due(resources, &[]).into();
            assert_eq!(read::<DiscoveryResponse>(&bytes), [expected]);
        }
    }

    #[test]
    fn a_nonce_is_its_digits_and_nothing_else() {
        for number in [1, 9, 10, 17, 100, u64::MAX] {
            let text = number.to_string();
            let nonce = Nonce(number);
            assert_eq!(nonce.to_string(), text);
            assert!(nonce.is(&text));
            for wrong in [format!("0{text}"), format!("+{text}"), format!("{text} ")] {
                assert!(!nonce.is(&wrong), "{wrong:?}");
            }
            assert!(!nonce.is("") && !nonce.is(&text[1..]));
        }
    }

    #[test]
    fn a_request_is_whole_or_waits_or_is_refused() {
        let of = |head: [u8; HEAD_BYTES], body: &[u8]| [&head[..], body].concat();
        for (bytes, expected) in [
            (Vec::new(), "waits"),
            (vec![0, 0, 0, 0], "waits"),
            (of([0, 0, 0, 0, 0], b""), "0 bytes"),
            (of([0, 0, 0, 0, 3], b"ab"), "waits"),
            (of([0, 0, 0, 0, 3], b"abcd"), "3 bytes"),
            (of([1, 0, 0, 0, 3], b"abc"), "Unimplemented"),
            (of([0, 0, 0x40, 0, 0], b""), "waits"),
            (of([0, 0, 0x40, 0, 1], b""), "ResourceExhausted"),
        ] {
            let seen = match message(&bytes, || MAX_MESSAGE_BYTES) {
                Ok(None) => "waits".to_owned(),
                Ok(Some(message)) => format!("{} bytes", message.len()),
                Err(status) => format!("{:?}", status.code()),
            };
            assert_eq!(seen, expected, "{bytes:?}");
        }
    }
}
