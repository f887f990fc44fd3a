//! calla: cpu.
