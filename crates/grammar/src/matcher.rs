//! A compiled grammar at some place in a reply.

use crate::error::plain_words;
use crate::vocabulary::Vocabulary;
use calla_engine::structure::{MatchError, Matcher};
use calla_ops::TokenMask;
use std::sync::Arc;

/// A place in a grammar of llguidance.
pub(crate) struct GrammarMatcher {
    inner: llguidance::Matcher,
    vocabulary: Arc<Vocabulary>,
    /// Whether thinking and tool markers may be asked for.
    markers: bool,
}

impl GrammarMatcher {
    pub(crate) fn new(
        inner: llguidance::Matcher,
        vocabulary: Arc<Vocabulary>,
        markers: bool,
    ) -> GrammarMatcher {
        GrammarMatcher { inner, vocabulary, markers }
    }

    fn usable(&self) -> &TokenMask {
        match self.markers {
            true => &self.vocabulary.text_and_markers,
            false => &self.vocabulary.text,
        }
    }
}

impl Matcher for GrammarMatcher {
    fn mask(&mut self) -> Result<TokenMask, MatchError> {
        let mask = match self.inner.compute_mask_or_eos() {
            Ok(mask) => mask,
            // A place where the text may neither go on nor end.
            Err(_) if self.inner.stop_reason() == llguidance::api::StopReason::NoExtensionBias => {
                return Ok(TokenMask::none(self.vocabulary.len));
            }
            Err(error) => return Err(MatchError(plain_words(&error.to_string()))),
        };
        let stopped = self.inner.is_stopped();
        let ends = stopped
            || self.inner.is_accepting().map_err(|e| MatchError(plain_words(&e.to_string())))?;
        // What the library allows is text that fits; that no control token counts as text does not rest
        // on the grammar alone.
        let mut mask = TokenMask::from_words(mask.as_slice().to_vec(), self.vocabulary.len);
        mask.intersect(self.usable());
        if ends {
            self.vocabulary.eos.iter().for_each(|&id| mask.insert(id));
        }
        Ok(mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), MatchError> {
        if !self.usable().contains(token) {
            return Err(MatchError(format!("token {token} is not text that a grammar can match")));
        }
        // The library checks text by its bytes; a marker is no text, and is looked up in the mask.
        let taken = match self.vocabulary.text.contains(token) {
            true => self.inner.try_consume_tokens(&[token]),
            false if self.mask()?.contains(token) => self.inner.consume_token(token).map(|()| 1),
            false => Ok(0),
        };
        match taken {
            Ok(1) => Ok(()),
            Ok(_) => Err(MatchError(format!("token {token} does not fit here"))),
            Err(error) => Err(MatchError(plain_words(&error.to_string()))),
        }
    }
}
