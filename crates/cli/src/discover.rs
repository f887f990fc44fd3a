//! Which model to take: the one named, else a full checkpoint that lies in a usual place, else the demo.

use crate::output;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The published checkpoint in Hugging Face's cache.
const HUB_FOLDER: &str = "models--mlx-community--Qwen3.6-35B-A3B-4bit";
/// The published checkpoints in LM Studio's folder.
const LM_STUDIO_FOLDERS: [&str; 2] =
    ["lmstudio-community/Qwen3.6-35B-A3B-MLX-4bit", "mlx-community/Qwen3.6-35B-A3B-4bit"];

/// A directory that may be taken, with the reason to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) dir: PathBuf,
    pub(crate) why: Why,
}

/// Why a directory is a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Flag,
    Variable,
    HubCache,
    LmStudio,
    CallaModels,
    Demo,
}

impl Why {
    /// Whether the user named it: then no other is taken in its place.
    pub(crate) fn is_named(self) -> bool {
        matches!(self, Self::Flag | Self::Variable)
    }

    fn words(self) -> &'static str {
        match self {
            Self::Flag => "named by --model",
            Self::Variable => "named by CALLA_MODEL",
            Self::HubCache => "found in the Hugging Face cache",
            Self::LmStudio => "found in LM Studio's folder",
            Self::CallaModels => "found in ~/.calla/models",
            Self::Demo => "the demo: no full checkpoint found, and no --model given",
        }
    }
}

impl Candidate {
    /// Says on standard error which model was taken and why; nothing if the flag said so. `fell_back`: a
    /// full checkpoint was found and refused, which has been told.
    pub(crate) fn announce(&self, fell_back: bool) {
        let words = match self.why {
            Why::Flag => return,
            Why::Demo if fell_back => "the demo, instead",
            why => why.words(),
        };
        output::note(&format!("model: {} ({words})", self.dir.display()));
    }
}

/// What decides: kept apart from the process so that it can be tested.
struct Places {
    home: Option<PathBuf>,
    hf_hub_cache: Option<OsString>,
    hf_home: Option<OsString>,
    variable: Option<OsString>,
    /// Directories in which `demo` may lie.
    demo_parents: Vec<PathBuf>,
}

/// Directories to try, best first. The named one alone, if one is named; else at least one, or an error.
fn candidates(named: Option<&Path>) -> anyhow::Result<Vec<Candidate>> {
    let places = Places {
        home: env::home_dir(),
        hf_hub_cache: env::var_os("HF_HUB_CACHE"),
        hf_home: env::var_os("HF_HOME"),
        variable: env::var_os("CALLA_MODEL"),
        demo_parents: demo_parents(),
    };
    places.candidates(named)
}

/// The demo checkpoint, if it is here.
pub(crate) fn demo() -> Option<PathBuf> {
    demo_in(&demo_parents())
}

fn demo_in(parents: &[PathBuf]) -> Option<PathBuf> {
    parents.iter().map(|parent| parent.join("demo")).find(|dir| holds_weights(dir))
}

/// Takes the first candidate that `load` accepts. What is refused on the way, and what is taken, is said on
/// standard error; the error of the last one is returned. `load` is told whether a candidate is the last.
pub(crate) fn first_that_loads<T>(
    named: Option<&Path>,
    mut load: impl FnMut(&Candidate, bool) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let candidates = candidates(named)?;
    let mut fell_back = false;
    for (index, candidate) in candidates.iter().enumerate() {
        let is_last = index + 1 == candidates.len();
        match load(candidate, is_last) {
            Ok(loaded) => {
                candidate.announce(fell_back);
                return Ok(loaded);
            }
            Err(error) if is_last => return Err(error),
            Err(error) => {
                let dir = candidate.dir.display();
                output::note(&format!("not taken: {dir} ({})", output::chain(&error)));
                fell_back = true;
            }
        }
    }
    unreachable!("discovery returns a candidate or an error")
}

/// Directories in which the demo may lie: checkouts of the repository above the executable, where it was
/// built, or here. Any other directory's `demo` is a stranger's.
fn demo_parents() -> Vec<PathBuf> {
    let executable = env::current_exe().unwrap_or_default();
    let above = executable.ancestors().skip(1).map(Path::to_owned);
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_owned);
    let all = above.chain(built).chain(env::current_dir());
    all.filter(|dir| is_checkout(dir)).collect()
}

fn is_checkout(dir: &Path) -> bool {
    dir.join("crates/cli/Cargo.toml").is_file()
}

