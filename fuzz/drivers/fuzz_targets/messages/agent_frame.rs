//! Drives the property `agent_frame`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("agent_frame")(data));
