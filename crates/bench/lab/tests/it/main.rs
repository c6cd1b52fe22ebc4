//! Experiment definitions as their writers see them: accepted forms, and error messages.

mod browser;
mod definitions;
mod modes;
mod records;
mod results;
