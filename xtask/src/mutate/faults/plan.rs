//! Faults of the plan and of what a step is given: edges, memory that is used again, tables, slots.

use super::{Class, Fault, test};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        class: Class::Edge,
        file: "crates/gpu/src/plan/graph.rs",
        name: "a read does not wait for the write",
        find: "needs.extend(segment.writer);
            defined &=",
        replace: "defined &=",
        check: test("plan", "orders_that_obey_the_edges_give_what_the_program_gives"),
    },
    Fault {
        class: Class::Edge,
        file: "crates/gpu/src/plan/graph.rs",
        name: "a write does not wait for reads",
        find: "needs.extend(segment.readers);",
        replace: "",
        check: test("plan", "orders_that_obey_the_edges_give_what_the_program_gives"),
    },
    Fault {
        class: Class::Edge,
        file: "crates/gpu/src/plan/graph.rs",
        name: "a write does not wait for the write before",
        find: "if segment.readers.is_empty() {
                needs.extend(segment.writer);
            }",
        replace: "",
        check: test("plan", "orders_that_obey_the_edges_give_what_the_program_gives"),
    },
    Fault {
        class: Class::Edge,
        file: "crates/gpu/src/plan/graph.rs",
        name: "a write forgets who touched bytes behind its own",
        find: "self.split(range.start);
        self.split(end);
        let covered",
        replace: "self.split(range.start);
        let covered",
        check: test("plan", "edges_are_the_fewest_that_imply_all_conflicts"),
    },
    Fault {
        class: Class::Edge,
        file: "crates/gpu/src/plan/graph.rs",
        name: "edges that others imply stay",
        find: "list.retain(|&from| {
            let from = from as usize;
            let new = row[from / 64] >> (from % 64) & 1 == 0;",
        replace: "list.retain(|&from| {
            let from = from as usize;
            let new = true;",
        check: test("plan", "every_edge_is_needed"),
    },
    Fault {
        class: Class::Edge,
        file: "crates/gpu/src/plan/graph.rs",
        name: "a dispatch runs with one that it waits for",
        find: "stages[other as usize] + 1).max()",
        replace: "stages[other as usize] + 1).min()",
        check: test("plan", "dispatches_of_a_stage_can_run_in_any_order"),
    },
    Fault {
        class: Class::Edge,
        file: "crates/gpu/src/plan/placement.rs",
        name: "a temporary lives one stage too short",
        find: "let later = self.begin[first..=last]",
        replace: "let later = self.begin[first..last.max(first + 1)]",
        check: test("plan", "tensors_that_live_together_do_not_share_bytes"),
    },
    Fault {
        class: Class::Edge,
        file: "crates/gpu/src/plan.rs",
        name: "a temporary lives in its first stage alone",
        find: ".or_insert(new).last = stage;",
        replace: ".or_insert(new);",
        check: test("plan", "orders_that_obey_the_edges_give_what_the_program_gives"),
    },
    Fault {
        class: Class::Edge,
        file: "crates/gpu/src/plan.rs",
        name: "reuse of scratch makes no edges",
        find: r#"let scratch_bytes = place(&mut steps, &stage_of, &scratch);
        let edges = Graph::new(steps.iter().map(|step| &step.dispatch))
            .expect("what is written before it is placed is written afterwards")
            .edges();"#,
        replace: r#"let edges = Graph::new(steps.iter().map(|step| &step.dispatch))
            .expect("what is written before it is placed is written afterwards")
            .edges();
        let scratch_bytes = place(&mut steps, &stage_of, &scratch);"#,
        check: test("plan", "orders_that_obey_the_edges_give_what_the_program_gives"),
    },
    Fault {
        class: Class::Chunk,
        file: "crates/gpu/src/step_tables.rs",
        name: "the last chunk of a span is as long as others",
        find: "rows: index(rows.len()),",
        replace: "rows: index(rows.len().next_multiple_of(64)),",
        check: test("step_tables", "a_prefill_has_chunks"),
    },
    Fault {
        class: Class::Chunk,
        file: "crates/ops/src/span.rs",
        name: "chunks do not start at cuts",
        find: "self.cuts.iter().map(|cut|",
        replace: "self.cuts[..0].iter().map(|cut|",
        check: test("runner", "cuts::slices_that_end_at_cuts_change_nothing"),
    },
    Fault {
        class: Class::Page,
        file: "crates/gpu/src/recorder/decode.rs",
        name: "a decode attends to the pages of the first layer",
        find: "&bindings.attention[layer],",
        replace: "&bindings.attention[layer * 0],",
        check: test("runner", "reference::logits_are_those_of_the_reference"),
    },
    Fault {
        class: Class::Slot,
        file: "crates/gpu/src/recorder/prefill.rs",
        name: "a prefill has one state for all layers",
        find: "let slots = &delta[layer];",
        replace: "let slots = &delta[layer * 0];",
        check: test("runner", "cuts::slices_that_end_at_cuts_change_nothing"),
    },
    Fault {
        class: Class::Slot,
        file: "crates/gpu/src/step_tables.rs",
        name: "spans read the slots that they are to write",
        find: "let [slot_in, slot_out] = moves",
        replace: "let [slot_out, slot_in] = moves",
        check: test("step_tables", "a_decode_has_checkpoints"),
    },
    Fault {
        class: Class::Page,
        file: "crates/gpu/src/step_tables.rs",
        name: "all spans have the pages of the first",
        find: "first_page: index(self.pages.len()),",
        replace: "first_page: 0,",
        check: test("step_tables", "a_prefill_has_chunks"),
    },
    Fault {
        class: Class::Slot,
        file: "crates/gpu/src/cache/moves.rs",
        name: "a slot that a step has left stays taken",
        find: "std::mem::swap(&mut self.physical[slot], &mut self.spare[place]);",
        replace: "self.physical[slot] = self.spare[place];",
        check: test("cache", "random_steps_keep_every_sequence_its_own_slot"),
    },
    Fault {
        class: Class::Page,
        file: "crates/gpu/src/cache.rs",
        name: "copies of pages and slots go the other way",
        find: "copy(entry(part, from), entry(part, to))",
        replace: "copy(entry(part, to), entry(part, from))",
        check: test("cache", "slots_and_pages_move_as_bytes_of_the_same_bits"),
    },
];
