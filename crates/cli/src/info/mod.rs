//! `calla info`: what a checkpoint is, what it takes, and whether this machine can hold it.

mod report;

use crate::args::InfoArgs;
use crate::device::HOST_ELEMENT_BYTES;
use crate::load::{TextSide, text_bytes};
use crate::machine::this_machine;
use crate::output;
use anyhow::bail;
use calla_engine::{Machine, MemoryPlan, StateNeeds};
use calla_gpu::{InPlace, UploadError, in_place};
use calla_model::Config;
use calla_text::{ChatTemplate, Tokenizer};
use calla_weights::inspect::{Inspection, ModuleInfo, Part, Storage};
use calla_weights::verify::Verification;
use calla_weights::{Checkpoint, inspect, verify};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Contexts that the memory table shows, as far as the model goes.
const CONTEXTS: [usize; 5] = [4_096, 16_384, 65_536, 131_072, 262_144];

/// Runs the command.
pub(crate) fn run(args: &InfoArgs) -> anyhow::Result<()> {
    let dir = match &args.path {
        Some(path) => path.clone(),
        None => TextSide::load(None)?.dir,
    };
    let info = Info::gather(&dir, args.verify)?;
    if args.json {
        output::json(&report::json(&info))?;
    } else {
        output::styled(&report::text(&info))?;
    }
    let problems = info.weights.as_ref().map_or(0, |weights| {
        weights.verification.as_ref().map_or(0, |(found, _)| found.problems.len())
    });
    if problems > 0 {
        bail!("{}: verification found {problems} problems", dir.display());
    }
    Ok(())
}

/// All that there is to say.
struct Info {
    dir: PathBuf,
    config: Config,
    /// `None` for a directory without weights.
    weights: Option<Weights>,
    /// Ids and added tokens, or why there are none.
    tokenizer: Result<(usize, usize), String>,
    /// Why there is no chat template.
    template: Result<(), String>,
    machine: Machine,
}

struct Weights {
    layout: &'static str,
    /// Name and bytes of each file.
    files: Vec<(String, u64)>,
    inspection: Inspection,
    /// What a Mac's GPU uses where it is mapped, or why no GPU takes the weights.
    on_mac: Result<InPlace, UploadError>,
    verification: Option<(Verification, Duration)>,
}

impl Info {
    fn gather(dir: &Path, verified: bool) -> anyhow::Result<Self> {
        let (config, weights) = match Checkpoint::open(dir) {
            Ok(checkpoint) => {
                let config = checkpoint.config().clone();
                (config, Some(Weights::gather(&checkpoint, verified)?))
            }
            Err(error) if error.is_no_weights() && !verified => {
                (Checkpoint::open_config(dir)?, None)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            dir: dir.to_owned(),
            config,
            weights,
            tokenizer: Tokenizer::load(dir)
                .map(|tokenizer| (tokenizer.vocab_size(), tokenizer.added_tokens().len()))
                .map_err(|error| error.to_string()),
            template: ChatTemplate::load(dir).map(|_| ()).map_err(|error| error.to_string()),
            machine: this_machine()?,
        })
    }

    /// Bytes of weights that a run would hold.
    fn weight_bytes(&self) -> u64 {
        self.weights.as_ref().map_or(0, |weights| text_bytes(&weights.inspection))
    }

    fn plan(&self, context: usize) -> MemoryPlan {
        MemoryPlan::new(&self.config.shape, self.weight_bytes(), &needs(context))
    }

    fn contexts(&self) -> Vec<usize> {
        let max = self.config.shape.max_positions;
        let mut contexts: Vec<usize> = CONTEXTS.into_iter().filter(|&c| c < max).collect();
        contexts.push(max);
        contexts
    }

    /// The longest context that fits, in tokens; 0 if none does.
    fn longest_context(&self) -> usize {
        let shape = &self.config.shape;
        MemoryPlan::longest_context(shape, self.weight_bytes(), &needs(0), &self.machine)
    }
}

/// State of one sequence without drafts.
fn needs(context: usize) -> StateNeeds {
    StateNeeds::one_sequence(context, HOST_ELEMENT_BYTES)
}

impl Weights {
    fn gather(checkpoint: &Checkpoint, verified: bool) -> anyhow::Result<Self> {
        let inspection = inspect(checkpoint)?;
        let on_mac = in_place(&checkpoint.load()?, checkpoint.shape(), &checkpoint.mapped_files());
        let verification = verified.then(|| {
            let start = Instant::now();
            (verify(checkpoint), start.elapsed())
        });
        let name =
            |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self {
            layout: checkpoint.layout().name(),
            files: checkpoint.files().map(|(path, bytes)| (name(path), bytes)).collect(),
            inspection,
            on_mac,
            verification,
        })
    }

    /// Tensors and bytes of the vision tower.
    fn skipped(&self) -> (usize, u64) {
        let vision = self.inspection.tensors.iter().filter(|t| t.part == Part::Vision);
        vision.fold((0, 0), |(count, bytes), tensor| (count + 1, bytes + tensor.bytes))
    }

    /// Modules that differ in their layer only, in the order of the network.
    fn module_groups(&self) -> Vec<ModuleGroup> {
        let mut groups: Vec<ModuleGroup> = Vec::new();
        for module in &self.inspection.modules {
            let name = without_layer(&module.name);
            let same = |group: &&mut ModuleGroup| {
                group.name == name && group.dims == dims(module) && group.storage == module.storage
            };
            match groups.iter_mut().find(same) {
                Some(group) => {
                    group.layers += 1;
                    group.bytes += module.bytes;
                }
                None => groups.push(ModuleGroup {
                    name,
                    layers: 1,
                    dims: dims(module),
                    storage: module.storage,
                    bytes: module.bytes,
                }),
            }
        }
        groups
    }
}

/// The same module in several layers, stored in the same way.
#[derive(Debug, PartialEq, Eq)]
struct ModuleGroup {
    name: String,
    layers: usize,
    /// `[experts]`, rows, columns.
    dims: Vec<usize>,
    storage: Storage,
    bytes: u64,
}

fn dims(module: &ModuleInfo) -> Vec<usize> {
    let matrix = [module.rows, module.cols];
    if module.count == 1 { matrix.to_vec() } else { [&[module.count], &matrix[..]].concat() }
}

/// `model.layers.7.mlp.gate` as `layers.*.mlp.gate`.
fn without_layer(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    name.split('.').map(|part| if number(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_taken_together() {
        assert_eq!(without_layer("model.layers.17.mlp.gate"), "layers.*.mlp.gate");
        assert_eq!(without_layer("model.embed_tokens"), "embed_tokens");
        assert_eq!(without_layer("mtp.layers.0.self_attn.q_proj"), "mtp.layers.*.self_attn.q_proj");
    }
}
