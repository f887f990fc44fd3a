//! Decode steps that follow one another without the host: they are the steps that the host would have asked for.

mod common;

use calla_gpu::sample::Sampler;
use calla_gpu::{Choice, GpuRunner, RunnerSize};
use calla_ops::sample::{Allowed, History, Sampling, argmax, choose};
use calla_ops::{Batch, MultiStep, RowSampler, Rows, Runner, SpanKind, StepError};
use common::TestDevice;
use common::sequences::{self, Home, copy, decode, decode_batch, prefill, span, state};

/// Sequences of a test: those that only hold prompts, those that the host drives, those that the device does.
struct Sequences {
    runner: GpuRunner<TestDevice>,
    homes: Vec<Home>,
    prompts: Vec<Vec<u32>>,
    /// After the prompts.
    logits: Rows,
}

const COUNT: usize = 3;
const VOCAB_USED: usize = 4090;

impl Sequences {
    /// With the prompts in the first homes.
    fn new(drafting: bool) -> Option<Self> {
        let (homes, cache) = sequences::homes(3 * COUNT);
        let mut runner = sequences::demo(RunnerSize { cache, sequences: COUNT, drafting })?;
        let recorded = sequences::recorded(COUNT).into_iter();
        let prompts: Vec<Vec<u32>> = recorded.map(|(ids, len)| ids[..len].to_vec()).collect();
        let all: Vec<(&Home, &[u32])> =
            homes.iter().zip(&prompts).map(|(home, prompt)| (home, prompt.as_slice())).collect();
        let logits = prefill(&mut runner, &all);
        Some(Self { runner, homes, prompts, logits })
    }

    fn by_host(&self, i: usize) -> Home {
        self.homes[COUNT + i].clone()
    }

    fn by_device(&self, i: usize) -> Home {
        self.homes[2 * COUNT + i].clone()
    }

    /// All sequences are again where their prompts end.
    fn rewind(&mut self) {
        for i in 0..COUNT {
            let (prompt, homes) = (self.homes[i].clone(), [self.by_host(i), self.by_device(i)]);
            for home in homes {
                copy(&mut self.runner, &prompt, &home);
            }
        }
    }

    /// The first token of the reply to prompt `i`.
    fn first(&self, i: usize) -> u32 {
        argmax(&self.logits.row(i)[..VOCAB_USED])
    }

    /// The batch of the first step of `sequences` in their places for the device.
    fn first_step(&self, sequences: &[usize]) -> Batch {
        let homes: Vec<Home> = sequences.iter().map(|&i| self.by_device(i)).collect();
        let rows: Vec<(&Home, u32, usize)> = homes
            .iter()
            .zip(sequences)
            .map(|(home, &i)| (home, self.first(i), self.prompts[i].len()))
            .collect();
        decode_batch(&self.runner, &rows)
    }

    /// Tokens that the host chooses, one step after the other.
    fn step_by_step(&mut self, samplings: &[Sampling], steps: usize) -> Vec<Vec<u32>> {
        let homes: Vec<Home> = (0..samplings.len()).map(|i| self.by_host(i)).collect();
        let mut next: Vec<u32> = (0..samplings.len()).map(|i| self.first(i)).collect();
        let mut histories: Vec<History> =
            self.prompts.iter().map(|prompt| History::of_prompt(prompt)).collect();
        let mut tokens = vec![vec![]; samplings.len()];
        for (history, &token) in histories.iter_mut().zip(&next) {
            history.push(token);
        }
        for step in 0..steps {
            let rows: Vec<(&Home, u32, usize)> = (0..)
                .zip(&homes)
                .map(|(i, home)| (home, next[i], self.prompts[i].len() + step))
                .collect();
            let logits = decode(&mut self.runner, &rows);
            for (i, sampling) in samplings.iter().enumerate() {
                let (row, history) = (logits.row(i), &mut histories[i]);
                next[i] =
                    choose(row, VOCAB_USED, sampling, history, Allowed::all()).expect("a token");
                history.push(next[i]);
                tokens[i].push(next[i]);
            }
        }
        tokens
    }

