//! Listeners, protocol detection, mutual TLS, pools, drain
