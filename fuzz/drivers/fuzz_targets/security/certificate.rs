//! Drives the property `certificate`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("certificate")(data));
