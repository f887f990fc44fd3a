//! What `bench` tells: rows for programs, tables for people.

use super::job::Ablation;
use crate::machine::bytes;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write;

/// Figures at one length of context: medians, next to floors. `None` where nothing is known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    /// Tokens of the prompt.
    pub(super) context: usize,
    pub(super) prefill_tokens_per_s: Option<f64>,
    pub(super) decode_tokens_per_s: Option<f64>,
    /// Tokens per second at most.
    pub(super) prefill_floor: Option<f64>,
    /// Tokens per second at most.
    pub(super) decode_floor: Option<f64>,
    pub(super) time_to_first_token_ms: Option<f64>,
    pub(super) peak_memory_bytes: Option<u64>,
}

/// Decode of several sequences at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ConcurrentRow {
    pub(super) sequences: usize,
    /// Tokens of each prompt.
    pub(super) context: usize,
    /// Of all sequences together.
    pub(super) decode_tokens_per_s: f64,
    pub(super) decode_floor: Option<f64>,
    pub(super) peak_memory_bytes: Option<u64>,
}

/// What one switch is worth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct AblationRow {
    pub(super) name: &'static str,
    /// What the arm does.
    pub(super) what: &'static str,
    pub(super) context: usize,
    pub(super) prefill_tokens_per_s: Option<f64>,
    pub(super) decode_tokens_per_s: Option<f64>,
    /// Rates of the arm over those of the usual way.
    pub(super) prefill_ratio: Option<f64>,
    pub(super) decode_ratio: Option<f64>,
    /// Whether its tokens are those of the usual way.
    pub(super) same_tokens: Option<bool>,
    /// Why it was not measured.
    pub(super) unavailable: Option<String>,
}

impl AblationRow {
    /// One that cannot be measured.
    pub(super) fn unavailable(ablation: Ablation, context: usize, why: &str) -> Self {
        Self {
            name: ablation.name(),
            what: ablation.words(),
            context,
            prefill_tokens_per_s: None,
            decode_tokens_per_s: None,
            prefill_ratio: None,
            decode_ratio: None,
            same_tokens: None,
            unavailable: Some(why.to_owned()),
        }
    }
}

/// What was not measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Skipped {
    pub(super) context: usize,
    pub(super) sequences: usize,
    pub(super) reason: String,
}

/// All of it.
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    pub(super) concurrent: Vec<ConcurrentRow>,
    pub(super) ablations: Vec<AblationRow>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) manifest: Value,
}

impl Report {
    /// For programs.
    pub(super) fn json(&self) -> Value {
        json!({
            "rows": self.rows,
            "concurrent": self.concurrent,
            "ablations": self.ablations,
            "skipped": self.skipped,
            "manifest": self.manifest,
        })
    }

    /// For people: tables in Markdown.
    pub(super) fn markdown(&self) -> String {
        let mut out = String::new();
        let machine = &self.manifest["machine"];
        let rates = &self.manifest["rates"];
        let word = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
        line(&mut out, &format!("device: {}", word(&machine["device"])));
        for (name, unit) in [("read_bytes", "GB/s"), ("flops", "GFLOP/s")] {
            let rate = &rates[name];
            let text = match rate["per_second"].as_f64() {
                Some(rate_per_s) => {
                    format!("{:.1} {unit} ({})", rate_per_s / 1e9, word(&rate["source"]))
                }
                None => "unknown".to_owned(),
            };
            line(&mut out, &format!("{name}: {text}"));
        }
        line(
            &mut out,
            "\n| context | prefill tok/s | floor | share | decode tok/s | floor | share | first token | peak memory |",
        );
        line(&mut out, "|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
        for row in &self.rows {
            let (prefill, decode) = (row.prefill_tokens_per_s, row.decode_tokens_per_s);
            let cells = [
                row.context.to_string(),
                number(prefill),
                number(row.prefill_floor),
                share(prefill, row.prefill_floor),
                number(decode),
                number(row.decode_floor),
                share(decode, row.decode_floor),
                row.time_to_first_token_ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms")),
                row.peak_memory_bytes.map_or("-".to_owned(), bytes),
            ];
            line(&mut out, &format!("| {} |", cells.join(" | ")));
        }
        if !self.concurrent.is_empty() {
            line(
                &mut out,
                "\n| sequences | context | decode tok/s, all | floor | share | peak memory |",
            );
            line(&mut out, "|---:|---:|---:|---:|---:|---:|");
        }
        for row in &self.concurrent {
            let decode = Some(row.decode_tokens_per_s);
            let cells = [
                row.sequences.to_string(),
                row.context.to_string(),
                number(decode),
                number(row.decode_floor),
                share(decode, row.decode_floor),
                row.peak_memory_bytes.map_or("-".to_owned(), bytes),
            ];
            line(&mut out, &format!("| {} |", cells.join(" | ")));
        }
        if !self.ablations.is_empty() {
            line(
                &mut out,
                "\n| switched | what | prefill tok/s | of usual | decode tok/s | of usual | tokens |",
            );
            line(&mut out, "|---|---|---:|---:|---:|---:|---|");
        }
        for row in &self.ablations {
            if let Some(why) = &row.unavailable {
                line(
                    &mut out,
                    &format!("| {} | not measured: {why} | - | - | - | - | - |", row.name),
                );
                continue;
            }
            let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |x| format!("{x:.2}"));
            let cells = [
                row.name.to_owned(),
                row.what.to_owned(),
                number(row.prefill_tokens_per_s),
                ratio(row.prefill_ratio),
                number(row.decode_tokens_per_s),
                ratio(row.decode_ratio),
                row.same_tokens.map_or("-", |same| if same { "same" } else { "others" }).to_owned(),
            ];
            line(&mut out, &format!("| {} |", cells.join(" | ")));
        }
        for skipped in &self.skipped {
            let Skipped { context, sequences, reason } = skipped;
            let what = match sequences {
                1 => format!("context {context}"),
                n => format!("{n} sequences at context {context}"),
            };
            line(&mut out, &format!("\nskipped {what}: {reason}"));
        }
        out
    }
}

fn line(out: &mut String, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{text}");
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.1}"))
}

fn share(value: Option<f64>, floor: Option<f64>) -> String {
    let share = value.zip(floor).map(|(value, floor)| format!("{:.1} %", 100.0 * value / floor));
    share.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_exactly_these_keys() {
        let row = Row {
            context: 256,
            prefill_tokens_per_s: Some(10.0),
            decode_tokens_per_s: None,
            prefill_floor: None,
            decode_floor: Some(4.0),
            time_to_first_token_ms: Some(1.0),
            peak_memory_bytes: None,
        };
        let value = serde_json::to_value(&row).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        let expected = [
            "context",
            "prefill_tokens_per_s",
            "decode_tokens_per_s",
            "prefill_floor",
            "decode_floor",
            "time_to_first_token_ms",
            "peak_memory_bytes",
        ];
        assert_eq!(keys, expected);
        assert!(value["decode_tokens_per_s"].is_null());
        let report = Report {
            rows: vec![row],
            concurrent: vec![],
            ablations: vec![AblationRow::unavailable(Ablation::Twins, 256, "no GPU")],
            skipped: vec![Skipped { context: 9, sequences: 1, reason: "too long".to_owned() }],
            manifest: Value::Null,
        };
        let text = report.markdown();
        assert!(text.contains("| 256 | 10.0 | - | - | - | 4.0 | - | 1.0 ms | - |"), "{text}");
        assert!(text.contains("| twins | not measured: no GPU |"), "{text}");
        assert!(text.contains("skipped context 9: too long"), "{text}");
    }
}
