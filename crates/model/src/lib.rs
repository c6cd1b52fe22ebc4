//! Resources as written, with source positions, and the checked mesh model
