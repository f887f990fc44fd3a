//! Archives: what comes back, and what damage does.

use super::*;
use crate::compiler::key;

const V13: Version = Version { major: 13, minor: 0 };

fn architecture(name: &str) -> Architecture {
    name.parse().unwrap()
}

fn sample() -> BTreeMap<Architecture, Pipelines> {
    let pipelines = |codes: &[&str]| {
        let keyed = (0..).zip(codes).map(|(i, code)| (key(&format!("source {i}")), code));
        keyed.map(|(key, code)| (key, code.as_bytes().to_vec())).collect()
    };
    BTreeMap::from([
        (architecture("sm_80"), pipelines(&["eighty", "same", "same", ""])),
        (architecture("sm_89"), pipelines(&["eighty-nine"])),
        (architecture("sm_90"), pipelines(&["ninety", "ninety more"])),
    ])
}

#[test]
fn what_is_written_is_found_by_key_and_gpu() {
    let bytes = write("abc", V13, &sample()).unwrap();
    let archive = Archive::read(&bytes).unwrap();
    assert_eq!((archive.sources.as_str(), archive.compiler), ("abc", V13));
    let all: Vec<String> = archive.architectures().map(|a| a.to_string()).collect();
    assert_eq!(all, ["8.0", "8.9", "9.0"]);
    let block = |gpu| archive.block(architecture(gpu)).unwrap();
    let first = |gpu| {
        let block = block(gpu)?;
        Some(String::from_utf8(block.get(key("source 0"))?.to_vec()).unwrap())
    };
    // The nearest that is not newer, of the same major version, and of no system on a chip.
    for (gpu, due) in [
        ("sm_80", Some("eighty")),
        ("sm_86", Some("eighty")),
        ("sm_87", None),
        ("sm_89", Some("eighty-nine")),
        ("sm_90", Some("ninety")),
        ("sm_100", None),
        ("sm_120", None),
    ] {
        assert_eq!(first(gpu).as_deref(), due, "{gpu}");
    }
    let block = block("sm_80").unwrap();
    assert_eq!((block.len(), block.is_empty()), (4, false));
    assert_eq!(block.get(key("source 2")), Some(b"same".as_slice()));
    assert_eq!(block.get(key("source 3")), Some(b"".as_slice()));
    assert_eq!(block.get(key("source 4")), None);
    // Code that is the same is there once.
    assert_eq!(block.0.len(), 4 + 4 * INDEX + "eightysame".len());
}

#[test]
fn a_block_may_be_empty() {
    let blocks = BTreeMap::from([(architecture("sm_90"), Pipelines::new())]);
    let bytes = write("abc", V13, &blocks).unwrap();
    let block = Archive::read(&bytes).unwrap().block(architecture("sm_90")).unwrap().unwrap();
    assert!(block.is_empty() && block.get(key("source 0")).is_none());
}

#[test]
fn damage_is_an_error_and_never_other_code() {
    let whole = write("abc", V13, &sample()).unwrap();
    let codes = |bytes: &[u8]| -> Result<Vec<Option<Vec<u8>>>, String> {
        let archive = Archive::read(bytes)?;
        let mut found = vec![];
        for gpu in ["sm_80", "sm_89", "sm_90"] {
            let block = archive.block(architecture(gpu))?;
            for i in 0..4 {
                let code = block.as_ref().and_then(|block| block.get(key(&format!("source {i}"))));
                found.push(code.map(<[u8]>::to_vec));
            }
        }
        Ok(found)
    };
    let due = codes(&whole).unwrap();
    for at in 0..whole.len() {
        for bit in [1, 0x40] {
            let mut bytes = whole.clone();
            bytes[at] ^= bit;
            // A name of sources, a version or an architecture may read as another; machine code may not. An architecture
            // with other digits finds what is there for it, which is no concern of the digest.
            let text = String::from_utf8_lossy(&whole[..at]);
            let in_name = text
                .lines()
                .last()
                .is_some_and(|line| line.starts_with("block sm_") && line.split(' ').count() == 2);
            if let (Ok(found), false) = (codes(&bytes), in_name) {
                assert_eq!(found, due, "byte {at}");
            }
        }
    }
    for len in 0..whole.len() {
        assert!(Archive::read(&whole[..len]).is_err(), "{len} bytes");
    }
    let longer = [whole.as_slice(), b"more"].concat();
    assert!(Archive::read(&longer).unwrap_err().contains("4 bytes follow"));
}

#[test]
fn a_block_is_not_believed_to_be_large() {
    let head = "calla cubins 1\nsources abc\ncompiler 13.0\n";
    let digest = "0".repeat(64);
    let huge = format!("{head}block sm_90 0 999999999999 {digest}\n\n");
    assert!(Archive::read(huge.as_bytes()).unwrap_err().contains("is no block"));
    let empty = format!("{head}block sm_90 0 10 {digest}\n\n");
    let archive = Archive::read(empty.as_bytes()).unwrap();
    assert!(archive.block(architecture("sm_90")).is_err());
}
