//! Comparisons of a case, with the largest difference so far.

use crate::{Agreement, Failure, tolerance, values};
use calla_ops::Rows;
use calla_testkit::compare;
use half::bf16;
use std::fmt::Debug;

/// What a case has found.
pub(crate) struct Check(Agreement);

fn differs(what: &str, difference: impl ToString) -> Failure {
    Failure::Differs { what: what.to_owned(), difference: difference.to_string() }
}

impl Check {
    /// For results that may be off by `allowed`; 0 where all bits have to agree.
    pub(crate) fn new(allowed: f32) -> Self {
        Self(Agreement { off: 0.0, allowed })
    }

    /// All has agreed.
    pub(crate) fn done(self) -> Result<Agreement, Failure> {
        Ok(self.0)
    }

    /// Requires results within what is allowed.
    pub(crate) fn within(
        &mut self,
        what: &str,
        actual: &Rows,
        expected: &Rows,
    ) -> Result<(), Failure> {
        let allowed = self.0.allowed;
        let found = compare::within(actual, expected, allowed).map_err(|e| differs(what, e))?;
        self.0.off = self.0.off.max(found.max_relative);
        Ok(())
    }

    /// The same of results that are stored in bf16: their rounding is taken off first.
    pub(crate) fn stored(
        &mut self,
        what: &str,
        actual: &Rows,
        expected: &Rows,
    ) -> Result<(), Failure> {
        let due = values::beyond_rounding(actual, expected, tolerance::BF16);
        self.within(what, actual, &due)
    }

    /// Requires each value to be the rounding to bf16 of one that is off by no more than is allowed, of itself or of 1.
    pub(crate) fn rounded(
        &mut self,
        what: &str,
        actual: &Rows,
        expected: &Rows,
    ) -> Result<(), Failure> {
        for (at, (&found, &due)) in actual.as_slice().iter().zip(expected.as_slice()).enumerate() {
            let off = self.0.allowed * due.abs().max(1.0);
            // Rounding is monotone: what is rounded lies between the roundings of the bounds.
            let [low, high] = [due - off, due + off].map(|v| bf16::from_f32(v).to_f32());
            if !(low..=high).contains(&found) {
                let (row, col) = (at / actual.cols(), at % actual.cols());
                let text = format!("row {row}, column {col} is {found} instead of {due}");
                return Err(differs(what, text));
            }
        }
        Ok(())
    }

    /// Requires the same bits.
    pub(crate) fn identical(
        &mut self,
        what: &str,
        actual: &Rows,
        expected: &Rows,
    ) -> Result<(), Failure> {
        compare::identical(actual, expected).map_err(|error| differs(what, error))
    }

    /// Requires the same values.
    pub(crate) fn equal<T: PartialEq + Debug>(
        &mut self,
        what: &str,
        actual: &[T],
        expected: &[T],
    ) -> Result<(), Failure> {
        if actual.len() != expected.len() {
            let text = format!("{} values instead of {}", actual.len(), expected.len());
            return Err(differs(what, text));
        }
        match actual.iter().zip(expected).position(|(a, e)| a != e) {
            Some(at) => {
                let text = format!("value {at} is {:?} instead of {:?}", actual[at], expected[at]);
                Err(differs(what, text))
            }
            None => Ok(()),
        }
    }

    /// Requires what a comparison of another kind says.
    pub(crate) fn holds<E: ToString>(
        &mut self,
        what: &str,
        result: Result<(), E>,
    ) -> Result<(), Failure> {
        result.map_err(|error| differs(what, error))
    }
}
