//! The engine on the demo checkpoint, from text to text.

/// Many requests at once.
mod concurrent;
mod harness;
/// Replies held to grammars, budgets and lengths.
mod limits;
/// Held-out questions, judged by exact match.
mod questions;
/// Conversations over time: what is reused, and that it changes nothing.
mod timelines;
