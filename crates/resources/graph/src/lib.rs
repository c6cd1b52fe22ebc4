//! Service graphs: the calls between services, with their frequency, payloads and work. Reads isotope's YAML; makes checks,
//! expected counts, pictures, and the folder of a mesh that runs the graph. Pure: no files, no sockets, no clock.
//!
//! ```text
//! text ──read──▶ Graph ──check──▶ diagnostics
//!                  ▲ └──weigh──▶ calls per request   └──draw──▶ SVG, DOT   └──mesh──▶ folder of YAML
//!              generate
//! ```

pub mod check;
pub mod codes;
pub mod dice;
pub mod draw;
pub mod generate;
pub mod mesh;
pub mod size;
pub mod weigh;

mod model;
mod parse;
mod written;

pub use check::check;
pub use model::{
    FieldLocation, Graph, GraphService, Memory, Probability, ScriptStep, ServiceCall,
    ServiceProtocol, Step,
};
pub use parse::{parse_share, read};
pub use written::to_yaml;
