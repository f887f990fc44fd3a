//! The backend: operations on this machine's processor, with the state of their sequences.

use crate::columns::Columns;
use crate::conv_silu::conv_silu;
use crate::delta_prep::delta_prep;
use crate::gated_delta::gated_delta;
use crate::gated_norm::gated_norm;
use crate::inputs::Inputs;
use crate::linear::{Product, identity, products};
use crate::qk_prep::{Rotations, qk_prep};
use crate::rms_norm::rms_norm;
use crate::route::{RowsByExpert, top_k_softmax};
use crate::simd::{AvailableIsa, Isa};
use crate::swiglu::swiglu;
use crate::threads::{Threads, ThreadsError};
use crate::{attention, experts};
use calla_model::network::{Attention, CheckpointParts, DeltaNet, Moe};
use calla_model::{Experts, Matrix, Shape};
use calla_ops::cache::CacheError;
use calla_ops::experts::ExpertInput;
use calla_ops::ops::{
    AttentionInputs, DeltaInputs, DeltaTerms, ExpertActivations, QueriesKeys, Routed,
};
use calla_ops::route::Routing;
use calla_ops::runner::HostOps;
use calla_ops::{Batch, CacheSize, HostCache, Ops, Rows};

/// The CPU backend with its state.
pub struct Cpu {
    shape: Shape,
    cache: HostCache,
    rotations: Rotations,
    isa: AvailableIsa,
    threads: Threads,
}

/// Why a CPU backend cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// There is not the memory for the state.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The instruction set that was asked for is not here.
    #[error("this machine has no {0:?}; it has {available:?}", available = Isa::available())]
    Isa(Isa),
}

impl Cpu {
    /// A backend with zeroed state on the best instruction set here. `threads` is the number of threads
    /// that compute; 0 means all that the machine offers this process. It never changes a result.
    ///
    /// # Errors
    /// If the threads cannot be started or there is not the memory for the state.
    pub fn new(shape: Shape, size: CacheSize, threads: usize) -> Result<Self, CpuError> {
        Self::with_isa(shape, size, threads, Isa::detect())
    }

    /// A backend on a given instruction set.
    ///
    /// # Errors
    /// If this machine does not have it, the threads cannot be started or there is not the memory for the
    /// state.
    pub fn with_isa(
        shape: Shape,
        size: CacheSize,
        threads: usize,
        isa: Isa,
    ) -> Result<Self, CpuError> {
        let isa = AvailableIsa::new(isa).ok_or(CpuError::Isa(isa))?;
        let threads = Threads::new(threads)?;
        let cache = HostCache::new(&shape, size)?;
        Ok(Self { shape, cache, rotations: Rotations::default(), isa, threads })
    }

    /// Instruction set that it runs on.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa.get()
    }

    /// Number of threads that compute.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// Products of the same rows with several weights.
    fn linears<const N: usize>(&self, x: &Rows, weights: [&Matrix; N]) -> [Rows; N] {
        let inputs = Inputs::new(x, weights, &self.threads);
        let rows = identity(x.rows());
        let mut outputs = weights.map(|weight| Rows::zeros(x.rows(), weight.rows()));
        let columns = outputs.each_mut().map(Columns::new);
        let list: Vec<Product<'_>> = weights
            .iter()
            .zip(&columns)
            .map(|(&weight, y)| Product { weight, inputs: &inputs, rows: &rows, y })
            .collect();
        // SAFETY: each product has its own `y`, and `identity` has each row once.
        unsafe { products(self.isa, &self.threads, &list) };
        drop(list);
        outputs
    }

    /// Products of rows with the experts they go to, and of rows with other weights, all at once.
    fn expert_linears<const N: usize, const M: usize>(
        &self,
        routed: (&Rows, ExpertInput, [&Experts; N]),
        routing: &Routing,
        others: (&Rows, [&Matrix; M]),
    ) -> ([Rows; N], [Rows; M]) {
        let ((x, input, weights), (other_x, other_weights)) = (routed, others);
        let by_expert = RowsByExpert::new(routing, input, self.shape.experts);
        let chosen = by_expert.iter().flat_map(|(e, _)| weights.map(|weights| weights.get(e)));
        let inputs = Inputs::new(x, chosen, &self.threads);
        let other_inputs = Inputs::new(other_x, other_weights, &self.threads);
        let rows = identity(other_x.rows());
        let mut outputs = weights.map(|w| Rows::zeros(routing.experts.len(), w.rows()));
        let mut other_outputs = other_weights.map(|w| Rows::zeros(other_x.rows(), w.rows()));
        let columns = outputs.each_mut().map(Columns::new);
        let other_columns = other_outputs.each_mut().map(Columns::new);
        let mut list = vec![];
        for (expert, rows) in by_expert.iter() {
            for (weights, y) in weights.iter().zip(&columns) {
                list.push(Product { weight: weights.get(expert), inputs: &inputs, rows, y });
            }
        }
        for (&weight, y) in other_weights.iter().zip(&other_columns) {
            list.push(Product { weight, inputs: &other_inputs, rows: &rows, y });
        }
        // SAFETY: products of one `y` are those of distinct experts, and each pair of a row and a rank is an
        // output row of its own; the others have their own `y`, and `identity` has each row once.
        unsafe { products(self.isa, &self.threads, &list) };
        drop(list);
        (outputs, other_outputs)
    }
}

