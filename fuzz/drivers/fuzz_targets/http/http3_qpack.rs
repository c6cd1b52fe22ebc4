//! Drives the property `http3_qpack`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("http3_qpack")(data));
