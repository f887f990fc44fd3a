//! The server as a whole: what it is made of, and how it starts and ends.

use crate::app::App;
use crate::engine_status::Phase;
use crate::engine_thread::{EngineHandle, Loader};
use crate::generate::Service;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::responses::Store;
use crate::{health, metrics, openai, page, responses, tokens};
use axum::Router;
use axum::routing::{get, post};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How a server is set up.
pub struct ServerConfig {
    /// The model's text side.
    pub model: Model,
    /// Loads the weights.
    pub loader: Loader,
    /// Without a request for so long, the model is unloaded.
    pub idle_unload: Option<Duration>,
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// A stream that has been silent for so long says that it lives.
    pub keep_alive: Duration,
    /// Streams may go on for so long after the server was told to end.
    pub drain: Duration,
}

/// A server that listens and does not answer yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: App,
    drain: Duration,
}

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is not to be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// A thread cannot be started.
    #[error("the engine's thread could not be started: {0}")]
    Thread(std::io::Error),
    /// The model's name cannot be used.
    #[error("the counters could not be made: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The model could not be loaded at the start.
    #[error("{0}")]
    Load(String),
}

impl Server {
    /// Listens, and begins to load the model.
    ///
    /// # Errors
    /// If the address is not to be had or a thread cannot be started.
    pub async fn start(config: ServerConfig) -> Result<Self, ServerError> {
        let ServerConfig { model, loader, idle_unload, address, keep_alive, drain } = config;
        let listen = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let metrics = Arc::new(Metrics::new(&model.parts().name)?);
        let engine = EngineHandle::start(loader, idle_unload).map_err(ServerError::Thread)?;
        let service = Service { model, engine, metrics };
        Ok(Self {
            listener,
            address,
            app: App { service, responses: Store::default(), keep_alive },
            drain,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the model is loaded; fails if it cannot be.
    pub fn when_loaded(&self) -> impl Future<Output = Result<(), ServerError>> + Send + use<> {
        let engine = self.app.service.engine.clone();
        async move {
            match engine.phase_but(|phase| *phase == Phase::Loading).await {
                Phase::Failed(reason) => Err(ServerError::Load(reason)),
                _ => Ok(()),
            }
        }
    }

    /// Answers until `stop` is cancelled; then lets streams end, saves the prefix cache and returns.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ServerError> {
        let Self { listener, address, app, drain } = self;
        let engine = app.service.engine.clone();
        let router = router(app);
        let stopping = stop.clone();
        let serving = axum::serve(listener, router)
            .with_graceful_shutdown(async move { stopping.cancelled().await });
        let after_drain = async {
            stop.cancelled().await;
            engine.stop();
            tokio::time::sleep(drain).await;
        };
        tokio::select! {
            result = serving => result.map_err(|source| ServerError::Listen { address, source })?,
            () = after_drain => tracing::warn!("streams that had not ended were cut"),
        }
        engine.phase_but(|phase| *phase != Phase::Stopped).await;
        Ok(())
    }
}

fn router(app: App) -> Router {
    Router::new()
        .merge(openai::routes())
        .merge(page::routes())
        .merge(responses::routes())
        .route("/health", get(health::health))
        .route("/metrics", get(metrics::scrape))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .with_state(app)
}
