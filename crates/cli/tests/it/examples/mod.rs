//! The pages of the folders in `examples`: their commands, and the edits that they name.

mod edges;
mod egress;
pub(crate) mod policies;
mod sticky;
mod tracing;
pub(crate) mod traffic;
