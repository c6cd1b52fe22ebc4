//! Routing: rules of clients, visibility of services, and the traffic settings of Istio.

mod clients;
mod exports;
mod traffic;
