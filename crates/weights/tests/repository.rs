//! Which files a model's folder may lead to, and what is said when they are missing or contradictory.

mod common;

use calla_weights::Checkpoint;
use common::*;
use std::path::Path;
use tempfile::TempDir;

fn tiny_dir() -> (TempDir, Tensors) {
    let dir = tempfile::tempdir().unwrap();
    let tensors = tiny(dir.path(), false);
    (dir, tensors)
}

/// Writes an index that maps every tensor to `file(name)`.
fn write_index(dir: &Path, tensors: &Tensors, file: impl Fn(&str) -> String) {
    let lines: Vec<String> =
        tensors.keys().map(|name| format!("{name:?}: {:?}", file(name))).collect();
    let text = format!("{{\"metadata\": {{}}, \"weight_map\": {{{}}}}}", lines.join(", "));
    std::fs::write(dir.join("model.safetensors.index.json"), text).unwrap();
}

/// The tensors in two files with an index.
fn shard(dir: &Path, tensors: &Tensors) -> [Tensors; 2] {
    let (a, b): (Tensors, Tensors) =
        tensors.clone().into_iter().partition(|(name, _)| name.contains("layers.0."));
    std::fs::remove_file(dir.join("model.safetensors")).unwrap();
    write_as(dir, "model-1.safetensors", &a);
    write_as(dir, "model-2.safetensors", &b);
    write_index(dir, tensors, |name| {
        format!("model-{}.safetensors", if name.contains("layers.0.") { 1 } else { 2 })
    });
    [a, b]
}

#[test]
fn a_folder_without_weights_is_told_apart() {
    let (dir, _) = tiny_dir();
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(error.is_no_weights());
    assert_says(&error.to_string(), &["holds no weights", "model.safetensors.index.json"]);
    assert_eq!(Checkpoint::open_config(dir.path()).unwrap().shape.hidden, 64);

    std::fs::write(dir.path().join("model-00001-of-00002.safetensors"), "").unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(!error.is_no_weights());
    assert_says(&error.to_string(), &["1 .safetensors files", "is the download complete?"]);
}

#[test]
fn paths_that_are_no_model_are_named() {
    let (dir, _) = tiny_dir();
    assert_says(&refusal(&dir.path().join("nowhere")), &["cannot open", "nowhere"]);
    assert_says(
        &refusal(&dir.path().join("config.json")),
        &["is not a directory", "give the folder"],
    );
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    assert_says(&refusal(dir.path()), &["cannot open", "config.json"]);
    let huge = std::fs::File::create(dir.path().join("config.json")).unwrap();
    huge.set_len(1 << 30).unwrap();
    assert_says(&refusal(dir.path()), &["has 1073741824 bytes", "the limit is 16777216"]);
}

#[test]
fn code_named_in_the_configuration_is_ignored() {
    let (dir, _) = tiny_dir();
    let path = dir.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let with_code =
        text.replacen('{', "{\"auto_map\": {\"AutoModel\": \"x.Y\"}, \"model_file\": \"x.py\",", 1);
    std::fs::write(&path, with_code).unwrap();
    Checkpoint::open(dir.path()).unwrap().load().unwrap();
}

#[test]
fn shards_load_and_must_agree_with_the_index() {
    let (dir, tensors) = tiny_dir();
    let dir = dir.path();
    let [a, b] = shard(dir, &tensors);
    Checkpoint::open(dir).unwrap().load().unwrap();

    // A tensor in two files, one of which the index names.
    let mut more = b.clone();
    let (first, tensor) = a.iter().next().unwrap();
    more.insert(first.clone(), tensor.clone());
    write_as(dir, "model-2.safetensors", &more);
    let parts =
        ["it lists tensor", first, "in model-1.safetensors, but model-2.safetensors holds one too"];
    assert_says(&refusal(dir), &parts);

    let mut fewer = b.clone();
    let (gone, _) = fewer.pop_first().unwrap();
    write_as(dir, "model-2.safetensors", &fewer);
    assert_says(&refusal(dir), &["it lists tensor", &gone, "which does not hold it"]);

    let mut unlisted = b.clone();
    unlisted.insert("extra".to_owned(), RawTensor::bf16(&[1], [0.0]));
    write_as(dir, "model-2.safetensors", &unlisted);
    assert_says(&refusal(dir), &["does not list tensor \"extra\"", "model-2.safetensors"]);

    std::fs::remove_file(dir.join("model-2.safetensors")).unwrap();
    assert_says(&refusal(dir), &["it lists model-2.safetensors, which is missing"]);
}

#[test]
fn a_tensor_under_two_prefixes_is_there_twice() {
    let (dir, mut tensors) = tiny_dir();
    let norm = tensors["language_model.model.norm.weight"].clone();
    tensors.insert("model.norm.weight".to_owned(), norm);
    write(dir.path(), &tensors);
    assert_says(
        &refusal(dir.path()),
        &["is there twice", "\"model.norm.weight\" of model.safetensors"],
    );
}

#[test]
fn a_single_file_may_have_an_index_too() {
    let (dir, tensors) = tiny_dir();
    write_index(dir.path(), &tensors, |_| "model.safetensors".to_owned());
    Checkpoint::open(dir.path()).unwrap().load().unwrap();
    write_as(dir.path(), "other.safetensors", &tensors);
    write_index(dir.path(), &tensors, |_| "other.safetensors".to_owned());
    assert_says(&refusal(dir.path()), &["does not list model.safetensors", "stale"]);
}

