//! Records read, summed up and drawn: one binary, on a committed fixture and on simulated runs.

mod drawing;
mod injected;
mod records;
mod summary;
