//! The process behind one service of a graph: an HTTP/1.1 and gRPC server that does what its script says, and calls others
//! through pools of kept connections. And `run`: all services of a graph as such processes, without a mesh.
//!
//! ```text
//! listener ─▶ worker (a thread, a LocalSet) ─▶ handle ─▶ script ─▶ pool ─▶ callee
//!                                             └ /metrics, /healthz, grpc.health.v1
//! ```
//! Built on hyper, and shares no HTTP code with the proxy, so that a bug cannot hide itself.

mod body;
mod call;
mod grpc;
mod handle;
mod metrics;
mod places;
mod run;
mod script;
mod server;
mod trace;
mod work;

pub use places::CalleeAddress;
pub use run::{RunError, RunOptions, run};
pub use server::{ServeError, ServeOptions, serve};
