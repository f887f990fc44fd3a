//! What a plan promises, on random programs of a toy machine and on programs whose schedule is known.

mod common;

use calla_gpu::plan::{Recorded, Summary};
use calla_gpu::{
    Access, Binding, BufferId, Dispatch, Dtype, Part, Place, Plan, Range, Recording, Scratch,
};
use calla_testkit::Random;
use common::orders::{in_random_order, random_order};
use common::toy::{ARENA, Machine, dispatch, program};
use std::collections::{BTreeSet, HashMap};

const READ: Access = Access::Read;
const WRITE: Access = Access::Write;

/// Whether the order of two dispatches matters.
fn conflict(a: &Dispatch, b: &Dispatch) -> bool {
    let meet = |a: &Binding, b: &Binding| {
        a.range.overlaps(&b.range) && (a.access.writes() || b.access.writes())
    };
    a.bindings.iter().any(|a| b.bindings.iter().any(|b| meet(a, b)))
}

/// All pairs of dispatches of which the first must come first, directly or by way of others.
fn closure(count: usize, edges: &[[u32; 2]]) -> BTreeSet<[u32; 2]> {
    let mut before = vec![BTreeSet::new(); count];
    for &[from, to] in edges {
        assert!(from < to, "{from} -> {to}");
    }
    for to in 0..count {
        for &[from, _] in edges.iter().filter(|edge| edge[1] as usize == to) {
            let also = before[from as usize].clone();
            before[to].extend(also);
            before[to].insert(from);
        }
    }
    let pairs = |(to, before): (usize, BTreeSet<u32>)| {
        before.into_iter().map(move |from| [from, to as u32])
    };
    before.into_iter().enumerate().flat_map(pairs).collect()
}

/// Pairs of dispatches of which the order matters.
fn conflicts(dispatches: &[Dispatch]) -> Vec<[u32; 2]> {
    let mut pairs = vec![];
    for to in 0..dispatches.len() {
        let meets = |&from: &usize| conflict(&dispatches[from], &dispatches[to]);
        pairs.extend((0..to).filter(meets).map(|from| [from as u32, to as u32]));
    }
    pairs
}

fn stage_of(plan: &Plan) -> Vec<usize> {
    let stages = plan.stages().iter().enumerate();
    stages.flat_map(|(stage, &len)| std::iter::repeat_n(stage, len)).collect()
}

#[test]
fn orders_that_obey_the_edges_give_what_the_program_gives() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let recording = program(random.range(1..=40), &mut random);
        let mut expected = Machine::new(1);
        for step in &recording.steps {
            expected.run(&step.dispatch);
        }
        let plan = Plan::new(recording);
        for order in 0..8 {
            let mut actual = Machine::new(2 + order);
            for dispatch in in_random_order(&plan, ARENA, &mut random) {
                actual.run(&dispatch);
            }
            assert_eq!(actual.buffers(), expected.buffers(), "program {seed}, order {order}");
        }
    }
}

#[test]
fn dispatches_of_a_stage_can_run_in_any_order() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let plan = Plan::new(program(random.range(1..=40), &mut random));
        let (mut expected, mut actual) = (Machine::new(1), Machine::new(1));
        let dispatches = plan.bind(ARENA);
        dispatches.iter().for_each(|dispatch| expected.run(dispatch));
        let mut at = 0;
        for &len in plan.stages() {
            let mut stage: Vec<_> = dispatches[at..at + len].iter().collect();
            random.shuffle(&mut stage);
            stage.into_iter().for_each(|dispatch| actual.run(dispatch));
            at += len;
        }
        assert_eq!(at, dispatches.len());
        assert_eq!(actual.found, expected.found, "program {seed}");
        assert_eq!(actual.buffers(), expected.buffers(), "program {seed}");
    }
}

