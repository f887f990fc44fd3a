//! Speculation: rows that may be taken back, and drafts. Neither changes a bit of what a sequence goes on to.

use crate::compare;
use crate::conformance::{Model, Suite};
use crate::random::Random;
use crate::shapes;
use crate::weights::{Formats, network};
use calla_eval::metrics::arg_max;
use calla_model::{LayerKind, Shape};
use calla_ops::mtp::mtp_forward;
use calla_ops::{
    Batch, CacheSize, Draft, Drafts, Ops, Reference, Rows, Runner, Span, SpanKind, forward,
};

const CACHE: CacheSize = CacheSize { pages: 12, slots: 10 };

/// Where a sequence of at most 128 tokens lies.
#[derive(Clone, Copy)]
struct Home {
    slot: usize,
    pages: [usize; 2],
}

const ALONE: Home = Home { slot: 0, pages: [5, 2] };

/// A span with its tokens.
struct Piece<'a> {
    kind: SpanKind,
    tokens: &'a [u32],
    position: usize,
    home: Home,
    checkpoints: &'a [usize],
}

fn prefill(tokens: &[u32], home: Home) -> Piece<'_> {
    Piece { kind: SpanKind::Prefill, tokens, position: 0, home, checkpoints: &[] }
}

fn decode(tokens: &[u32], position: usize, home: Home) -> Piece<'_> {
    Piece { kind: SpanKind::Decode, tokens, position, home, checkpoints: &[] }
}