impl HostOps for Cpu {
    fn cache(&self) -> &HostCache {
        &self.cache
    }

    fn cache_mut(&mut self) -> &mut HostCache {
        &mut self.cache
    }

    fn arithmetic(&self) -> String {
        match self.isa() {
            Isa::Avx2 | Isa::Avx512 => "cpu-f32".to_owned(),
            // It may round products apart; see the portable `mul_add`.
            Isa::Portable => format!("cpu-f32-portable-{}", std::env::consts::ARCH),
        }
    }
}

impl Ops for Cpu {
    type Parts = CheckpointParts;
    type Tensor = Rows;
    type Routing = Routing;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn embed(&mut self, table: &Matrix, tokens: &[u32]) -> Rows {
        let mut x = Rows::zeros(tokens.len(), table.cols());
        let nanoseconds = 2 * tokens.len() * table.cols();
        self.threads.for_each_chunk(x.as_mut_slice(), table.cols(), nanoseconds, |row, x| {
            table.read_row(tokens[row] as usize, x);
        });
        x
    }

    fn select_rows(&mut self, x: &Rows, rows: &[usize]) -> Rows {
        Rows::from_vec(x.cols(), rows.iter().flat_map(|&row| x.row(row)).copied().collect())
    }

    fn rms_norm(&mut self, x: &Rows, scale: &Vec<f32>) -> Rows {
        rms_norm(self.isa, &self.threads, x, scale, self.shape.rms_norm_eps)
    }

    fn linear(&mut self, x: &Rows, weight: &Matrix) -> Rows {
        let [y] = self.linears(x, [weight]);
        y
    }

    fn add(&mut self, x: &mut Rows, y: &Rows) {
        for (x, y) in x.as_mut_slice().iter_mut().zip(y.as_slice()) {
            *x += y;
        }
    }

    fn conv_silu(&mut self, qkv: &Rows, taps: &Vec<f32>, layer: usize, batch: &Batch) -> Rows {
        let slots = &mut self.cache.delta[layer];
        conv_silu(self.isa, &self.threads, qkv, taps, slots, batch)
    }

    fn delta_prep(
        &mut self,
        qkv: &Rows,
        b: &Rows,
        a: &Rows,
        weights: &DeltaNet<CheckpointParts>,
    ) -> DeltaTerms<Rows> {
        delta_prep(self.isa, &self.threads, &self.shape, qkv, (b, a), weights)
    }

    fn gated_delta(&mut self, terms: &DeltaTerms<Rows>, layer: usize, batch: &Batch) -> Rows {
        let slots = &mut self.cache.delta[layer];
        gated_delta(self.isa, &self.threads, &self.shape, terms, slots, batch)
    }

    fn gated_norm(&mut self, o: &Rows, z: &Rows, scale: &Vec<f32>) -> Rows {
        gated_norm(self.isa, &self.threads, o, z, scale, self.shape.rms_norm_eps)
    }

    fn qk_prep(
        &mut self,
        q_gate: &Rows,
        k: &Rows,
        weights: &Attention<CheckpointParts>,
        batch: &Batch,
    ) -> QueriesKeys<Rows> {
        let rotations = &mut self.rotations;
        qk_prep(self.isa, &self.threads, &self.shape, rotations, (q_gate, k), weights, batch)
    }

    fn kv_append(&mut self, k: &Rows, v: &Rows, layer: usize, batch: &Batch) {
        for span in batch.spans() {
            calla_ops::attention::append(k, v, span, &mut self.cache.attention[layer]);
        }
    }

