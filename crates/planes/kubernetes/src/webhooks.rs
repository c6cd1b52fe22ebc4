//! The server of admission webhooks: HTTPS that the API server calls for each new Pod and for resources of the mesh. `POST
//! /inject`, `/inject/…` and `/validate` answer an AdmissionReview, `GET /ready` says that the server runs. The caller brings the
//! certificate and the settings; both may change while the server runs.

mod review;
mod server;
mod validate;

use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::MeshConfig;

use crate::inject::InjectorOptions;

pub use server::serve;
pub use validate::Validator;

/// Largest body of a request: the API server stores no larger object.
pub const MAX_BODY_BYTES: usize = 3 << 20;
/// Pods that are read at once: 96 MiB in all.
pub const MAX_BODIES: usize = 32;
/// Other resources that are read at once, beside the Pods: 24 MiB in all. Injection never waits for them.
pub const MAX_VALIDATED_BODIES: usize = 8;
/// JSON values of all Pods that are answered at once, and of one. A value of two bytes takes up to 1 KiB while it is looked at, so
/// that all take 128 MiB at most. Values are counted by the characters that begin or separate them, in strings too.
pub const MAX_VALUES: usize = 128 << 10;
/// The same of other resources: 256 MiB at most.
pub const MAX_VALIDATED_VALUES: usize = 256 << 10;
/// Open connections. At the limit the connection that is idle for the longest time ends.
pub const MAX_CONNECTIONS: usize = 512;
/// Time for a TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a request's head, and for which a connection may be idle. An API server ends idle connections after 90 s; it should
/// be the first to do so.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for a request's body. An API server waits 30 s at most for an answer.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for open requests when the server stops.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings by which Pods are injected.
#[derive(Debug, Clone)]
pub struct InjectionSettings {
    /// Settings of the injector.
    pub options: InjectorOptions,
    /// Settings of the mesh.
    pub mesh: Arc<MeshConfig>,
}
