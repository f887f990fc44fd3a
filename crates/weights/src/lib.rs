//! calla: weights.
