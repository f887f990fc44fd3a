//! The two forms of `calla info`: text for people, JSON for programs.

use super::{Info, Weights};
use crate::machine::bytes;
use crate::output::{HEADING, QUIET, printable};
use calla_gpu::InPlace;
use calla_model::LayerKind;
use serde_json::{Value, json};
use std::fmt::Write;

/// The report for people.
pub(super) fn text(info: &Info) -> String {
    let mut out = String::new();
    line(&mut out, "model", &info.dir.display().to_string());
    line(&mut out, "shape", &info.config.shape.to_string());
    match &info.weights {
        Some(weights) => weights_text(&mut out, weights),
        None => line(&mut out, "weights", "none in this directory"),
    }
    match &info.tokenizer {
        Ok((ids, added)) => {
            line(&mut out, "tokenizer", &format!("{ids} ids, {added} of them added tokens"));
        }
        Err(why) => line(&mut out, "tokenizer", &format!("none: {why}")),
    }
    match &info.template {
        Ok(()) => line(&mut out, "template", "there is one"),
        Err(why) => line(&mut out, "template", &format!("none: {why}")),
    }
    memory_text(&mut out, info);
    out
}

fn line(out: &mut String, name: &str, value: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{HEADING}{name:<12}{HEADING:#}{}", printable(value));
}

fn weights_text(out: &mut String, weights: &Weights) {
    let inspection = &weights.inspection;
    let in_files: u64 = weights.files.iter().map(|(_, bytes)| bytes).sum();
    line(
        out,
        "weights",
        &format!(
            "{} tensors in {} {}, {}, {} layout",
            inspection.tensors.len(),
            weights.files.len(),
            if weights.files.len() == 1 { "file" } else { "files" },
            bytes(in_files),
            weights.layout
        ),
    );
    let (skipped, skipped_bytes) = weights.skipped();
    if skipped > 0 {
        let text = format!("vision tower, {skipped} tensors, {}", bytes(skipped_bytes));
        line(out, "skipped", &text);
    }
    in_place_text(out, weights);
    if let Some((found, time)) = &weights.verification {
        line(
            out,
            "verified",
            &format!(
                "{} tensors, {} in {:.2} s ({} of packed integers need no check): {}",
                found.scanned_tensors,
                bytes(found.scanned_bytes),
                time.as_secs_f64(),
                found.integer_tensors,
                if found.is_clean() { "nothing is wrong" } else { "PROBLEMS" }
            ),
        );
        for problem in &found.problems {
            line(out, "", &format!("{} {}", problem.tensor, problem.problem));
        }
    }
    let _ = writeln!(out, "\n{HEADING}{:<44}{:>12}{HEADING:#}", "part", "bytes");
    for (part, size) in inspection.bytes_by_part() {
        let _ = writeln!(out, "{:<44}{:>12}", part.name(), bytes(size));
    }
    let _ = writeln!(
        out,
        "\n{HEADING}{:<44}{:>12}  {:>6}  {:<18} stored as{HEADING:#}",
        "module", "bytes", "layers", "dimensions"
    );
    for group in weights.module_groups() {
        let dims: Vec<String> = group.dims.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            out,
            "{:<44}{:>12}  {:>6}  {:<18} {}",
            group.name,
            bytes(group.bytes),
            group.layers,
            dims.join(" x "),
            group.storage
        );
    }
}

/// What each backend uses where the files are mapped, and what it copies.
fn in_place_text(out: &mut String, weights: &Weights) {
    let inspection = &weights.inspection;
    let cpu = match inspection.misaligned_tensors {
        0 => "CPU: every tensor".to_owned(),
        n => format!(
            "CPU: every tensor, {n} of them ({}) where the file does not align them for their type",
            bytes(inspection.misaligned_bytes)
        ),
    };
    line(out, "in place", &cpu);
    match &weights.on_mac {
        Ok(InPlace { in_place: 0, copied }) => {
            let why = "no tensor starts where its loads can";
            line(out, "", &format!("Metal: nothing, {} are copied ({why})", bytes(*copied)));
        }
        Ok(InPlace { in_place, copied }) => {
            let text =
                format!("Metal: {}, the other {} are copied", bytes(*in_place), bytes(*copied));
            line(out, "", &text);
        }
        Err(why) => return line(out, "", &format!("no GPU takes these weights: {why}")),
    }
    line(out, "", "CUDA: nothing, all is copied to the GPU's own memory");
}

