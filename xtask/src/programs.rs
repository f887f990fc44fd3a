//! Programs that cargo built, as its messages name them.

use crate::report::cargo;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// The folder of its package: tests run in it.
    pub(crate) package: PathBuf,
    /// Name of the file in `tests/`, of the library, or of the program itself.
    pub(crate) target: String,
    /// Whether it is a run of tests.
    pub(crate) is_test: bool,
}

/// `cargo test` of the whole workspace, which builds and runs nothing. Everything that builds for tests starts from it:
/// of another choice of packages, features of dependencies would differ, and all be built again.
pub(crate) fn build_tests() -> Command {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--message-format"]);
    command.arg("json-render-diagnostics");
    command
}

/// What a cargo wrote to its standard output names.
pub(crate) fn programs(messages: &[u8]) -> Result<Vec<Program>> {
    let mut programs = vec![];
    for line in String::from_utf8_lossy(messages).lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("a message of cargo's")?;
        let Some(path) = message["executable"].as_str() else { continue };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let target = text(&message["target"]["name"]).context("a program has a name")?;
        let manifest = text(&message["manifest_path"]).context("a program has a package")?;
        programs.push(Program {
            path: path.into(),
            package: Path::new(&manifest).parent().context("a manifest is a file")?.into(),
            target,
            is_test: message["profile"]["test"] == true,
        });
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_what_is_executable() {
        let messages = r#"{"reason":"compiler-artifact","executable":null,"target":{"name":"a"}}
{"reason":"compiler-artifact","manifest_path":"/w/b/Cargo.toml","target":{"name":"it"},"profile":{"test":true},"executable":"/t/it-1"}
{"reason":"build-finished","success":true}
"#;
        let expected = Program {
            path: "/t/it-1".into(),
            package: "/w/b".into(),
            target: "it".to_owned(),
            is_test: true,
        };
        assert_eq!(programs(messages.as_bytes()).unwrap(), [expected]);
    }
}
