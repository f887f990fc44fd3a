//! Turns a stream of ids into text, holding back bytes until they are whole Unicode scalars.

use crate::Tokenizer;

/// Incremental counterpart of [`Tokenizer::decode`]: the pieces joined equal the whole.
///
/// A token is a run of bytes and may end inside a scalar (emoji and rarer scripts do); such a tail,
/// at most three bytes, waits for the next id. Time per id is that of the id's own bytes.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    tail: Vec<u8>,
}

impl Detokenizer {
    /// `skip_special` drops turn markers; thinking and tool markers stay in either case.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Detokenizer {
        Detokenizer { tokenizer: tokenizer.clone(), skip_special, tail: Vec::new() }
    }

    /// The text that this id completes; empty while a scalar is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        if !(self.skip_special && self.tokenizer.is_special(id)) {
            self.tokenizer.push_token_bytes(id, &mut self.tail);
        }
        take_whole_scalars(&mut self.tail)
    }

    /// The end of the ids: U+FFFD for what stays incomplete.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.tail).into_owned();
        self.tail.clear();
        text
    }
}

/// Takes everything but an incomplete scalar at the end; bytes that no continuation could repair
/// become U+FFFD, as [`String::from_utf8_lossy`] does it.
fn take_whole_scalars(bytes: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut done = 0;
    loop {
        match std::str::from_utf8(&bytes[done..]) {
            Ok(valid) => {
                text.push_str(valid);
                done = bytes.len();
                break;
            }
            Err(e) => {
                let valid_end = done + e.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[done..valid_end]));
                done = valid_end;
                match e.error_len() {
                    None => break, // May still become a scalar.
                    Some(bad) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        done += bad;
                    }
                }
            }
        }
    }
    bytes.drain(..done);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_of_any_bytes_join_to_the_lossy_whole(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..40),
        ) {
            let mut tail = Vec::new();
            let mut text = String::new();
            for piece in &pieces {
                tail.extend_from_slice(piece);
                text += &take_whole_scalars(&mut tail);
                prop_assert!(tail.len() <= 3, "held back {tail:?}");
            }
            text += &String::from_utf8_lossy(&tail);
            let whole = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
        }
    }
}
