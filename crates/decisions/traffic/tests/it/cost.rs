//! Cost of decisions, in instructions counted by valgrind, so that it cannot come to grow with the number of routes
//! or endpoints. This binary runs itself once more under valgrind; building the tables is not counted.
//!
//! The counts are those of the profile under test and repeat exactly. The lab measures time.

mod balance;
mod routes;

use std::env;

use voile_testkit::instructions::{COUNTED, ORDERS, begin_counting, count, end_counting};

/// Returns true if this process is the one that is counted.
fn is_counted() -> bool {
    env::var(ORDERS).is_ok()
}

/// Has decisions counted.
fn counted(mut decide: impl FnMut()) {
    // A first call leaves one-time work and caches of expressions out of the count.
    decide();
    begin_counting();
    for _ in 0..COUNTED {
        decide();
    }
    end_counting();
}
