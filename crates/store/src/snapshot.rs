//! The description of a snapshot in its file.

use crate::key::Key;

/// Who a snapshot belongs to, its tokens, and the sizes it was written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) version: Key,
    pub(crate) page_tokens: u32,
    pub(crate) state_len: u64,
    pub(crate) owner: String,
    pub(crate) name: String,
    pub(crate) tokens: Vec<u32>,
}

impl Description {
    /// `version[32] page_tokens:u32 owner_len:u32 name_len:u32 state_len:u64 owner name tokens:u32...`,
    /// little endian.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        bytes.extend_from_slice(&self.version);
        bytes.extend_from_slice(&self.page_tokens.to_le_bytes());
        bytes.extend_from_slice(&(self.owner.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.state_len.to_le_bytes());
        bytes.extend_from_slice(self.owner.as_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes
    }

    /// Bytes of [`Description::to_bytes`].
    pub(crate) fn len(&self) -> usize {
        52 + self.owner.len() + self.name.len() + 4 * self.tokens.len()
    }

    /// Reads what [`Description::to_bytes`] wrote; `None` if it is anything else.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut take = |n: usize| -> Option<&[u8]> {
            let (head, tail) = rest.split_at_checked(n)?;
            rest = tail;
            Some(head)
        };
        let version = take(32)?.try_into().ok()?;
        let page_tokens = u32::from_le_bytes(take(4)?.try_into().ok()?);
        let owner_len = u32::from_le_bytes(take(4)?.try_into().ok()?);
        let name_len = u32::from_le_bytes(take(4)?.try_into().ok()?);
        let state_len = u64::from_le_bytes(take(8)?.try_into().ok()?);
        let owner = String::from_utf8(take(owner_len as usize)?.to_vec()).ok()?;
        let name = String::from_utf8(take(name_len as usize)?.to_vec()).ok()?;
        let (tokens, rest) = rest.as_chunks::<4>();
        if !rest.is_empty() || page_tokens == 0 {
            return None;
        }
        let tokens = tokens.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Some(Self { version, page_tokens, state_len, owner, name, tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_read_as_written(owner: String, name: String, tokens: Vec<u32>, state_len: u64) {
            let written = Description {
                version: [7; 32], page_tokens: 64, state_len, owner, name, tokens,
            };
            let bytes = written.to_bytes();
            prop_assert_eq!(bytes.len(), written.len());
            prop_assert_eq!(Description::parse(&bytes), Some(written));
            prop_assert_eq!(Description::parse(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            if let Some(read) = Description::parse(&bytes) {
                prop_assert_eq!(read.to_bytes(), bytes);
            }
        }
    }
}
