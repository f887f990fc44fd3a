//! Draws on the device against those of the reference.

mod common;

use calla_gpu::Dtype;
use calla_gpu::sample::{Sampler, sample};
use calla_gpu::top_candidates::{Candidates, NO_TOKEN, top_candidates};
use calla_ops::Rows;
use calla_ops::sample::{Allowed, History, Sampling, choose};
use calla_testkit::Random;
use common::TestDevice;
use common::temporaries::Temporaries;

/// A row's parameters and number of tokens so far.
type Draw = (Sampling, u64);

fn run(device: &mut TestDevice, logits: &Rows, vocab_used: usize, draws: &[Draw]) -> Vec<u32> {
    let input = common::f32s(device, logits);
    let samplers: Vec<Sampler> = draws
        .iter()
        .map(|(sampling, generated)| Sampler::new(sampling, *generated).expect("no penalties"))
        .collect();
    let samplers = common::u32s(device, bytemuck::cast_slice(&samplers), 8);
    let candidates = Candidates::new(&mut Temporaries(device), input.rows);
    let out = common::output(device, draws.len(), 1, Dtype::U32);
    let mut dispatches =
        top_candidates(input, vocab_used as u32, &mut Temporaries(device), &candidates);
    dispatches.push(sample(&candidates, samplers, out));
    common::run(device, &dispatches);
    common::integers(device, out)
}

fn expected(logits: &Rows, vocab_used: usize, draws: &[Draw]) -> Vec<u32> {
    let row = |(row, (sampling, generated)): (&[f32], &Draw)| {
        let mut history = History::default();
        for _ in 0..*generated {
            history.push(0);
        }
        choose(row, vocab_used, sampling, &history, Allowed::all()).unwrap_or(NO_TOKEN)
    };
    logits.iter().zip(draws).map(row).collect()
}

fn random_sampling(random: &mut Random) -> Sampling {
    Sampling {
        temperature: *random.pick(&[0.0, 0.05, 0.3, 0.6, 0.7, 1.0, 1.5, 100.0]),
        top_k: *random.pick(&[1, 2, 5, 20, 20, 40, 63, 64]),
        top_p: *random.pick(&[1.0, 1.0, 0.95, 0.8, 0.5, 0.1, 0.0]),
        min_p: *random.pick(&[0.0, 0.0, 0.0, 0.05, 0.2, 0.9, 1.0]),
        seed: random.bits(),
        ..Sampling::greedy()
    }
}

fn random_draw(random: &mut Random) -> Draw {
    (random_sampling(random), random.range(0..=300) as u64)
}

#[test]
fn every_draw_is_the_references() {
    let Some(mut device) = common::device() else { return };
    for (seed, (rows, vocab, used)) in
        (0..).zip([(2000, 777, 777), (600, 4096, 4090), (50, 30, 30), (12, 248_320, 248_077)])
    {
        let mut random = Random::new(seed);
        let draws: Vec<Draw> = (0..rows).map(|_| random_draw(&mut random)).collect();
        let logits = random.rows(rows, vocab, 4.0);
        let actual = run(&mut device, &logits, used, &draws);
        let expected = expected(&logits, used, &draws);
        for (row, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            assert_eq!(actual, expected, "{vocab} logits, row {row}: {:?}", draws[row]);
        }
    }
}

/// Of two tokens the logit at which one draw becomes another is between two neighbours in f32, where the draw lies within
/// some 1e-7 of the edge: weights that were rounded to f32 would be on the wrong side of many.
#[test]
fn draws_at_an_edge_are_the_references() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(33);
    let (mut logits, mut draws) = (vec![], vec![]);
    for _ in 0..300 {
        let sampling = Sampling {
            temperature: *random.pick(&[0.3, 0.7, 1.0, 1.7]),
            top_k: 2,
            seed: random.bits(),
            ..Sampling::greedy()
        };
        let chosen = |logit: f32| {
            let row = [0.0, logit];
            choose(&row, 2, &sampling, &History::default(), Allowed::all()).expect("numbers")
        };
        // A logit of 0 weighs as much as the other token; the draws of half of the seeds change with less.
        let (mut low, mut high) = (-20.0_f32, 0.0_f32);
        if chosen(low) == chosen(high) {
            continue;
        }
        while high.next_down() > low {
            let middle = (low + high) / 2.0;
            *(if chosen(middle) == chosen(low) { &mut low } else { &mut high }) = middle;
        }
        for logit in [low, high] {
            logits.extend([0.0, logit]);
            draws.push((sampling.clone(), 0));
        }
    }
    assert!(draws.len() > 200, "{} draws at an edge", draws.len());
    let logits = Rows::from_vec(2, logits);
    assert_eq!(run(&mut device, &logits, 2, &draws), expected(&logits, 2, &draws));
}

