//! Results: schedules, percentiles, files of Fortio, and the cost of a request.

mod cost;
mod past;
mod schedules;
mod truth;
