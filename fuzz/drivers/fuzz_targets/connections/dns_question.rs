//! Drives the property `dns_question`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("dns_question")(data));
