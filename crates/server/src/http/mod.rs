//! What every request passes through, whatever it asks for: limits, access, shapes of errors.

pub(crate) mod access;
pub(crate) mod json;
pub(crate) mod sse;
