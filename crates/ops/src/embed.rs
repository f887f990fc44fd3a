//! Token embedding: rows of the table, decoded; no scaling.

use crate::tensor::Rows;
use calla_model::Matrix;

/// `[tokens, hidden]`.
///
/// # Panics
/// If a token is not below the table's rows (a [`crate::Batch`] has checked that).
#[must_use]
pub fn reference(table: &Matrix, tokens: &[u32]) -> Rows {
    let mut x = Rows::zeros(tokens.len(), table.cols());
    for (x, &token) in x.iter_mut().zip(tokens) {
        table.read_row(token as usize, x);
    }
    x
}
