//! Checks of Pods, their controllers, Services and endpoints.

pub(in crate::check) mod controller;
pub(in crate::check) mod endpoint_slice;
pub(in crate::check) mod kubernetes;
pub(in crate::check) mod networking;
pub(in crate::check) mod pod;
pub(in crate::check) mod probe;
pub(in crate::check) mod slices;
pub(in crate::check) mod topology;
