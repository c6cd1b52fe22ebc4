//! Records of experiments beside the common runner, and their pages.

pub mod agreement;
pub mod control_plane;
pub mod decisions;
pub mod generators;
pub mod graph;
pub mod side_by_side;
pub mod side_record;
