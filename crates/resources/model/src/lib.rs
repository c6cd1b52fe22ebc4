//! Resources with source positions, and the checked mesh model.
//!
//! ```text
//! SourceFile (text) ──yaml──▶ YamlNode tree ──decode, check──▶ resources ──assemble──▶ Mesh
//! ```
//! Pure but for `files`, which reads a folder.

pub mod check;
pub mod codes;
pub mod diagnostic;
pub mod files;
pub mod ignored;
pub mod mesh;
pub mod names;
pub mod ranges;
pub mod reading;
pub mod source;

pub use check::check;
pub use diagnostic::{Diagnostic, Severity, folding};
pub use logs::{log_filter, log_format};
pub use mesh::Mesh;
pub use names::{
    CLUSTER_DOMAIN, Hostname, Identity, Labels, Namespace, Port, ResourceName, ServiceKey,
    TrustDomain, WorkloadKey,
};
pub use ranges::{Ranges, masked};
pub use source::{Source, SourceFile};
pub use text::{
    did_you_mean, nearest, nearest_host, nearest_name, parse_duration, suggest, with_causes,
};

mod attach;
mod decode;
mod logs;
mod text;
mod yaml;