    fn attention(&mut self, q: &Rows, layer: usize, batch: &Batch) -> Rows {
        let kv = &self.cache.attention[layer];
        attention::attention(self.isa, &self.threads, &self.shape, q, None, kv, batch)
    }

    fn attention_gate(&mut self, o: &Rows, q_gate: &Rows) -> Rows {
        attention::attention_gate(self.isa, &self.threads, o, q_gate)
    }

    fn top_k_softmax(&mut self, router_logits: &Rows) -> Routing {
        top_k_softmax(router_logits, self.shape.top_k)
    }

    fn expert_linear(
        &mut self,
        x: &Rows,
        input: ExpertInput,
        routing: &Routing,
        weights: &Experts,
    ) -> Rows {
        let ([y], []) = self.expert_linears((x, input, [weights]), routing, (x, []));
        y
    }

    fn swiglu(&mut self, gate: &Rows, up: &Rows) -> Rows {
        let mut y = gate.clone();
        swiglu(self.isa, &self.threads, &mut y, up);
        y
    }

    fn combine(
        &mut self,
        x: &mut Rows,
        routed: &Rows,
        routing: &Routing,
        shared: &Rows,
        shared_gate: &Rows,
    ) {
        experts::combine(self.isa, &self.threads, x, routed, routing, (shared, shared_gate));
    }

    fn delta_in_proj(
        &mut self,
        x: &Rows,
        norm: &Vec<f32>,
        weights: &DeltaNet<CheckpointParts>,
    ) -> DeltaInputs<Rows> {
        let h = self.rms_norm(x, norm);
        let DeltaNet { in_proj_qkv, in_proj_z, in_proj_b, in_proj_a, .. } = weights;
        let [qkv, z, b, a] = self.linears(&h, [in_proj_qkv, in_proj_z, in_proj_b, in_proj_a]);
        DeltaInputs { qkv, z, b, a }
    }

    fn attention_in_proj(
        &mut self,
        x: &Rows,
        norm: &Vec<f32>,
        weights: &Attention<CheckpointParts>,
    ) -> AttentionInputs<Rows> {
        let h = self.rms_norm(x, norm);
        let [q_gate, k, v] = self.linears(&h, [&weights.q_proj, &weights.k_proj, &weights.v_proj]);
        AttentionInputs { q_gate, k, v }
    }

    fn attend(
        &mut self,
        inputs: &AttentionInputs<Rows>,
        weights: &Attention<CheckpointParts>,
        layer: usize,
        batch: &Batch,
    ) -> Rows {
        let ready = self.qk_prep(&inputs.q_gate, &inputs.k, weights, batch);
        self.kv_append(&ready.k, &inputs.v, layer, batch);
        let (kv, q_gate) = (&self.cache.attention[layer], Some(&inputs.q_gate));
        attention::attention(self.isa, &self.threads, &self.shape, &ready.q, q_gate, kv, batch)
    }

    fn route(
        &mut self,
        x: &Rows,
        norm: &Vec<f32>,
        weights: &Moe<CheckpointParts>,
    ) -> Routed<Rows, Routing> {
        let h = self.rms_norm(x, norm);
        let [logits, shared_gate] = self.linears(&h, [&weights.gate, &weights.shared_expert_gate]);
        let routing = self.top_k_softmax(&logits);
        Routed { h, routing, shared_gate }
    }

    fn experts_up(
        &mut self,
        routed: &Routed<Rows, Routing>,
        weights: &Moe<CheckpointParts>,
    ) -> ExpertActivations<Rows> {
        let h = &routed.h;
        let ([mut gate, up], [mut shared_gate, shared_up]) = self.expert_linears(
            (h, ExpertInput::PerRow, [&weights.gate_proj, &weights.up_proj]),
            &routed.routing,
            (h, [&weights.shared_gate_proj, &weights.shared_up_proj]),
        );
        swiglu(self.isa, &self.threads, &mut gate, &up);
        swiglu(self.isa, &self.threads, &mut shared_gate, &shared_up);
        ExpertActivations { routed: gate, shared: shared_gate }
    }

    fn experts_down(
        &mut self,
        x: &mut Rows,
        routed: &Routed<Rows, Routing>,
        activations: &ExpertActivations<Rows>,
        weights: &Moe<CheckpointParts>,
    ) {
        let ([y], [shared]) = self.expert_linears(
            (&activations.routed, ExpertInput::PerPair, [&weights.down_proj]),
            &routed.routing,
            (&activations.shared, [&weights.shared_down_proj]),
        );
        self.combine(x, &y, &routed.routing, &shared, &routed.shared_gate);
    }
}
