//! Drives the property `http2_hpack`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("http2_hpack")(data));
