//! Random checkpoints load, are clean, and depend on nothing but their options.

use super::*;
use crate::{Checkpoint, Placement, inspect, verify};
use calla_model::budget::{Mlx4Bit, PartBytes};
use calla_model::{Matrix, Network};

fn options(shape: Shape) -> Options {
    Options { shape, seed: 7, mtp: true, skew: 0.0, tokenizer: None }
}

fn quiet(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_random_demo_shape_loads_and_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model");
    let shape = Shape::demo();
    let largest = std::sync::Mutex::new((0, 0));
    let progress = |done: u64, total: u64| {
        let mut largest = largest.lock().unwrap();
        *largest = (largest.0.max(done), total);
        ControlFlow::Continue(())
    };
    let made = synth(&options(shape.clone()), &out, &progress).unwrap();
    assert_eq!(made.files, 1);
    assert_eq!(*largest.lock().unwrap(), (made.bytes, made.bytes));

    let checkpoint = Checkpoint::open(&out).unwrap();
    assert_eq!(checkpoint.shape(), &shape);
    let (network, report) = checkpoint.load_with_report(Placement::Aligned).unwrap();
    assert_eq!((report.repacked_bytes, report.repacked_tensors), (0, 0), "all is aligned");
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    assert!(network.mtp.is_some());
    let verification = verify(&checkpoint);
    assert!(verification.is_clean(), "{:?}", verification.problems);

    // The same bytes by part as the budget, which is arithmetic alone.
    let expected = PartBytes::of(&Network::build(&shape, &mut Mlx4Bit { mtp: true }).unwrap());
    assert_eq!(report.text_bytes, expected.total());
    let parts = inspect(&checkpoint).unwrap().bytes_by_part();
    let of = |part| parts.iter().find(|(p, _)| *p == part).map_or(0, |&(_, bytes)| bytes);
    use crate::inspect::Part;
    assert_eq!(of(Part::Embedding), expected.embedding);
    assert_eq!(of(Part::DeltaNet), expected.delta_net);
    assert_eq!(of(Part::Attention), expected.attention);
    assert_eq!(of(Part::Experts), expected.experts);
    assert_eq!(of(Part::SharedExperts), expected.shared_experts);
    assert_eq!(of(Part::Routers), expected.routers);
    assert_eq!(of(Part::LmHead), expected.lm_head);
    assert_eq!(of(Part::Mtp), expected.mtp);
    assert_eq!(of(Part::Other), 0);
}

#[test]
fn values_have_the_intended_mean_and_size() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model");
    synth(&options(Shape::demo()), &out, &quiet).unwrap();
    let network = Checkpoint::open(&out).unwrap().load().unwrap();
    let check = |matrix: &Matrix, std: f64| {
        let (mut sum, mut squares) = (0.0, 0.0);
        let mut row = vec![0.0; matrix.cols()];
        for i in 0..matrix.rows() {
            matrix.read_row(i, &mut row);
            sum += row.iter().map(|&x| f64::from(x)).sum::<f64>();
            squares += row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        }
        let count = (matrix.rows() * matrix.cols()) as f64;
        let actual = (squares / count).sqrt();
        assert!((actual / std - 1.0).abs() < 0.1, "{matrix:?}: {actual} instead of {std}");
        assert!((sum / count).abs() < 0.05 * std, "{matrix:?}: mean {}", sum / count);
    };
    check(&network.embed_tokens, 1.0);
    check(network.output_matrix(), 2.0 / 16.0);
    check(network.layers[1].moe.gate_proj.get(31), 1.0 / 16.0);
    check(&network.layers[1].moe.gate, 1.0 / 16.0);
    check(&network.mtp.unwrap().fc, 1.0 / 512_f64.sqrt());
}

#[test]
fn the_seed_decides_every_byte_and_threads_none() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, seed: u64, threads: usize| {
        let out = dir.path().join(name);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let options = Options { seed, ..options(Shape::demo()) };
        pool.install(|| synth(&options, &out, &quiet)).unwrap();
        std::fs::read(out.join("model.safetensors")).unwrap()
    };
    let one = make("one", 7, 1);
    assert!(one == make("four", 7, 4));
    assert!(one != make("other", 8, 4));
}

