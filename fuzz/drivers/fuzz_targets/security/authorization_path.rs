//! Drives the property `wire`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("authorization_path")(data));
