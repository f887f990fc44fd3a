//! The program from the outside: each command on the demo checkpoint, and what it says to bad input.

mod bad_input;
mod bench;
mod chat;
mod docs;
mod doctor;
mod generate;
mod info;
mod logits;
mod model_choice;
mod plan;
mod support;
mod text_tools;
