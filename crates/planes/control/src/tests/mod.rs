//! Tests of the parts together, without sockets.

mod push_cost;
mod shared;
