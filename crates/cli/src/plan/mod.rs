//! `calla plan`: what a step of a model costs on a GPU, and what a chip can reach at most.

mod chips;
mod floor;
mod report;

pub(crate) use chips::{CHIPS, Chip};

use crate::discover;
use crate::machine::bytes;
use crate::output;
use crate::plan_args::PlanArgs;
use anyhow::{Context as _, bail};
use calla_gpu::estimate::Estimate;
use calla_gpu::plan::Summary;
use calla_model::budget::{
    Mlx4Bit, PartBytes, SizeParts, StepSize, kv_bytes, recurrent_state_bytes, step_bytes,
    step_flops, token_flops,
};
use calla_model::format::AffineFormat;
use calla_model::{Config, Network, Shape};
use calla_ops::SLICE_ROWS;
use calla_ops::SpanKind;
use calla_weights::Checkpoint;
use floor::{Bounds, Work};
use std::path::PathBuf;

/// Context without `--context`, where the model has so much.
const CONTEXT_DEFAULT: usize = 4096;
/// Bytes of keys, values and elements of convolution windows on a GPU.
const ELEMENT_BYTES: usize = 2;
/// Beyond so many bytes of state nothing is planned: no machine has them.
const STATE_BYTES_MAX: u64 = 1 << 46;
/// Beyond so many operations nothing is planned. Sums of what a plan does stay below 2^63, as it never does more than
/// sixteen times what must be done.
const FLOPS_MAX: f64 = (1_u64 << 59) as f64;

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let plan = Plan::gather(args)?;
    if !plan.is_usual_format {
        output::note(
            "config.json tells of another quantisation: bytes are those of the published MLX 4-bit conversion. A GPU \
             takes 4 and 8 bits in groups of 64 alone; others run with --device cpu",
        );
    }
    if args.json {
        output::json(&report::json(&plan))
    } else {
        output::styled(&report::text(&plan))
    }
}

/// All that there is to say.
struct Plan {
    dir: PathBuf,
    shape: Shape,
    /// As far as config.json tells, weights have the format in which they are counted.
    is_usual_format: bool,
    context: usize,
    decode: Step,
    prefill: Step,
    chip: Option<&'static Chip>,
}

/// One step.
struct Step {
    size: StepSize,
    summary: Summary,
    bounds: Bounds,
}

impl Plan {
    fn gather(args: &PlanArgs) -> anyhow::Result<Self> {
        let (dir, config) = discover::first_that_loads(args.model.as_deref(), |candidate, _| {
            Ok((candidate.dir.clone(), Checkpoint::open_config(&candidate.dir)?))
        })?;
        let shape = config.shape.clone();
        let [decode, prefill] = sizes(args, &shape)?;
        let mut estimate = Estimate::new(&shape).with_context(|| dir.display().to_string())?;
        let network = Network::build(&shape, &mut Mlx4Bit { mtp: false })?;
        let mut step = |kind, size| {
            check_countable(&shape, &network, size)?;
            Step::new(&mut estimate, &shape, &network, kind, size)
        };
        Ok(Self {
            context: decode.context,
            decode: step(SpanKind::Decode, decode)?,
            prefill: step(SpanKind::Prefill, prefill)?,
            dir,
            is_usual_format: is_usual_format(&config),
            shape,
            chip: args.chip,
        })
    }
}

/// Sizes of the decode step and of the slice.
fn sizes(args: &PlanArgs, shape: &Shape) -> anyhow::Result<[StepSize; 2]> {
    let longest = shape.max_positions;
    let context = args.context.map_or(CONTEXT_DEFAULT.min(longest), |tokens| tokens as usize);
    if context > longest {
        bail!(
            "--context must be at most {longest}, the model's max_position_embeddings, but is {context}; give less"
        );
    }
    let rows = args.rows.map_or(SLICE_ROWS.min(context), |rows| rows as usize);
    if rows > context {
        bail!(
            "--rows must be at most {context}, as the slice ends at the context, but is {rows}; give fewer rows or \
             a longer --context"
        );
    }
    let sequences = args.sequences as usize;
    Ok([StepSize { sequences, rows: 1, context }, StepSize { sequences: 1, rows, context }])
}

/// Refuses what would overflow: the widest shapes that config.json may name, at the longest contexts.
fn check_countable(
    shape: &Shape,
    network: &Network<SizeParts>,
    size: StepSize,
) -> anyhow::Result<()> {
    let StepSize { sequences, rows, context } = size;
    let state = kv_bytes(shape, context, ELEMENT_BYTES)
        .saturating_add(2 * recurrent_state_bytes(shape, ELEMENT_BYTES))
        .saturating_mul(sequences as u64);
    if state > STATE_BYTES_MAX {
        bail!(
            "state for --sequences {sequences} at --context {context} takes {}, but at most {} are planned; give fewer \
             --sequences or a shorter --context",
            bytes(state),
            bytes(STATE_BYTES_MAX)
        );
    }
    let flops = token_flops(shape, network, context) as f64 * (sequences * rows) as f64;
    if flops > FLOPS_MAX {
        bail!(
            "{} rows at context {context} take {flops:.1e} operations, but at most {FLOPS_MAX:.1e} are planned; give \
             fewer --rows or a shorter --context",
            sequences * rows
        );
    }
    Ok(())
}

/// Whether config.json tells of 4 bits in groups of 64, but for modules of their own, or of no quantisation, as the one of
/// the model that was quantised does.
fn is_usual_format(config: &Config) -> bool {
    config.quantization.default.is_none_or(|format| format == AffineFormat::Q4_64)
}

impl Step {
    fn new(
        estimate: &mut Estimate,
        shape: &Shape,
        network: &Network<SizeParts>,
        kind: SpanKind,
        size: StepSize,
    ) -> anyhow::Result<Self> {
        let StepSize { sequences, rows, context } = size;
        let summary = estimate.step(kind, sequences, rows, context)?.summary();
        let tokens = sequences * rows;
        let least = Work {
            tokens,
            bytes: step_bytes(shape, &PartBytes::of(network), size, ELEMENT_BYTES),
            flops: step_flops(shape, network, size),
        };
        let bounds = Bounds { least, plan: Work::of(tokens, &summary.total) };
        Ok(Self { size, summary, bounds })
    }
}
