//! `calla serve`: the model behind HTTP.

use crate::input;
use crate::load::{self, ServeLimits};
use crate::output;
use crate::serve_args::ServeArgs;
use anyhow::{Context, bail};
use calla_server::{Access, Limits, Model, Server, ServerConfig};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::SocketAddr;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A stream that has been silent for so long says that it lives: clients give up after 30 s and more.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: ServeArgs) -> anyhow::Result<()> {
    let keys = read_keys(&args)?;
    let access = Access::new(&keys, &args.allowed_hosts, &args.allowed_origins)?;
    // Before anything is read: a refusal should cost nothing.
    access.check_bind(SocketAddr::new(args.host, args.port))?;
    let limits = ServeLimits { parallel: args.parallel.into(), queue: args.queue.into() };
    let (candidate, mut parts, devices) = load::for_server(&args.model, &args.engine, limits)?;
    if let Some(name) = args.name.clone() {
        parts.name = name;
    }
    parts.preserve_thinking = args.preserve_thinking.then_some(true);
    let model = Model::new(parts)?;
    let config = ServerConfig {
        loader: load::server_loader(
            args.model,
            args.engine,
            limits,
            candidate,
            model.clone(),
            devices,
        ),
        model: model.clone(),
        idle_unload: args.idle_unload,
        address: SocketAddr::new(args.host, args.port),
        access,
        limits: Limits::default(),
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
        let told = tokio::spawn(ready);
        let serving = server.run(stop.clone());
        tokio::pin!(serving);
        tokio::select! {
            cut = &mut serving => return tell_cut(cut),
            loaded = told => loaded.context("loading ended without a word")??,
        }
        output::note(&format!("{name} is ready, with a context of {context} tokens"));
        tell_cut(serving.await)
    })
}

fn tell_cut(cut: usize) -> anyhow::Result<()> {
    if cut > 0 {
        output::note(&format!("{cut} connections were cut"));
    }
    Ok(())
}

/// Keys of the flags and of the file.
fn read_keys(args: &ServeArgs) -> anyhow::Result<Vec<String>> {
    let mut keys = args.api_keys.clone();
    if let Some(file) = &args.api_key_file {
        let text = input::text(Some(file)).context("--api-key-file")?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let before = keys.len();
        keys.extend(lines.map(str::to_owned));
        if keys.len() == before {
            bail!("--api-key-file {}: the file holds no key", file.display());
        }
    }
    Ok(keys)
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
