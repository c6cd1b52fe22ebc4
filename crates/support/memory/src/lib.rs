//! Memory between a process and the kernel: the limit, the allocator's reserves, and resident pages of the program
//! itself.

mod heap;
mod limit;
pub mod shares;
mod text;

pub use heap::{frugal, give_back};
pub use limit::{
    Ceiling, ExpectedMemory, MemoryHolders, MemoryPressure, MemoryRelief, ShedOrder,
    SourceConnections, cgroup_limit,
};
pub use text::{TextSettling, release_cold_pages};
