//! The machine: its programs, networks, limits, and the names of its paths.

pub(crate) mod calibration;
pub(crate) mod environment;
pub(crate) mod find;
pub(crate) mod instance;
pub(crate) mod network;
pub(crate) mod path_privacy;
pub(crate) mod process_bounds;
pub(crate) mod socket_owners;