/// Removes each edge in turn. Some order of those that are then allowed lets a dispatch find other bytes.
#[test]
fn every_edge_is_needed() {
    let (mut edges, mut reused) = (0, 0);
    for seed in 0..300 {
        let mut random = Random::labelled(seed, "small");
        let recording = program(random.range(2..=12), &mut random);
        let within_program = conflicts_by_label(&recording);
        let plan = Plan::new(recording);
        let dispatches = plan.bind(ARENA);
        let found = |order: &[u32]| {
            let mut machine = Machine::new(1);
            order.iter().for_each(|&index| machine.run(&dispatches[index as usize]));
            (machine.buffers(), machine.found)
        };
        let in_order: Vec<u32> = (0..dispatches.len() as u32).collect();
        let expected = found(&in_order);
        for (index, edge) in plan.edges().iter().enumerate() {
            let mut fewer = plan.edges().to_vec();
            fewer.remove(index);
            let detected = (0..300)
                .any(|_| found(&random_order(dispatches.len(), &fewer, &mut random)) != expected);
            assert!(detected, "program {seed}: nothing changes without edge {edge:?}");
            let labels = edge.map(|index| dispatches[index as usize].label.clone());
            reused += usize::from(!within_program.contains(&labels));
        }
        edges += plan.edges().len();
    }
    assert!(edges > 1000, "{edges} edges");
    assert!(reused > 30, "{reused} edges of scratch that is used again");
}

fn conflicts_by_label(recording: &Recording) -> BTreeSet<[String; 2]> {
    let dispatches: Vec<_> = recording.steps.iter().map(|step| step.dispatch.clone()).collect();
    let label = |index: u32| dispatches[index as usize].label.clone();
    conflicts(&dispatches).into_iter().map(|pair| pair.map(label)).collect()
}

/// Compares with all pairs of dispatches, of which there are too many for a plan.
#[test]
fn edges_are_the_fewest_that_imply_all_conflicts() {
    for seed in 0..60 {
        let mut random = Random::labelled(seed, "edges");
        let plan = Plan::new(program(random.range(1..=60), &mut random));
        let dispatches = plan.bind(ARENA);
        let expected = closure(dispatches.len(), &conflicts(&dispatches));
        assert_eq!(closure(dispatches.len(), plan.edges()), expected, "program {seed}");
        for (index, edge) in plan.edges().iter().enumerate() {
            let mut fewer = plan.edges().to_vec();
            fewer.remove(index);
            assert!(!closure(dispatches.len(), &fewer).contains(edge), "{edge:?} is implied");
        }
    }
}

#[test]
fn a_dispatch_runs_in_the_first_stage_that_it_can() {
    for seed in 0..60 {
        let mut random = Random::labelled(seed, "stages");
        let recording = program(random.range(1..=60), &mut random);
        let dispatches: Vec<_> = recording.steps.iter().map(|step| step.dispatch.clone()).collect();
        let mut expected = vec![0; dispatches.len()];
        for [from, to] in conflicts(&dispatches) {
            let (from, to) = (from as usize, to as usize);
            expected[to] = expected[to].max(expected[from] + 1);
        }
        // Within a stage, in program order.
        let mut order: Vec<usize> = (0..dispatches.len()).collect();
        order.sort_by_key(|&index| expected[index]);
        let expected: Vec<_> =
            order.iter().map(|&index| (expected[index], &dispatches[index].label)).collect();
        let plan = Plan::new(recording);
        let labels = plan.steps().iter().map(|step| &step.dispatch.label);
        let actual: Vec<_> = stage_of(&plan).into_iter().zip(labels).collect();
        assert_eq!(actual, expected, "program {seed}");
    }
}

