//! calla: ops.
