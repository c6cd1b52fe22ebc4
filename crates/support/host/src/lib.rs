//! Host services for the lab and the local mesh: child processes that cannot outlive this one, their cost, free
//! ports, and waiting until a server answers. Plain `std` and system calls; no async runtime.

pub mod cgroup;
pub mod child;
pub mod confinement;
pub mod device;
pub mod enclosure;
pub mod interrupt;
pub mod isolation;
pub mod machine;
pub mod netns;
pub mod ports;
pub mod ready;
pub mod sampler;
