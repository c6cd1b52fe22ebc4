//! Traffic decisions at their boundary: tables, properties, and what they cost in instructions.

mod actions;
mod balance;
mod checks;
mod cost;
mod limits;
mod routes;
mod sent;
mod zones;
