//! A set of tokens of the vocabulary, one bit each: those that may come next.

/// Tokens `0..len`, each in or out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    len: usize,
}

impl TokenMask {
    /// No token of `len`.
    #[must_use]
    pub fn none(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(32)], len }
    }

    /// Bit `t % 32` of word `t / 32` says whether token `t` is in; missing words are empty, bits from `len`
    /// on are ignored.
    #[must_use]
    pub fn from_words(mut words: Vec<u32>, len: usize) -> Self {
        words.resize(len.div_ceil(32), 0);
        if !len.is_multiple_of(32)
            && let Some(last) = words.last_mut()
        {
            *last &= (1 << (len % 32)) - 1;
        }
        Self { words, len }
    }

    /// Tokens there are, in or out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token is in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Adds a token; one that is not below the length stays out.
    pub fn insert(&mut self, token: u32) {
        if (token as usize) < self.len {
            self.words[token as usize / 32] |= 1 << (token % 32);
        }
    }

    /// Takes a token out.
    pub fn remove(&mut self, token: u32) {
        if (token as usize) < self.len {
            self.words[token as usize / 32] &= !(1 << (token % 32));
        }
    }

    /// Takes out what is not in `other`.
    pub fn intersect(&mut self, other: &Self) {
        for (i, word) in self.words.iter_mut().enumerate() {
            *word &= other.words.get(i).copied().unwrap_or(0);
        }
    }

    /// Whether a token is in.
    #[must_use]
    pub fn contains(&self, token: u32) -> bool {
        let word = self.words.get(token as usize / 32);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_tokens() {
        let mut mask = TokenMask::none(40);
        assert!(mask.is_empty());
        for token in [0, 31, 39, 40, 1000] {
            mask.insert(token);
        }
        let inside: Vec<u32> = (0..64).filter(|&t| mask.contains(t)).collect();
        assert_eq!(inside, [0, 31, 39]);
        let mut both = mask.clone();
        both.intersect(&TokenMask::from_words(vec![1 << 31 | 2], 32));
        assert_eq!((both.contains(31), both.contains(0), both.contains(39)), (true, false, false));
        mask.remove(31);
        assert!(!mask.contains(31) && !mask.is_empty());
        assert!(!TokenMask::from_words(vec![1, !0], 40).contains(40));
        assert_eq!(TokenMask::from_words(vec![1], 40), {
            let mut mask = TokenMask::none(40);
            mask.insert(0);
            mask
        });
    }
}
