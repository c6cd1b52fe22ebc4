//! Documents and files: kinds, the last good state, and the assembly of a mesh.

pub(in crate::check) mod assemble;
pub(in crate::check) mod beside;
pub(in crate::check) mod checker;
pub(in crate::check) mod document;
pub(in crate::check) mod header;
pub(in crate::check) mod istio_metadata;
pub(in crate::check) mod kinds;
pub(in crate::check) mod last_good;
pub(in crate::check) mod merge;
pub(in crate::check) mod read_files;
pub(in crate::check) mod values;
