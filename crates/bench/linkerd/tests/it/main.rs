//! The control plane over its wire: asked as linkerd2-proxy asks, by a client that knows the schema's names and numbers only.

mod asked;
mod certified;
