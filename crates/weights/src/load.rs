//! Loading: the network's modules as views into the mapped files.

use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::Error;
use crate::layout::{Layout, NormConvention, is_mtp};
use crate::norms;
use crate::resolve::{Resolver, Stored, StoredExperts};
use bytes::Bytes;
use calla_model::network::{CheckpointParts, Source};
use calla_model::{Experts, Matrix, MatrixError, Network, VectorKind};
use rayon::prelude::*;

/// What one thread copies at a time when a tensor is moved to an aligned place.
const COPY_CHUNK_BYTES: usize = 4 << 20;

/// Whether a backend can read values at any address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Every tensor is used where it lies: a CPU loads from any address. MLX pads nothing, so without this
    /// most of its files would be copied whole.
    AsStored,
    /// Tensors at addresses that do not suit their type are copied to aligned ones.
    Aligned,
}

/// What loading did besides making views.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadReport {
    /// Whose conventions the trunk follows.
    pub layout: Layout,
    /// How the norms of the multi-token-prediction layer were stored; `None` without such a layer.
    pub mtp_norms: Option<NormConvention>,
    /// Bytes of text tensors in the files.
    pub text_bytes: u64,
    /// Bytes copied into memory because their place in the file is not aligned for their type; none with
    /// [`Placement::AsStored`].
    pub repacked_bytes: u64,
    /// Tensors that were copied for that reason.
    pub repacked_tensors: usize,
    /// Bytes of the vision tower, which stay unread.
    pub skipped_vision_bytes: u64,
    /// Tensors of the vision tower.
    pub skipped_vision_tensors: usize,
    /// What looks wrong but does not prevent loading.
    pub warnings: Vec<String>,
}

impl Checkpoint {
    /// The network as views into the mapped files, as stored. Only small vectors are copied.
    ///
    /// # Errors
    /// If a module's tensors are missing or wrong, or a tensor belongs to no module.
    pub fn load(&self) -> Result<Network<CheckpointParts>, Error> {
        self.load_with_report(Placement::AsStored).map(|(network, _)| network)
    }

    /// The network with its tensors placed as a backend needs them, and what that took.
    ///
    /// # Errors
    /// As [`Checkpoint::load`].
    pub fn load_with_report(
        &self,
        placement: Placement,
    ) -> Result<(Network<CheckpointParts>, LoadReport), Error> {
        let mut views = Views {
            placement,
            resolver: Resolver::new(self),
            report: LoadReport {
                layout: self.layout(),
                mtp_norms: self.mtp_norms(),
                text_bytes: self.text_tensors().map(|(_, t)| t.len_bytes() as u64).sum(),
                repacked_bytes: 0,
                repacked_tensors: 0,
                skipped_vision_bytes: self.vision_tensors().map(|t| t.len_bytes() as u64).sum(),
                skipped_vision_tensors: self.vision_tensors().count(),
                warnings: Vec::new(),
            },
        };
        let network = Network::build(self.shape(), &mut views)?;
        let Views { resolver, mut report, .. } = views;
        resolver.finish()?;
        report.warnings = norm_warnings(&network);
        for warning in &report.warnings {
            tracing::warn!("{}: {warning}", self.dir().display());
        }
        Ok((network, report))
    }
}

/// The source that makes views.
struct Views<'a> {
    placement: Placement,
    resolver: Resolver<'a>,
    report: LoadReport,
}

impl Source<CheckpointParts> for Views<'_> {
    type Error = Error;

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        let stored = self.resolver.matrix(name, rows, cols)?;
        self.whole(&stored, rows, cols)
    }

    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Experts, Error> {
        let matrices = match self.resolver.experts(layer_mlp, projection, count, rows, cols)? {
            StoredExperts::Separate(list) => {
                list.iter().map(|s| self.whole(s, rows, cols)).collect::<Result<Vec<_>, _>>()?
            }
            StoredExperts::Stacked { stored, rows_stored, first_row } => {
                let rows_of = Rows { count, rows_stored, first_row, rows };
                self.stacked(&stored, rows_of, cols)?
            }
        };
        Ok(Experts::new(matrices))
    }

    fn vector(&mut self, name: &str, kind: VectorKind, len: usize) -> Result<Vec<f32>, Error> {
        let mut values = self.resolver.vector(name, kind, len)?.to_f32()?;
        if kind == VectorKind::Norm {
            let convention = match self.report.mtp_norms {
                Some(convention) if is_mtp(name) => convention,
                _ => self.report.layout.norms(),
            };
            for value in &mut values {
                *value += convention.offset();
            }
        }
        Ok(values)
    }

    fn has_mtp(&self) -> bool {
        self.resolver.has_mtp()
    }
}

