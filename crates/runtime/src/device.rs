//! A device that carries out the engine's steps: a runner, and state on its way from it and to it.

use calla_engine::step::{Outcome, Run, Save, StateOp, Step, StepFailure, Ticket};
use calla_ops::{Runner, StepError};
use calla_store::{Bytes, Held};
use std::collections::HashMap;
use std::sync::Arc;

/// Takes state that was read out, to save it.
pub(crate) trait SaveSink {
    /// The page from which on a prefix is to be read out; `None` if nothing of it is to be saved.
    fn first_page(&mut self, save: &Save) -> Option<usize>;

    /// Takes the slot's state and the pages from `first_page` on. What follows says whether they are good.
    fn take(&mut self, save: &Save, first_page: usize, state: Held);

    /// All moves of the step were made.
    fn commit(&mut self);

    /// One failed: what was taken since the last step cannot be trusted.
    fn roll_back(&mut self);

    /// The state of a save could not be read out.
    fn lost(&mut self, save: &Save);
}

pub(crate) struct Device {
    runner: Box<dyn Runner>,
    /// Saved state that steps will put in place.
    loaded: HashMap<Ticket, Held>,
}

impl Device {
    pub(crate) fn new(runner: Box<dyn Runner>) -> Self {
        Self { runner, loaded: HashMap::new() }
    }

    pub(crate) fn can_draft(&self) -> bool {
        self.runner.can_draft()
    }

    /// Whether the device prepared for the last run.
    pub(crate) fn has_prepared(&self) -> bool {
        self.runner.has_prepared()
    }

    /// Whether memory of what holds nothing goes back to the system.
    pub(crate) fn can_give_back(&self) -> bool {
        self.runner.can_give_back()
    }

    /// Holds state until a step asks for it.
    pub(crate) fn hold(&mut self, ticket: Ticket, state: Held) {
        self.loaded.insert(ticket, state);
    }

    pub(crate) fn run(
        &mut self,
        step: &Step,
        sink: &mut dyn SaveSink,
    ) -> Result<Outcome, StepFailure> {
        for (i, op) in step.state.iter().enumerate() {
            if let Err(error) = self.move_state(op, sink) {
                sink.roll_back();
                for op in &step.state[i..] {
                    if let StateOp::Save(save) = op {
                        sink.lost(save);
                    }
                }
                // Whoever waited for it fails with the step.
                self.loaded.clear();
                return Err(StepFailure::State(error));
            }
        }
        // Not left to the run: its failure is that of its own sequences, but a move may have been for any other, or for a
        // snapshot.
        if let Err(error) = self.runner.check_moves() {
            sink.roll_back();
            self.loaded.clear();
            return Err(StepFailure::State(error));
        }
        sink.commit();
        match &step.run {
            Run::Nothing => Ok(Outcome::Moved),
            Run::Batch(batch) => Ok(Outcome::Logits(self.runner.step(batch)?)),
            Run::MultiStep(steps) => Ok(Outcome::Tokens(self.runner.multi_step(steps)?)),
            Run::Drafts(drafts) => Ok(Outcome::Drafts(self.runner.draft(drafts)?)),
        }
    }

    fn move_state(&mut self, op: &StateOp, sink: &mut dyn SaveSink) -> Result<(), StepError> {
        match op {
            StateOp::ClearSlot { slot } => self.runner.clear_slot(*slot),
            StateOp::CopySlot { from, to } => self.runner.copy_slot(*from, *to),
            StateOp::CopyPage { from, to } => self.runner.copy_page(*from, *to),
            StateOp::Save(save) => {
                if let Some(first_page) = sink.first_page(save) {
                    let state = self.read_out(save, first_page)?;
                    sink.take(save, first_page, state);
                }
            }
            StateOp::GiveBack(free) => {
                let megabytes = self.runner.give_back(free)? / 1_000_000;
                tracing::info!("memory is short: that of free state, {megabytes} MB, goes back");
            }
            StateOp::Restore { ticket, slot, pages } => {
                let state = self.loaded.remove(ticket).ok_or_else(|| StepError {
                    device: "host",
                    reason: format!("the state of load {} is not there", ticket.0),
                })?;
                self.runner.write_slot(*slot, &state.state)?;
                for (&page, bytes) in pages.iter().zip(&state.pages) {
                    self.runner.write_page(page, bytes)?;
                }
            }
        }
        Ok(())
    }

