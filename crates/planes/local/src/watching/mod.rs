//! The state of running pods and proxies, and the screen.

pub mod control_page;
pub mod edges;
pub mod observer;
pub mod scrape;
pub mod view;
