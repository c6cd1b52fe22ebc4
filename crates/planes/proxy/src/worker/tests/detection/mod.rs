//! Destinations that the first bytes decide, and clients or servers that are late with them.

mod late;
mod server_first;
mod server_name;
