//! Drives the property `http1_response`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("http1_response")(data));
