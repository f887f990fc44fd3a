//! Plans of the full-size network, which need no weights: how many kernels and stages a token takes, and what it moves.

use calla_gpu::estimate::Estimate;
use calla_gpu::plan::Summary;
use calla_model::budget::{
    Mlx4Bit, PartBytes, SizeParts, decode_state_bytes, decode_weight_bytes, kv_token_bytes,
};
use calla_model::{Network, Shape};
use calla_ops::SpanKind;

fn decode(sequences: usize, context: usize) -> Summary {
    let mut estimate = Estimate::new(&Shape::full(40)).unwrap();
    estimate.step(SpanKind::Decode, sequences, 1, context).unwrap().summary()
}

/// The least that a token must move: weights once, state in and out, keys and values of the context.
fn floor(context: usize) -> u64 {
    let shape = Shape::full(40);
    let network: Network<SizeParts> = Network::build(&shape, &mut Mlx4Bit { mtp: false }).unwrap();
    decode_weight_bytes(&shape, &PartBytes::of(&network))
        + decode_state_bytes(&shape, 2)
        + kv_token_bytes(&shape, 2) * (context as u64 + 1)
}

#[test]
fn a_token_at_4k_takes_few_kernels_and_stages() {
    let summary = decode(1, 4096);
    println!("{summary:?}");
    assert!(summary.total.kernels <= 310, "{} kernels", summary.total.kernels);
    assert!(summary.stages <= 270, "{} stages", summary.stages);
}

#[test]
fn a_token_moves_little_more_than_it_must() {
    for context in [128, 4096, 16_384] {
        let summary = decode(1, context);
        let (moved, least) =
            (summary.total.bytes_read + summary.total.bytes_written, floor(context));
        let ratio = moved as f64 / least as f64;
        println!("context {context}: {moved} bytes, at least {least}: {ratio:.4}");
        assert!((0.99..1.05).contains(&ratio), "context {context}: {ratio}");
    }
}
