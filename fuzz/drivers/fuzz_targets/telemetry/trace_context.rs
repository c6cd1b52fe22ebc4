//! Drives the property `trace_context`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("trace_context")(data));
