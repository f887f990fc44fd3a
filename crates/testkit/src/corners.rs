//! Checks of single operations that do not fit one row in, one row out.

use crate::compare::{self, Mismatch};
use crate::conformance::{Model, ROW_COUNTS, Suite};
use crate::random::Random;
use crate::weights::{Formats, Stored, experts, matrix};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::experts::ExpertInput;
use calla_ops::ops::Ops;
use calla_ops::{Batch, CacheSize, Reference, Rows, Span, SpanKind};

const CACHE: CacheSize = CacheSize { pages: 8, slots: 2 };

fn batch(model: &Model, spans: Vec<Span>) -> Batch {
    let rows = spans.last().map_or(0, |s| s.rows.end);
    Batch::new(vec![0; rows], spans, (0..rows).collect(), model.shape.vocab_size, CACHE)
        .unwrap_or_else(|e| panic!("a batch of the suite: {e}"))
}

impl Suite {
    /// `select_rows` in any order, with repeats, and of nothing; `lm_head` of nothing.
    ///
    /// # Panics
    /// If it does not conform.
    pub fn selects_rows(&self) {
        self.each_model("select_rows", |suite, model| {
            let mut ops = (suite.backend)(&model.shape, CACHE);
            let x = Random::new(model.seed).rows(9, model.shape.hidden, 1.0);
            for rows in [vec![8, 0, 3, 3], vec![5], vec![], (0..9).collect()] {
                let data = rows.iter().flat_map(|&r: &usize| x.row(r)).copied().collect();
                let expected = Rows::from_vec(x.cols(), data);
                compare::identical(&ops.select_rows(&x, &rows), &expected)?;
            }
            let network = &model.network;
            let none = ops.lm_head(&x, &[], &network.norm, network.output_matrix());
            compare::identical(&none, &Rows::zeros(0, model.shape.vocab_size))
        });
    }

