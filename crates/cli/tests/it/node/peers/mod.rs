//! A node proxy beside programs of others: ztunnel, istiod, and waypoints that take no tunnels.

mod istiod;
mod sandwich;
mod ztunnel;
