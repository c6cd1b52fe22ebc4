//! Tables, pages and plots.

pub(crate) mod columns;
pub mod csv;
pub mod html;
pub mod picture;
pub mod table;
pub mod words;
