//! Comparisons of a case, with the largest difference so far.

use crate::{Agreement, Failure, tolerance, values};
use calla_ops::Rows;
use calla_testkit::compare;
use half::bf16;
use std::fmt::Debug;

/// What a case has found. What differs is kept until the case has run all that it runs.
pub(crate) struct Check {
    agreement: Agreement,
    failed: Option<Failure>,
}

impl Check {
    /// For results that may be off by `allowed`; 0 where all bits have to agree.
    pub(crate) fn new(allowed: f32) -> Self {
        Self { agreement: Agreement { off: 0.0, allowed }, failed: None }
    }

    /// How far all was off, or the first that differed.
    pub(crate) fn done(self) -> Result<Agreement, Failure> {
        self.failed.map_or(Ok(self.agreement), Err)
    }

    fn failed(&mut self, what: &str, difference: impl ToString) {
        let difference = difference.to_string();
        self.failed.get_or_insert(Failure::Differs { what: what.to_owned(), difference });
    }

    /// Requires results within what is allowed.
    pub(crate) fn within(&mut self, what: &str, actual: &Rows, expected: &Rows) {
        let Agreement { off, allowed } = self.agreement;
        match compare::within(actual, expected, allowed) {
            Ok(found) => self.agreement.off = off.max(found.max_relative),
            Err(error) => self.failed(what, error),
        }
    }

    /// The same of results that are stored in bf16: their rounding is taken off first.
    pub(crate) fn stored(&mut self, what: &str, actual: &Rows, expected: &Rows) {
        let due = values::beyond_rounding(actual, expected, tolerance::BF16);
        self.within(what, actual, &due);
    }

    /// Requires each value to be the rounding to bf16 of one that is off by no more than is allowed, of itself or of 1.
    pub(crate) fn rounded(&mut self, what: &str, actual: &Rows, expected: &Rows) {
        for (at, (&found, &due)) in actual.as_slice().iter().zip(expected.as_slice()).enumerate() {
            let off = self.agreement.allowed * due.abs().max(1.0);
            // Rounding is monotone: what is rounded lies between the roundings of the bounds.
            let [low, high] = [due - off, due + off].map(|v| bf16::from_f32(v).to_f32());
            if !(low..=high).contains(&found) {
                let (row, col) = (at / actual.cols(), at % actual.cols());
                let text = format!("row {row}, column {col} is {found} instead of {due}");
                return self.failed(what, text);
            }
        }
    }

    /// Requires the same bits.
    pub(crate) fn identical(&mut self, what: &str, actual: &Rows, expected: &Rows) {
        self.holds(what, compare::identical(actual, expected));
    }

    /// Requires the same values.
    pub(crate) fn equal<T: PartialEq + Debug>(&mut self, what: &str, actual: &[T], expected: &[T]) {
        if actual.len() != expected.len() {
            let text = format!("{} values instead of {}", actual.len(), expected.len());
            return self.failed(what, text);
        }
        if let Some(at) = actual.iter().zip(expected).position(|(a, e)| a != e) {
            let text = format!("value {at} is {:?} instead of {:?}", actual[at], expected[at]);
            self.failed(what, text);
        }
    }

    /// Requires what a comparison of another kind says.
    pub(crate) fn holds<E: ToString>(&mut self, what: &str, result: Result<(), E>) {
        if let Err(error) = result {
            self.failed(what, error);
        }
    }
}
