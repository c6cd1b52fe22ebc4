//! Memory between a process and the kernel: the limit, the allocator's reserves, and resident pages of the program
//! itself.

mod heap;
mod limit;
mod text;

pub use heap::{frugal, give_back};
pub use limit::cgroup_limit;
pub use text::{TextSettling, release_cold_pages};
