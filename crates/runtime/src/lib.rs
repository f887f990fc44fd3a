//! What an engine needs around it to run: the device's loop, threads for files and grammars, and a session
//! for a caller who is alone.
//!
//! The engine ([`calla_engine`]) says what is to be done and touches nothing; this crate does it. It knows no
//! backend, no tokenizer and no protocol.

mod device;
mod driver;
mod files;
mod grammars;
mod pressure;
mod saves;
mod session;
mod setup;

pub use driver::{Driver, Notify, ThreadError, Turn};
pub use grammars::Compile;
pub use pressure::{Pressure, PressureLevel};
pub use saves::{CacheLevels, SavedUse};
pub use session::{Generation, Progress, Session, SessionError};
pub use setup::{Limits, engine_config, store_sizes};