#[test]
fn a_bad_index_is_refused() {
    let (dir, _) = tiny_dir();
    for (text, part) in [
        ("", "EOF"),
        ("[]", "expected an object with a \"weight_map\""),
        ("{}", "it has no \"weight_map\""),
        ("{\"weight_map\": {}}", "\"weight_map\" is empty"),
        ("{\"weight_map\": []}", "expected an object from tensor names to file names"),
        ("{\"weight_map\": {\"a\": 1}}", "expected a string"),
        ("{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}", "tensor \"a\" occurs twice"),
        ("{\"weight_map\": {}, \"weight_map\": {}}", "\"weight_map\" occurs twice"),
    ] {
        std::fs::write(dir.path().join("model.safetensors.index.json"), text).unwrap();
        assert_says(&refusal(dir.path()), &["model.safetensors.index.json: ", part]);
    }
}

#[test]
fn the_number_of_files_is_bounded() {
    let (dir, _) = tiny_dir();
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    let tensors: Tensors =
        (0..1025).map(|i| (format!("t{i}"), RawTensor::bf16(&[1], [0.0]))).collect();
    write_index(dir.path(), &tensors, |name| format!("{name}.safetensors"));
    assert_says(&refusal(dir.path()), &["it lists 1025 files; the limit is 1024"]);
}

#[test]
fn the_index_names_plain_files_only() {
    let (dir, tensors) = tiny_dir();
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    for name in ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "a\\b", "C:x"]
    {
        write_index(dir.path(), &tensors, |_| name.to_owned());
        assert_says(&refusal(dir.path()), &["the index names the file", "only plain file names"]);
    }
}

#[cfg(unix)]
mod links {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_out_of_the_folder_is_refused() {
        let (dir, tensors) = tiny_dir();
        let elsewhere = tempfile::tempdir().unwrap();
        write(elsewhere.path(), &tensors);
        let file = dir.path().join("model.safetensors");
        std::fs::remove_file(&file).unwrap();
        symlink(elsewhere.path().join("model.safetensors"), &file).unwrap();
        assert_says(&refusal(dir.path()), &["leads to", "outside of the model's folder"]);

        // The same for a configuration.
        let config = dir.path().join("config.json");
        std::fs::rename(&config, elsewhere.path().join("config.json")).unwrap();
        symlink(elsewhere.path().join("config.json"), &config).unwrap();
        assert_says(&refusal(dir.path()), &["config.json leads to", "outside of"]);
    }

    #[test]
    fn a_link_inside_the_folder_is_followed() {
        let (dir, _) = tiny_dir();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        let file = dir.path().join("model.safetensors");
        std::fs::rename(&file, dir.path().join("data/blob")).unwrap();
        symlink("data/blob", &file).unwrap();
        Checkpoint::open(dir.path()).unwrap().load().unwrap();
    }

    #[test]
    fn a_hub_cache_is_followed_but_not_beyond_its_model() {
        let (dir, _) = tiny_dir();
        let cache = tempfile::tempdir().unwrap();
        let blobs = cache.path().join("models--owner--name/blobs");
        let snapshot = cache.path().join("models--owner--name/snapshots/0123abcd");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::create_dir_all(&snapshot).unwrap();
        for (i, name) in ["config.json", "model.safetensors"].iter().enumerate() {
            std::fs::copy(dir.path().join(name), blobs.join(format!("{i}"))).unwrap();
            symlink(format!("../../blobs/{i}"), snapshot.join(name)).unwrap();
        }
        Checkpoint::open(&snapshot).unwrap().load().unwrap();

        let other = cache.path().join("models--owner--other");
        std::fs::create_dir(&other).unwrap();
        std::fs::rename(blobs.join("1"), other.join("1")).unwrap();
        std::fs::remove_file(snapshot.join("model.safetensors")).unwrap();
        symlink("../../../models--owner--other/1", snapshot.join("model.safetensors")).unwrap();
        assert_says(&refusal(&snapshot), &["outside of the model's folder", "models--owner--name"]);
    }

    #[test]
    fn devices_pipes_and_folders_are_no_files() {
        let (dir, _) = tiny_dir();
        let file = dir.path().join("model.safetensors");
        std::fs::remove_file(&file).unwrap();
        let name = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: `name` is a live C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_says(&refusal(dir.path()), &["model.safetensors is not a regular file"]);

        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_says(&refusal(dir.path()), &["model.safetensors is not a regular file"]);

        std::fs::remove_dir(&file).unwrap();
        symlink("/dev/zero", &file).unwrap();
        assert_says(&refusal(dir.path()), &["leads to /dev/zero, outside of"]);

        std::fs::remove_file(&file).unwrap();
        symlink("nowhere", &file).unwrap();
        assert_says(&refusal(dir.path()), &["cannot open", "model.safetensors: No such file"]);

        std::fs::remove_file(&file).unwrap();
        symlink("model.safetensors", &file).unwrap();
        assert_says(&refusal(dir.path()), &["cannot open", "model.safetensors"]);
    }
}
