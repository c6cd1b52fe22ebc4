//! Drives the property `dns_answer`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("dns_answer")(data));