    /// `linear` and `expert_linear` in each of the 21 stored formats, at widths that are and are not
    /// multiples of common tiles.
    ///
    /// # Panics
    /// If it does not conform.
    pub fn multiplies_every_format(&self) {
        // Outputs by inputs. 384 holds whole groups of 128; 37 and 65 leave a rest after any tile.
        const SIZES: [(usize, usize); 3] = [(37, 384), (65, 192), (1, 32)];
        let model = &Model::new(crate::shapes::odd(), Formats::Published, 1);
        let mut ops = (self.backend)(&model.shape, CACHE);
        let mut reference = Reference::new(model.shape.clone(), CACHE).unwrap();
        for (seed, stored) in Stored::all().into_iter().enumerate() {
            for (outputs, inputs) in SIZES {
                let mut random = Random::new(seed as u64);
                let stored = stored.fit(inputs);
                let weight = matrix(&mut random, outputs, inputs, stored, 1.0);
                let count = model.shape.experts;
                let many = experts(&mut random, count, outputs, inputs, stored);
                for rows in ROW_COUNTS {
                    let x = random.rows(rows, inputs, 1.0);
                    let logits = random.rows(rows, count, 2.0);
                    let routing = reference.top_k_softmax(&logits);
                    let linear = compare::within(
                        &ops.linear(&x, &weight),
                        &reference.linear(&x, &weight),
                        self.tolerance.linear,
                    );
                    let by_expert = compare::within(
                        &ops.expert_linear(&x, ExpertInput::PerRow, &routing, &many),
                        &reference.expert_linear(&x, ExpertInput::PerRow, &routing, &many),
                        self.tolerance.linear,
                    );
                    for (name, result) in [("linear", linear), ("expert_linear", by_expert)] {
                        if let Err(mismatch) = result {
                            panic!(
                                "{name}, [{outputs}, {inputs}] in {stored}, {rows} rows, seed {seed}: \
                                 {mismatch}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// `top_k_softmax` exactly (ties by index); `route` up to near ties of router logits.
    ///
    /// # Panics
    /// If it does not conform.
    pub fn chooses_experts(&self) {
        self.each_model("route", |suite, model| {
            let (shape, tolerance) = (&model.shape, &suite.tolerance);
            let mut ops = (suite.backend)(shape, CACHE);
            let mut reference = Reference::new(shape.clone(), CACHE).unwrap();
            let mut random = Random::new(model.seed);

            // Half the logits from a few values only: many exact ties.
            let mut logits = random.rows(64, shape.experts, 2.0);
            for row in 0..32 {
                logits.row_mut(row).fill_with(|| random.range(0..=2) as f32);
            }
            let chosen = ops.top_k_softmax(&logits);
            compare::routing(&chosen, &logits, shape.top_k, 0.0, 1e-6)?;
            let due = reference.top_k_softmax(&logits);
            if let Some(pair) =
                (0..due.experts.len()).find(|&p| chosen.experts[p] != due.experts[p])
            {
                let (row, rank) = (pair / shape.top_k, pair % shape.top_k);
                let problem = format!("expert {} of equals", chosen.experts[pair]);
                return Err(Mismatch::Routing { row, rank, problem });
            }

            for layer in &model.network.layers {
                let x = random.rows(200, shape.hidden, 1.5);
                let norm = &layer.post_attention_layernorm;
                let routed = ops.route(&x, norm, &layer.moe);
                let h = reference.rms_norm(&x, norm);
                compare::within(&routed.h, &h, tolerance.elementwise)?;
                let gate = reference.linear(&h, &layer.moe.shared_expert_gate);
                compare::within(&routed.shared_gate, &gate, tolerance.linear)?;
                let logits = reference.linear(&h, &layer.moe.gate);
                let (tie, weight) = (tolerance.router_tie, tolerance.router_weight);
                compare::routing(&routed.routing, &logits, shape.top_k, tie, weight)?;
            }
            Ok(())
        });
    }

    /// `qk_prep` up to the end of the published context: angles must not be rounded to f32 first.
    ///
    /// # Panics
    /// If it does not conform.
    pub fn rotates_far_positions(&self) {
        self.each_model("qk_prep far out", |suite, model| {
            let shape = &model.shape;
            let mut random = Random::new(model.seed);
            let mut ops = (suite.backend)(shape, CACHE);
            let mut reference = Reference::new(shape.clone(), CACHE).unwrap();
            for position in [4_095, 65_536, 200_003, 262_143 - 3] {
                // A page that is only read may repeat, so two pages make a table of any length.
                let last = (position + 3) / PAGE_TOKENS;
                let mut pages = vec![0; last + 1];
                pages[position / PAGE_TOKENS] = 1;
                pages[last] = if last == position / PAGE_TOKENS { 1 } else { 2 };
                let batch =
                    batch(model, vec![Span::new(SpanKind::Prefill, 0..3, position, 0, pages)]);
                let q_gate = random.rows(3, 2 * shape.query_dim(), 1.0);
                let k = random.rows(3, shape.kv_dim(), 1.0);
                let weights = model.attention().1;
                let actual = ops.qk_prep(&q_gate, &k, weights, &batch);
                let expected = reference.qk_prep(&q_gate, &k, weights, &batch);
                compare::within(&actual.q, &expected.q, suite.tolerance.elementwise)?;
                compare::within(&actual.k, &expected.k, suite.tolerance.elementwise)?;
            }
            Ok(())
        });
    }

    /// Large, tiny and zero inputs: no NaN, no infinity, the reference's values.
    ///
    /// # Panics
    /// If it does not conform.
    pub fn survives_extremes(&self) {
        self.each_model("extreme values", |suite, model| {
            let bound = suite.tolerance.elementwise;
            let shape = &model.shape;
            let mut ops = (suite.backend)(shape, CACHE);
            let mut reference = Reference::new(shape.clone(), CACHE).unwrap();
            let mut random = Random::new(model.seed);
            for scale in [0.0, 1e-12, 1e-4, 1e4, 1e12] {
                let x = random.rows(5, shape.hidden, scale);
                let norm = &model.network.norm;
                compare::within(&ops.rms_norm(&x, norm), &reference.rms_norm(&x, norm), bound)?;
                let weight = &model.network.layers[0].moe.gate;
                let linear = self_linear_bound(suite, scale);
                compare::within(&ops.linear(&x, weight), &reference.linear(&x, weight), linear)?;
            }
            // Both ends of the sigmoid, and where exp overflows.
            let ends = [-1e30, -200.0, -88.8, -20.0, -0.0, 20.0, 88.8, 200.0, 1e18];
            let gate = Rows::from_vec(1, ends.to_vec());
            let up = Rows::from_vec(1, vec![1.0; ends.len()]);
            compare::within(&ops.swiglu(&gate, &up), &reference.swiglu(&gate, &up), bound)?;

            let (_, weights) = model.delta();
            let qkv = Rows::zeros(ends.len(), shape.conv_dim());
            let each = |&v: &f32| std::iter::repeat_n(v, shape.delta_value_heads);
            let gates =
                Rows::from_vec(shape.delta_value_heads, ends.iter().flat_map(each).collect());
            let actual = ops.delta_prep(&qkv, &gates, &gates, weights);
            let expected = reference.delta_prep(&qkv, &gates, &gates, weights);
            compare::within(&actual.k, &expected.k, bound)?;
            compare::within(&actual.beta, &expected.beta, bound)?;
            compare::within(&actual.log_decay, &expected.log_decay, bound)?;

            // Scores far apart, so that all weight falls on one position.
            let span = Span::new(SpanKind::Prefill, 0..70, 0, 1, vec![2, 5]);
            let batch = batch(model, vec![span]);
            let q = random.rows(70, shape.query_dim(), 100.0);
            let k = random.rows(70, shape.kv_dim(), 100.0);
            let v = random.rows(70, shape.kv_dim(), 1.0);
            ops.kv_append(&k, &v, 0, &batch);
            reference.kv_append(&k, &v, 0, &batch);
            let actual = ops.attention(&q, 0, &batch);
            // A score of 10^5 has an error of 10^-2 in f32, so only finiteness and size can be asked for.
            compare::within(&actual, &reference.attention(&q, 0, &batch), 10.0).map(|_| ())
        });
    }

    /// Two sequences read one prefix page while each writes its own.
    ///
    /// # Panics
    /// If it does not conform.
    pub fn shares_prefix_pages(&self) {
        self.each_model("attention over a shared page", |suite, model| {
            let shape = &model.shape;
            let mut ops = (suite.backend)(shape, CACHE);
            let mut reference = Reference::new(shape.clone(), CACHE).unwrap();
            let mut random = Random::new(model.seed);
            let span = |rows, position, slot, pages: &[usize]| {
                Span::new(SpanKind::Prefill, rows, position, slot, pages.to_vec())
            };
            for spans in [
                vec![span(0..64, 0, 0, &[6])],
                vec![span(0..1, 64, 1, &[6, 3]), span(1..8, 64, 0, &[6, 4])],
                vec![span(0..9, 71, 0, &[6, 4]), span(9..10, 65, 1, &[6, 3])],
            ] {
                let batch = batch(model, spans);
                let q = random.rows(batch.rows(), shape.query_dim(), 1.0);
                let k = random.rows(batch.rows(), shape.kv_dim(), 1.0);
                let v = random.rows(batch.rows(), shape.kv_dim(), 1.0);
                ops.kv_append(&k, &v, 0, &batch);
                reference.kv_append(&k, &v, 0, &batch);
                let (actual, expected) =
                    (ops.attention(&q, 0, &batch), reference.attention(&q, 0, &batch));
                compare::within(&actual, &expected, suite.tolerance.attention)?;
            }
            Ok(())
        });
    }
}

/// Subnormal products lose digits, so inputs of 1e-12 are only required to stay that small.
fn self_linear_bound(suite: &Suite, scale: f32) -> f32 {
    if scale < 1e-10 { 1.0 } else { suite.tolerance.linear }
}
