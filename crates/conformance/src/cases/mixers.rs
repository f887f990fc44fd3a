//! Gated DeltaNet and attention.

use super::{On, Verdict};
use crate::check::Check;
use crate::delta::{self, Inputs, Layer, Slots};
use crate::paged::{self, Sequences, gather};
use crate::temporaries::Temporaries;
use crate::{tolerance, values};
use calla_gpu::attention_decode::attention_decode;
use calla_gpu::attention_prefill::attention_prefill;
use calla_gpu::delta_prep::delta_prep;
use calla_gpu::delta_step::delta_step;
use calla_gpu::gated_delta::gated_delta;
use calla_gpu::qk_prep::qk_prep;
use calla_gpu::{Dtype, Rotations};
use calla_model::Shape;
use calla_ops::ops::DeltaTerms;
use calla_ops::{Batch, CacheSize, Rows, attention};
use calla_testkit::Random;

/// Rows of a head each.
fn by_head(rows: &Rows, width: usize) -> Rows {
    Rows::from_vec(width, rows.as_slice().to_vec())
}

fn same_slots(check: &mut Check, found: &Slots, due: &Slots) {
    check.within("states", &found.states, &due.states);
    check.identical("windows", &found.windows, &due.windows);
}

pub(super) fn delta_prep_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::DELTA_TERMS);
    let mut random = Random::new(40);
    let layer = Layer::new(device, delta::shape(2, 4), 40);
    let layout = delta::Layout::new(&mut random, &[33, 1, 9], false);
    let inputs = Inputs::new(&mut random, &layer.shape, layout.rows(), 0.0);
    let before = Slots::random(&mut random, &layer.shape, layout.slots);
    let mut after = before.clone();
    let due = delta::reference_terms(&layer, &inputs, &layout, &mut after);

    let [qkv, b, a] = inputs.upload(device);
    let slots = before.upload(device);
    let tables = layout.tables(device, &[]);
    let terms = delta::terms_output(device, &layer.shape, layout.rows());
    let dispatch = delta_prep(&layer.shape, qkv, b, a, &layer.gpu, &slots, &tables, &terms);
    values::run(device, &[dispatch]);
    for (what, found, due) in
        [("q", terms.q, &due.q), ("k", terms.k, &due.k), ("v", terms.v, &due.v)]
    {
        let found = delta::by_head(&values::rows(device, found));
        check.stored(what, &found, &delta::by_head(due));
    }
    check.within("strengths", &values::rows(device, terms.beta), &due.beta);
    check.within("decays", &values::rows(device, terms.log_decay), &due.log_decay);
    same_slots(&mut check, &Slots::download(device, &slots), &after);
    check.done()
}

pub(super) fn gated_delta_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::DELTA_STATE);
    let mut random = Random::new(41);
    let shape = delta::shape(2, 4);
    let layer = Layer::new(device, shape.clone(), 41);
    let layout = delta::Layout::new(&mut random, &[65, 7, 130], false);
    let inputs = Inputs::new(&mut random, &shape, layout.rows(), -4.0);
    let mut before = Slots::random(&mut random, &shape, layout.slots);
    let terms = delta::reference_terms(&layer, &inputs, &layout, &mut before);
    let [q, k, v] = [&terms.q, &terms.k, &terms.v].map(values::rounded);
    let terms = DeltaTerms { q, k, v, ..terms };
    let mut after = before.clone();
    let due = delta::reference_recurrence(&shape, &terms, &layout, &mut after, Some(64));

    let [q, k, v] = [&terms.q, &terms.k, &terms.v].map(|rows| values::bf16s(device, rows));
    let [beta, log_decay] = [&terms.beta, &terms.log_decay].map(|rows| values::f32s(device, rows));
    let uploaded = DeltaTerms { q, k, v, beta, log_decay };
    let slots = before.upload(device);
    let tables = layout.tables(device, &layout.chunks(|| 64));
    let out = values::output(device, layout.rows(), shape.delta_value_dim(), Dtype::Bf16);
    let dispatches = gated_delta(&shape, &uploaded, &slots, &tables, &mut Temporaries(device), out);
    values::run(device, &dispatches);
    let found = delta::by_head(&values::rows(device, out));
    check.stored("outputs", &found, &delta::by_head(&due));
    same_slots(&mut check, &Slots::download(device, &slots), &after);
    check.done()
}

pub(super) fn delta_step_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::DELTA_STEP);
    let mut random = Random::new(42);
    let layer = Layer::new(device, delta::shape(2, 4), 42);
    let layout = delta::Layout::new(&mut random, &[1, 4, 1], false);
    let inputs = Inputs::new(&mut random, &layer.shape, layout.rows(), 0.0);
    let before = Slots::random(&mut random, &layer.shape, layout.slots);
    let mut after = before.clone();
    let terms = delta::reference_terms(&layer, &inputs, &layout, &mut after);
    let due = delta::reference_recurrence(&layer.shape, &terms, &layout, &mut after, None);

    let [qkv, b, a] = inputs.upload(device);
    let slots = before.upload(device);
    let tables = layout.tables(device, &[]);
    let out = values::output(device, layout.rows(), layer.shape.delta_value_dim(), Dtype::F32);
    let dispatch = delta_step(&layer.shape, qkv, b, a, &layer.gpu, &slots, &tables, out);
    values::run(device, &[dispatch]);
    let found = delta::by_head(&values::rows(device, out));
    check.within("outputs", &found, &delta::by_head(&due));
    same_slots(&mut check, &Slots::download(device, &slots), &after);
    check.done()
}