#[test]
fn tensors_that_live_together_do_not_share_bytes() {
    for seed in 0..60 {
        let mut random = Random::labelled(seed, "placement");
        let recording = program(random.range(1..=60), &mut random);
        let tensors = recording.scratch.clone();
        let before: HashMap<String, Dispatch> = recording
            .steps
            .iter()
            .map(|step| (step.dispatch.label.clone(), step.dispatch.clone()))
            .collect();
        let plan = Plan::new(recording);
        // First byte, first and last stage of each tensor.
        let mut lives: HashMap<u32, (u64, usize, usize)> = HashMap::new();
        for (stage, Recorded { dispatch, .. }) in stage_of(&plan).into_iter().zip(plan.steps()) {
            for (old, new) in before[&dispatch.label].bindings.iter().zip(&dispatch.bindings) {
                assert_eq!((old.access, old.range.len), (new.access, new.range.len));
                match old.range.place {
                    Place::Buffer(_) => assert_eq!(old, new),
                    Place::Scratch(_) if old.range.len == 0 => assert_eq!(new.range.start, 0),
                    Place::Scratch(tensor) => {
                        let start = new.range.start - old.range.start;
                        let life = lives.entry(tensor).or_insert((start, stage, stage));
                        assert_eq!(life.0, start, "all ranges of tensor {tensor} move together");
                        life.2 = stage;
                    }
                }
            }
        }
        let alive_in = |stage: usize| -> u64 {
            let living = lives.iter().filter(|(_, life)| (life.1..=life.2).contains(&stage));
            living.map(|(&tensor, _)| tensors[tensor as usize].next_multiple_of(256)).sum()
        };
        let least = (0..plan.stages().len()).map(alive_in).max().unwrap_or(0);
        // The most that live at once. The unit test of the placement has sets for which more is needed.
        assert_eq!(plan.scratch_bytes(), least, "program {seed}");
        for (a, &(start, first, last)) in &lives {
            let end = start + tensors[*a as usize];
            assert!(start.is_multiple_of(256) && end <= plan.scratch_bytes());
            for (b, &(other_start, other_first, other_last)) in &lives {
                let other_end = other_start + tensors[*b as usize];
                let together = first <= other_last && other_first <= last;
                let share = start < other_end && other_start < end;
                assert!(a == b || !(together && share), "program {seed}: tensors {a} and {b}");
            }
        }
    }
}

#[test]
fn each_order_can_come_out() {
    // 0 before 1 and 2, both before 3; 4 on its own: two orders of four, five places for the last.
    let edges = [[0, 1], [0, 2], [1, 3], [2, 3]];
    let mut random = Random::new(1);
    let orders: BTreeSet<Vec<u32>> =
        (0..500).map(|_| random_order(5, &edges, &mut random)).collect();
    assert_eq!(orders.len(), 10);
    for order in orders {
        let at = |index| order.iter().position(|&other| other == index).expect("all come out");
        assert!(edges.iter().all(|&[from, to]| at(from) < at(to)), "{order:?}");
    }
}

/// A buffer of 64 bytes.
fn buffer(id: u32) -> Range {
    Range { place: Place::Buffer(BufferId(id)), start: 0, len: 64 }
}

fn plan_of(recording: &Recording) -> Plan {
    Plan::new(recording.clone())
}

/// norm -> two products side by side -> their sum, twice, as layers do it.
fn two_layers() -> Recording {
    let mut recording = Recording::default();
    for layer in 0..2 {
        let [normed, left, right] = [(); 3].map(|()| recording.tensor(1, 16, Dtype::F32).range);
        let mut push = |part, label: &str, bindings: &[(Range, Access)]| {
            recording.push(part, dispatch(&format!("{layer} {label}"), bindings).flops(10));
        };
        push(Part::Attention, "norm", &[(buffer(0), READ), (normed, WRITE)]);
        push(Part::Attention, "left", &[(normed, READ), (buffer(1), READ), (left, WRITE)]);
        push(Part::Attention, "right", &[(normed, READ), (buffer(1), READ), (right, WRITE)]);
        let sum = [(left, READ), (right, READ), (buffer(0), Access::ReadWrite)];
        push(Part::Moe, "sum", &sum);
    }
    recording
}

#[test]
fn a_known_program_has_the_known_schedule() {
    let plan = plan_of(&two_layers());
    assert_eq!(plan.stages(), [1, 2, 1, 1, 2, 1]);
    // `normed` is dead when the second layer's is written; left and right live with it, each 256 bytes with its padding.
    assert_eq!(plan.scratch_bytes(), 3 * 256);
    let edges = [[0, 1], [0, 2], [1, 3], [2, 3], [3, 4], [4, 5], [4, 6], [5, 7], [6, 7]];
    assert_eq!(plan.edges(), edges);
}

