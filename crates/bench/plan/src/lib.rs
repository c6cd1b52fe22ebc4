//! What a mesh will cost a graph of services. Pure: no process, no file, no clock; randomness comes from a seed. `voile bench
//! curves` and `voile plan` call it.
//!
//! ```text
//! records ──fit──▶ Curves ──look_up──▶ CPU, memory ──┐
//! graph + load + Choice ─────────────▶ simulate ─────┴─▶ Forecast ──▶ table, JSON, budget
//! ```

pub mod budget;
pub mod curves;
pub mod edges;
pub mod features;
pub mod fit;
pub mod lookup;
pub mod page;
pub mod predict;
pub mod simulate;
pub mod table;

pub use curves::Curves;
pub use features::{Choice, DataPlane};
pub use fit::fit;
pub use predict::{Costs, Demand, Forecast, predict};
