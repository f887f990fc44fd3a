//! The `calla` program.
fn main() {}
