//! The runner behind voile up
