//! What decisions cost, in instructions counted by valgrind, so that they cannot come to grow with the number of routes or
//! endpoints. This binary runs itself once more under valgrind; building the tables is not counted.
//!
//! The counts are those of the profile under test and repeat exactly. Time is the laboratory's business.

mod balance;
mod routes;

use std::env;

use voile_testkit::instructions::{COUNTED, ORDERS, begin_counting, count, end_counting};

/// Whether this process is the one that is counted.
fn is_counted() -> bool {
    env::var(ORDERS).is_ok()
}

/// Has decisions counted.
fn counted(mut decide: impl FnMut()) {
    // What is made once, and caches of expressions, are not the cost of a decision.
    decide();
    begin_counting();
    for _ in 0..COUNTED {
        decide();
    }
    end_counting();
}
