//! Whole networks through plans on the host device: against the reference, and against themselves fed in other ways.

#[path = "../common/mod.rs"]
mod common;
mod cuts;
mod drafts;
mod failures;
mod growth;
mod orders;
mod reference;
mod rows;
mod sequences;