/// Equal logits are cut and drawn in the order of tokens, and so are those whose distance to the largest is rounded to
/// the same number.
#[test]
fn ties_go_to_the_lower_token() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(30);
    let draws: Vec<Draw> = (0..400).map(|_| random_draw(&mut random)).collect();
    let sizes = [1.0, 1e-6];
    let values = (0..400 * 90).map(|i| {
        let largest = if i % 90 / 5 == 8 { 16.0 } else { 0.0 };
        largest + random.pick(&sizes) * random.range(0..=6) as f32
    });
    let logits = Rows::from_vec(90, values.collect());
    // A sum of equal weights may be exactly what `top_p` asks for, and rounding decides.
    let draws: Vec<Draw> =
        draws.into_iter().map(|(sampling, n)| (Sampling { top_p: 1.0, ..sampling }, n)).collect();
    assert_eq!(run(&mut device, &logits, 90, &draws), expected(&logits, 90, &draws));
}

#[test]
fn draws_do_not_depend_on_the_order_of_threads_or_on_neighbours() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(31);
    let draws: Vec<Draw> = (0..8).map(|_| random_draw(&mut random)).collect();
    let logits = random.rows(8, 5000, 4.0);
    let all = run(&mut device, &logits, 5000, &draws);
    for order in common::ORDERS {
        device.set_order(order);
        assert_eq!(run(&mut device, &logits, 5000, &draws), all);
    }
    for row in 0..8 {
        let one = Rows::from_vec(5000, logits.row(row).to_vec());
        assert_eq!(run(&mut device, &one, 5000, &draws[row..=row]), all[row..=row]);
    }
}

#[test]
fn a_row_of_noise_gives_no_token() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(32);
    let mut logits = random.rows(4, 100, 2.0);
    logits.row_mut(0)[7] = f32::NAN;
    logits.row_mut(2)[99] = f32::INFINITY;
    let draws: Vec<Draw> = (0..4).map(|_| random_draw(&mut random)).collect();
    let actual = run(&mut device, &logits, 100, &draws);
    assert_eq!(actual, expected(&logits, 100, &draws));
    assert_eq!(actual.iter().filter(|&&token| token == NO_TOKEN).count(), 2);
}

#[test]
fn what_a_device_cannot_draw_is_left_to_the_host() {
    let warm = || Sampling { temperature: 1.0, top_k: 20, ..Sampling::greedy() };
    assert!(Sampler::new(&warm(), 0).is_some());
    assert!(Sampler::new(&Sampling::greedy(), 0).is_some());
    let left = [
        Sampling { top_k: 0, ..warm() },
        Sampling { top_k: 65, ..warm() },
        Sampling { presence_penalty: 0.1, ..warm() },
        Sampling { frequency_penalty: 0.1, ..Sampling::greedy() },
        Sampling { repetition_penalty: 1.1, ..warm() },
        Sampling { logit_bias: [(1, 2.0)].into(), ..warm() },
    ];
    for sampling in left {
        assert!(Sampler::new(&sampling, 0).is_none(), "{sampling:?}");
    }
}

/// No reply is that long, and no reference counts so far, but the other half of the counter is there to count.
#[test]
fn both_halves_of_the_counter_count() {
    let Some(mut device) = common::device() else { return };
    let logits = Rows::zeros(32, 64);
    let draws = |generated: u64| -> Vec<Draw> {
        let sampling = |seed| Sampling { temperature: 1.0, top_k: 64, seed, ..Sampling::greedy() };
        (0..32).map(|seed| (sampling(seed), generated)).collect()
    };
    let mut seen = vec![];
    for generated in [5, 6, 5 | 1 << 32, 5 | 1 << 63] {
        let tokens = run(&mut device, &logits, 64, &draws(generated));
        assert!(!seen.contains(&tokens), "counter {generated} draws what another does");
        seen.push(tokens);
    }
}
