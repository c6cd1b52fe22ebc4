//! Generated wire messages (prost only)
