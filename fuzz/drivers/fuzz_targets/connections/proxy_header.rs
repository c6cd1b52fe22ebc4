//! Drives the property `proxy_header`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("proxy_header")(data));