#[test]
fn odd_shapes_and_several_files_load() {
    let shape = Shape {
        vocab_size: 777,
        hidden: 192,
        layers: calla_model::shape::schedule(5, 4),
        attention_heads: 3,
        kv_heads: 1,
        delta_value_heads: 6,
        experts: 20,
        top_k: 5,
        // Fits groups of 32 only, and no group at all.
        expert_hidden: 32,
        shared_hidden: 40,
        ..Shape::demo()
    };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model");
    let options = Options { mtp: false, skew: 2.0, ..options(shape.clone()) };
    let made = synth_sharded(&options, &out, 500_000, &quiet).unwrap();
    assert!(made.files > 2, "{made:?}");
    let checkpoint = Checkpoint::open(&out).unwrap();
    assert_eq!(checkpoint.shape(), &Shape { mtp_layers: 0, ..shape });
    let (network, report) = checkpoint.load_with_report(Placement::Aligned).unwrap();
    assert_eq!(report.repacked_bytes, 0);
    assert!(verify(&checkpoint).is_clean());
    let down = &network.layers[0].moe.shared_down_proj;
    assert!(matches!(down.data(), calla_model::MatrixData::Dense { .. }), "{down:?}");
}

#[test]
fn a_stopped_run_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model");
    let error = synth(&options(Shape::demo()), &out, &|_, _| ControlFlow::Break(())).unwrap_err();
    assert!(error.to_string().contains("stopped"), "{error}");
    assert!(!out.exists());
}

#[test]
fn what_a_killed_run_left_is_removed_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let leftovers = [
        "tokenizer.json.partial",
        "model.safetensors.partial",
        "model-00001-of-00002.safetensors.partial",
    ];
    for name in leftovers {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    let strange = dir.path().join("notes.partial");
    std::fs::write(&strange, "mine").unwrap();
    let error = synth(&options(Shape::demo()), dir.path(), &quiet).unwrap_err();
    assert!(error.to_string().contains("is not empty"), "{error}");
    assert!(leftovers.iter().all(|name| dir.path().join(name).exists()));

    // Nor is what a run that still lives is writing.
    std::fs::remove_file(strange).unwrap();
    let held = std::fs::File::open(dir.path().join(leftovers[1])).unwrap();
    held.lock().unwrap();
    let error = synth(&options(Shape::demo()), dir.path(), &quiet).unwrap_err();
    assert!(error.to_string().contains("is not empty"), "{error}");
    drop(held);

    synth(&options(Shape::demo()), dir.path(), &quiet).unwrap();
    assert!(leftovers.iter().all(|name| !dir.path().join(name).exists()));
}

#[test]
fn nothing_is_overwritten_and_failures_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let error = synth(&options(Shape::demo()), dir.path(), &quiet).unwrap_err();
    assert!(error.to_string().contains("is not empty"), "{error}");

    let out = dir.path().join("model");
    let with_tokenizer =
        |from: &Path| Options { tokenizer: Some(from.to_owned()), ..options(Shape::demo()) };
    let error = synth(&with_tokenizer(dir.path()), &out, &quiet).unwrap_err();
    assert!(error.to_string().contains("it holds no tokenizer"), "{error}");
    assert!(!out.exists());

    std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    synth(&with_tokenizer(dir.path()), &out, &quiet).unwrap();
    assert_eq!(std::fs::read_to_string(out.join("tokenizer.json")).unwrap(), "{}");
    let mut left: Vec<_> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["config.json", "model.safetensors", "tokenizer.json"]);
}

/// Files with headers and holes instead of values: all of a large checkpoint but its bytes.
fn write_hollow(options: &Options, dir: &Path) {
    use std::io::Write;
    let tensors = plan::plan(options);
    for shard in write::shards(&tensors, SHARD_BYTES) {
        let mut file = std::fs::File::create(dir.join(&shard.name)).unwrap();
        file.write_all(&shard.header).unwrap();
        file.set_len(shard.bytes).unwrap();
    }
    let index = write::index_json(&write::shards(&tensors, SHARD_BYTES));
    std::fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
    let config = config::config_json(options, &tensors);
    std::fs::write(dir.join("config.json"), config).unwrap();
}

#[test]
#[cfg(unix)]
fn the_full_size_opens_and_has_the_published_tensors_and_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { mtp: false, ..options(Shape::full(40)) };
    write_hollow(&options, dir.path());
    let check = || {
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let (network, report) = checkpoint.load_with_report(Placement::Aligned).unwrap();
        assert_eq!(network.layers.len(), 40);
        // Counts of the published MLX conversion without its vision tower.
        assert_eq!(report.text_bytes, 19_508_787_456);
        assert_eq!(inspect(&checkpoint).unwrap().tensors.len(), 1757);
        assert_eq!(report.repacked_bytes, 0);
        checkpoint.files().count()
    };
    assert_eq!(check(), 4);

    // The published configuration speaks of the same modules.
    let published =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/qwen3.6/config.mlx-4bit.json");
    if !published.exists() {
        println!("skipped: {} is not there", published.display());
        return;
    }
    std::fs::copy(published, dir.path().join("config.json")).unwrap();
    assert_eq!(check(), 4);
}
