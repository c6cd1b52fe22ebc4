//! The codec as tables: `tests/corpus/*.txt` holds messages and what must come of them, however their bytes are split.

mod allocations;
mod corpus;
mod forwarding;
mod limits;
