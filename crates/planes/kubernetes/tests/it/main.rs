//! The crate's tests through its public interface.

mod injection;
mod webhooks;
