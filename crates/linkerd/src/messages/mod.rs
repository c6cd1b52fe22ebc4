//! The messages of Linkerd's public proxy API, as far as they are needed: written by hand from its schema's names and
//! numbers, so that what this control plane never says is not there. Unknown fields are skipped, as protobuf demands.

pub mod destination;
pub mod identity;
pub mod inbound;
pub mod meta;
pub mod net;
pub mod outbound;
