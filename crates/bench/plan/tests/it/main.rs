//! The forecast at the crate's boundary: queues against closed forms, forecasts of small graphs by known curves, and curves of
//! committed records.

mod forecasts;
mod queues;
mod records;
