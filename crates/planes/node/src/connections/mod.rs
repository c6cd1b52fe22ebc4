//! Connections of pods: inbound, outbound, between pods of the node, and tunnels.

pub(crate) mod close_reasons;
pub(crate) mod connect_heads;
pub(crate) mod inbound;
pub(crate) mod outbound;
pub(crate) mod plaintext;
pub(crate) mod same_node;
pub(crate) mod tunnel;
pub(crate) mod tunnel_pool;
pub(crate) mod unproven;
pub(crate) mod verified_peers;
