//! Drives the property `http2_frames`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| voile_fuzz::property("http2_frames")(data));
