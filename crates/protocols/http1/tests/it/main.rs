//! The codec as tables: `tests/corpus/*.txt` holds messages and the expected results, however their bytes are split.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set its stage has failed"
)]

mod allocations;
mod corpus;
mod forwarding;
mod limits;
mod lines;
