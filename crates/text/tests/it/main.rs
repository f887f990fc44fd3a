//! Tests of the public interface, by subject.

mod append_only;
mod demo;
mod fixtures;
mod hostile_files;
mod hostile_templates;
mod injection;
mod published;
mod round_trip;
mod tool_schemas;
