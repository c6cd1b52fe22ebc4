//! `io.linkerd.proxy.meta`: what in the mesh an answer comes from; it becomes labels of metrics.

/// A resource, or a name for none.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Metadata {
    /// Which.
    #[prost(oneof = "MetadataKind", tags = "1, 2")]
    pub kind: Option<MetadataKind>,
}

/// Origin of a setting.
#[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
pub enum MetadataKind {
    /// A default, without a resource.
    #[prost(string, tag = "1")]
    Default(String),
    /// A resource of Kubernetes'.
    #[prost(message, tag = "2")]
    Resource(Resource),
}

/// A resource of Kubernetes'.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Resource {
    /// `core`, for one.
    #[prost(string, tag = "1")]
    pub group: String,
    /// `Service`, for one.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// Its port.
    #[prost(uint32, tag = "6")]
    pub port: u32,
}

impl Metadata {
    /// Metadata of a default, without a resource.
    #[must_use]
    pub fn default_named(name: &str) -> Self {
        Self {
            kind: Some(MetadataKind::Default(name.to_owned())),
        }
    }

    /// Of a service.
    #[must_use]
    pub fn service(name: &str, namespace: &str, port: u16) -> Self {
        Self {
            kind: Some(MetadataKind::Resource(Resource {
                group: "core".to_owned(),
                kind: "Service".to_owned(),
                name: name.to_owned(),
                namespace: namespace.to_owned(),
                port: port.into(),
            })),
        }
    }
}