    fn generate(&mut self, sequences: &[usize], choice: Choice<'_>, steps: usize) -> Vec<Vec<u32>> {
        let batch = self.first_step(sequences);
        self.runner
            .generate(&batch, choice, VOCAB_USED, steps)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same, as the engine asks for it. One token is there already.
    fn multi_step(
        &mut self,
        samplings: &[Sampling],
        steps: usize,
    ) -> Result<Vec<Vec<u32>>, StepError> {
        let all: Vec<usize> = (0..samplings.len()).collect();
        let batch = self.first_step(&all);
        let sampler = |sampling: &Sampling| RowSampler { sampling: sampling.clone(), generated: 1 };
        let samplers = samplings.iter().map(sampler).collect();
        self.runner.multi_step(&MultiStep { batch, samplers, vocab_used: VOCAB_USED, steps })
    }

    fn same_states(&mut self, count: usize) {
        for i in 0..count {
            let (host, device) = (self.by_host(i), self.by_device(i));
            let (host, device) = (state(&mut self.runner, &host), state(&mut self.runner, &device));
            assert!(host == device, "sequence {i} of {count} has another state");
        }
    }
}

/// Draws of all kinds: sequence 0 is greedy where there are others.
fn samplings(count: usize) -> Vec<Sampling> {
    let sampling = |i: usize| Sampling {
        temperature: if i == 0 && count > 1 { 0.0 } else { 4.0 },
        top_k: 50 - i,
        top_p: 1.0 - 0.01 * i as f32,
        min_p: 0.001 * i as f32,
        seed: 7 + i as u64,
        ..Sampling::greedy()
    };
    (0..count).map(sampling).collect()
}

#[test]
fn steps_without_the_host_are_those_with_it() {
    let Some(mut sequences) = Sequences::new(true) else { return };
    for (count, steps) in [(1, 6), (COUNT, 5)] {
        let all: Vec<usize> = (0..count).collect();
        sequences.rewind();
        let greedy = sequences.step_by_step(&vec![Sampling::greedy(); count], steps);
        assert_eq!(sequences.generate(&all, Choice::MostLikely, steps), greedy);
        sequences.same_states(count);

        sequences.rewind();
        let samplings = samplings(count);
        // One token is there already.
        let samplers: Vec<Sampler> =
            samplings.iter().map(|s| Sampler::new(s, 1).expect("no penalties")).collect();
        let drawn = sequences.step_by_step(&samplings, steps);
        assert_ne!(drawn, greedy, "draws at a high temperature");
        assert_eq!(sequences.generate(&all, Choice::Drawn(&samplers), steps), drawn);
        sequences.same_states(count);

        sequences.rewind();
        let limits = sequences.runner.multi_step_limits().expect("it chooses tokens");
        assert!(steps <= limits.steps_max && samplings.iter().all(|s| limits.can_sample(s)));
        assert_eq!(sequences.multi_step(&samplings, steps).expect("tokens"), drawn);
    }
}

#[test]
fn generations_go_on_from_one_another() {
    let Some(mut sequences) = Sequences::new(false) else { return };
    sequences.rewind();
    // More steps than the device keeps the tokens of.
    let whole = sequences.generate(&[1], Choice::MostLikely, 20);
    let end = state(&mut sequences.runner, &sequences.homes[2 * COUNT + 1].clone());
    sequences.rewind();
    let mut parts = vec![];
    for steps in [1, 2, 0, 17] {
        let home = sequences.by_device(1);
        let next = parts.last().copied().unwrap_or_else(|| sequences.first(1));
        let position = sequences.prompts[1].len() + parts.len();
        let batch = decode_batch(&sequences.runner, &[(&home, next, position)]);
        let tokens = sequences.runner.generate(&batch, Choice::MostLikely, VOCAB_USED, steps);
        parts.extend(tokens.expect("tokens").remove(0));
    }
    assert_eq!(whole, [parts]);
    let home = sequences.by_device(1);
    assert!(state(&mut sequences.runner, &home) == end, "another state");
}

#[test]
fn a_step_too_many_is_taken_back() {
    let Some(mut sequences) = Sequences::new(true) else { return };
    // Whether the state before the last step lies where the sequence's was or in the spare place.
    for steps in [1, 4, 5] {
        sequences.rewind();
        let tokens = sequences.generate(&[0, 1, 2], Choice::MostLikely, steps);
        let slots = [0, 2].map(|i| sequences.by_device(i).slot);
        sequences.runner.take_back(&slots).expect("the step was the last");
        let error = sequences.runner.take_back(&slots).expect_err("once is all");
        assert!(error.to_string().contains("taken back"), "{error}");

        let (most, all) = (vec![Sampling::greedy(); COUNT], steps);
        let expected = sequences.step_by_step(&most, all - 1);
        for (tokens, expected) in tokens.iter().zip(&expected) {
            assert_eq!(tokens[..all - 1], expected[..]);
        }
        // The second sequence has gone one step further.
        let pending = |i: usize, done: usize| {
            if done == 0 { sequences.first(i) } else { tokens[i][done - 1] }
        };
        let lens: Vec<usize> = sequences.prompts.iter().map(Vec::len).collect();
        let second = sequences.by_host(1);
        let last = (pending(1, steps - 1), lens[1] + steps - 1);
        decode(&mut sequences.runner, &[(&second, last.0, last.1)]);

        // All go on, the sequences that had stopped with something else than what they would have said.
        let rows = [
            (9, lens[0] + steps - 1),
            (tokens[1][steps - 1], lens[1] + steps),
            (77, lens[2] + steps - 1),
        ];
        let mut logits = vec![];
        for home in [Sequences::by_host, Sequences::by_device] {
            let homes = [0, 1, 2].map(|i| home(&sequences, i));
            let rows: Vec<(&Home, u32, usize)> =
                homes.iter().zip(rows).map(|(home, (token, at))| (home, token, at)).collect();
            logits.push(decode(&mut sequences.runner, &rows));
        }
        assert_eq!(logits[0].as_slice(), logits[1].as_slice(), "after {steps} steps");
        sequences.same_states(COUNT);
        let error = sequences.runner.take_back(&slots[..1]).expect_err("a step was run since");
        assert!(error.to_string().contains("taken back"), "{error}");
    }
}

#[test]
fn noise_ends_one_sequence_and_no_other() {
    let Some(mut sequences) = Sequences::new(false) else { return };
    sequences.rewind();
    let greedy = Sampler::new(&Sampling::greedy(), 1).expect("no penalties");
    let alone = sequences.generate(&[0], Choice::Drawn(&[greedy]), 3);
    assert_eq!(alone[0].len(), 3);
    sequences.rewind();
    let noise = vec![0xff; sequences.runner.slot_bytes()];
    let slot = sequences.by_device(1).slot;
    sequences.runner.write_slot(slot, &noise).expect("a write");
    let both = sequences.generate(&[1, 0], Choice::Drawn(&[greedy, greedy]), 3);
    assert_eq!(both, [vec![], alone[0].clone()]);
}

#[test]
fn what_cannot_be_generated_is_refused() {
    let Some(mut sequences) = Sequences::new(false) else { return };
    sequences.rewind();
    let before = state(&mut sequences.runner, &sequences.homes[2 * COUNT].clone());
    let batch = sequences.first_step(&[0]);
    let greedy = Sampler::new(&Sampling::greedy(), 1).expect("no penalties");
    let mut refuses = |batch: &Batch, choice: Choice<'_>, vocab_used, steps, why: &str| {
        let result = sequences.runner.generate(batch, choice, vocab_used, steps);
        let error = result.expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
        let slot = batch.spans()[0].slot;
        let error = sequences.runner.take_back(&[slot]).expect_err("nothing was run").to_string();
        assert!(error.contains("taken back"), "{error}");
    };
    let most = Choice::MostLikely;
    refuses(&batch, most, 0, 1, "0 tokens may be chosen");
    refuses(&batch, most, VOCAB_USED * 2, 1, "tokens may be chosen");
    refuses(&batch, Choice::Drawn(&[greedy; 2]), VOCAB_USED, 1, "not 2");
    // Two pages have 128 positions, some of which the prompt has.
    refuses(&batch, most, VOCAB_USED, 120, "its 2 pages hold 128");
    refuses(&batch, most, VOCAB_USED, usize::MAX, "no room");
    let penalised = Sampling { presence_penalty: 0.5, ..Sampling::greedy() };
    let error = sequences.multi_step(&[penalised], 2).expect_err("penalties").to_string();
    assert!(error.contains("for the host"), "{error}");
    let (home, cache) = (sequences.homes[2 * COUNT].clone(), sequences.runner.cache_size());
    let vocab = sequences.runner.shape().vocab_size;
    let mut refuses = |kind, tokens: Vec<u32>, outputs| {
        let spans = vec![span(kind, 0..tokens.len(), 30, &home)];
        let batch = Batch::new(tokens, spans, outputs, vocab, cache).expect("a batch");
        let error =
            sequences.runner.generate(&batch, most, VOCAB_USED, 1).expect_err("another kind");
        assert!(error.to_string().contains("decodes of one row"), "{error}");
    };
    refuses(SpanKind::Prefill, vec![1], vec![0]);
    refuses(SpanKind::Decode, vec![1, 2], vec![0, 1]);
    refuses(SpanKind::Decode, vec![1], vec![]);
    assert!(state(&mut sequences.runner, &home) == before, "a refusal changed the state");
}

/// The first run of a kind records its plan and compiles kernels, so that its time says nothing; the next runs say so.
#[test]
fn a_runner_tells_what_it_prepared_for() {
    let Some(mut sequences) = Sequences::new(false) else { return };
    let greedy = vec![Sampling::greedy()];
    sequences.rewind();
    let run = |sequences: &mut Sequences, steps: usize| {
        sequences.step_by_step(&greedy, steps);
        sequences.runner.has_prepared()
    };
    assert!(run(&mut sequences, 1), "a first step of one row");
    sequences.rewind();
    assert!(!run(&mut sequences, 1), "the same once more");
    sequences.rewind();
    let batch = sequences.first_step(&[0]);
    let generate = |sequences: &mut Sequences| {
        let tokens = sequences.runner.generate(&batch, Choice::MostLikely, VOCAB_USED, 2);
        tokens.unwrap();
        sequences.runner.has_prepared()
    };
    assert!(generate(&mut sequences), "first steps without the host");
    sequences.rewind();
    assert!(!generate(&mut sequences), "the same once more");
}
