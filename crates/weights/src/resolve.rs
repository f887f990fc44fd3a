//! From a module's canonical name and dimensions to the tensors that store it, checked.
//!
//! Both walks over a checkpoint, the one that loads it and the one that describes it, ask here, so that
//! what `info` shows is what loading finds. Every tensor is handed out once; what remains at the end
//! belongs to no module.

use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::{Error, TensorName, shown};
use crate::layout::is_mtp;
use calla_model::shape::CONV_TAPS;
use calla_model::{AffineFormat, FloatType, VectorKind};
use safetensors::Dtype;
use std::collections::BTreeSet;

/// Unused tensors that the error names.
const UNUSED_SHOWN: usize = 5;

pub(crate) struct Resolver<'a> {
    checkpoint: &'a Checkpoint,
    /// Canonical names of tensors that no module has asked for yet.
    remaining: BTreeSet<&'a str>,
}

/// The tensors of one matrix, or of a stack of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored<'a> {
    /// Plain values.
    Dense { dtype: FloatType, values: Tensor<'a> },
    /// Affine quantisation; `dtype` is that of scales and biases.
    Affine {
        format: AffineFormat,
        dtype: FloatType,
        packed: Tensor<'a>,
        scales: Tensor<'a>,
        biases: Tensor<'a>,
    },
}

impl<'a> Stored<'a> {
    pub(crate) fn tensors(&self) -> Vec<Tensor<'a>> {
        match *self {
            Self::Dense { values, .. } => vec![values],
            Self::Affine { packed, scales, biases, .. } => vec![packed, scales, biases],
        }
    }

    /// Name of its main tensor.
    pub(crate) fn name(&self) -> TensorName {
        match self {
            Self::Dense { values, .. } => values.name(),
            Self::Affine { packed, .. } => packed.name(),
        }
    }
}

