//! What a random checkpoint computes: finite activations through 40 layers, and the promised load.

use calla_model::shape::schedule;
use calla_model::{Network, Shape, network::CheckpointParts};
use calla_ops::span::{Span, SpanKind};
use calla_ops::{Batch, CacheSize, Reference, Rows, forward, route};
use calla_weights::{Checkpoint, synth};

const TOKENS: usize = 64;

/// As deep as the published model, but narrow.
fn shape() -> Shape {
    Shape {
        vocab_size: 512,
        hidden: 128,
        layers: schedule(40, 4),
        attention_heads: 2,
        kv_heads: 1,
        delta_key_heads: 1,
        delta_value_heads: 2,
        experts: 64,
        top_k: 4,
        expert_hidden: 64,
        shared_hidden: 64,
        ..Shape::demo()
    }
}

fn network(skew: f32) -> Network<CheckpointParts> {
    let dir = tempfile::tempdir().unwrap();
    let options = synth::Options { shape: shape(), seed: 3, mtp: false, skew, tokenizer: None };
    let out = dir.path().join("model");
    synth(&options, &out, &|_, _| std::ops::ControlFlow::Continue(())).unwrap();
    Checkpoint::open(&out).unwrap().load().unwrap()
}

/// The residual stream after the embedding and each layer, and the logits; the stream's size is checked.
fn run(network: &Network<CheckpointParts>) -> (Vec<Rows>, Rows) {
    let shape = shape();
    let cache = CacheSize::one_sequence(TOKENS);
    let tokens = (0..TOKENS as u32).map(|i| i * 37 % 512).collect();
    let span = Span::new(SpanKind::Prefill, 0..TOKENS, 0, 0, vec![0]);
    let outputs = (0..TOKENS).collect();
    let batch = Batch::new(tokens, vec![span], outputs, shape.vocab_size, cache).unwrap();
    let mut stream = Vec::new();
    let mut ops = Reference::new(shape, cache).unwrap();
    let logits = forward(&mut ops, network, &batch, |_, x: &Rows| stream.push(x.clone()));
    assert_eq!(stream.len(), 41);
    for (layer, x) in stream.iter().enumerate() {
        let size = rms(x.as_slice());
        // A random walk of 80 steps of about the embedding's size.
        assert!((0.5..30.0).contains(&size), "size {size} after layer {layer}");
    }
    (stream, logits)
}

fn rms(values: &[f32]) -> f32 {
    (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt()
}

#[test]
fn activations_stay_finite_through_forty_layers() {
    let (_, logits) = run(&network(0.0));
    let spread = rms(logits.as_slice());
    assert!((0.5..10.0).contains(&spread), "logits of size {spread}");
}

/// Largest load of an expert over the mean load, averaged over the layers.
fn imbalance(skew: f32) -> f32 {
    let network = network(skew);
    let (stream, _) = run(&network);
    let shape = shape();
    let mut sum = 0.0;
    // The stream before the layer stands for the router's input, which the mixer has changed a little.
    for (layer, x) in network.layers.iter().zip(&stream) {
        let mut logits = Rows::zeros(TOKENS, shape.experts);
        let mut row = vec![0.0; shape.hidden];
        for expert in 0..shape.experts {
            layer.moe.gate.read_row(expert, &mut row);
            for token in 0..TOKENS {
                let x = x.row(token);
                let dot: f32 = x.iter().zip(&row).map(|(a, b)| a * b).sum();
                logits.row_mut(token)[expert] = dot / rms(x);
            }
        }
        let routing = route::reference(&logits, shape.top_k);
        let load = |expert| routing.pairs_of(expert).count();
        let largest = (0..shape.experts).map(load).max().unwrap();
        sum += largest as f32 * shape.experts as f32 / (TOKENS * shape.top_k) as f32;
    }
    sum / network.layers.len() as f32
}

#[test]
fn skew_loads_few_experts_more() {
    let (uniform, skewed) = (imbalance(0.0), imbalance(1.0));
    println!("largest load over mean load: {uniform} uniform, {skewed} skewed");
    // 64 tokens give each of 64 experts 4 rows on average; chance alone makes some expert's load 3 times that.
    assert!(uniform < 4.5, "{uniform}");
    assert!(skewed > 2.5 * uniform, "{skewed} over {uniform}");
}
