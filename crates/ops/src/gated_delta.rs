//! The Gated DeltaNet recurrence, in recurrent and in chunked form.
//!
//! Per value head, with state `S [128 (key), 128 (value)]` in f32, zero at the start of a sequence:
//!
//! ```text
//! S <- e^g S;   r = S^T k;   S <- S + k (x) (beta (v - r));   o = S^T q
//! ```
//!
//! Value head j uses key head `j / (value heads / key heads)`: consecutive value heads share a key head.
//! Chunked form: Yang et al., "Gated Delta Networks" (2024), with the decay folded in as differences of
//! cumulative sums only, so that nothing overflows.

use crate::ops::DeltaTerms;
use crate::tensor::Rows;
use calla_model::Shape;
use calla_model::shape::DELTA_HEAD_DIM as D;
use std::ops::Range;

/// Terms of one row and value head.
struct HeadRow<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    beta: f32,
    log_decay: f32,
}

fn head_row<'a>(
    shape: &Shape,
    terms: &'a DeltaTerms<Rows>,
    row: usize,
    head: usize,
) -> HeadRow<'a> {
    let key_head = head / (shape.delta_value_heads / shape.delta_key_heads);
    HeadRow {
        q: &terms.q.row(row)[key_head * D..][..D],
        k: &terms.k.row(row)[key_head * D..][..D],
        v: &terms.v.row(row)[head * D..][..D],
        beta: terms.beta.row(row)[head],
        log_decay: terms.log_decay.row(row)[head],
    }
}

/// Token by token: the definition. `state` is `[value heads, 128, 128]`; `o` gets `rows`, which are one
/// sequence's.
pub fn recurrent(
    shape: &Shape,
    terms: &DeltaTerms<Rows>,
    rows: Range<usize>,
    state: &mut [f32],
    o: &mut Rows,
) {
    for row in rows {
        for (head, s) in state.chunks_exact_mut(D * D).enumerate() {
            let t = head_row(shape, terms, row, head);
            let decay = t.log_decay.exp();
            let mut read = [0.0_f32; D];
            for (s, &k) in s.chunks_exact_mut(D).zip(t.k) {
                for (s, read) in s.iter_mut().zip(&mut read) {
                    *s *= decay;
                    *read += *s * k;
                }
            }
            let mut write = [0.0_f32; D];
            for j in 0..D {
                write[j] = t.beta * (t.v[j] - read[j]);
            }
            let o = &mut o.row_mut(row)[head * D..][..D];
            o.fill(0.0);
            for ((s, &k), &q) in s.chunks_exact_mut(D).zip(t.k).zip(t.q) {
                for ((s, w), o) in s.iter_mut().zip(&write).zip(o.iter_mut()) {
                    *s += k * w;
                    *o += *s * q;
                }
            }
        }
    }
}

/// `chunk` tokens at a time, in f64 inside a chunk. Same result as [`recurrent`] up to rounding.
///
/// ```text
/// G = cumsum(g);  D_ij = e^{G_i - G_j} for i >= j, else 0
/// L = I + strictly_lower((beta K) K^T * D)
/// U = L^-1 (beta V - (beta e^G K) S0)
/// O = (e^G Q) S0 + ((Q K^T) * D) U
/// S1 = e^{G_C} S0 + (e^{G_C - G} K)^T U
/// ```
///
/// # Panics
/// If `chunk` is 0.
pub fn chunked(
    shape: &Shape,
    terms: &DeltaTerms<Rows>,
    rows: Range<usize>,
    chunk: usize,
    state: &mut [f32],
    o: &mut Rows,
) {
    let rows: Vec<usize> = rows.collect();
    for rows in rows.chunks(chunk) {
        for (head, s) in state.chunks_exact_mut(D * D).enumerate() {
            let t: Vec<HeadRow<'_>> =
                rows.iter().map(|&row| head_row(shape, terms, row, head)).collect();
            let out = chunk_head(&t, s);
            for (&row, out) in rows.iter().zip(out) {
                o.row_mut(row)[head * D..][..D].copy_from_slice(&out);
            }
        }
    }
}

/// One head over one chunk; `s` becomes the state after it.
fn chunk_head(t: &[HeadRow<'_>], s: &mut [f32]) -> Vec<[f32; D]> {
    let dot = |a: &[f32], b: &[f32]| -> f64 { crate::linear::dot(a, b) };
    let mut sum = 0.0_f64;
    let g: Vec<f64> = t
        .iter()
        .map(|t| {
            sum += f64::from(t.log_decay);
            sum
        })
        .collect();
    // Rows of the right-hand side become rows of U by forward substitution.
    let mut u: Vec<[f64; D]> = Vec::with_capacity(t.len());
    for (i, ti) in t.iter().enumerate() {
        let beta = f64::from(ti.beta);
        let read = read_state(s, ti.k);
        let mut row = [0.0_f64; D];
        for j in 0..D {
            row[j] = beta * (f64::from(ti.v[j]) - g[i].exp() * read[j]);
        }
        for (m, tm) in t[..i].iter().enumerate() {
            let l = beta * dot(ti.k, tm.k) * (g[i] - g[m]).exp();
            for j in 0..D {
                row[j] -= l * u[m][j];
            }
        }
        u.push(row);
    }
    let outputs = t
        .iter()
        .enumerate()
        .map(|(i, ti)| {
            let mut o = read_state(s, ti.q).map(|x| x * g[i].exp());
            for (m, tm) in t[..=i].iter().enumerate() {
                let weight = dot(ti.q, tm.k) * (g[i] - g[m]).exp();
                for j in 0..D {
                    o[j] += weight * u[m][j];
                }
            }
            o.map(|x| x as f32)
        })
        .collect();
    let last = g[g.len() - 1];
    for (i, s) in s.chunks_exact_mut(D).enumerate() {
        for j in 0..D {
            let written: f64 = t
                .iter()
                .enumerate()
                .map(|(m, t)| (last - g[m]).exp() * f64::from(t.k[i]) * u[m][j])
                .sum();
            s[j] = (last.exp() * f64::from(s[j]) + written) as f32;
        }
    }
    outputs
}

/// `S^T x`.
fn read_state(s: &[f32], x: &[f32]) -> [f64; D] {
    let mut read = [0.0_f64; D];
    for (s, &x) in s.chunks_exact(D).zip(x) {
        for (s, read) in s.iter().zip(&mut read) {
            *read += f64::from(*s) * f64::from(x);
        }
    }
    read
}
