//! Experiment definitions as their writers see them: accepted forms, and error messages.

mod browser;
mod definitions;
mod lowered;
mod modes;
mod records;
mod results;
