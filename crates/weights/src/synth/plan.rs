//! Which tensors a random checkpoint has: a walk over the network that lists instead of loading.

use super::Options;
use super::fill::{Fill, Group, GroupValue, Value, random, stream};
use calla_model::budget::mlx_4bit_format;
use calla_model::network::{Parts, Source};
use calla_model::shape::CONV_TAPS;
use calla_model::{AffineFormat, Network, VectorKind};
use safetensors::Dtype;
use std::convert::Infallible;
use std::sync::Arc;

/// One tensor to write.
#[derive(Clone, Debug)]
pub(super) struct PlannedTensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) fill: Fill,
    /// Of the main tensor of a matrix: its format, `None` if the width fits no group.
    pub(super) module: Option<(String, Option<AffineFormat>)>,
}

impl PlannedTensor {
    pub(super) fn bytes(&self) -> u64 {
        let values: u64 = self.shape.iter().map(|&d| d as u64).product();
        values * (self.dtype.bitsize() as u64 / 8)
    }
}

/// All tensors in the order of the network.
pub(super) fn plan(options: &Options) -> Vec<PlannedTensor> {
    let mut plan = Plan { options, tensors: Vec::new() };
    let Ok(_) = Network::build(&options.shape, &mut plan);
    plan.tensors
}

struct Plan<'a> {
    options: &'a Options,
    tensors: Vec<PlannedTensor>,
}

/// A network of which only the walk matters.
struct NoParts;

impl Parts for NoParts {
    type Matrix = ();
    type Experts = ();
    type Vector = ();
}

/// The name that the multimodal MLX layout gives a canonical one.
fn file_name(canonical: &str) -> String {
    if canonical.starts_with("mtp.") {
        canonical.to_owned()
    } else {
        format!("language_model.{canonical}")
    }
}

/// Standard deviation of a matrix's values: outputs have the size of inputs, as after training's initial
/// values; embeddings have size 1, and logits are spread enough to have a clear best token.
fn matrix_std(canonical: &str, cols: usize) -> f32 {
    let unit = 1.0 / (cols as f32).sqrt();
    match canonical {
        "model.embed_tokens" => 1.0,
        "lm_head" => 2.0 * unit,
        _ => unit,
    }
}

/// The published format, or groups of 32, or none, as the width allows.
fn format_for(canonical: &str, cols: usize) -> Option<AffineFormat> {
    let published = mlx_4bit_format(canonical);
    let smaller = AffineFormat::new(published.bits(), 32);
    [Some(published), smaller].into_iter().flatten().find(|f| cols.is_multiple_of(f.group()))
}

impl Plan<'_> {
    /// Adds the tensors of a matrix `[..leading, cols]`.
    fn add_matrix(&mut self, canonical: &str, leading: &[usize], cols: usize) {
        let path = file_name(canonical);
        let shape = |last: usize| [leading, &[last]].concat();
        let std = matrix_std(canonical, cols);
        let format = format_for(canonical, cols);
        let module = Some((path.clone(), format));
        let key = |part: &str| stream(self.options.seed, &format!("{path}.{part}"));
        let weight = format!("{path}.weight");
        let Some(format) = format else {
            let fill = Fill::Each { stream: key("weight"), value: Value::Uniform { std } };
            let shape = shape(cols);
            self.tensors.push(PlannedTensor {
                name: weight,
                dtype: Dtype::BF16,
                shape,
                fill,
                module,
            });
            return;
        };
        let group = Group {
            format,
            std,
            per_row: format.groups(cols),
            first_group_shifts: self.shifts(canonical, leading[0], format.group()),
        };
        let groups = shape(format.groups(cols));
        // Scales and biases share a stream: each bias belongs to its scale.
        let group_key = key("groups");
        let packed = Fill::Packed { stream: key("weight") };
        let shape = shape(format.packed_row_bytes(cols) / 4);
        self.tensors.push(PlannedTensor {
            name: weight,
            dtype: Dtype::U32,
            shape,
            fill: packed,
            module,
        });
        for (suffix, what) in [("scales", GroupValue::Scale), ("biases", GroupValue::Bias)] {
            self.tensors.push(PlannedTensor {
                name: format!("{path}.{suffix}"),
                dtype: Dtype::BF16,
                shape: groups.clone(),
                fill: Fill::Group { stream: group_key, group: group.clone(), what },
                module: None,
            });
        }
    }

    /// A skewed load needs a bias, which routers do not have. So all embeddings get the same mean in their
    /// first group, which the residual stream carries through all layers, and each router row turns that
    /// into a logit offset of `-skew * ln(rank + 1)`: the loads of the experts fall like Zipf's law.
    fn shifts(&self, canonical: &str, rows: usize, group: usize) -> Option<Arc<[f32]>> {
        const EMBEDDING_MEAN: f32 = 1.0;
        if self.options.skew == 0.0 {
            return None;
        }
        if canonical == "model.embed_tokens" {
            return Some([EMBEDDING_MEAN].into());
        }
        let path = canonical.strip_suffix(".mlp.gate")?;
        // The norm before the router divides by the stream's size. It starts at 1 and each layer adds about
        // 0.5 to its square (measured with `matrix_std`'s sizes). MTP's layer starts anew.
        let layer = path.strip_prefix("model.layers.").and_then(|layer| layer.parse().ok());
        let stream_size = (1.0 + 0.5 * layer.unwrap_or(0.0_f32)).sqrt();
        let shift_per_logit = stream_size / (EMBEDDING_MEAN * group as f32);
        let key = stream(self.options.seed, &format!("{canonical}.ranks"));
        let mut order: Vec<usize> = (0..rows).collect();
        order.sort_by_key(|&expert| random(key, expert as u64));
        let mut shifts = vec![0.0; rows];
        for (rank, expert) in order.into_iter().enumerate() {
            shifts[expert] = -self.options.skew * (rank as f32 + 1.0).ln() * shift_per_logit;
        }
        Some(shifts.into())
    }
}

impl Source<NoParts> for Plan<'_> {
    type Error = Infallible;

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<(), Infallible> {
        self.add_matrix(name, &[rows], cols);
        Ok(())
    }

    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<(), Infallible> {
        self.add_matrix(&format!("{layer_mlp}.switch_mlp.{projection}"), &[count, rows], cols);
        Ok(())
    }

    fn vector(&mut self, name: &str, kind: VectorKind, len: usize) -> Result<(), Infallible> {
        let path = file_name(name);
        let (suffix, shape, value) = match kind {
            VectorKind::Norm | VectorKind::GatedNorm => (".weight", vec![len], Value::Norm),
            VectorKind::Conv => {
                (".weight", vec![len / CONV_TAPS, CONV_TAPS, 1], Value::Uniform { std: 0.5 })
            }
            VectorKind::ALog => ("", vec![len], Value::ALog),
            VectorKind::DtBias => ("", vec![len], Value::DtBias),
        };
        self.tensors.push(PlannedTensor {
            fill: Fill::Each { stream: stream(self.options.seed, &path), value },
            name: path + suffix,
            dtype: Dtype::BF16,
            shape,
            module: None,
        });
        Ok(())
    }

    fn has_mtp(&self) -> bool {
        self.options.mtp
    }
}
