//! What every request passes through, whatever it asks for: limits, access, shapes of errors.
