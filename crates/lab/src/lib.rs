//! Modes, contestants, experiments, proof of path
