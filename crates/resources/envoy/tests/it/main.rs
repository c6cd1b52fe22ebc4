//! The translation, value by value, and the comparison of our engine with a stock Envoy that runs it.

mod differential;
mod echo;
mod elsewhere;
mod gateway;
mod grpc_routes;
mod grpc_traffic;
mod lines;
mod routes;
mod sets;
mod stock;
mod tokens;
mod traffic;
mod translation;
