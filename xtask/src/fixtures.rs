//! Random checkpoints written by MLX-LM's converter, with its logits, under `target/fixtures`.
//!
//! Made once and kept; the tests that read them skip, with a reason, where they are absent.

use crate::install::{MISSING_PYTHON, python_with};
use crate::report::{Outcome, run};
use crate::root;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where they lie.
pub(crate) fn directory() -> PathBuf {
    root().join("target/fixtures")
}

/// Bits per module of the mixed checkpoint: every width and group size, and one module unquantised.
const MIXED_BITS: [&str; 16] = [
    "embed_tokens=6:128",
    "lm_head=8:32",
    "self_attn.q_proj=3:32",
    "self_attn.k_proj=5:128",
    "self_attn.v_proj=6:32",
    "self_attn.o_proj=none",
    "linear_attn.in_proj_qkv=5:64",
    "linear_attn.in_proj_z=3:128",
    "linear_attn.in_proj_[ab]=8:64",
    "linear_attn.out_proj=2:64",
    "layers.[02].mlp.switch_mlp.(gate|up)_proj=3:64",
    "layers.[02].mlp.switch_mlp.down_proj=2:32",
    "layers.1.mlp.switch_mlp.gate_proj=5:32",
    "layers.1.mlp.switch_mlp.up_proj=6:64",
    "layers.1.mlp.switch_mlp.down_proj=8:128",
    "shared_expert.down_proj=4:128",
];

/// The step: makes what is missing.
pub(crate) fn make() -> Result<Outcome> {
    let directory = directory();
    let done = directory.join("done");
    // A changed recipe makes them anew.
    let recipe = recipe()?;
    if fs::read_to_string(&done).is_ok_and(|stamp| stamp == recipe) {
        println!("{} is up to date", directory.display());
        return Ok(Outcome::Passed(0));
    }
    let Some(python) = python_with(&["mlx_lm", "numpy", "tokenizers"]) else {
        return Ok(Outcome::Skipped(MISSING_PYTHON.to_owned()));
    };
    if directory.exists() {
        fs::remove_dir_all(&directory).context("cannot remove old fixtures")?;
    }
    fs::create_dir_all(&directory).context("cannot make the fixtures' directory")?;
    make_odd(&python, &directory)?;
    make_mixed(&python, &directory)?;
    fs::write(&done, recipe).context("cannot write the fixtures' stamp")?;
    Ok(Outcome::Passed(0))
}

fn recipe() -> Result<String> {
    let mut recipe = MIXED_BITS.join("\n");
    for script in ["make_random_mlx_checkpoint.py", "reference_numpy.py"] {
        let path = root().join("tools/peers").join(script);
        recipe += &fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    }
    Ok(recipe)
}

/// A shape with odd widths and counts, quantised (`odd`) and as raw Hugging Face files (`odd_hf`).
fn make_odd(python: &Path, directory: &Path) -> Result<()> {
    let odd = directory.join("odd");
    run(Command::new(python)
        .arg("tools/peers/make_random_mlx_checkpoint.py")
        .arg(&odd)
        .args(["--preset", "odd"]))?;
    let raw = directory.join("odd_hf");
    fs::rename(odd.join("src"), &raw).context("cannot move the raw checkpoint")?;
    run(Command::new(python)
        .arg("tools/peers/reference_numpy.py")
        .arg(&raw)
        .arg("--ids-from")
        .arg(odd.join("golden.npz"))
        .arg("--out")
        .arg(raw.join("golden.npz")))
}

fn make_mixed(python: &Path, directory: &Path) -> Result<()> {
    let mut command = Command::new(python);
    command
        .arg("tools/peers/make_random_mlx_checkpoint.py")
        .arg(directory.join("mixed"))
        .args(["--preset", "odd", "--seed", "1", "--hidden", "384", "--layers", "4"])
        .args(["--experts", "12", "--top-k", "3", "--moe-intermediate", "128"])
        .args(["--shared-intermediate", "128", "--vocab", "512"]);
    for bits in MIXED_BITS {
        command.args(["--bits-for", bits]);
    }
    run(&mut command)
}