pub(super) fn qk_prep_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::QK_PREP);
    let random = &mut Random::new(43);
    let shape = Shape { rms_norm_eps: 0.5, max_positions: 2000, ..paged::shape(8, 2) };
    let weights = paged::layer(&shape, 43);
    let layout = paged::Layout::without_history(random, &[0..1, 63..66, 510..514]);
    let rows = layout.rows();
    let mut inputs = |cols| values::rounded(&random.rows(rows, cols, 2.0));
    let (q_gate, k, v) =
        (inputs(2 * shape.query_dim()), inputs(shape.kv_dim()), inputs(shape.kv_dim()));
    let spans = layout.spans.clone();
    let size = CacheSize { pages: layout.pages, slots: spans.len() };
    let batch = Batch::new(vec![0; rows], spans, vec![], shape.vocab_size, size)
        .expect("spans over pages that there are");
    let due = calla_ops::qk_prep::reference(&shape, &q_gate, &k, &weights, &batch);
    // What nothing writes stays as it is, and is no NaN, which could not be compared.
    let mut before = layout.reference_pool(&shape);
    before.keys.fill(0.0);
    before.values.fill(0.0);
    let mut pool = before.clone();
    for span in batch.spans() {
        attention::append(&due.k, &v, span, &mut pool);
    }

    let gpu_weights = paged::upload_layer(device, &weights);
    let rotations = Rotations::upload(device, &shape)?;
    let tables = layout.tables(device, || 64);
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let mut upload = |rows: &Rows| match dtype {
            Dtype::F32 => values::f32s(device, rows),
            _ => values::bf16s(device, rows),
        };
        let (q_gate, k, v) = (upload(&q_gate), upload(&k), upload(&v));
        let paged = paged::upload(device, &shape, &before);
        let q = values::output(device, rows, shape.query_dim(), dtype);
        let dispatch = qk_prep(&shape, q_gate, k, v, &gpu_weights, &rotations, &tables, &paged, q);
        values::run(device, &[dispatch]);
        let found = by_head(&values::rows(device, q), 256);
        let q_due = by_head(&due.q, 256);
        match dtype {
            Dtype::F32 => check.within("queries in f32", &found, &q_due),
            _ => check.stored("queries in bf16", &found, &q_due),
        }
        for (what, found, due) in
            [("keys", paged.keys, &pool.keys), ("values", paged.values, &pool.values)]
        {
            let found = Rows::from_vec(256, paged::download(device, &shape, found));
            check.stored(what, &found, &Rows::from_vec(256, due.to_vec()));
        }
    }
    check.done()
}

/// Ranges of positions of three sequences, one in each.
const ROWS: [(usize, std::ops::Range<usize>); 3] = [(0, 253..259), (1, 66..70), (2, 0..1)];

fn sequences(random: &mut Random, rounded: bool) -> Sequences {
    Sequences::new(random, paged::shape(8, 2), &[300, 70, 1], rounded, 1.0)
}

pub(super) fn attention_prefill_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::ATTENTION_PREFILL);
    let random = &mut Random::new(44);
    let all = sequences(random, true);
    let (indices, positions): (Vec<usize>, Vec<_>) = ROWS.into_iter().unzip();
    let due = paged::reference(random, &all, &ROWS);
    let layout = paged::Layout::new(random, &positions);
    let pool = paged::upload(device, &all.shape, &all.pool(&layout, &indices));
    let tables = layout.tables(device, || 64);
    let q = values::bf16s(device, &gather(&layout, &indices, &all.q));
    let q_gate = values::bf16s(device, &gather(&layout, &indices, &all.q_gate));
    let out = values::output(device, layout.rows(), all.shape.query_dim(), Dtype::Bf16);
    let dispatch = attention_prefill(&all.shape, q, q_gate, &pool, &tables, 259, out);
    values::run(device, &[dispatch]);
    let found = by_head(&values::rows(device, out), 256);
    // The gate is of bf16 on the device, and of the same values here.
    check.stored("heads", &found, &by_head(&due, 256));
    check.done()
}

pub(super) fn attention_decode_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::ATTENTION_DECODE);
    let random = &mut Random::new(45);
    let all = sequences(random, false);
    let (indices, positions): (Vec<usize>, Vec<_>) = ROWS.into_iter().unzip();
    let due = paged::reference(random, &all, &ROWS);
    let layout = paged::Layout::new(random, &positions);
    let pool = paged::upload(device, &all.shape, &all.pool(&layout, &indices));
    let tables = layout.tables(device, || 64);
    let q = values::f32s(device, &gather(&layout, &indices, &all.q));
    let q_gate = values::f32s(device, &gather(&layout, &indices, &all.q_gate));
    let out = values::output(device, layout.rows(), all.shape.query_dim(), Dtype::F32);
    let scratch = &mut Temporaries(device);
    // Told of more positions than there are.
    let dispatches = attention_decode(&all.shape, q, q_gate, &pool, &tables, 500, scratch, out);
    values::run(device, &dispatches);
    check.within("heads", &by_head(&values::rows(device, out), 256), &by_head(&due, 256));
    check.done()
}
