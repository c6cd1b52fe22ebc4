//! Tests of the crate against Helm and against a real API server.

mod definitions;
mod health;
mod helm;
mod lifecycle;
mod stage;
