//! Tables, pages and plots.

pub(crate) mod columns;
pub mod csv;
pub mod html;
pub(crate) mod page;
pub mod picture;
pub mod table;
pub mod words;
