//! Memory between a process and the kernel: how much there may be, what the allocator keeps, what of the program itself is resident.

mod heap;
mod limit;
mod text;

pub use heap::{frugal, give_back};
pub use limit::cgroup_limit;
pub use text::{Settling, release_cold_pages};
