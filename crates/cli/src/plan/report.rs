//! The two forms of `calla plan`: text for people, JSON for programs.

use super::{Plan, Step, floor};
use crate::machine::bytes;
use crate::output::{HEADING, QUIET, printable};
use calla_gpu::plan::{Part, Totals};
use serde_json::{Value, json};
use std::fmt::Write;

/// Parts of the model that a step has, and their keys in JSON.
const PARTS: [(Part, &str); 5] = [
    (Part::Embedding, "embedding"),
    (Part::DeltaNet, "delta_net"),
    (Part::Attention, "attention"),
    (Part::Moe, "moe"),
    (Part::LmHead, "lm_head"),
];

/// The report for people.
pub(super) fn text(plan: &Plan) -> String {
    let mut out = String::new();
    line(&mut out, "model", &plan.dir.display().to_string());
    line(&mut out, "shape", &plan.shape.to_string());
    line(&mut out, "weights", "counted as the published MLX 4-bit conversion stores them");
    let context = plan.context;
    let sequences = match plan.decode.size.sequences {
        1 => "one sequence".to_owned(),
        n => format!("{n} sequences"),
    };
    table(&mut out, &format!("decode: {sequences} at context {context}"), &plan.decode);
    let rows = plan.prefill.size.rows;
    table(&mut out, &format!("prefill: {rows} rows that end at context {context}"), &plan.prefill);
    if plan.chip.is_some() {
        floor_text(&mut out, plan);
    } else {
        let _ = writeln!(out, "\n{QUIET}--chip NAME adds what a chip can reach at most{QUIET:#}");
    }
    out
}

fn line(out: &mut String, name: &str, value: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{HEADING}{name:<12}{HEADING:#}{}", printable(value));
}

fn table(out: &mut String, title: &str, step: &Step) {
    let _ = writeln!(
        out,
        "\n{HEADING}{title}{HEADING:#}\n{HEADING}{:<12}{:>8}{:>12}{:>12}{:>14}{HEADING:#}",
        "part", "kernels", "read", "written", "operations"
    );
    let mut row = |name: &str, totals: &Totals| {
        let _ = writeln!(
            out,
            "{name:<12}{:>8}{:>12}{:>12}{:>14}",
            totals.kernels,
            bytes(totals.bytes_read),
            bytes(totals.bytes_written),
            flops(totals.flops)
        );
    };
    for (part, name) in PARTS {
        row(name, &of_part(step, part));
    }
    row("all", &step.summary.total);
    let (stages, scratch) = (step.summary.stages, bytes(step.summary.scratch_bytes));
    let _ = writeln!(out, "in {stages} stages, with {scratch} of temporaries");
}

fn floor_text(out: &mut String, plan: &Plan) {
    let Some(chip) = plan.chip else { return };
    let rate = match chip.flops {
        Some(rate) => format!("{:.0} TFLOP/s", rate as f64 / 1e12),
        None => "no rate of matrix products is known".to_owned(),
    };
    let _ = writeln!(
        out,
        "\n{HEADING}{}: {:.0} GB/s, {rate}{HEADING:#} ({})",
        chip.title,
        chip.bandwidth as f64 / 1e9,
        chip.source
    );
    for (name, step) in [("decode", &plan.decode), ("prefill", &plan.prefill)] {
        let least = &step.bounds.least;
        let bound = if least.is_bound_by_arithmetic(chip) { "arithmetic" } else { "memory" };
        let value = format!(
            "at most {:.0} tokens/s, bound by {bound}: {} and {} a step are the least; as planned {:.0}",
            least.tokens_per_second(chip),
            bytes(least.bytes),
            flops(least.flops),
            step.bounds.plan.tokens_per_second(chip)
        );
        line(out, name, &value);
    }
}

/// Operations in decimal units.
fn flops(count: u64) -> String {
    let value = count as f64;
    match count {
        0..1_000_000 => format!("{:.1} kFLOP", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MFLOP", value / 1e6),
        1_000_000_000..1_000_000_000_000 => format!("{:.2} GFLOP", value / 1e9),
        _ => format!("{:.2} TFLOP", value / 1e12),
    }
}

fn of_part(step: &Step, part: Part) -> Totals {
    step.summary.by_part.get(&part).copied().unwrap_or_default()
}

/// The report for programs.
pub(super) fn json(plan: &Plan) -> Value {
    let parts: serde_json::Map<String, Value> = PARTS
        .into_iter()
        .map(|(part, name)| {
            let (decode, prefill) = (of_part(&plan.decode, part), of_part(&plan.prefill, part));
            (name.to_owned(), json!({"decode": decode, "prefill": prefill}))
        })
        .collect();
    let floor = plan.chip.map(|chip| floor::json(chip, &plan.decode.bounds, &plan.prefill.bounds));
    json!({
        "path": plan.dir.display().to_string(),
        "context": plan.context,
        "decode": step_json(&plan.decode),
        "prefill": step_json(&plan.prefill),
        "by_layer_type": parts,
        "floor": floor,
    })
}

fn step_json(step: &Step) -> Value {
    let total = &step.summary.total;
    json!({
        "sequences": step.size.sequences,
        "rows": step.size.rows,
        "kernels": total.kernels,
        "stages": step.summary.stages,
        "bytes_read": total.bytes_read,
        "bytes_written": total.bytes_written,
        "flops": total.flops,
        "scratch_bytes": step.summary.scratch_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_decimal_units() {
        assert_eq!(flops(1_500), "1.5 kFLOP");
        assert_eq!(flops(2_500_000), "2.5 MFLOP");
        assert_eq!(flops(5_904_000_000), "5.90 GFLOP");
        assert_eq!(flops(1_250_000_000_000), "1.25 TFLOP");
    }
}
