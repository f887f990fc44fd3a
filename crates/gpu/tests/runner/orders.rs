//! Plans of the demo network in random orders that obey their edges: each gives the bits that stages give.

use crate::common::network::checkpoint;
use crate::common::orders::in_random_order;
use crate::common::planned::{Planned, Planner};
use crate::common::{ORDERS, TestDevice};
use calla_gpu::{Device as _, Dispatch, Place, Range, Tensor};
use calla_ops::{Batch, CacheSize, Span, SpanKind};
use calla_testkit::{Random, places};

const SIZE: CacheSize = CacheSize { pages: 4, slots: 3 };
const SEEDS: u64 = 8;

struct Setup {
    device: TestDevice,
    planner: Planner,
}

/// Everything that a step leaves behind.
#[derive(PartialEq)]
struct Results {
    logits: Vec<u8>,
    state: Vec<Vec<u8>>,
}

impl Setup {
    fn new() -> Option<Self> {
        let mut device = crate::common::device()?;
        let (shape, network) = checkpoint(&places::demo());
        let planner = Planner::new(&mut device, shape, &network, SIZE);
        Some(Self { device, planner })
    }

    /// Rows `[from, to)` of each slot.
    fn step(&mut self, kind: SpanKind, positions: &[[usize; 2]]) -> Planned {
        let mut random = Random::new(7);
        let mut rows = 0;
        let spans: Vec<Span> = positions
            .iter()
            .enumerate()
            .map(|(slot, &[from, to])| {
                rows += to - from;
                Span::new(kind, rows + from - to..rows, from, slot, vec![SIZE.slots - slot])
            })
            .collect();
        let outputs = spans.iter().map(|span| span.rows.end - 1).collect();
        let vocab = self.planner.shape.vocab_size;
        let tokens = random.tokens(rows, vocab);
        let batch = Batch::new(tokens, spans, outputs, vocab, SIZE).expect("spans");
        self.planner.plan(&mut self.device, &batch)
    }

    fn tensors(&self) -> Vec<Tensor> {
        let pages =
            self.planner.cache.attention().iter().flat_map(|layer| [layer.keys, layer.values]);
        let slots =
            self.planner.cache.delta().iter().flat_map(|layer| [layer.states, layer.windows]);
        pages.chain(slots).collect()
    }

    fn read(&mut self, tensor: Tensor) -> Vec<u8> {
        let mut bytes = vec![0; tensor.range.len as usize];
        self.device.read(tensor.range, &mut bytes).expect("a read");
        bytes
    }

    fn state(&mut self) -> Vec<Vec<u8>> {
        self.tensors().into_iter().map(|tensor| self.read(tensor)).collect()
    }

    /// Runs dispatches from a state on. Temporaries and logits are NaN before.
    fn run(
        &mut self,
        step: &Planned,
        state: &[Vec<u8>],
        dispatches: &[Dispatch],
        stages: &[usize],
    ) -> Results {
        for (tensor, bytes) in self.tensors().into_iter().zip(state) {
            self.device.write(tensor.range, bytes).expect("a write");
        }
        let place = Place::Buffer(step.arena);
        let arena = Range { place, start: 0, len: step.plan.scratch_bytes() };
        for range in [arena, step.logits.range] {
            self.device.write(range, &vec![0xff; range.len as usize]).expect("a write");
        }
        self.device.run(dispatches, stages).unwrap_or_else(|error| panic!("{error}"));
        Results { logits: self.read(step.logits), state: self.state() }
    }

    /// Runs a step in random orders, of its dispatches and within them. What it leaves behind.
    fn require_any_order(&mut self, step: &Planned, what: &str) -> Results {
        let before = self.state();
        let dispatches = step.plan.bind(step.arena);
        let expected = self.run(step, &before, &dispatches, step.plan.stages());
        let finite = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes).is_finite();
        assert!(expected.logits.as_chunks().0.iter().all(finite), "{what}: logits");
        assert!(expected.state != before, "{what}: nothing was written");
        let one_by_one = vec![1; dispatches.len()];
        for seed in 0..SEEDS {
            let order = in_random_order(&step.plan, step.arena, &mut Random::new(seed));
            let actual = self.run(step, &before, &order, &one_by_one);
            assert!(actual == expected, "{what}: other results in the order of seed {seed}");
        }
        for order in &ORDERS[1..] {
            self.device.set_order(*order);
            let actual = self.run(step, &before, &dispatches, step.plan.stages());
            assert!(actual == expected, "{what}: other results with lanes in order {order}");
        }
        self.device.set_order(ORDERS[0]);
        expected
    }
}

#[test]
fn every_order_that_obeys_the_edges_gives_the_same_bits() {
    let Some(mut setup) = Setup::new() else { return };
    let prefill = setup.step(SpanKind::Prefill, &[[0, 3], [0, 20]]);
    setup.require_any_order(&prefill, "prefill");
    // From the state that this left.
    let decode = setup.step(SpanKind::Decode, &[[3, 4], [20, 22], [0, 1]]);
    setup.require_any_order(&decode, "decode");
}
