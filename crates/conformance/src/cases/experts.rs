//! The mixture of experts: the choice, rows by expert, their products, the weighted sum.

use super::{On, Verdict};
use crate::check::Check;
use crate::temporaries::Temporaries;
use crate::{quantised, routed, tolerance, values};
use calla_gpu::combine::combine;
use calla_gpu::expert_qmm::{expert_qmm_down, expert_qmm_up};
use calla_gpu::expert_qmv::{expert_qmv_down, expert_qmv_up};
use calla_gpu::expert_qmv_grouped::{expert_qmv_grouped_down, expert_qmv_grouped_up};
use calla_gpu::group_rows::group_rows;
use calla_gpu::top_k::top_k;
use calla_gpu::{Dtype, Grouped};
use calla_model::{Experts, Shape};
use calla_ops::experts::{ExpertInput, expert_linear};
use calla_ops::route::{self, Routing};
use calla_ops::{Rows, linear, rms_norm, swiglu};
use calla_testkit::{Random, compare};

/// Far larger than in models, so that it counts.
const EPS: f32 = 0.5;

pub(super) fn top_k_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(0.0);
    for (seed, (rows, experts, top)) in (20..).zip([(7, 32, 8), (65, 256, 8), (5, 20, 5)]) {
        let logits = Random::new(seed).rows(rows, experts, 2.0);
        let routing = routed::undefined(device, rows, top);
        let input = values::f32s(device, &logits);
        values::run(device, &[top_k(&routed::shape(experts, top), input, &routing)]);
        let chosen = routed::read(device, &routing);
        let what = format!("{top} of {experts}");
        check.equal(&what, &chosen.experts, &route::reference(&logits, top).experts);
        let weights = compare::routing(&chosen, &logits, top, 0.0, tolerance::ROUTING);
        check.holds(&what, weights);
    }
    check.done()
}

/// Routing of which some experts have much more than others.
fn skewed(random: &mut Random, rows: usize, experts: usize, top: usize) -> Routing {
    let mut logits = random.rows(rows, experts, 1.0);
    for row in logits.iter_mut() {
        row[0] += 2.0;
        row[experts / 2] += 1.0;
    }
    route::reference(&logits, top)
}

/// Pairs by expert as `group_rows` is to sort them: pairs, offsets, blocks.
fn sorted(routing: &Routing, experts: usize, block_rows: u32) -> [Vec<u32>; 3] {
    let (mut pairs, mut offsets, mut blocks) = (vec![], vec![0], vec![]);
    for expert in 0..experts {
        let mut first = pairs.len() as u32;
        pairs.extend(routing.pairs_of(expert).map(|pair| pair as u32));
        let end = pairs.len() as u32;
        offsets.push(end);
        while first < end {
            let count = block_rows.min(end - first);
            blocks.extend([expert as u32, first, count, 0]);
            first += count;
        }
    }
    [pairs, offsets, blocks]
}

pub(super) fn group_rows_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(0.0);
    let mut random = Random::new(23);
    // Few pairs are sorted by one threadgroup, more than 1024 in chunks.
    for (rows, experts, top, block_rows) in [(9, 32, 8, 32), (300, 256, 8, 64)] {
        let shape = routed::shape(experts, top);
        let routing = skewed(&mut random, rows, experts, top);
        let [pairs, offsets, mut blocks] = sorted(&routing, experts, block_rows);
        let routing = routed::upload(device, &routing);
        let grouped = Grouped::new(&shape, routing.pairs(), block_rows, &mut Temporaries(device));
        let dispatches = group_rows(&shape, &routing, &grouped, &mut Temporaries(device));
        values::run(device, &dispatches);
        let what = |part: &str| format!("{part} of {rows} rows");
        let count = values::integers(device, grouped.block_count);
        check.equal(&what("block count"), &count, &[blocks.len() as u32 / 4]);
        check.equal(&what("pairs"), &values::integers(device, grouped.pairs), &pairs);
        check.equal(&what("offsets"), &values::integers(device, grouped.offsets), &offsets);
        blocks.resize(4 * grouped.blocks.rows as usize, 0);
        check.equal(&what("blocks"), &values::integers(device, grouped.blocks), &blocks);
    }
    check.done()
}

