//! Reference logits of token sequences, read from the two layouts that are in use.
//!
//! *Top logits*, many prompts: `p{i}_ids` `[n]` and `p{i}_cont` `[m]` (prompt and continuation),
//! `p{i}_top_ids`, `p{i}_top_vals` `[n+m, k]` (the k largest logits at each position, in falling order),
//! `p{i}_lse` `[n+m]` (log-sum-exp of all logits); optional `p{i}_text`, `p{i}_request` and
//! `p{i}_mtp_top5`, `p{i}_mtp_vals` `[n+m, 5]`.
//!
//! *Full logits*, one sequence: `ids` `[n]` and `logits_f32` (or `logits`) `[n, vocabulary]`; optional
//! `hidden_f32` `[layers + 1, n, hidden]`, the residual stream after the embedding and each layer.

use crate::npz::{Array, Npz, NpzError};
use calla_ops::Rows;
use std::path::Path;

/// Longest sequence that is read.
pub const MAX_POSITIONS: usize = 1 << 20;

/// One sequence with what a reference said of it.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Its name in messages.
    pub name: String,
    /// Token ids, continuation included; never empty.
    pub ids: Vec<u32>,
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// Logits at each position of `ids`.
    pub reference: ReferenceLogits,
    /// The chat request as JSON, if recorded.
    pub request: Option<String>,
    /// The rendered prompt, if recorded.
    pub text: Option<String>,
    /// Largest logits of the multi-token-prediction layer at each position, if recorded.
    pub mtp: Option<TopLogits>,
    /// Residual stream after the embedding and after each layer, if recorded.
    pub hidden: Vec<Rows>,
}

/// What is known of the reference's logits.
#[derive(Clone, Debug)]
pub enum ReferenceLogits {
    /// The largest, and log-sum-exp of all.
    Top {
        /// The largest logits of each position.
        top: TopLogits,
        /// Log-sum-exp over the vocabulary at each position.
        lse: Vec<f32>,
    },
    /// All, `[positions, vocabulary]`.
    Full(Rows),
}

/// The `k` largest logits of each position, in falling order.
#[derive(Clone, Debug, PartialEq)]
pub struct TopLogits {
    k: usize,
    ids: Vec<u32>,
    values: Vec<f32>,
}

impl TopLogits {
    /// Wraps `[positions, k]` arrays.
    ///
    /// # Errors
    /// A description, if they are not of one shape with `k >= 2`, or a row's values rise.
    pub fn new(k: usize, ids: Vec<u32>, values: Vec<f32>) -> Result<Self, String> {
        if k < 2 || ids.len() != values.len() || !ids.len().is_multiple_of(k) {
            let (ids, values) = (ids.len(), values.len());
            return Err(format!("{ids} ids and {values} values are not rows of {k} (at least 2)"));
        }
        for (position, row) in values.chunks_exact(k).enumerate() {
            if !row.is_sorted_by(|a, b| a >= b) {
                return Err(format!("the values of position {position} are not in falling order"));
            }
        }
        for (position, row) in ids.chunks_exact(k).enumerate() {
            let mut sorted = row.to_vec();
            sorted.sort_unstable();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(format!("token {} appears twice at position {position}", pair[0]));
            }
        }
        Ok(Self { k, ids, values })
    }

    /// Number of positions.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.ids.len() / self.k
    }

    /// Tokens of a position, the largest logit's first.
    #[must_use]
    pub fn ids(&self, position: usize) -> &[u32] {
        &self.ids[position * self.k..][..self.k]
    }

    /// Their logits.
    #[must_use]
    pub fn values(&self, position: usize) -> &[f32] {
        &self.values[position * self.k..][..self.k]
    }
}

/// Reads every sequence of a file, whichever layout it has.
///
/// # Errors
/// If the file is hostile or damaged, or has neither layout.
pub fn read_goldens(path: &Path) -> Result<Vec<Golden>, NpzError> {
    let mut npz = Npz::open(path)?;
    if npz.contains("ids") {
        return Ok(vec![read_full(&mut npz)?]);
    }
    let mut goldens = vec![read_prompt(&mut npz, 0)?];
    while npz.contains(&format!("p{}_ids", goldens.len())) {
        goldens.push(read_prompt(&mut npz, goldens.len())?);
    }
    Ok(goldens)
}

