//! What every handler is given.

use crate::generate::Service;
use crate::responses::Store;
use std::time::Duration;

/// The server's parts that handlers use. Cloning shares them.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) service: Service,
    /// Responses that clients can come back to.
    pub(crate) responses: Store,
    /// A stream that has been silent for so long says that it lives.
    pub(crate) keep_alive: Duration,
}