/// Rows at `indices`.
fn select(x: &Rows, indices: &[u32]) -> Rows {
    let values = indices.iter().flat_map(|&row| x.row(row as usize).iter().copied());
    Rows::from_vec(x.cols(), values.collect())
}

/// `x[i]` at row `indices[i]`.
fn scatter(x: &Rows, indices: &[u32]) -> Rows {
    let mut out = Rows::zeros(x.rows(), x.cols());
    for (row, &index) in x.iter().zip(indices) {
        out.row_mut(index as usize).copy_from_slice(row);
    }
    out
}

pub(super) fn expert_qmm_case(device: On<'_>) -> Verdict {
    let (rows, experts, top, hidden, inner) = (70, 20, 5, 192, 64);
    let mut random = Random::new(24);
    let shape = Shape { hidden, experts, top_k: top, expert_hidden: inner, ..Shape::demo() };
    let x = values::rounded(&random.rows(rows, hidden, 1.0));
    let routing = skewed(&mut random, rows, experts, top);
    let gate = quantised::experts(&mut random, experts, inner, hidden, 4);
    let up = quantised::experts(&mut random, experts, inner, hidden, 8);
    let down = quantised::experts(&mut random, experts, hidden, inner, 4);
    let product = |experts: &Experts| expert_linear(&x, ExpertInput::PerRow, &routing, experts);
    let due_up = swiglu::reference(&product(&gate), &product(&up));
    let acts = values::rounded(&random.rows(rows * top, inner, 1.0));

    let input = values::bf16s(device, &x);
    let [gate, up] = [&gate, &up].map(|experts| values::experts(device, experts));
    let gpu_down = values::experts(device, &down);
    let gpu_acts = values::bf16s(device, &acts);
    let mut check = Check::new(tolerance::QMM_SWIGLU);
    for block_rows in [32, 64] {
        let [pairs, offsets, mut blocks] = sorted(&routing, experts, block_rows);
        let grouped =
            Grouped::new(&shape, pairs.len() as u32, block_rows, &mut Temporaries(device));
        let count = vec![blocks.len() as u32 / 4];
        blocks.resize(4 * grouped.blocks.rows as usize, 0);
        for (tensor, values) in [
            (grouped.pairs, &pairs),
            (grouped.offsets, &offsets),
            (grouped.blocks, &blocks),
            (grouped.block_count, &count),
        ] {
            values::write_u32s(device, tensor, values);
        }
        let out = values::output(device, pairs.len(), inner, Dtype::Bf16);
        let summed = values::output(device, pairs.len(), hidden, Dtype::F32);
        let dispatches = [
            expert_qmm_up(&shape, input, &gate, &up, &grouped, out),
            expert_qmm_down(&shape, gpu_acts, &gpu_down, &grouped, summed),
        ];
        values::run(device, &dispatches);
        let what = |part: &str| format!("{part}, blocks of {block_rows}");
        let due = select(&due_up, &pairs);
        check.rounded(&what("up"), &values::rows(device, out), &due);
        let by_pair = scatter(&acts, &pairs);
        let due = expert_linear(&by_pair, ExpertInput::PerPair, &routing, &down);
        check.within(&what("down"), &values::rows(device, summed), &due);
    }
    check.done()
}

pub(super) fn expert_qmv_case(device: On<'_>) -> Verdict {
    decoded(device, 3, false)
}

pub(super) fn expert_qmv_grouped_case(device: On<'_>) -> Verdict {
    decoded(device, 19, true)
}