    fn read_out(&mut self, save: &Save, first_page: usize) -> Result<Held, StepError> {
        let mut state = vec![];
        self.runner.read_slot(save.slot, &mut state)?;
        let pages = save.pages[first_page..].iter().map(|&page| {
            let mut bytes = vec![];
            self.runner.read_page(page, &mut bytes)?;
            Ok(Arc::new(bytes))
        });
        let pages: Vec<Bytes> = pages.collect::<Result<_, StepError>>()?;
        Ok(Held { state: Arc::new(state), pages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use calla_model::Shape;
    use calla_ops::{Batch, CacheSize, Rows, Span, SpanKind};

    /// Finds out late that it could not copy a slot, and runs whatever it is given.
    struct Late {
        shape: Shape,
        failed: bool,
    }

    impl Runner for Late {
        fn shape(&self) -> &Shape {
            &self.shape
        }

        fn cache_size(&self) -> CacheSize {
            CacheSize { pages: 1, slots: 2 }
        }

        fn clear_slot(&mut self, _: usize) {}

        fn copy_slot(&mut self, _: usize, _: usize) {
            self.failed = true;
        }

        fn copy_page(&mut self, _: usize, _: usize) {}

        fn check_moves(&mut self) -> Result<(), StepError> {
            let reason = "a copy failed".to_owned();
            if std::mem::take(&mut self.failed) {
                Err(StepError { device: "late", reason })
            } else {
                Ok(())
            }
        }

        fn step(&mut self, batch: &Batch) -> Result<Rows, StepError> {
            Ok(Rows::zeros(batch.outputs().len(), self.shape.vocab_size))
        }

        fn slot_bytes(&self) -> usize {
            0
        }

        fn page_bytes(&self) -> usize {
            0
        }

        fn read_slot(&mut self, _: usize, _: &mut Vec<u8>) -> Result<(), StepError> {
            Ok(())
        }

        fn write_slot(&mut self, _: usize, _: &[u8]) -> Result<(), StepError> {
            Ok(())
        }

        fn read_page(&mut self, _: usize, _: &mut Vec<u8>) -> Result<(), StepError> {
            Ok(())
        }

        fn write_page(&mut self, _: usize, _: &[u8]) -> Result<(), StepError> {
            Ok(())
        }

        fn decodes_as_it_prefills(&self) -> bool {
            false
        }

        fn arithmetic(&self) -> String {
            "late".to_owned()
        }
    }

    /// Notes what it is told.
    #[derive(Default)]
    struct Notes(Vec<&'static str>);

    impl SaveSink for Notes {
        fn first_page(&mut self, _: &Save) -> Option<usize> {
            Some(0)
        }

        fn take(&mut self, _: &Save, _: usize, _: Held) {
            self.0.push("take");
        }

        fn commit(&mut self) {
            self.0.push("commit");
        }

        fn roll_back(&mut self) {
            self.0.push("roll back");
        }

        fn lost(&mut self, _: &Save) {
            self.0.push("lost");
        }
    }

    /// A snapshot that was not copied must not be kept, so the failure is not that of the batch beside it.
    #[test]
    fn a_move_that_failed_late_is_a_failure_of_state() {
        let mut device = Device::new(Box::new(Late { shape: Shape::demo(), failed: false }));
        let span = Span::new(SpanKind::Decode, 0..1, 0, 0, vec![0]);
        let cache = CacheSize { pages: 1, slots: 2 };
        let batch = Batch::new(vec![0], vec![span], vec![0], 8, cache).unwrap();
        for run in [Run::Nothing, Run::Batch(batch)] {
            let copy = StateOp::CopySlot { from: 0, to: 1 };
            let save = Save {
                ticket: Ticket(0),
                key: calla_engine::CacheKey::default(),
                tokens: vec![0],
                slot: 1,
                pages: vec![0],
            };
            let save = StateOp::Save(Box::new(save));
            let step = Step { state: vec![copy, save.clone()], run: run.clone() };
            let mut notes = Notes::default();
            let failure = device.run(&step, &mut notes).unwrap_err();
            // What was read out may be what the copy should have replaced.
            assert_eq!(notes.0, ["take", "roll back"]);
            assert!(matches!(failure, StepFailure::State(_)), "{failure:?}");
            assert!(failure.to_string().contains("a copy failed"), "{failure}");
            // It is said once.
            let mut notes = Notes::default();
            assert!(device.run(&Step { state: vec![save], run }, &mut notes).is_ok());
            assert_eq!(notes.0, ["take", "commit"]);
        }
    }
}
