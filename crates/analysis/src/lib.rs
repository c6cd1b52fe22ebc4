//! Cross-resource checks with file and line
