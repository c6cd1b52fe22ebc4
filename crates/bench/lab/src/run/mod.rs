//! The run of an experiment: processes, events, slices, and the record as it is written.

pub(crate) mod effect_evidence;
pub(crate) mod endpoints;
pub(crate) mod events;
pub(crate) mod experiment;
pub(crate) mod generator;
pub(crate) mod hooks;
pub(crate) mod process;
pub(crate) mod record_writer;
pub(crate) mod running_setup;
pub(crate) mod slice;
pub(crate) mod slice_checks;
