//! gRPC by description, and the descriptions that the echo server gives.

mod described;
mod descriptions;