/// Which rows of a stack `[count, rows_stored, ..]` the experts' matrices are.
#[derive(Clone, Copy)]
struct Rows {
    count: usize,
    rows_stored: usize,
    first_row: usize,
    rows: usize,
}

impl Views<'_> {
    fn whole(&mut self, stored: &Stored<'_>, rows: usize, cols: usize) -> Result<Matrix, Error> {
        let all = Rows { count: 1, rows_stored: rows, first_row: 0, rows };
        let mut list = self.stacked(stored, all, cols)?;
        Ok(list.remove(0))
    }

    fn stacked(
        &mut self,
        stored: &Stored<'_>,
        rows_of: Rows,
        cols: usize,
    ) -> Result<Vec<Matrix>, Error> {
        let rows = rows_of.rows;
        let matrices: Result<Vec<Matrix>, MatrixError> = match *stored {
            Stored::Dense { dtype, values } => self
                .pieces(values, rows_of, dtype.size())
                .into_iter()
                .map(|values| Matrix::dense(rows, cols, dtype, values))
                .collect(),
            Stored::Affine { format, dtype, packed, scales, biases } => {
                let packed = self.pieces(packed, rows_of, 4);
                let scales = self.pieces(scales, rows_of, dtype.size());
                let biases = self.pieces(biases, rows_of, dtype.size());
                packed
                    .into_iter()
                    .zip(scales.into_iter().zip(biases))
                    .map(|(packed, (scales, biases))| {
                        Matrix::affine(rows, cols, format, packed, dtype, scales, biases)
                    })
                    .collect()
            }
        };
        matrices.map_err(|source| Error::Matrix { module: stored.name(), source })
    }

    /// The bytes of each expert's rows, aligned for elements of `alignment` bytes where that is asked for.
    /// The tensor's shape has been checked, so its length divides.
    fn pieces(&mut self, tensor: Tensor<'_>, rows_of: Rows, alignment: usize) -> Vec<Bytes> {
        let Rows { count, rows_stored, first_row, rows } = rows_of;
        let mut bytes = tensor.bytes();
        let row_bytes = bytes.len() / (count * rows_stored);
        let misaligned = self.placement == Placement::Aligned
            && !bytes.as_ptr().addr().is_multiple_of(alignment);
        let is_whole = rows == rows_stored;
        if misaligned {
            self.report.repacked_bytes += (bytes.len() / rows_stored * rows) as u64;
            // Both halves of a fused tensor are copied, but it is one tensor.
            self.report.repacked_tensors += usize::from(first_row == 0);
            if is_whole {
                bytes = aligned_copy(&bytes);
            }
        }
        (0..count)
            .map(|expert| {
                let start = (expert * rows_stored + first_row) * row_bytes;
                let piece = bytes.slice(start..start + rows * row_bytes);
                if misaligned && !is_whole { aligned_copy(&piece) } else { piece }
            })
            .collect()
    }
}

/// A copy that starts at a multiple of 8.
fn aligned_copy(bytes: &[u8]) -> Bytes {
    struct Aligned {
        words: Vec<u64>,
        len: usize,
    }
    impl AsRef<[u8]> for Aligned {
        fn as_ref(&self) -> &[u8] {
            &bytemuck::cast_slice(&self.words)[..self.len]
        }
    }
    let mut words = vec![0_u64; bytes.len().div_ceil(8)];
    // Several threads: the pages may have to come from the disk.
    let to: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut words)[..bytes.len()];
    to.par_chunks_mut(COPY_CHUNK_BYTES)
        .zip(bytes.par_chunks(COPY_CHUNK_BYTES))
        .for_each(|(to, from)| to.copy_from_slice(from));
    Bytes::from_owner(Aligned { words, len: bytes.len() })
}

/// A norm convention taken wrongly loads without an error and outputs noise: look at the means.
fn norm_warnings(network: &Network<CheckpointParts>) -> Vec<String> {
    let plausible = norms::TRUNK_MEAN_MIN..=norms::TRUNK_MEAN_MAX;
    let means: Vec<f32> = network.layers.iter().map(|l| norms::mean(&l.input_layernorm)).collect();
    let mtp = network.mtp.as_ref().map(|mtp| norms::mean(&mtp.layer.input_layernorm));
    [("the layers", Some(norms::mean(&means))), ("the MTP layer", mtp)]
        .into_iter()
        .filter_map(|(what, mean)| {
            let mean = mean.filter(|mean| !plausible.contains(mean))?;
            Some(format!(
                "the input norms of {what} have a mean scale of {mean:.3}, outside of {:.1} to {:.1}: \
                 were they stored with an unusual offset?",
                norms::TRUNK_MEAN_MIN,
                norms::TRUNK_MEAN_MAX
            ))
        })
        .collect()
}
