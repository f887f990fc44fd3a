//! `bench`: the protocol on the demo checkpoint, and what it writes and refuses.

use crate::support::{arg, demo, error, ok, ok_json, run};
use serde_json::Value;
use std::fs;

/// Flags of a short measurement. Two pages hold a sequence of the longer prompt, and are more than its tokens need.
const SHORT: [&str; 8] = ["--contexts", "16,60", "--steps", "4", "--repeat", "2", "--threads", "1"];

fn short(more: &[&str]) -> Vec<String> {
    let demo = demo();
    let flags = ["bench", "--model", arg(&demo)].into_iter().chain(SHORT);
    flags.chain(more.iter().copied()).map(str::to_owned).collect()
}

fn refs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

#[test]
fn figures_floors_and_settings_are_told() {
    let args = short(&["--json", "--concurrent", "1,3", "--ablate"]);
    let report = ok_json(&refs(&args), "");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, context) in rows.iter().zip([16, 60]) {
        let keys: Vec<&String> = row.as_object().unwrap().keys().collect();
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
        assert_eq!(row["context"], context);
        for key in ["prefill", "decode"] {
            let rate = row[format!("{key}_tokens_per_s")].as_f64().unwrap();
            let floor = row[format!("{key}_floor")].as_f64().unwrap();
            assert!(rate > 0.0 && floor > 0.0, "{row}");
        }
        let milliseconds = row["time_to_first_token_ms"].as_f64().unwrap();
        assert!(milliseconds > 0.0, "{row}");
        if cfg!(target_os = "linux") {
            assert!(row["peak_memory_bytes"].as_u64().unwrap() > 1 << 20, "{row}");
        }
    }
    let concurrent = report["concurrent"].as_array().unwrap();
    assert_eq!(concurrent.len(), 1, "one sequence is among the rows: {concurrent:?}");
    assert_eq!((&concurrent[0]["sequences"], &concurrent[0]["context"]), (&3.into(), &60.into()));

    let ablation = |name: &str| {
        let rows = report["ablations"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()
    };
    let threads = ablation("threads");
    // Threads never change what is computed.
    assert_eq!(threads["same_tokens"], true, "{threads}");
    assert!(threads["decode_ratio"].as_f64().unwrap() > 0.0, "{threads}");
    assert_eq!(ablation("twins")["unavailable"], "only the CUDA driver has this");

    let manifest = &report["manifest"];
    assert_eq!(manifest["settings"]["steps"], 4);
    assert_eq!(manifest["settings"]["device"], "cpu");
    assert_eq!(manifest["settings"]["contexts"], serde_json::json!([16, 60]));
    assert_eq!(manifest["program"]["blake3"].as_str().unwrap().len(), 64);
    assert_eq!(
        manifest["rates"]["flops"]["source"].as_str().unwrap().split(':').next(),
        Some("measured")
    );
    let arms = manifest["arms"].as_array().unwrap();
    // Two lengths, three sequences, and the switches of the CPU that the demo has, in two rounds.
    let measured = report["ablations"].as_array().unwrap().iter();
    let switches = measured.filter(|row| row["unavailable"].is_null()).count();
    assert_eq!(arms.len(), 2 * (3 + switches));
    // The second round goes the other way.
    let order = |round: u64| -> Vec<String> {
        let of_round = arms.iter().filter(|arm| arm["round"] == round);
        of_round.map(|a| format!("{} {} {}", a["context"], a["sequences"], a["ablation"])).collect()
    };
    let mut second = order(2);
    second.reverse();
    assert_eq!(order(1), second);
    let digests = |context: u64| -> Vec<&Value> {
        let same = |arm: &&Value| arm["context"] == context && arm["ablation"].is_null();
        arms.iter().filter(same).filter(|a| a["sequences"] == 1).map(|a| &a["digest"]).collect()
    };
    assert_eq!(digests(16)[0], digests(16)[1]);
    assert_ne!(digests(16)[0], digests(60)[0]);

    let text = manifest.to_string();
    for path in [env!("CARGO_MANIFEST_DIR"), arg(&demo()), "/tmp", "/home", "/root"] {
        assert!(!text.contains(path), "{path} in {text}");
    }
}

#[test]
fn files_are_written_once_and_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("speed");
    let more = ["--out", arg(&out), "--name", "here", "--plot"];
    let text = ok(&refs(&short(&more)), "");
    assert!(text.contains("| context | prefill tok/s | floor | share |"), "{text}");
    assert!(text.contains("\n| 16 | ") && text.contains("\n| 60 | "), "{text}");
    let written = fs::read_to_string(out.join("here.json")).unwrap();
    let report: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 2);
    for name in ["here-prefill.svg", "here-decode.svg"] {
        assert!(fs::read_to_string(out.join(name)).unwrap().starts_with("<svg"));
    }
    let message = error(&refs(&short(&more)), "");
    assert!(message.contains("is there already"), "{message}");
    assert_eq!(fs::read_to_string(out.join("here.json")).unwrap(), written);
}

#[test]
fn what_does_not_fit_is_skipped_with_numbers() {
    let demo = demo();
    let args = ["bench", "--model", arg(&demo), "--contexts", "8,32768", "--steps", "1"];
    let args: Vec<&str> =
        args.into_iter().chain(["--repeat", "1", "--threads", "1", "--json"]).collect();
    let report = ok_json(&args, "");
    assert_eq!(report["rows"].as_array().unwrap().len(), 1);
    let skipped = &report["skipped"][0];
    assert_eq!(skipped["context"], 32_768);
    let reason = skipped["reason"].as_str().unwrap();
    assert!(reason.contains("32770") && reason.contains("32768"), "{reason}");
}

#[test]
fn wrong_flags_are_refused() {
    for (flags, word) in [
        (&["--contexts", "0"][..], "0 is not in 1"),
        (&["--contexts", "16,x"], "invalid digit"),
        (&["--concurrent", "0"], "0 is not in 1..=256"),
        (&["--repeat", "0"], "0 is not in 1..=100"),
        (&["--plot"], "--out"),
        (&["--out", "x", "--name", "../y"], "expected letters"),
    ] {
        let args: Vec<&str> = ["bench"].into_iter().chain(flags.iter().copied()).collect();
        let output = run(&args, "");
        assert_eq!(output.status, Some(2), "{flags:?}: {output:?}");
        assert!(output.err.contains(word), "{flags:?}: {output:?}");
    }
    let output = run(&["bench", "--model", "/nonexistent"], "");
    assert_eq!(output.status, Some(1), "{output:?}");
    assert!(output.err.contains("/nonexistent"), "{output:?}");
}
