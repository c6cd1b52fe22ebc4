//! The memory limit of a process: its cgroup's, the distance to it, and what is done near it.

mod ceiling;
mod cgroup;
mod connections;
mod relief;

pub use ceiling::{Ceiling, ExpectedMemory, MemoryPressure};
pub use cgroup::cgroup_limit;
pub use connections::SourceConnections;
pub use relief::{MemoryHolders, MemoryRelief, ShedOrder};