/// How the experts of one projection are stored.
pub(crate) enum StoredExperts<'a> {
    /// One tensor `[experts, rows_stored, cols]`, of which each expert's matrix is the rows from
    /// `first_row` on: all of them, or one half of the fused gate and up projection.
    Stacked { stored: Stored<'a>, rows_stored: usize, first_row: usize },
    /// One matrix per expert.
    Separate(Vec<Stored<'a>>),
}

impl<'a> Resolver<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint, remaining: checkpoint.text_tensors().map(|(name, _)| name).collect() }
    }

    pub(crate) fn has_mtp(&self) -> bool {
        self.checkpoint.mtp_norms().is_some()
    }

    /// The tensors of module `name`, a matrix `[rows, cols]`.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Stored<'a>, Error> {
        self.stored(name, &format!("{name}.weight"), &[rows], cols)
    }

    /// The tensors of a layer's routed experts, in whichever of the three forms they are stored.
    pub(crate) fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<StoredExperts<'a>, Error> {
        let stacked = format!("{layer_mlp}.switch_mlp.{projection}");
        let stacked_weight = format!("{stacked}.weight");
        if self.has(&stacked_weight) {
            let stored = self.stored(&stacked, &stacked_weight, &[count, rows], cols)?;
            return Ok(StoredExperts::Stacked { stored, rows_stored: rows, first_row: 0 });
        }
        let (fused, rows_stored, first_row) = match projection {
            "gate_proj" => (format!("{layer_mlp}.experts.gate_up_proj"), 2 * rows, 0),
            "up_proj" => (format!("{layer_mlp}.experts.gate_up_proj"), 2 * rows, rows),
            _ => (format!("{layer_mlp}.experts.{projection}"), rows, 0),
        };
        if self.has(&fused) {
            let stored = self.stored(&fused, &fused, &[count, rows_stored], cols)?;
            return Ok(StoredExperts::Stacked { stored, rows_stored, first_row });
        }
        let separate = |expert: usize| format!("{layer_mlp}.experts.{expert}.{projection}");
        if self.has(&format!("{}.weight", separate(0))) {
            let list = (0..count).map(|e| self.matrix(&separate(e), rows, cols));
            return list.collect::<Result<_, _>>().map(StoredExperts::Separate);
        }
        Err(Error::Missing {
            name: format!("{layer_mlp}.experts ({projection})"),
            looked_for: format!("{stacked_weight}, {fused} and {}.weight", separate(0)),
            dir: self.checkpoint.dir().to_owned(),
        })
    }

    /// The tensor of a small vector of `len` values.
    pub(crate) fn vector(
        &mut self,
        name: &str,
        kind: VectorKind,
        len: usize,
    ) -> Result<Tensor<'a>, Error> {
        let tensor_name = match kind {
            VectorKind::Norm | VectorKind::GatedNorm | VectorKind::Conv => format!("{name}.weight"),
            VectorKind::ALog | VectorKind::DtBias => name.to_owned(),
        };
        let tensor = self.take(&tensor_name)?;
        if self.has(&format!("{name}.scales")) || tensor.entry.dtype == Dtype::U32 {
            return Err(Error::Quantization {
                module: tensor.name(),
                problem:
                    "it is quantised, which this small tensor must not be: the recurrence would \
                          go wrong without an error; convert the checkpoint again"
                        .to_owned(),
            });
        }
        tensor.float_type()?;
        let fits = match kind {
            VectorKind::Conv => {
                let channels = len / CONV_TAPS;
                // Channel and tap are in the same order in both.
                tensor.shape() == [channels, CONV_TAPS, 1]
                    || tensor.shape() == [channels, 1, CONV_TAPS]
            }
            _ => tensor.shape() == [len],
        };
        if fits {
            return Ok(tensor);
        }
        let expected = match kind {
            VectorKind::Conv => {
                let channels = len / CONV_TAPS;
                format!("[{channels}, {CONV_TAPS}, 1] or [{channels}, 1, {CONV_TAPS}]")
            }
            _ => format!("[{len}]"),
        };
        Err(shape_error(tensor, expected))
    }

    /// Fails if a tensor belongs to no module.
    pub(crate) fn finish(self) -> Result<(), Error> {
        if self.remaining.is_empty() {
            return Ok(());
        }
        let count = self.remaining.len();
        let mut examples: Vec<String> = self
            .remaining
            .iter()
            .take(UNUSED_SHOWN)
            .filter_map(|name| self.checkpoint.tensor(name))
            .map(|tensor| tensor.name().to_string())
            .collect();
        if count > UNUSED_SHOWN {
            examples.push("...".to_owned());
        }
        Err(Error::Unused { count, examples: examples.join(", ") })
    }

    fn has(&self, canonical: &str) -> bool {
        self.checkpoint.tensor(canonical).is_some()
    }

    fn take(&mut self, canonical: &str) -> Result<Tensor<'a>, Error> {
        let tensor = self.checkpoint.tensor(canonical).ok_or_else(|| Error::Missing {
            name: canonical.to_owned(),
            looked_for: format!(
                "it with the prefixes of every layout, such as language_model.{canonical}"
            ),
            dir: self.checkpoint.dir().to_owned(),
        })?;
        self.remaining.remove(canonical);
        Ok(tensor)
    }

    /// The tensors of module `path` whose values are `[..leading, cols]`; `weight` is the name of the
    /// main one.
    fn stored(
        &mut self,
        path: &str,
        weight: &str,
        leading: &[usize],
        cols: usize,
    ) -> Result<Stored<'a>, Error> {
        let main = self.take(weight)?;
        let (leading_stored, last) = match main.shape().split_last() {
            Some((last, leading_stored)) => (leading_stored, *last),
            None => (&[][..], 0),
        };
        let quantised = self.has(&format!("{path}.scales"));
        if leading_stored != leading || (!quantised && last != cols) {
            let mut expected = leading.iter().map(ToString::to_string).collect::<Vec<_>>();
            expected.push(if quantised {
                format!("{cols} values packed")
            } else {
                cols.to_string()
            });
            if main.entry.dtype == Dtype::U32 && !quantised {
                return Err(unscaled(main));
            }
            return Err(shape_error(main, format!("[{}]", expected.join(", "))));
        }
        if !quantised {
            if main.entry.dtype == Dtype::U32 {
                return Err(unscaled(main));
            }
            let dtype = main.float_type()?;
            self.check_declared(path, main, None)?;
            return Ok(Stored::Dense { dtype, values: main });
        }
        let scales = self.take(&format!("{path}.scales"))?;
        if !self.has(&format!("{path}.biases")) {
            let problem =
                "it has .scales but no .biases: only MLX's affine quantisation is read".to_owned();
            return Err(Error::Quantization { module: main.name(), problem });
        }
        let biases = self.take(&format!("{path}.biases"))?;
        if main.entry.dtype != Dtype::U32 {
            return Err(Error::TensorType {
                tensor: main.name(),
                expected: "U32, because .scales say that it is quantised",
                actual: main.entry.dtype,
            });
        }
        let dtype = scales.float_type()?;
        if biases.float_type()? != dtype {
            return Err(Error::TensorType {
                tensor: biases.name(),
                expected: "that of the scales beside it",
                actual: biases.entry.dtype,
            });
        }
        let groups = match scales.shape().split_last() {
            Some((groups, rows)) if rows == leading => *groups,
            _ => return Err(shape_error(scales, format!("{leading:?} and the number of groups"))),
        };
        if biases.shape() != scales.shape() {
            return Err(shape_error(biases, format!("{:?}, like the scales", scales.shape())));
        }
        let format = derived_format(cols, last, groups)
            .map_err(|problem| Error::Quantization { module: main.name(), problem })?;
        self.check_declared(path, main, Some(format))?;
        Ok(Stored::Affine { format, dtype, packed: main, scales, biases })
    }

    /// The tensors decide a module's format; where config.json speaks of the module, it must agree.
    fn check_declared(
        &self,
        path: &str,
        main: Tensor<'_>,
        found: Option<AffineFormat>,
    ) -> Result<(), Error> {
        let quantization = &self.checkpoint.config().quantization;
        let path_in_file = main.entry.name.strip_suffix(".weight").unwrap_or(&main.entry.name);
        let explicit = [path_in_file, path, &format!("language_model.{path}")]
            .iter()
            .find_map(|name| quantization.overrides.get(*name).copied());
        let declared = match explicit {
            Some(declared) => declared,
            // Converters leave modules unquantised whose width fits no group, and add MTP layers made
            // elsewhere, without an entry for either.
            None if found.is_none() || is_mtp(path) => return Ok(()),
            None => match quantization.default {
                Some(format) => Some(format),
                None => return Ok(()),
            },
        };
        if declared == found {
            return Ok(());
        }
        Err(Error::Quantization {
            module: main.name(),
            problem: format!(
                "config.json says {}, but the tensors hold {}",
                describe(declared),
                describe(found)
            ),
        })
    }
}

