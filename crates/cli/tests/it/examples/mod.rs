//! The pages of the folders in `examples`: their commands, and the edits that they name.

mod edges;
mod egress;
pub(crate) mod policies;
mod sticky;
pub(crate) mod traffic;
