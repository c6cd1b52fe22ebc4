//! The subscription protocol, both ends

pub mod generated;
