//! Tests of the host services on real processes: one binary, one module per subject.

mod child;
mod measure;
mod netns;
mod rules;
