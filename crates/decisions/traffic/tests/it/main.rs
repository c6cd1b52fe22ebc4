//! Tests of traffic decisions at their boundary: tables, properties, and cost in instructions.

mod actions;
mod balance;
mod checks;
mod cost;
mod limits;
mod routes;
mod sent;
mod zones;