#[test]
fn a_plan_of_nothing() {
    let plan = Plan::new(Recording::default());
    assert!(plan.stages().is_empty() && plan.edges().is_empty() && plan.bind(ARENA).is_empty());
    assert_eq!(plan.scratch_bytes(), 0);
}

#[test]
fn summaries_add_up() {
    let summary: Summary = plan_of(&two_layers()).summary();
    let json = serde_json::to_value(&summary).expect("JSON");
    let expected = serde_json::json!({
        "kernels": 8, "bytes_read": 16 * 64, "bytes_written": 8 * 64, "flops": 80,
        "stages": 6, "scratch_bytes": 768,
        "by_part": {
            "attention": {"kernels": 6, "bytes_read": 10 * 64, "bytes_written": 6 * 64, "flops": 60},
            "moe": {"kernels": 2, "bytes_read": 6 * 64, "bytes_written": 2 * 64, "flops": 20},
        },
    });
    assert_eq!(json, expected);
}

/// Kernels have buffers that some dispatches do not use: they are bound to no bytes of whatever is at hand.
#[test]
fn ranges_of_no_bytes_order_nothing() {
    let mut recording = Recording::default();
    let [used, unused] = [(); 2].map(|()| recording.tensor(4, 16, Dtype::F32).range);
    let inside = Range { start: 32, len: 0, ..buffer(0) };
    let nothing = [(unused.nothing(), READ), (used.nothing(), WRITE), (inside, READ)];
    let writes = [(buffer(0), WRITE), (used, WRITE)];
    recording.push(Part::Moe, dispatch("writes", &writes));
    recording.push(Part::Moe, dispatch("nothing", &nothing));
    assert!(!inside.overlaps(&buffer(0)) && !buffer(0).overlaps(&inside));
    let plan = Plan::new(recording);
    assert_eq!(plan.stages(), [2]);
    assert!(plan.edges().is_empty());
    assert_eq!(plan.scratch_bytes(), 256);
    let arena = Range { place: Place::Buffer(ARENA), start: 0, len: 0 };
    let bound: Vec<_> = plan.bind(ARENA)[1].bindings.iter().map(|b| b.range).collect();
    assert_eq!(bound, [arena, arena, inside]);
}

#[test]
#[should_panic(
    expected = "sum reads bytes 32..64 of scratch tensor 1 of 2 before they are written"
)]
fn values_must_be_written_before_they_are_read() {
    let mut recording = Recording::default();
    let [_, half] = [(); 2].map(|()| recording.tensor(1, 16, Dtype::F32).range);
    recording.push(Part::Moe, dispatch("half", &[(Range { len: 48, ..half }, WRITE)]));
    recording.push(Part::Moe, dispatch("sum", &[(Range { start: 32, len: 32, ..half }, READ)]));
    let _ = Plan::new(recording);
}

#[test]
#[should_panic(
    expected = "adds reads bytes 0..64 of scratch tensor 0 of 1 before they are written"
)]
fn what_a_dispatch_writes_itself_is_not_written_before() {
    let mut recording = Recording::default();
    let sum = recording.tensor(1, 16, Dtype::F32).range;
    recording.push(Part::Moe, dispatch("adds", &[(sum, WRITE), (sum, READ)]));
    let _ = Plan::new(recording);
}

#[test]
#[should_panic(expected = "wide binds bytes 32..96 of scratch tensor 0 of 1, which has 64 bytes")]
fn ranges_must_lie_within_their_tensor() {
    let mut recording = Recording::default();
    let tensor = recording.tensor(1, 16, Dtype::F32).range;
    recording.push(Part::Moe, dispatch("wide", &[(Range { start: 32, ..tensor }, WRITE)]));
    let _ = Plan::new(recording);
}