fn describe(format: Option<AffineFormat>) -> String {
    match format {
        Some(format) => format!("{} bits in groups of {}", format.bits(), format.group()),
        None => "unquantised values".to_owned(),
    }
}

/// Bits and group of a row of `cols` values from its packed words and its number of groups.
fn derived_format(cols: usize, words: usize, groups: usize) -> Result<AffineFormat, String> {
    let bits = (32 * words as u128).checked_div(cols as u128).unwrap_or(0) as usize;
    let group = cols / groups.max(1);
    AffineFormat::new(bits, group)
        .filter(|f| f.packed_row_bytes(cols) == 4 * words && f.groups(cols) * f.group() == cols)
        .filter(|f| f.groups(cols) == groups)
        .ok_or_else(|| {
            format!(
                "{words} packed words and {groups} groups for {cols} values are no known format (2, 3, 4, \
                 5, 6 or 8 bits in groups of 32, 64 or 128)"
            )
        })
}

fn unscaled(tensor: Tensor<'_>) -> Error {
    Error::Quantization {
        module: tensor.name(),
        problem: "it holds packed integers (U32) but has no .scales".to_owned(),
    }
}

fn shape_error(tensor: Tensor<'_>, expected: String) -> Error {
    Error::TensorShape {
        tensor: tensor.name(),
        expected: shown(&expected).into_owned(),
        actual: tensor.shape().to_vec(),
    }
}
