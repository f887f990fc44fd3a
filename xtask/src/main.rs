//! The chores of the project as a program: the same commands on a developer's machine and in CI.

mod check_darwin;
mod clients;
mod cubins;
mod fixtures;
mod fuzz;
mod install;
mod link_darwin;
mod mutate;
mod page;
mod programs;
mod report;
mod rust_tests;
mod test;
mod tidy;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The chores of calla")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run everything that CI runs: format, lints, tidy, tests, documentation, peers' checks, real
    /// clients, fuzz smoke.
    Test {
        /// First install what the tests need (apt, pip and npm packages). Without it nothing is installed, and
        /// what a missing package forbids is skipped with the reason.
        #[arg(long)]
        install: bool,
        /// Run only steps whose name contains this.
        #[arg(long)]
        only: Option<String>,
    },
    /// Check the house rules: module docs, crate edges, links, file sizes.
    Tidy,
    /// Check the code that only macOS compiles, with lints, and link what calls Metal, on any machine that has the target's
    /// standard library.
    CheckDarwin,
    /// Compile the kernels for NVIDIA GPUs ahead, into target/calla.cubins: release builds embed it, and need no NVRTC then.
    Cubins {
        /// First fetch NVRTC (a pip package) into target/nvrtc.
        #[arg(long)]
        install: bool,
        /// Architectures, as sm_80,sm_90; without it those that all GPUs but systems on a chip can do with.
        #[arg(long, value_delimiter = ',')]
        arch: Vec<String>,
    },
    /// Plant faults in the GPU backend, one at a time, and demand that a test fails for each.
    Mutate {
        /// Plant only faults whose name, class or file contains this.
        #[arg(long)]
        only: Option<String>,
    },
    /// Run each fuzz target for a while.
    Fuzz {
        /// Seconds for each target.
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
}

fn main() -> ExitCode {
    let result = match Args::parse().chore {
        Chore::Test { install, only } => test::run_all(install, only.as_deref()),
        Chore::Tidy => tidy::run().map(|()| true),
        Chore::CheckDarwin => check_darwin::check().map(has_run),
        Chore::Cubins { install, arch } => cubins::make(install, &arch).map(|()| true),
        Chore::Mutate { only } => mutate::run(only.as_deref()).map(has_run),
        Chore::Fuzz { seconds } => fuzz::run_targets(seconds).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether a chore that was asked for by name ran; says why if it did not.
fn has_run(outcome: report::Outcome) -> bool {
    match outcome {
        report::Outcome::Passed(_) => true,
        report::Outcome::Skipped(reason) => {
            println!("skipped: {reason}");
            false
        }
    }
}

/// Root of the workspace.
fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .canonicalize()
        .expect("the directory that this program was built from")
}

/// Where cargo builds.
fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
