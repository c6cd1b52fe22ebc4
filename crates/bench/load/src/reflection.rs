//! The messages of gRPC server reflection (`proto/reflection_v1.proto`; both of its names have the same), for the client that asks
//! and for the server that answers.

use prost::Message;

/// Descriptions of the services of `voile echo`, common services included, as a `FileDescriptorSet`. `VOILE_BLESS=1 cargo test -p
/// voile-load --test it descriptions` writes it again.
pub(crate) static SERVED: &[u8] = include_bytes!("../proto/served.binpb");

/// A question.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReflectionQuestion {
    #[prost(string, tag = "1")]
    pub(crate) host: String,
    #[prost(oneof = "ReflectionRequest", tags = "3, 4, 5, 6, 7")]
    pub(crate) asked: Option<ReflectionRequest>,
}

/// Question of a reflection request.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ReflectionRequest {
    /// The file of that name.
    #[prost(string, tag = "3")]
    File(String),
    /// The file in which a service, method or message is described.
    #[prost(string, tag = "4")]
    Symbol(String),
    #[prost(message, tag = "5")]
    Extension(Extension),
    #[prost(string, tag = "6")]
    Extensions(String),
    /// The services; the text means nothing.
    #[prost(string, tag = "7")]
    Services(String),
}

/// An extension of a message.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Extension {
    #[prost(string, tag = "1")]
    pub(crate) of: String,
    #[prost(int32, tag = "2")]
    pub(crate) number: i32,
}

/// An answer.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReflectionResponse {
    #[prost(string, tag = "1")]
    pub(crate) host: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) question: Option<ReflectionQuestion>,
    #[prost(oneof = "ReflectionReply", tags = "4, 5, 6, 7")]
    pub(crate) told: Option<ReflectionReply>,
}

/// Answer of a reflection response.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ReflectionReply {
    #[prost(message, tag = "4")]
    Files(DescriptorFiles),
    #[prost(message, tag = "5")]
    Extensions(Extensions),
    #[prost(message, tag = "6")]
    Services(Services),
    #[prost(message, tag = "7")]
    Refusal(ReflectionError),
}

/// `FileDescriptorProto`s, each as bytes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorFiles {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) files: Vec<Vec<u8>>,
}

/// Numbers of the extensions of a message.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Extensions {
    #[prost(string, tag = "1")]
    pub(crate) of: String,
    #[prost(int32, repeated, tag = "2")]
    pub(crate) numbers: Vec<i32>,
}

/// The services.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Services {
    #[prost(message, repeated, tag = "1")]
    pub(crate) services: Vec<ReflectedService>,
}

/// A service.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReflectedService {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// Refusal of a question: a gRPC status and its message.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReflectionError {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}
