//! The messages of Linkerd's public proxy API, as far as the lab needs them. They are written by hand from the
//! schema's names and numbers; fields that this control plane never sends are left out. Unknown fields are skipped,
//! as protobuf demands.

pub mod destination;
pub mod identity;
pub mod inbound;
pub mod meta;
pub mod net;
pub mod outbound;