impl Places {
    fn candidates(&self, named: Option<&Path>) -> anyhow::Result<Vec<Candidate>> {
        if let Some(dir) = named {
            return Ok(vec![Candidate { dir: dir.to_owned(), why: Why::Flag }]);
        }
        // An empty variable is an unset one.
        if let Some(dir) = self.variable.as_ref().filter(|value| !value.is_empty()) {
            return Ok(vec![Candidate { dir: dir.into(), why: Why::Variable }]);
        }
        let mut found = self.full();
        if let Some(dir) = demo_in(&self.demo_parents) {
            found.push(Candidate { dir, why: Why::Demo });
        }
        if found.is_empty() {
            anyhow::bail!(
                "no model found: give --model DIR or set CALLA_MODEL, put a checkpoint into \
                 ~/.calla/models, or run calla in its repository, which has a demo"
            );
        }
        Ok(found)
    }

    fn full(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        let mut add = |dir: PathBuf, why| {
            if holds_weights(&dir) {
                found.push(Candidate { dir, why });
            }
        };
        let hub = match (&self.hf_hub_cache, &self.hf_home, &self.home) {
            (Some(hub), ..) => Some(PathBuf::from(hub)),
            (_, Some(home), _) => Some(Path::new(home).join("hub")),
            (.., Some(home)) => Some(home.join(".cache/huggingface/hub")),
            _ => None,
        };
        for dir in hub.iter().flat_map(|hub| snapshots(&hub.join(HUB_FOLDER))) {
            add(dir, Why::HubCache);
        }
        if let Some(home) = &self.home {
            for folder in LM_STUDIO_FOLDERS {
                add(home.join(".lmstudio/models").join(folder), Why::LmStudio);
            }
            for dir in folders(&home.join(".calla/models")) {
                add(dir, Why::CallaModels);
            }
        }
        found
    }
}

/// Snapshots of a repository in the hub's cache, the one that `main` names first.
fn snapshots(repository: &Path) -> Vec<PathBuf> {
    let mut all = folders(&repository.join("snapshots"));
    if let Ok(main) = fs::read_to_string(repository.join("refs/main")) {
        all.sort_by_key(|dir| dir.file_name() != Some(main.trim().as_ref()));
    }
    all
}

/// Folders in a directory, by name; none if it cannot be read.
fn folders(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = entries.map(|e| e.path()).filter(|path| path.is_dir()).collect();
    dirs.sort();
    dirs
}

fn holds_weights(dir: &Path) -> bool {
    dir.join("config.json").is_file()
        && ["model.safetensors", "model.safetensors.index.json"]
            .iter()
            .any(|name| dir.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("config.json"), "{}").unwrap();
        fs::write(dir.join("model.safetensors"), "").unwrap();
    }

    fn places(root: &Path) -> Places {
        Places {
            home: Some(root.join("home")),
            hf_hub_cache: None,
            hf_home: None,
            variable: None,
            demo_parents: vec![root.join("nowhere"), root.join("repository")],
        }
    }

    #[test]
    fn a_named_model_is_the_only_candidate() {
        let places = Places { variable: Some("x".into()), ..places(Path::new("/none")) };
        let found = places.candidates(None).unwrap();
        assert_eq!(found, [Candidate { dir: "x".into(), why: Why::Variable }]);
        let found = places.candidates(Some(Path::new("y"))).unwrap();
        assert_eq!(found, [Candidate { dir: "y".into(), why: Why::Flag }]);
    }

    #[test]
    fn a_demo_outside_a_checkout_is_no_demo() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        assert!(is_checkout(repository));
        let stranger = tempfile::tempdir().unwrap();
        checkpoint(&stranger.path().join("demo"));
        assert!(!is_checkout(stranger.path()));
        assert!(demo_parents().iter().all(|parent| is_checkout(parent)));
    }

    #[test]
    fn full_checkpoints_come_before_the_demo() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let message = places.candidates(None).unwrap_err().to_string();
        assert!(message.contains("--model"), "{message}");

        checkpoint(&root.path().join("repository/demo"));
        let kinds = |places: &Places| -> Vec<Why> {
            places.candidates(None).unwrap().iter().map(|c| c.why).collect()
        };
        assert_eq!(kinds(&places), [Why::Demo]);

        checkpoint(&root.path().join("home/.calla/models/mine"));
        fs::create_dir_all(root.path().join("home/.calla/models/empty")).unwrap();
        checkpoint(&root.path().join("home/.lmstudio/models").join(LM_STUDIO_FOLDERS[0]));
        let hub = root.path().join("home/.cache/huggingface/hub").join(HUB_FOLDER);
        checkpoint(&hub.join("snapshots/aaa"));
        checkpoint(&hub.join("snapshots/bbb"));
        fs::create_dir_all(hub.join("refs")).unwrap();
        fs::write(hub.join("refs/main"), "bbb\n").unwrap();
        assert_eq!(
            kinds(&places),
            [Why::HubCache, Why::HubCache, Why::LmStudio, Why::CallaModels, Why::Demo]
        );
        assert!(places.candidates(None).unwrap()[0].dir.ends_with("snapshots/bbb"));
        let elsewhere = Places { hf_home: Some("/none".into()), ..places };
        assert_eq!(kinds(&elsewhere), [Why::LmStudio, Why::CallaModels, Why::Demo]);
    }
}