/// Experts of decoded rows, each by itself or by experts.
fn decoded(device: On<'_>, rows: usize, grouped: bool) -> Verdict {
    let (experts, top, hidden, inner) = (20, 5, 192, 64);
    let mut random = Random::new(25);
    let shape = Shape {
        hidden,
        experts,
        top_k: top,
        expert_hidden: inner,
        shared_hidden: 128,
        ..Shape::demo()
    };
    let x = random.rows(rows, hidden, 3.0);
    let logits = random.rows(rows, experts, 2.0);
    let norm: Vec<f32> = (0..hidden).map(|_| random.uniform(0.5, 1.5)).collect();
    let gate = quantised::experts(&mut random, experts, inner, hidden, 4);
    let up = quantised::experts(&mut random, experts, inner, hidden, 8);
    let down = quantised::experts(&mut random, experts, hidden, inner, 4);
    let shared_down = quantised::matrix(&mut random, hidden, shape.shared_hidden, 4);
    let shared_acts = random.rows(rows, shape.shared_hidden, 1.0);
    let shared_gate = random.rows(rows, 1, 2.0);

    let routing = route::reference(&logits, top);
    let y = rms_norm::reference(&x, &norm, EPS);
    let product = |experts: &Experts| expert_linear(&y, ExpertInput::PerRow, &routing, experts);
    let due_acts = swiglu::reference(&product(&gate), &product(&up));
    let outputs = expert_linear(&due_acts, ExpertInput::PerPair, &routing, &down);
    let shared = linear::reference(&shared_acts, &shared_down);
    let mut due = x.clone();
    calla_ops::experts::combine(&mut due, &outputs, &routing, &shared, &shared_gate);

    let gpu_x = values::f32s(device, &x);
    let norm = values::vector(device, &norm);
    let gpu_logits = values::f32s(device, &logits);
    let [gate, up, down] = [&gate, &up, &down].map(|experts| values::experts(device, experts));
    let shared_down = values::matrix(device, &shared_down);
    let chosen = routed::undefined(device, rows, top);
    let acts = values::output(device, rows * top, inner, Dtype::F32);
    // Down is given what it is due, so that each kernel is judged by itself.
    let given = routed::upload(device, &routing);
    let given_acts = values::f32s(device, &due_acts);
    let shared_acts = values::f32s(device, &shared_acts);
    let shared_gate = values::f32s(device, &shared_gate);
    let out = values::f32s(device, &x);
    let mut dispatches = vec![];
    if grouped {
        let outputs = values::output(device, rows * top, hidden, Dtype::F32);
        let shared = values::output(device, rows, hidden, Dtype::F32);
        dispatches.push(top_k(&shape, gpu_logits, &chosen));
        dispatches.push(expert_qmv_grouped_up(&shape, gpu_x, norm, EPS, &chosen, &gate, &up, acts));
        dispatches.push(expert_qmv_grouped_down(
            &shape,
            given_acts,
            &given,
            shared_acts,
            &down,
            &shared_down,
            outputs,
            shared,
        ));
        dispatches.push(combine(&shape, out, outputs, &given, shared, shared_gate));
    } else {
        dispatches
            .push(expert_qmv_up(&shape, gpu_x, norm, EPS, gpu_logits, &gate, &up, &chosen, acts));
        dispatches.push(expert_qmv_down(
            &shape,
            given_acts,
            &given,
            shared_acts,
            shared_gate,
            &down,
            &shared_down,
            out,
        ));
    }
    values::run(device, &dispatches);
    let mut check = Check::new(tolerance::EXPERT_QMV_UP);
    check.equal("experts", &routed::read(device, &chosen).experts, &routing.experts);
    check.within("up", &values::rows(device, acts), &due_acts);
    check.within("down", &values::rows(device, out), &due);
    check.done()
}

pub(super) fn combine_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::COMBINE);
    let mut random = Random::new(26);
    let shape = Shape { hidden: 192, ..routed::shape(20, 5) };
    let rows = 33;
    let x = random.rows(rows, 192, 1.0);
    let outputs = random.rows(rows * 5, 192, 1.0);
    let routing = skewed(&mut random, rows, 20, 5);
    let (shared, gate) = (random.rows(rows, 192, 1.0), random.rows(rows, 1, 3.0));
    let mut due = x.clone();
    calla_ops::experts::combine(&mut due, &outputs, &routing, &shared, &gate);
    let out = values::f32s(device, &x);
    let outputs = values::f32s(device, &outputs);
    let routing = routed::upload(device, &routing);
    let (shared, gate) = (values::f32s(device, &shared), values::f32s(device, &gate));
    values::run(device, &[combine(&shape, out, outputs, &routing, shared, gate)]);
    check.within("sums", &values::rows(device, out), &due);
    check.done()
}
