//! Random damage to a valid file: never a panic, and nothing accepted that the reference reader refuses.

mod common;

use calla_weights::{Checkpoint, header, verify};
use common::tiny;
use proptest::prelude::*;
use safetensors::SafeTensors;
use std::path::PathBuf;
use std::sync::LazyLock;

struct Valid {
    _dir: tempfile::TempDir,
    dir: PathBuf,
    file: Vec<u8>,
    header_len: usize,
}

static VALID: LazyLock<Valid> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    tiny(dir.path(), true);
    let file = std::fs::read(dir.path().join("model.safetensors")).unwrap();
    let header_len = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    Valid { dir: dir.path().to_owned(), _dir: dir, file, header_len }
});

/// One piece of damage.
#[derive(Clone, Debug)]
enum Damage {
    /// Replaces a byte of the header.
    Header(usize, u8),
    /// Replaces a digit of the header by another: still JSON, with other numbers.
    Digit(usize, u8),
    /// Replaces a byte of the header's length.
    Length(usize, u8),
    /// Cuts the file.
    Cut(usize),
    /// Removes a byte of the header, without telling its length.
    Remove(usize),
    /// Exchanges two bytes of the header.
    Swap(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let printable = 0x20_u8..0x7f;
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Damage::Header(at, byte)),
        (any::<usize>(), printable).prop_map(|(at, byte)| Damage::Header(at, byte)),
        (any::<usize>(), b'0'..=b'9').prop_map(|(at, digit)| Damage::Digit(at, digit)),
        (0..8_usize, any::<u8>()).prop_map(|(at, byte)| Damage::Length(at, byte)),
        any::<usize>().prop_map(Damage::Cut),
        any::<usize>().prop_map(Damage::Remove),
        (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Damage::Swap(a, b)),
    ]
}

fn apply(damage: &Damage, file: &mut Vec<u8>) {
    if file.len() < VALID.header_len {
        return;
    }
    let header = |at: usize| 8 + at % (VALID.header_len - 8);
    match *damage {
        Damage::Header(at, byte) => file[header(at)] = byte,
        Damage::Digit(at, digit) => {
            let start = header(at);
            if let Some(byte) = file[start..].iter_mut().find(|byte| byte.is_ascii_digit()) {
                *byte = digit;
            }
        }
        Damage::Length(at, byte) => file[at] = byte,
        Damage::Cut(at) => file.truncate(at % (file.len() + 1)),
        Damage::Remove(at) => {
            file.remove(header(at));
        }
        Damage::Swap(a, b) => file.swap(header(a), header(b)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_headers_are_read_no_laxer_than_by_the_reference(
        list in prop::collection::vec(damage(), 1..4)
    ) {
        let mut file = VALID.file.clone();
        list.iter().for_each(|damage| apply(damage, &mut file));
        if let Ok(tensors) = header::read(&file) {
            let reference = SafeTensors::deserialize(&file).unwrap();
            prop_assert_eq!(tensors.len(), reference.len());
            for tensor in tensors {
                let view = reference.tensor(&tensor.name).unwrap();
                prop_assert_eq!(view.shape(), &tensor.shape[..]);
                prop_assert_eq!(view.dtype(), tensor.dtype);
                prop_assert!(view.data() == &file[tensor.range]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn damaged_checkpoints_never_panic(list in prop::collection::vec(damage(), 1..3)) {
        let mut file = VALID.file.clone();
        list.iter().for_each(|damage| apply(damage, &mut file));
        std::fs::write(VALID.dir.join("model.safetensors"), &file).unwrap();
        // Whatever opens can be verified and loaded or refused; what loads has all of its tensors, each of
        // the one shape that config.json asks for, so the damage was to no name, type or shape.
        match Checkpoint::open(&VALID.dir) {
            Ok(checkpoint) => {
                let verification = verify(&checkpoint);
                prop_assert!(verification.scanned_bytes <= file.len() as u64);
                if checkpoint.load().is_ok() {
                    let names = |file: &[u8]| {
                        let mut list: Vec<_> = header::read(file)
                            .unwrap()
                            .into_iter()
                            .map(|t| (t.name, t.dtype, t.shape))
                            .collect();
                        list.sort_by(|a, b| a.0.cmp(&b.0));
                        list
                    };
                    prop_assert_eq!(names(&file), names(&VALID.file));
                }
            }
            Err(error) => prop_assert!(error.to_string().contains("model.safetensors")),
        }
    }
}
