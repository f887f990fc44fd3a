//! A file cut short after it was mapped ends the program with a message.

#![cfg(unix)]

mod common;

use calla_model::MatrixData;
use calla_weights::Checkpoint;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

const CHILD: &str = "CALLA_TEST_SIGBUS_DIR";

/// Runs one test of this program again, in a process of its own, with `dir` in its environment.
fn run(test: &str, dir: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, dir)
        .output()
        .unwrap()
}

#[test]
fn a_file_cut_while_mapped_ends_with_a_message() {
    let dir = tempfile::tempdir().unwrap();
    common::tiny(dir.path(), false);
    let output = run("child_reads_a_cut_file", dir.path());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    common::assert_says(&errors, &["calla: ", "model.safetensors became shorter", "start again"]);
}

#[test]
#[ignore = "run by a_file_cut_while_mapped_ends_with_a_message"]
fn child_reads_a_cut_file() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = Path::new(&dir);
    let network = Checkpoint::open(dir).unwrap().load().unwrap();
    let file = std::fs::File::options().write(true).open(dir.join("model.safetensors")).unwrap();
    file.set_len(16).unwrap();
    // The page of the header may still be there; those of a large matrix are not.
    let MatrixData::Affine { packed, .. } = network.layers[1].moe.down_proj.get(2).data() else {
        panic!("experts are quantised")
    };
    let sum: u64 = packed.iter().map(|&byte| u64::from(byte)).sum();
    println!("unreachable {sum}");
    std::process::exit(3);
}

#[test]
fn any_other_sigbus_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    common::tiny(dir.path(), false);
    let output = run("child_gets_another_sigbus", dir.path());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{errors}");
    assert!(!errors.contains("became shorter"), "{errors}");
}

#[test]
#[ignore = "run by any_other_sigbus_is_left_alone"]
fn child_gets_another_sigbus() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let _checkpoint = Checkpoint::open(Path::new(&dir)).unwrap();
    // A map that is not a checkpoint's, cut short in the same way.
    let path = Path::new(&dir).join("other");
    std::fs::write(&path, vec![1; 1 << 16]).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: the point of this process is to die of reading this map.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    file.set_len(0).unwrap();
    println!("unreachable {}", map[1 << 15]);
    std::process::exit(3);
}

#[test]
fn a_sent_sigbus_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    common::tiny(dir.path(), false);
    let output = run("child_is_sent_a_sigbus", dir.path());
    assert_eq!(output.status.signal(), Some(libc::SIGBUS));
}

#[test]
#[ignore = "run by a_sent_sigbus_is_left_alone"]
fn child_is_sent_a_sigbus() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let _checkpoint = Checkpoint::open(Path::new(&dir)).unwrap();
    // The first goes to the handler of Rust's runtime, which was there before: it gives the signal its
    // default action and returns. The second then ends the process.
    for _ in 0..2 {
        // SAFETY: raising a signal has no preconditions.
        unsafe { libc::raise(libc::SIGBUS) };
    }
    std::process::exit(3);
}
