//! The translation, value by value, and the comparison of our engine with a stock Envoy that runs it.

mod differential;
mod sets;
mod stock;
mod translation;
