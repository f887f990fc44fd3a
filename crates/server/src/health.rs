//! `GET /health`: what the server can do now, without asking the engine.

use crate::app::App;
use crate::engine_status::{EngineStatus, Phase};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::time::Instant;
use utoipa::ToSchema;

/// How the server is.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `loading`, `ready`, `degraded`, `unloaded` or `draining`.
    status: &'static str,
    /// Why it is degraded.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The model that is served.
    model: String,
    /// What it runs on, once that is known.
    device: Option<String>,
    version: &'static str,
    /// Tokens that prompt and reply together may have.
    context: usize,
    /// Requests that run.
    running: usize,
    /// Requests that wait.
    waiting: usize,
    /// What the prefix cache holds, while the model is loaded.
    cache: Option<CacheHealth>,
    /// Failures of the device or the engine since the start.
    faults: u64,
}

/// What the prefix cache holds, and running requests beside it.
#[derive(Serialize, ToSchema)]
pub(crate) struct CacheHealth {
    /// Prefixes in memory.
    snapshots: usize,
    /// Prefixes in host memory, behind the GPU's.
    host_prefixes: usize,
    /// Bytes of their state.
    host_bytes: u64,
    /// Prefixes on disk.
    files: usize,
    pages_used: usize,
    pages: usize,
    slots_used: usize,
    slots: usize,
}

/// Tells how the server is. It answers at once, whatever the engine does.
#[utoipa::path(
    get, path = "/health", tag = "calla",
    responses(
        (status = 200, description = "Requests are taken", body = Health),
        (status = 503, description = "Not now: loading, shutting down, or the model failed", body = Health),
    )
)]
pub(crate) async fn health(State(app): State<App>) -> Response {
    let status = app.service.status();
    let (word, code, reason) = judge(&status, Instant::now());
    let parts = app.service.model.parts();
    let health = Health {
        status: word,
        reason,
        model: parts.name.clone(),
        device: status.device,
        version: env!("CARGO_PKG_VERSION"),
        context: parts.context,
        running: status.running,
        waiting: status.waiting,
        cache: status.occupancy.map(|occupancy| CacheHealth {
            snapshots: occupancy.snapshots,
            host_prefixes: status.saved.host_prefixes,
            host_bytes: status.saved.host_bytes,
            files: status.saved.files,
            pages_used: occupancy.pages_used,
            pages: occupancy.pages,
            slots_used: occupancy.slots_used,
            slots: occupancy.slots,
        }),
        faults: status.faults,
    };
    (code, Json(health)).into_response()
}

/// The word, the HTTP status and the reason. A degraded server still takes requests, unless its model cannot
/// be loaded.
fn judge(status: &EngineStatus, now: Instant) -> (&'static str, StatusCode, Option<String>) {
    let trouble = status.trouble(now);
    match &status.phase {
        Phase::Failed(_) => ("degraded", StatusCode::SERVICE_UNAVAILABLE, trouble),
        Phase::Stopping | Phase::Stopped => ("draining", StatusCode::SERVICE_UNAVAILABLE, None),
        _ if trouble.is_some() => ("degraded", StatusCode::OK, trouble),
        Phase::Loading => ("loading", StatusCode::SERVICE_UNAVAILABLE, None),
        Phase::Ready => ("ready", StatusCode::OK, None),
        Phase::Unloaded => ("unloaded", StatusCode::OK, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_status::SharedStatus;

    #[test]
    fn words_and_codes() {
        let shared = SharedStatus::new();
        let now = Instant::now();
        let word = |phase: Phase, fault: Option<&str>| {
            shared.change(|status| {
                status.phase = phase;
                status.last_fault = fault.map(str::to_owned);
            });
            let (word, code, reason) = judge(&shared.get(), now);
            (word, code.as_u16(), reason)
        };
        assert_eq!(word(Phase::Loading, None), ("loading", 503, None));
        assert_eq!(word(Phase::Ready, None), ("ready", 200, None));
        assert_eq!(word(Phase::Ready, Some("x")), ("degraded", 200, Some("x".into())));
        assert_eq!(word(Phase::Unloaded, None), ("unloaded", 200, None));
        assert_eq!(word(Phase::Stopping, Some("x")).0, "draining");
        let (word, code, reason) = word(Phase::Failed("no file".into()), None);
        assert_eq!((word, code), ("degraded", 503));
        assert!(reason.unwrap().contains("no file"));
    }
}
