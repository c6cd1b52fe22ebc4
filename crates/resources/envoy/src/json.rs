//! Pieces of JSON that all parts of the translation are made of.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use voile_model::mesh::action::RequestShare;

pub(crate) const TYPES: &str = "type.googleapis.com/envoy.";

/// An extension: its name, and its configuration by its type without what all types begin with.
pub(crate) fn typed(name: &str, kind: &str, config: Value) -> Value {
    json!({ "name": name, "typed_config": message(kind, config) })
}

/// A configuration that says its type.
pub(crate) fn message(kind: &str, mut config: Value) -> Value {
    config["@type"] = json!(format!("{TYPES}{kind}"));
    config
}

pub(crate) fn socket(address: SocketAddr) -> Value {
    host(&address.ip().to_string(), address.port())
}

/// An address or a name, and a port.
pub(crate) fn host(address: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": address, "port_value": port } })
}

/// A share of requests.
pub(crate) fn share(share: RequestShare) -> Value {
    json!({ "numerator": share.millionths(), "denominator": "MILLION" })
}

pub(crate) fn duration(duration: Duration) -> Value {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    // As many digits as protobuf's JSON has.
    json!(match nanos {
        0 => format!("{seconds}s"),
        nanos if nanos % 1_000_000 == 0 => format!("{seconds}.{:03}s", nanos / 1_000_000),
        nanos => format!("{seconds}.{nanos:09}s"),
    })
}

/// From the control plane, on the stream that this came by.
pub(crate) fn from_control() -> Value {
    json!({ "ads": {}, "resource_api_version": "V3" })
}

/// `http`, for addresses in URIs.
pub(crate) fn authority(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}
