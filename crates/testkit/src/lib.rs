//! calla: testkit.
