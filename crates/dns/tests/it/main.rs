//! What the crate does at its boundaries: packets of anybody, and resolvers that answer, lie, or say nothing.

mod bounds;
mod load;
mod packets;
mod silence;
