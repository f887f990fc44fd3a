//! The `calla` program: flags in, text out. What it computes with lies in the other crates.
//!
//! Every command is a function from its flags to a [`Result`]; this file alone turns an error into a line
//! on standard error and an exit status. What a script may want goes to standard output, everything else
//! to standard error.

mod args;
mod bench;
mod bench_args;
mod chat;
mod device;
mod discover;
mod docs;
mod doctor;
mod doctor_args;
mod engine_args;
mod eval;
mod generate;
mod grammar;
mod host_cache;
mod info;
mod input;
mod load;
mod machine;
mod output;
mod plan;
mod plan_args;
mod prefill_line;
mod reply_printer;
mod run;
mod sampling;
mod serve;
mod serve_args;
mod synth;
mod text_tools;

use args::{Cli, Color, Command, Global};
use clap::Parser;
use std::io;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    install_panic_hook();
    let cli = Cli::parse();
    match set_up(&cli.global).and_then(|()| dispatch(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough: no error of ours.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Chat(args) => chat::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Serve(args) => serve::run(args),
        Command::Info(args) => info::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::BenchJob(args) => bench::run_job(args),
        Command::Eval(args) => eval::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Tokenize(args) => text_tools::tokenize(&args),
        Command::Detokenize(args) => text_tools::detokenize(&args),
        Command::Render(args) => text_tools::render(&args),
        Command::Completions { shell } => docs::completions(shell),
        Command::Man => docs::man(),
    }
}

/// Sets colour and logging for the whole process.
fn set_up(global: &Global) -> anyhow::Result<()> {
    match global.color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    let directives = match (&global.log, global.verbose) {
        (_, 1) => "info",
        (_, 2) => "debug",
        (_, 3..) => "trace",
        (Some(log), 0) if !log.trim().is_empty() => log.as_str(),
        (_, 0) => "warn",
    };
    let filter = EnvFilter::try_new(directives).map_err(|error| {
        anyhow::anyhow!(
            "--log (or CALLA_LOG) {directives:?}: {error}; \
             give off, error, warn, info, debug, trace or a filter such as calla_weights=debug"
        )
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(output::stderr_has_colour())
        .init();
    Ok(())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// A panic is a bug of ours: say so in two lines. RUST_BACKTRACE brings the usual report.
fn install_panic_hook() {
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
        return;
    }
    std::panic::set_hook(Box::new(|info| {
        // A library failed on a file of the checkpoint; the panic is caught and becomes an error.
        if calla_text::is_guarded() {
            return;
        }
        let what = info
            .payload()
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| info.payload().downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line()));
        output::note(&format!("calla has a bug: {what}{}", place.unwrap_or_default()));
        output::note(
            "Please report it, with what you did; RUST_BACKTRACE=1 shows where it happened.",
        );
    }));
}
