//! Structured output: compiles grammars into masks over the vocabulary, token by token.
//!
//! What this crate never does: it fetches nothing, reads no file, holds no cache of grammars, and knows
//! nothing of weights or sampling. It wraps the `llguidance` library, whose parser and lexer do the matching; what is here
//! is the vocabulary, the bounds on what a request may ask for, and the model's format of tool calls.
//!
//! * [`Compiler::new`] is made once per model and costs nothing; [`Compiler::prepare`], or else the first
//!   compilation, makes the trie over the tokens' bytes.
//! * [`Compiler::compile`] makes a [`Matcher`](calla_engine::structure::Matcher) from a
//!   [`Grammar`](calla_engine::structure::Grammar): a JSON schema, any JSON object, a regular expression or
//!   a grammar in llguidance's Lark.
//! * [`tool_calls`] writes the grammar that a forced tool choice asks for, [`tool_calls_or`] that of a reply which may
//!   call a tool, and otherwise has a form of its own.
//!
//! Three promises:
//! * A control token never counts as text: `<|im_end|>` in a string can only be spelt with ordinary tokens.
//!   A Lark grammar, and so a tool call, may name thinking and tool markers; turn markers it may not.
//! * Tokens that end a reply are allowed where the grammar may end and nowhere else.
//! * A hostile grammar is an error, or a matcher whose steps are bounded. It neither hangs nor panics,
//!   nor does it take the memory.
//!
//! # Panics of the library
//!
//! llguidance wraps the program's panic hook once, when the first compiler is prepared: what panics inside its calls is
//! caught, becomes an error and is not reported. A program installs its own hook before that.
//!
//! # Limits
//!
//! JSON schemas follow draft 2020-12 and what earlier drafts write differently (`items` as a list,
//! boolean `exclusiveMinimum`). Properties come in the order in which the schema lists them, those
//! it does not list last. `oneOf` works if no two members can both hold. `format` is enforced for the
//! formats that llguidance knows; another is an error. Keywords that cannot be enforced token by token,
//! such as `not`, `if` or `uniqueItems`, are errors that name them; words that JSON Schema does not know
//! are annotations. References stay within the schema. White space in JSON is one space, or a line feed
//! and an indent of at most 40.
//!
//! Schemas in the `%json` of a Lark grammar are held to the same.
//!
//! Regular expressions are those of Rust's `regex` crate without look-around, back references and, but at
//! the ends, anchors.

mod compiler;
mod error;
mod json_schema;
mod lark;
mod lenient;
mod matcher;
mod parameter_value;
mod tool_calls;
mod vocabulary;

pub use compiler::Compiler;
pub use error::GrammarError;
pub use tool_calls::{ToolChoice, tool_calls, tool_calls_or};
