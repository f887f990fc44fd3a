//! Structured output: what a reply has to look like, as the engine sees it.
//!
//! The engine neither knows a grammar language nor compiles one. A request carries a [`Grammar`]; its
//! compilation leaves the engine as an effect and comes back as a [`Matcher`].

use calla_ops::TokenMask;

/// What a reply has to match, uncompiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// A JSON Schema, as text.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// A regular expression that the whole reply matches.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
}

/// A compiled grammar at some place in a reply.
pub trait Matcher: Send {
    /// Tokens that may come next. Those that end a reply are among them where the reply may end; the mask is
    /// empty only where nothing may follow.
    ///
    /// # Errors
    /// If the grammar outgrows its bounds at this place.
    fn mask(&mut self) -> Result<TokenMask, MatchError>;

    /// Moves on by a token that the mask allowed and that does not end the reply.
    ///
    /// # Errors
    /// If the token does not fit, or the grammar outgrows its bounds.
    fn accept(&mut self, token: u32) -> Result<(), MatchError>;
}

/// A grammar could not be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply could not be held to its grammar: {0}")]
pub struct MatchError(pub String);
