//! Tests of the crate's boundaries: packets of any sender, and resolvers that answer, lie, or say nothing.

mod bounds;
mod load;
mod packets;
mod silence;