fn read_full(npz: &mut Npz) -> Result<Golden, NpzError> {
    let ids = read_ids(npz, "ids")?;
    if ids.is_empty() {
        return Err(wrong("ids", "it is empty".to_owned()));
    }
    // MLX-LM's goldens hold bf16 logits too; only the f32 ones are meant.
    let name =
        if npz.contains("logits") && !npz.contains("logits_f32") { "logits" } else { "logits_f32" };
    let logits = npz.floats(name)?;
    let [rows, vocab] = dimensions(name, &logits)?;
    expect_rows(name, rows, ids.len())?;
    if vocab < 2 {
        return Err(wrong(name, format!("a vocabulary of {vocab} is too small; at least 2")));
    }
    let mut hidden = Vec::new();
    if npz.contains("hidden_f32") {
        let name = "hidden_f32";
        let array = npz.floats(name)?;
        let [layers, rows, width] = dimensions(name, &array)?;
        expect_rows(name, rows, ids.len())?;
        if layers == 0 || width == 0 {
            return Err(wrong(name, format!("shape {:?} is empty", array.shape)));
        }
        let one = |values: &[f32]| Rows::from_vec(width, values.to_vec());
        hidden = array.data.chunks_exact(rows * width).map(one).collect();
    }
    Ok(Golden {
        name: "the sequence".to_owned(),
        prompt_len: ids.len(),
        reference: ReferenceLogits::Full(Rows::from_vec(vocab, logits.data)),
        ids,
        request: None,
        text: None,
        mtp: None,
        hidden,
    })
}

fn read_prompt(npz: &mut Npz, prompt: usize) -> Result<Golden, NpzError> {
    let key = |what: &str| format!("p{prompt}_{what}");
    let mut ids = read_ids(npz, &key("ids"))?;
    let prompt_len = ids.len();
    ids.extend(read_ids(npz, &key("cont"))?);
    if prompt_len == 0 {
        return Err(wrong(&key("ids"), "it is empty".to_owned()));
    }
    let top = read_top(npz, &key("top_ids"), &key("top_vals"), ids.len())?;
    let lse = npz.floats(&key("lse"))?;
    let [rows] = dimensions(&key("lse"), &lse)?;
    expect_rows(&key("lse"), rows, ids.len())?;
    let mtp = if npz.contains(&key("mtp_top5")) {
        Some(read_top(npz, &key("mtp_top5"), &key("mtp_vals"), ids.len())?)
    } else {
        None
    };
    let mut text = |name: String| npz.contains(&name).then(|| npz.text(&name)).transpose();
    Ok(Golden {
        name: format!("prompt {prompt}"),
        ids,
        prompt_len,
        reference: ReferenceLogits::Top { top, lse: lse.data },
        request: text(key("request"))?,
        text: text(key("text"))?,
        mtp,
        hidden: vec![],
    })
}

fn read_ids(npz: &mut Npz, name: &str) -> Result<Vec<u32>, NpzError> {
    let ids = npz.ids(name)?;
    let [len] = dimensions(name, &ids)?;
    if len > MAX_POSITIONS {
        return Err(wrong(name, format!("{len} positions; at most {MAX_POSITIONS} are read")));
    }
    Ok(ids.data)
}

fn read_top(
    npz: &mut Npz,
    ids_name: &str,
    values_name: &str,
    positions: usize,
) -> Result<TopLogits, NpzError> {
    let ids = npz.ids(ids_name)?;
    let values = npz.floats(values_name)?;
    let [rows, k] = dimensions(ids_name, &ids)?;
    expect_rows(ids_name, rows, positions)?;
    if values.shape != ids.shape {
        let p = format!("shape {:?} differs from {:?} of \"{ids_name}\"", values.shape, ids.shape);
        return Err(wrong(values_name, p));
    }
    TopLogits::new(k, ids.data, values.data).map_err(|problem| wrong(values_name, problem))
}

fn dimensions<T, const N: usize>(name: &str, array: &Array<T>) -> Result<[usize; N], NpzError> {
    array.shape.as_slice().try_into().map_err(|_| {
        wrong(name, format!("shape {:?} has not the {N} dimensions it must have", array.shape))
    })
}

fn expect_rows(name: &str, rows: usize, expected: usize) -> Result<(), NpzError> {
    if rows == expected {
        return Ok(());
    }
    Err(wrong(name, format!("it has {rows} rows but there are {expected} tokens")))
}

fn wrong(name: &str, problem: String) -> NpzError {
    NpzError::Array { name: name.to_owned(), problem }
}
