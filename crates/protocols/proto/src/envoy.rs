//! Envoy's configuration in Envoy's own words: JSON in, as people write it and Envoy reads it, and the message's bytes out. The
//! messages are described by `proto/xds/`, as far as they are used: a field that is not there is an error, never dropped.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage};
use prost_types::Any;
use serde_json::Value;

/// `proto/xds/`, compiled; `tests/it/fresh.rs` writes and checks it.
static DESCRIPTIONS: &[u8] = include_bytes!("generated/envoy.bin");

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(DESCRIPTIONS)
        .expect("invariant: a test keeps the file what protox wrote")
});

/// Why a JSON value is no message.
#[derive(Debug, thiserror::Error)]
#[error("not a valid message: {0}")]
pub struct EncodeError(#[from] serde_json::Error);

/// The message that a value with a `@type` says, within messages too.
///
/// # Errors
/// There is no such type or field here, or a value is not of its field's kind.
pub fn encode(message: &Value) -> Result<Any, EncodeError> {
    let any = POOL
        .get_message_by_name("google.protobuf.Any")
        .expect("invariant: descriptions that use Any bring it along");
    let wrapped = DynamicMessage::deserialize(any, message)?;
    wrapped
        .transcode_to()
        .map_err(|error| EncodeError(serde::de::Error::custom(error)))
}

/// The JSON of a message, for people and tests.
///
/// # Errors
/// The type is not known here, or the bytes are not of it.
pub fn decode(message: &Any) -> Result<Value, EncodeError> {
    let any = POOL
        .get_message_by_name("google.protobuf.Any")
        .expect("invariant: descriptions that use Any bring it along");
    let mut wrapped = DynamicMessage::new(any);
    wrapped
        .transcode_from(message)
        .map_err(|error| EncodeError(serde::de::Error::custom(error)))?;
    let options = prost_reflect::SerializeOptions::new().use_proto_field_name(true);
    Ok(wrapped.serialize_with_options(serde_json::value::Serializer, &options)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let written = json!({
            "@type": crate::type_url::CLUSTER,
            "name": "a",
            "type": "EDS",
            "connect_timeout": "1.500s",
            "eds_cluster_config": { "eds_config": { "ads": {}, "resource_api_version": "V3" } },
            "transport_socket": {
                "name": "envoy.transport_sockets.tls",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                    "sni": "b",
                },
            },
        });
        let encoded = encode(&written).expect("a message");
        assert_eq!(encoded.type_url, crate::type_url::CLUSTER);
        assert_eq!(decode(&encoded).expect("readable"), written);
    }

    #[test]
    fn what_is_not_described_is_an_error_that_names_it() {
        let cluster = crate::type_url::CLUSTER;
        for (wrong, why) in [
            (json!({ "name": "a" }), "type"),
            (
                json!({ "@type": "type.googleapis.com/envoy.Nothing" }),
                "envoy.Nothing",
            ),
            (
                json!({ "@type": cluster, "no_such_field": true }),
                "no_such_field",
            ),
            (json!({ "@type": cluster, "name": 3 }), "string"),
            (
                json!({ "@type": cluster, "type": "SOMETIMES" }),
                "SOMETIMES",
            ),
            (
                json!({ "@type": cluster, "eds_cluster_config": { "x": 1 } }),
                "x",
            ),
        ] {
            let error = encode(&wrong).expect_err("an error").to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
