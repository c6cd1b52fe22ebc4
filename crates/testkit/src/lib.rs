//! Fake clock, test authority, golden files (dev-dependency only)
