//! Drives the property `certificate_request`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("certificate_request")(data));