/// Runs spans together: logits of all rows.
fn feed(runner: &mut dyn Runner, pieces: &[Piece<'_>]) -> Rows {
    let (mut tokens, mut spans) = (vec![], vec![]);
    for piece in pieces {
        let start = tokens.len();
        tokens.extend_from_slice(piece.tokens);
        spans.push(Span {
            kind: piece.kind,
            rows: start..tokens.len(),
            position: piece.position,
            slot: piece.home.slot,
            pages: piece.home.pages.to_vec(),
            checkpoints: piece.checkpoints.to_vec(),
            cuts: vec![],
        });
    }
    let outputs = (0..tokens.len()).collect();
    let batch = Batch::new(tokens, spans, outputs, runner.shape().vocab_size, CACHE)
        .unwrap_or_else(|e| panic!("a batch of the suite: {e}"));
    runner.step(&batch).unwrap_or_else(|e| panic!("{e}"))
}

fn state(runner: &mut dyn Runner, slot: usize) -> Vec<u8> {
    let mut bytes = vec![];
    runner.read_slot(slot, &mut bytes).unwrap_or_else(|e| panic!("slot {slot}: {e}"));
    bytes
}

fn rows_of(logits: &Rows, rows: std::ops::Range<usize>) -> Rows {
    let cols = logits.cols();
    Rows::from_vec(cols, logits.as_slice()[rows.start * cols..rows.end * cols].to_vec())
}

/// Tokens decoded one at a time by a sequence on its own: what each row gives, and the state after it.
struct OneByOne {
    logits: Rows,
    states: Vec<Vec<u8>>,
}

impl OneByOne {
    fn run(runner: &mut dyn Runner, tokens: &[u32], prefix: usize) -> Self {
        runner.clear_slot(ALONE.slot);
        feed(runner, &[prefill(&tokens[..prefix], ALONE)]);
        let (mut logits, mut states) = (vec![], vec![]);
        for position in prefix..tokens.len() {
            let token = &tokens[position..=position];
            logits.extend(feed(runner, &[decode(token, position, ALONE)]).into_vec());
            states.push(state(runner, ALONE.slot));
        }
        Self { logits: Rows::from_vec(runner.shape().vocab_size, logits), states }
    }

    /// Compares `logits` and the states in `slots` with those of the first rows from `first`.
    fn check(
        &self,
        runner: &mut dyn Runner,
        first: usize,
        logits: &Rows,
        slots: &[usize],
    ) -> Result<(), String> {
        let due = rows_of(&self.logits, first..first + logits.rows());
        compare::identical(logits, &due).map_err(|e| format!("logits from row {first}: {e}"))?;
        for (row, &slot) in (first..).zip(slots) {
            if state(runner, slot) != self.states[row] {
                return Err(format!("the state after row {row} is another"));
            }
        }
        Ok(())
    }
}

/// What one verification is tried with.
struct Case {
    /// Tokens before it.
    prefix: usize,
    /// Rows verified.
    rows: usize,
    /// Of them right.
    kept: usize,
}

impl Suite {
    fn drafting_runner(&self, model: &Model) -> Box<dyn Runner> {
        let network = network(&model.shape, model.formats, model.seed);
        (self.drafting)(&model.shape, CACHE, network)
    }

    /// A decode of n rows gives the bits of n steps of one row, in logits and in the state of each checkpoint,
    /// whatever runs beside it; and a sequence goes on from a checkpoint as if later rows had never been.
    ///
    /// # Panics
    /// If it does not conform.
    pub fn keeps_checkpoints(&self) {
        for model in models() {
            let mut random = Random::labelled(model.seed, "checkpoints");
            for rows in 2..=5 {
                let (prefix, kept) = (random.range(1..=70), random.range(1..=rows - 1));
                let case = Case { prefix, rows, kept };
                if let Err(problem) = self.verifies(&model, &mut random, &case) {
                    panic!(
                        "{rows} decoded rows after {prefix} tokens, {kept} of them right: {problem}\n  \
                         {model}"
                    );
                }
            }
        }
    }

    fn verifies(&self, model: &Model, random: &mut Random, case: &Case) -> Result<(), String> {
        let &Case { prefix, rows, kept } = case;
        let vocab = model.shape.vocab_size;
        let tokens = random.tokens(prefix + rows, vocab);
        let second = random.tokens(7, vocab);
        let third = random.tokens(9, vocab);
        let mut runner = self.drafting_runner(model);
        let runner = runner.as_mut();
        let alone = OneByOne::run(runner, &tokens, prefix);
        let second_alone = OneByOne::run(runner, &second, 5);
        runner.clear_slot(ALONE.slot);
        let third_logits = feed(runner, &[prefill(&third, ALONE)]);
        let third_state = state(runner, ALONE.slot);

        let home = Home { slot: 3, pages: [7, 0] };
        let second_home = Home { slot: 8, pages: [1, 3] };
        let third_home = Home { slot: 5, pages: [4, 6] };
        for home in [home, second_home, third_home] {
            runner.clear_slot(home.slot);
        }
        feed(runner, &[prefill(&second[..5], second_home), prefill(&tokens[..prefix], home)]);
        // Two verifications and a prompt in one batch; the last rows of the first are wrong.
        let mut guessed = tokens[prefix..].to_vec();
        guessed[kept..].iter_mut().for_each(|t| *t = (*t + 1) % vocab as u32);
        let checkpoints = &[6, 1, 9, 2][..rows - 1];
        let logits = feed(
            runner,
            &[
                Piece { checkpoints, ..decode(&guessed, prefix, home) },
                prefill(&third, third_home),
                Piece { checkpoints: &[7], ..decode(&second[5..], 5, second_home) },
            ],
        );
        alone.check(runner, 0, &rows_of(&logits, 0..kept), &checkpoints[..kept])?;
        let others = rows..rows + third.len();
        compare::identical(&rows_of(&logits, others.clone()), &third_logits)
            .map_err(|e| format!("the prompt beside it: {e}"))?;
        if state(runner, third_home.slot) != third_state {
            return Err("the prompt beside it leaves another state".to_owned());
        }
        second_alone
            .check(runner, 0, &rows_of(&logits, others.end..others.end + 2), &[7, 8])
            .map_err(|problem| format!("the second verification: {problem}"))?;

        // On from the last right row, in the checkpoint's slot.
        let home = Home { slot: checkpoints[kept - 1], ..home };
        let logits = feed(runner, &[decode(&tokens[prefix + kept..], prefix + kept, home)]);
        alone.check(runner, kept, &logits, &[]).map_err(|e| format!("after wrong rows: {e}"))?;
        if &state(runner, home.slot) != alone.states.last().expect("there are rows") {
            return Err("after wrong rows: another state".to_owned());
        }
        Ok(())
    }

    /// Drafts are those of the draft layer run over the whole sequence; drafting leaves all state as it is;
    /// neighbours and depths beside do not matter; copies of slots and pages draft the same.
    ///
    /// # Panics
    /// If it does not conform.
    pub fn drafts(&self) {
        let (mut same, mut all) = (0, 0);
        for model in models().iter().filter(|model| model.network.mtp.is_some()) {
            let (agreeing, compared) = self
                .drafts_as_specified(model)
                .unwrap_or_else(|e| panic!("drafts: {e}\n  {model}"));
            same += agreeing;
            all += compared;
        }
        println!("drafts: {same} of {all} are the reference's");
        // Random routers leave a choice to the last bits now and then.
        assert!(same * 10 >= all * 9, "only {same} of {all} drafts are the reference's");
    }

    /// How many drafts are the specified ones, of how many.
    fn drafts_as_specified(&self, model: &Model) -> Result<(usize, usize), String> {
        const STEPS: usize = 4;
        const PREFIXES: [usize; 3] = [1, 40, 62];
        let homes = [ALONE, Home { slot: 4, pages: [0, 7] }, Home { slot: 2, pages: [3, 6] }];
        let mut random = Random::labelled(model.seed, "drafts");
        let vocab = model.shape.vocab_size;
        let used = vocab - 3;
        let sequences = PREFIXES.map(|len| random.tokens(len + STEPS, vocab));
        let mut runner = self.drafting_runner(model);
        let runner = runner.as_mut();
        if !runner.can_draft() {
            return Err("the runner cannot draft".to_owned());
        }
        let prompts = [0, 1, 2].map(|i| prefill(&sequences[i][..PREFIXES[i]], homes[i]));
        feed(runner, &prompts);
        let draft = |i: usize, step: usize, depth: usize, home: Home| {
            let position = PREFIXES[i] + step;
            let (token, pages) = (sequences[i][position], home.pages.to_vec());
            Draft { token, position, slot: home.slot, pages, depth, vocab_used: used }
        };
        let run = |runner: &mut dyn Runner, drafts: Vec<Draft>| {
            let drafts = Drafts::new(drafts, vocab, CACHE).map_err(|e| e.to_string())?;
            runner.draft(&drafts).map_err(|e| e.to_string())
        };

        let (mut same, mut all) = (0, 0);
        for step in 0..STEPS {
            let depths = [0, 1, 2].map(|i| 1 + (i + step) % 3);
            let before = homes.map(|home| state(runner, home.slot));
            let drafts = [0, 1, 2].map(|i| draft(i, step, depths[i], homes[i])).to_vec();
            let together = run(runner, drafts)?;
            if homes.map(|home| state(runner, home.slot)) != before {
                return Err("drafting moved recurrent state".to_owned());
            }
            for i in 0..3 {
                let due = &run(runner, vec![draft(i, step, 3, homes[i])])?[0][..depths[i]];
                if together[i] != due {
                    let (tokens, depth) = (&together[i], depths[i]);
                    return Err(format!("{tokens:?} at depth {depth} among others, {due:?} alone"));
                }
                let known = &sequences[i][..=PREFIXES[i] + step];
                let specified = specified(model, known, depths[i], used);
                all += depths[i];
                same += together[i].iter().zip(&specified).take_while(|(a, b)| a == b).count();
            }
            // A copy drafts the same, and so it does after it has gone on by itself.
            let copy = Home { slot: 9, pages: [8, 11] };
            let of = step % 3;
            runner.copy_slot(homes[of].slot, copy.slot);
            for (from, to) in homes[of].pages.into_iter().zip(copy.pages) {
                runner.copy_page(from, to);
            }
            let (own, copied) = (draft(of, step, 3, homes[of]), draft(of, step, 3, copy));
            if run(runner, vec![own])? != run(runner, vec![copied])? {
                return Err("a copy of slot and pages drafts other tokens".to_owned());
            }
            let next = [0, 1, 2].map(|i| {
                let position = PREFIXES[i] + step;
                decode(&sequences[i][position..=position], position, homes[i])
            });
            feed(runner, &next);
            feed(
                runner,
                &[Piece { home: copy, ..decode(next[of].tokens, next[of].position, copy) }],
            );
            if state(runner, copy.slot) != state(runner, homes[of].slot) {
                return Err("a copy of slot and pages goes on to another state".to_owned());
            }
        }
        Ok((same, all))
    }
}

/// A network with the proportions of the published one, an odd one, and one without a draft layer.
fn models() -> [Model; 3] {
    [
        Model::new(shapes::small(), Formats::Published, 21),
        Model::new(shapes::odd(), Formats::Mixed, 22),
        Model::new(shapes::tiny(), Formats::Mixed, 23),
    ]
}

/// What the draft layer says after `tokens` by its definition: over the rows of the whole sequence, each with
/// the main model's row before it, on the reference.
fn specified(model: &Model, tokens: &[u32], depth: usize, vocab_used: usize) -> Vec<u32> {
    let (shape, network) = (&model.shape, &model.network);
    let mtp = network.mtp.as_ref().expect("a network with a draft layer");
    let batch = |tokens: &[u32], position: usize| {
        let (rows, pages) = (0..tokens.len(), ALONE.pages.to_vec());
        let span = Span::new(SpanKind::Prefill, rows, position, 0, pages);
        Batch::new(tokens.to_vec(), vec![span], vec![], shape.vocab_size, CACHE)
            .unwrap_or_else(|e| panic!("a batch of the suite: {e}"))
    };
    let mut ops = Reference::new(shape.clone(), CACHE).unwrap();
    let mut last = Rows::default();
    forward(&mut ops, network, &batch(tokens, 0), |layer, x| {
        if layer == shape.layers.len() {
            last = x.clone();
        }
    });
    let hidden = ops.rms_norm(&last, &network.norm);
    let mut previous = vec![0.0; shape.hidden];
    previous.extend_from_slice(&hidden.as_slice()[..(tokens.len() - 1) * shape.hidden]);
    let mut hidden = Rows::from_vec(shape.hidden, previous);

    let alone = Shape { layers: vec![LayerKind::Attention], ..shape.clone() };
    let mut ops = Reference::new(alone, CACHE).unwrap();
    let (mut fed, mut position, mut drafted) = (tokens.to_vec(), 0, vec![]);
    for _ in 0..depth {
        let rows = mtp_forward(&mut ops, network, mtp, &hidden, 0, &batch(&fed, position));
        position += fed.len();
        let last = rows.logits.rows() - 1;
        let token = arg_max(&rows.logits.row(last)[..vocab_used]) as u32;
        drafted.push(token);
        fed = vec![token];
        hidden = rows_of(&rows.hidden, last..last + 1);
    }
    drafted
}
