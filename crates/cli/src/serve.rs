//! `calla serve`: the model behind HTTP.

use crate::load::{self, ServeLimits};
use crate::output;
use crate::serve_args::ServeArgs;
use anyhow::Context;
use calla_server::{Model, Server, ServerConfig};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::SocketAddr;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A stream that has been silent for so long says that it lives: clients give up after 30 s and more.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: ServeArgs) -> anyhow::Result<()> {
    let limits = ServeLimits { parallel: args.parallel.into(), queue: args.queue.into() };
    let (candidate, mut parts) = load::for_server(&args.model, &args.engine, limits)?;
    if let Some(name) = args.name.clone() {
        parts.name = name;
    }
    parts.preserve_thinking = args.preserve_thinking.then_some(true);
    let model = Model::new(parts)?;
    let config = ServerConfig {
        loader: load::server_loader(args.model, args.engine, limits, candidate, model.clone()),
        model: model.clone(),
        idle_unload: args.idle_unload,
        address: SocketAddr::new(args.host, args.port),
        keep_alive: KEEP_ALIVE,
        drain: args.drain,
    };
    let stop = stop_on_signal()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .thread_name("calla-http")
        .build()
        .context("the threads of the server could not be started")?;
    runtime.block_on(async {
        let server = Server::start(config).await?;
        let (address, name) = (server.address(), &model.parts().name);
        // What a client's first grammar would else wait for.
        let prepared = model.clone();
        std::thread::Builder::new()
            .name("calla-grammars".into())
            .spawn(move || {
                if let Err(error) = prepared.prepare_grammars() {
                    tracing::error!("grammars cannot be used: {error}");
                }
            })
            .context("a thread could not be started")?;
        output::note(&format!("listening on http://{address}"));
        let context = model.parts().context;
        let ready = server.when_loaded();
        let told = tokio::spawn(async move { ready.await });
        let serving = server.run(stop.clone());
        tokio::pin!(serving);
        tokio::select! {
            result = &mut serving => return result.map_err(anyhow::Error::from),
            loaded = told => loaded.context("loading ended without a word")??,
        }
        output::note(&format!("{name} is ready, with a context of {context} tokens"));
        serving.await.map_err(anyhow::Error::from)
    })
}

/// Cancelled by the first SIGINT or SIGTERM; the second ends the program at once.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("signals cannot be caught")?;
    let stopping = stop.clone();
    std::thread::Builder::new()
        .name("calla-signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if stopping.is_cancelled() {
                    std::process::exit(128 + signal);
                }
                output::note("ending: running replies may end, a second signal cuts them");
                stopping.cancel();
            }
        })
        .context("a thread could not be started")?;
    Ok(stop)
}
