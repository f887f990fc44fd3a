//! `info`, with and without weights.

use crate::support::{TEXT_FILES, arg, demo, demo_with, error, ok, ok_json, run};
use calla_testkit::shards::write_demo;
use std::fs;

#[test]
fn the_demo_is_described() {
    let demo = demo();
    let text = ok(&["info", arg(&demo)], "");
    for words in [
        "8 layers (6 DeltaNet, 2 attention)",
        "routers",
        "MTP",
        "layers.*.mlp.gate ",
        "8 bits, groups of 64",
        "4 bits, groups of 64",
        "4096",
        "fits",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn what_stays_in_place_is_told_for_each_backend() {
    // MLX has given its header an odd length.
    let text = ok(&["info", arg(&demo())], "");
    for words in [
        "CPU: every tensor, ",
        "where the file does not align them for their type",
        "Metal: nothing, 14.5 MB are copied (no tensor starts where its loads can)",
        "CUDA: nothing, all is copied",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path(), &[0]);
    let text = ok(&["info", arg(dir.path())], "");
    for words in ["CPU: every tensor\n", "Metal: 14.4 MB, the other 196.8 kB are copied"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let json = ok_json(&["info", "--json", arg(dir.path())], "");
    let in_place = &json["weights"]["in_place"];
    assert_eq!(in_place["metal_copied_bytes"], 196_800);
    let bytes = in_place["metal_bytes"].as_u64().unwrap();
    assert!((14_200_000..json["weights"]["bytes"].as_u64().unwrap()).contains(&bytes), "{bytes}");
}

#[test]
fn json_sums_agree() {
    let demo = demo();
    let json = ok_json(&["info", "--json", arg(&demo)], "");
    assert_eq!(json["shape"]["layers"], 8);
    assert_eq!(json["fits"], true);
    assert_eq!(json["longest_context"], 32_768);
    let weights = &json["weights"];
    let sum = |list: &serde_json::Value| -> u64 {
        list.as_array().unwrap().iter().map(|item| item["bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!(sum(&weights["bytes_by_part"]), weights["bytes"].as_u64().unwrap());
    assert!(sum(&weights["modules"]) < weights["bytes"].as_u64().unwrap());
    assert!(sum(&weights["files"]) > weights["bytes"].as_u64().unwrap());
    assert_eq!(weights["skipped"]["tensors"], 0);
    let memory = json["memory"].as_array().unwrap();
    assert_eq!(memory.last().unwrap()["context"], 32_768);
    for row in memory {
        let part = |name: &str| row[name].as_u64().unwrap();
        let total = part("weights_bytes") + part("kv_bytes") + part("recurrent_bytes");
        assert_eq!(part("total_bytes"), total);
    }
}

#[test]
fn verification_finds_what_is_wrong() {
    let demo = demo();
    let json = ok_json(&["info", "--json", "--verify", arg(&demo)], "");
    let verification = &json["weights"]["verification"];
    assert_eq!(verification["problems"].as_array().unwrap().len(), 0);
    assert!(verification["scanned_tensors"].as_u64().unwrap() > 100, "{verification}");
    assert!(ok(&["info", "--verify", arg(&demo)], "").contains("nothing is wrong"));

    // The last tensor's last values become NaN.
    let dir = demo_with(&TEXT_FILES);
    let mut bytes = fs::read(demo.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let (name, tensor) = tensors
        .as_object()
        .unwrap()
        .iter()
        .find(|(_, tensor)| tensor["dtype"] == "BF16")
        .expect("a bf16 tensor");
    let at = 8 + header + tensor["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[at..at + 2].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    let output = run(&["info", "--verify", arg(dir.path())], "");
    assert_eq!(output.status, Some(1), "{}", output.out);
    assert!(output.out.contains(name.as_str()) && output.out.contains("1 NaN"), "{}", output.out);
    assert!(output.err.contains("verification found"), "{}", output.err);
}

#[test]
fn a_directory_without_weights_is_enough() {
    let dir = demo_with(&TEXT_FILES);
    let text = ok(&["info", arg(dir.path())], "");
    assert!(text.contains("none in this directory") && text.contains("ids"), "{text}");
    let json = ok_json(&["info", "--json", arg(dir.path())], "");
    assert!(json["weights"].is_null());
    assert!(error(&["info", "--verify", arg(dir.path())], "").contains("no weights"));

    let bare = demo_with(&["config.json"]);
    let json = ok_json(&["info", "--json", arg(bare.path())], "");
    assert!(json["tokenizer"].is_null());
    assert_eq!(json["chat_template"], false);
}

#[test]
fn the_published_model_is_described_from_its_config() {
    let dir = demo().parent().unwrap().parent().unwrap().join("shared/qwen3.6");
    if !dir.join("config.json").is_file() {
        println!("skipped: the published model's configuration is not here");
        return;
    }
    let json = ok_json(&["info", "--json", arg(&dir)], "");
    assert_eq!(json["shape"]["layers"], 40);
    assert_eq!(json["shape"]["experts"], 256);
}

#[test]
fn what_is_no_model_is_refused() {
    assert!(error(&["info", "/nonexistent"], "").contains("/nonexistent"));
    let empty = tempfile::tempdir().unwrap();
    assert!(error(&["info", arg(empty.path())], "").contains("config.json"));
    fs::write(empty.path().join("config.json"), "{\"model_type\": \"llama\"}").unwrap();
    assert!(error(&["info", arg(empty.path())], "").contains("llama"));
}
