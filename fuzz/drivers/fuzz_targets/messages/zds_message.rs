//! Drives the property `zds_message`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("zds_message")(data));
