#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::answer(input));
