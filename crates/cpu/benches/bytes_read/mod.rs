//! Bytes of weights that a step reads, for all benchmarks.

use calla_model::network::{CheckpointParts, Mixer};
use calla_model::{Matrix, Network};

/// Bytes of weights that a batch of one-row sequences reads once each, when its rows meet `experts` distinct
/// routed experts in a layer.
pub(crate) fn bytes_read(network: &Network<CheckpointParts>, experts: f64) -> f64 {
    let size = |list: &[&Matrix]| list.iter().map(|m| m.size_bytes()).sum::<usize>() as f64;
    let mut bytes = size(&[network.output_matrix()]);
    for layer in &network.layers {
        bytes += match &layer.mixer {
            Mixer::DeltaNet(w) => {
                size(&[&w.in_proj_qkv, &w.in_proj_z, &w.in_proj_b, &w.in_proj_a, &w.out_proj])
            }
            Mixer::Attention(w) => size(&[&w.q_proj, &w.k_proj, &w.v_proj, &w.o_proj]),
        };
        let moe = &layer.moe;
        bytes += size(&[
            &moe.gate,
            &moe.shared_expert_gate,
            &moe.shared_gate_proj,
            &moe.shared_up_proj,
            &moe.shared_down_proj,
        ]);
        bytes += experts * size(&[&moe.gate_proj, &moe.up_proj, &moe.down_proj].map(|e| e.get(0)));
    }
    bytes
}
