#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hexagram_physical::fuzzing::run("frame_header", data));
