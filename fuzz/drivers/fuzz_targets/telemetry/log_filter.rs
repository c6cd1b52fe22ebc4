//! Drives the property `log_filter`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("log_filter")(data));
