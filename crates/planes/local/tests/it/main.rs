//! From folders to plans and documents, through the real resource checks.

mod expansion;