fn memory_text(out: &mut String, info: &Info) {
    let machine = &info.machine;
    let _ = writeln!(
        out,
        "\n{HEADING}{:>10}{:>12}{:>12}{:>12}{HEADING:#}   here",
        "context", "KV cache", "recurrent", "total"
    );
    for context in info.contexts() {
        let plan = info.plan(context);
        let _ = writeln!(
            out,
            "{context:>10}{:>12}{:>12}{:>12}   {}",
            bytes(plan.kv),
            bytes(plan.recurrent),
            bytes(plan.total()),
            if plan.check(machine).is_ok() { "fits" } else { "does not fit" }
        );
    }
    let _ = writeln!(
        out,
        "{QUIET}this machine: {} of memory, {} available, {} for a model{QUIET:#}",
        bytes(machine.total),
        bytes(machine.available),
        bytes(machine.limit())
    );
    let verdict = match (info.longest_context(), info.plan(1).check(machine)) {
        (0, Err(refusal)) => refusal.to_string(),
        (longest, _) if info.weights.is_some() => {
            format!("it fits, with a context of up to {longest} tokens")
        }
        (longest, _) => {
            format!("without weights, state for up to {longest} tokens would fit")
        }
    };
    let _ = writeln!(out, "{verdict}");
}

/// The report for programs.
pub(super) fn json(info: &Info) -> Value {
    let shape = &info.config.shape;
    let memory: Vec<Value> = info
        .contexts()
        .into_iter()
        .map(|context| {
            let plan = info.plan(context);
            json!({
                "context": context,
                "weights_bytes": plan.weights,
                "kv_bytes": plan.kv,
                "recurrent_bytes": plan.recurrent,
                "total_bytes": plan.total(),
                "fits": plan.check(&info.machine).is_ok(),
            })
        })
        .collect();
    json!({
        "path": info.dir.display().to_string(),
        "shape": {
            "vocab_size": shape.vocab_size,
            "hidden": shape.hidden,
            "layers": shape.layers.len(),
            "delta_net_layers": shape.layers_of(LayerKind::DeltaNet),
            "attention_layers": shape.layers_of(LayerKind::Attention),
            "attention_heads": shape.attention_heads,
            "kv_heads": shape.kv_heads,
            "delta_key_heads": shape.delta_key_heads,
            "delta_value_heads": shape.delta_value_heads,
            "experts": shape.experts,
            "top_k": shape.top_k,
            "expert_hidden": shape.expert_hidden,
            "shared_hidden": shape.shared_hidden,
            "max_positions": shape.max_positions,
            "tied_embeddings": shape.tied_embeddings,
            "mtp_layers": shape.mtp_layers,
        },
        "weights": info.weights.as_ref().map(weights_json),
        "tokenizer": match &info.tokenizer {
            Ok((ids, added)) => json!({"ids": ids, "added_tokens": added}),
            Err(_) => Value::Null,
        },
        "chat_template": info.template.is_ok(),
        "memory": memory,
        "machine": {
            "total_bytes": info.machine.total,
            "available_bytes": info.machine.available,
            "limit_bytes": info.machine.limit(),
        },
        "fits": info.longest_context() > 0,
        "longest_context": info.longest_context(),
        "refusal": info.plan(1).check(&info.machine).err().map(|refusal| refusal.to_string()),
    })
}

fn weights_json(weights: &Weights) -> Value {
    let inspection = &weights.inspection;
    let (skipped, skipped_bytes) = weights.skipped();
    let files: Vec<Value> =
        weights.files.iter().map(|(name, size)| json!({"name": name, "bytes": size})).collect();
    let parts: Vec<Value> = inspection
        .bytes_by_part()
        .into_iter()
        .map(|(part, size)| json!({"part": part.name(), "bytes": size}))
        .collect();
    let modules: Vec<Value> = weights
        .module_groups()
        .into_iter()
        .map(|group| {
            json!({
                "module": group.name,
                "layers": group.layers,
                "dimensions": group.dims,
                "stored_as": group.storage.to_string(),
                "bytes": group.bytes,
            })
        })
        .collect();
    let verification = weights.verification.as_ref().map(|(found, time)| {
        let problems: Vec<Value> = found
            .problems
            .iter()
            .map(|p| json!({"tensor": p.tensor.name, "file": p.tensor.file, "problem": p.problem}))
            .collect();
        json!({
            "scanned_tensors": found.scanned_tensors,
            "scanned_bytes": found.scanned_bytes,
            "integer_tensors": found.integer_tensors,
            "seconds": time.as_secs_f64(),
            "problems": problems,
        })
    });
    json!({
        "layout": weights.layout,
        "files": files,
        "tensors": inspection.tensors.len(),
        "bytes": inspection.tensors.iter().map(|t| t.bytes).sum::<u64>(),
        "bytes_by_part": parts,
        "modules": modules,
        "skipped": {"tensors": skipped, "bytes": skipped_bytes},
        "misaligned": {
            "tensors": inspection.misaligned_tensors,
            "bytes": inspection.misaligned_bytes,
        },
        "in_place": weights.on_mac.as_ref().ok().map(|InPlace { in_place, copied }| {
            json!({"metal_bytes": in_place, "metal_copied_bytes": copied})
        }),
        "verification": verification,
    })
}
