//! Drives the property `hbone_connect`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("hbone_connect")(data));
