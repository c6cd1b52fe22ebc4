//! Drives the property `revocation_list`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("revocation_list")(data));
