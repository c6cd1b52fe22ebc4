//! The control plane's end of ADS: `Stream` (delta) and `SotwStream` (state of the world) decide on the resources that a caller
//! gets. A `Served` stream reads requests and writes responses, in bytes, on a connection that it does not own. A `Snapshot`
//! holds all resources, and is swapped whole through a watch channel. The snapshot decides who may see them. `Interest` decides
//! which streams must look again after a change.

mod budget;
mod by_type;
mod conversation;
mod denied_names;
mod driver;
mod end_reason;
mod frame;
mod names;
mod rejected_routes;
mod service;
mod snapshot;
mod sotw;
mod stream;
mod subscription_index;
mod type_bits;

pub use budget::{
    Allowance, CERTIFICATE_WORK, HELD_PER_RESOURCE, HELD_PER_STREAM, HELD_PER_WORKLOAD,
    MAX_HELD_PER_IDENTITY, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES_EVER, MAX_UNREAD_PER_IDENTITY,
    STREAMS_PER_IDENTITY, STREAMS_PER_WORKLOAD,
};
pub use driver::{Admission, BoundedLife, Observer, ServedStream};
pub use end_reason::StreamEndReason;
pub use names::Names;
pub use service::Streams;
pub use snapshot::{DEPARTED, Resolution, Resource, Snapshot};
pub use sotw::{Absent, SotwStream};
pub use stream::{DiscoveryStream, Rejections, RequestEvent, SentResource};
pub use subscription_index::{CALLER, ChangedNames, Publishing, StreamId, SubscriptionIndex};
