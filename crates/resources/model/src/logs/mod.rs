//! Access logs as resources state them: the format of a line, and the filter that selects lines.

pub mod log_filter;
pub mod log_format;
