//! The run of an experiment: processes, events, slices, and the record as it is written.

pub(crate) mod events;
pub(crate) mod experiment;
pub(crate) mod hooks;
pub(crate) mod idle;
pub(crate) mod profile;
pub(crate) mod record_writer;
pub(crate) mod running_setup;
pub(crate) mod slice;
pub(crate) mod slice_checks;
