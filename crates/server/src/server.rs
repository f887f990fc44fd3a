//! The server as a whole: what it is made of, and how it starts and ends.

use crate::app::App;
use crate::engine_status::Phase;
use crate::engine_thread::{EngineHandle, Loader};
use crate::generate::Service;
use crate::http::{self, Access, AccessError, Limits, ListenError, Listener};
use crate::metrics::Metrics;
use crate::model::Model;
use crate::responses::Store;
use crate::{anthropic, docs, health, metrics, openai, page, responses, tokens};
use axum::Router;
use axum::routing::{get, post};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What can be read without a key: the page, which then asks for it, and what says whether the server lives.
const OPEN_PATHS: [&str; 6] =
    ["/", "/page/", "/favicon.svg", "/health", docs::DOCS_PATH, docs::OPENAPI_PATH];

/// Time to tell clients that their replies are cut.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
    /// Who may use it.
    pub access: Access,
    /// What a client may send, and how long it may take.
    pub limits: Limits,
    /// A stream that has been silent for so long says that it lives.
    pub keep_alive: Duration,
    /// Streams may go on for so long after the server was told to end.
    pub drain: Duration,
}

/// A server that listens and does not answer yet.
pub struct Server {
    listener: Listener,
    access: Access,
    limits: Limits,
    app: App,
    drain: Duration,
}

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address may not be listened on.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The address is not to be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
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
    /// If the address is not to be had, or needs a key, or if a thread cannot be started.
    pub async fn start(config: ServerConfig) -> Result<Self, ServerError> {
        let ServerConfig { model, loader, idle_unload, address, access, limits, .. } = config;
        access.check_bind(address)?;
        let listener = http::listen(address).await?;
        let metrics = Arc::new(Metrics::new(&model.parts().name)?);
        let engine = EngineHandle::start(loader, idle_unload).map_err(ServerError::Thread)?;
        let service = Service { model, engine, metrics, preparing: Arc::default() };
        let app = App { service, responses: Store::default(), keep_alive: config.keep_alive };
        Ok(Self { listener, access, limits, app, drain: config.drain })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
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

    /// Answers until `stop` is cancelled; then lets replies end, tells those that have not ended in time, saves
    /// the prefix cache and returns. Gives the number of connections that had to be cut even so.
    pub async fn run(self, stop: CancellationToken) -> usize {
        let Self { listener, access, limits, app, drain } = self;
        let engine = app.service.engine.clone();
        let access = access.with_open_paths(&OPEN_PATHS);
        let router = http::protect(router(app), access, &limits, stop.clone());
        let ending = async {
            stop.cancelled().await;
            engine.stop();
            tokio::time::sleep(drain).await;
            engine.cut();
            // The connections end now by themselves.
            std::future::pending::<()>().await;
        };
        let serving = http::serve(listener, router, limits, stop.clone(), drain + LAST_WORDS);
        let cut = tokio::select! {
            cut = serving => cut,
            () = ending => unreachable!("it waits for ever"),
        };
        // It may have been over before the other had its turn.
        engine.stop();
        engine.phase_but(|phase| *phase != Phase::Stopped).await;
        cut
    }
}

fn router(app: App) -> Router {
    Router::new()
        .merge(openai::routes())
        .merge(anthropic::routes())
        .merge(page::routes())
        .merge(responses::routes())
        .merge(docs::routes())
        .route("/health", get(health::health))
        .route("/metrics", get(metrics::scrape))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .with_state(app)
}
