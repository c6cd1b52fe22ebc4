//! SPIFFE certificates, CSRs, tokens and the authority's issuing logic

pub mod generated;
