//! Grammars on real vocabularies: what masks let through, tool calls, hostile input, figures.

mod fixtures;
mod hostile;
mod masks;
mod speed;
mod tools;
