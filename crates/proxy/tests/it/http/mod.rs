//! The HTTP/1.1 engine between a client made of bytes and a server that plays a script.

mod basics;
mod stage;
