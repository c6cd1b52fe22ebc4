//! The generator: schedules, workers and connections.

pub(crate) mod accept;
pub(crate) mod body;
pub mod capacity;
pub(crate) mod choice;
pub mod clock;
pub(crate) mod duration;
pub(crate) mod poll;
pub mod profile;
pub mod schedule;
pub(crate) mod shovel;
pub(crate) mod stop;
pub(crate) mod threads;
pub(crate) mod worker;
