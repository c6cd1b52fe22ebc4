//! Drives the property `page_answer`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("page_answer")(data));
