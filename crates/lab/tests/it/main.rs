//! Experiment definitions as their writers see them: what is accepted, and how mistakes are told.

mod browser;
mod definitions;
mod modes;
mod records;
mod results;
