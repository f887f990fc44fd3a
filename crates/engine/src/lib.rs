//! calla: engine.
