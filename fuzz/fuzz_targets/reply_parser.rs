//! Any reply, in any pieces: the cuts do not matter, calls are well formed, no letter is lost.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| calla_text::reply_parser_fuzz::check_bytes(bytes));
