//! The digest tells any two checkpoints apart, wherever they differ.

mod common;

use calla_weights::Checkpoint;
use common::*;

#[test]
fn any_byte_of_any_tensor_changes_the_digest() {
    let dir = tempfile::tempdir().unwrap();
    tiny(dir.path(), true);
    let digest = || Checkpoint::open(dir.path()).unwrap().digest();
    let original = digest();
    assert_eq!((original.len(), digest()), (64, original.clone()));
    let path = dir.path().join("model.safetensors");
    let file = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    for at in (header..file.len()).step_by(file.len() / 50) {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert_ne!(digest(), original, "byte {at} of {}", file.len());
    }
    std::fs::write(&path, file).unwrap();
    assert_eq!(digest(), original);
    edit_config(dir.path(), |config| {
        config["text_config"]["rms_norm_eps"] = serde_json::json!(1e-5);
    });
    assert_ne!(digest(), original, "another epsilon");
}
