//! Drives the property `client_hello`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("client_hello")(data));
