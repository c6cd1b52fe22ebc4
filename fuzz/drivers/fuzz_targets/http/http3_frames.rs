//! Drives the property `http3_frames`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("http3_frames")(data));
