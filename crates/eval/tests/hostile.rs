//! Damaged and hostile `.npz` files are refused with a message that says what is wrong.

use calla_eval::read_goldens;
use std::io::Write;
use std::path::{Path, PathBuf};
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

/// A `.npy` file of version 1 with any header text.
fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn array(dtype: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    npy(&format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n"), data)
}

fn ids(values: &[i32]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    array("<i4", &format!("({},)", values.len()), &data)
}

fn floats(shape: &str, values: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    array("<f4", shape, &data)
}

fn write(dir: &Path, entries: &[(&str, &[u8])]) -> PathBuf {
    write_packed(dir, entries, CompressionMethod::Deflated)
}

fn write_packed(dir: &Path, entries: &[(&str, &[u8])], method: CompressionMethod) -> PathBuf {
    let path = dir.join("goldens.npz");
    let mut zip = ZipWriter::new(std::fs::File::create(&path).unwrap());
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in entries {
        zip.start_file(format!("{name}.npy"), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
    path
}

/// The message with which a file of these arrays is refused.
fn refusal(entries: &[(&str, &[u8])]) -> String {
    let dir = tempfile::tempdir().unwrap();
    read_goldens(&write(dir.path(), entries)).unwrap_err().to_string()
}

#[track_caller]
fn expect(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "\"{message}\" does not say \"{part}\"");
    }
}

#[test]
fn a_well_formed_file_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let doubles: Vec<u8> = [0.5_f64, 1.5, 2.5, 3.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    let longs: Vec<u8> = [7_i64, 9].iter().flat_map(|v| v.to_le_bytes()).collect();
    let path = write(
        dir.path(),
        &[("ids", &array("<i8", "(2,)", &longs)), ("logits", &array("<f8", "(2, 2)", &doubles))],
    );
    let goldens = read_goldens(&path).unwrap();
    assert_eq!((goldens.len(), goldens[0].ids.as_slice()), (1, [7_u32, 9].as_slice()));
    let calla_eval::ReferenceLogits::Full(logits) = &goldens[0].reference else {
        panic!("full logits were stored");
    };
    assert_eq!(logits.row(1), [2.5, 3.5]);
}

#[test]
fn what_is_no_archive_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npz");
    expect(&read_goldens(&path).unwrap_err().to_string(), &["cannot read", "x.npz"]);
    std::fs::write(&path, b"PK\x03\x04 not really").unwrap();
    expect(&read_goldens(&path).unwrap_err().to_string(), &["cannot read", "x.npz"]);
    expect(&read_goldens(dir.path()).unwrap_err().to_string(), &["not a regular file"]);
}

#[test]
fn missing_arrays_are_named() {
    expect(&refusal(&[]), &["\"p0_ids\" is missing", "no arrays"]);
    expect(&refusal(&[("ids", &ids(&[1]))]), &["\"logits_f32\" is missing", "ids"]);
    expect(&refusal(&[("p0_ids", &ids(&[1]))]), &["\"p0_cont\" is missing"]);
}

#[test]
fn a_huge_shape_is_refused_before_allocation() {
    let huge = array("<f4", "(40, 1000000000000)", &[0; 16]);
    expect(
        &refusal(&[("ids", &ids(&[1])), ("logits_f32", &huge)]),
        &["160000000000000 bytes", "16"],
    );
    let overflow = array("<f4", "(9999999999, 9999999999, 9999999999)", &[]);
    expect(&refusal(&[("ids", &ids(&[1])), ("logits_f32", &overflow)]), &["31 digits", "18"]);
    let wide = array("<U999999999999", "()", &[0; 4]);
    let entries: [(&str, &[u8]); 6] = [
        ("p0_ids", &ids(&[1])),
        ("p0_cont", &ids(&[])),
        ("p0_top_ids", &array("<i4", "(1, 2)", &[1, 0, 0, 0, 2, 0, 0, 0])),
        ("p0_top_vals", &floats("(1, 2)", &[1.0, 0.5])),
        ("p0_lse", &floats("(1,)", &[2.0])),
        ("p0_text", &wide),
    ];
    expect(&refusal(&entries), &["p0_text", "bytes"]);
}

#[test]
fn a_bomb_is_refused_before_it_is_unpacked() {
    let zeros = array("<f4", "(1, 2000000)", &vec![0; 8_000_000]);
    expect(
        &refusal(&[("ids", &ids(&[1])), ("logits_f32", &zeros)]),
        &["logits_f32", "may be unpacked", "200 times"],
    );
}

#[test]
fn hostile_headers_do_not_reach_the_parser() {
    let nested = npy(&format!("{{'descr': {}", "(".repeat(900)), &[]);
    expect(&refusal(&[("ids", &nested)]), &["901 opening brackets"]);
    let mut long = b"\x93NUMPY\x02\x00".to_vec();
    long.extend(u32::MAX.to_le_bytes());
    expect(&refusal(&[("ids", &long)]), &["4294967295 bytes", "1024"]);
    expect(&refusal(&[("ids", b"\x93NUMPY")]), &["does not start like"]);
    expect(&refusal(&[("ids", &npy("{'descr': '<i4'}", &[]))]), &["bad header"]);
    expect(&refusal(&[("ids", &npy("\u{7f}\n", &[]))]), &["bad header"]);
}

#[test]
fn wrong_types_and_shapes_are_described() {
    let one = ids(&[1]);
    let ok = floats("(1, 2)", &[0.0, 1.0]);
    expect(&refusal(&[("ids", &floats("(1,)", &[1.0])), ("logits", &ok)]), &["<f4", "integers"]);
    expect(&refusal(&[("ids", &ids(&[-1])), ("logits", &ok)]), &["-1 is not a token id"]);
    expect(&refusal(&[("ids", &ids(&[])), ("logits", &ok)]), &["ids", "empty"]);
    expect(&refusal(&[("ids", &one), ("logits", &ids(&[1]))]), &["<i4", "numbers"]);
    expect(&refusal(&[("ids", &one), ("logits", &floats("(2,)", &[0.0, 1.0]))]), &["2 dimensions"]);
    expect(&refusal(&[("ids", &ids(&[1, 2])), ("logits", &ok)]), &["1 rows", "2 tokens"]);
    let nan = floats("(1, 2)", &[0.0, f32::NAN]);
    expect(&refusal(&[("ids", &one), ("logits", &nan)]), &["element 1 is NaN"]);
    let pickled = array("|O", "(1,)", &[0; 8]);
    expect(&refusal(&[("ids", &pickled)]), &["ids"]);
    let fortran = npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2), }\n", &[0; 8]);
    expect(&refusal(&[("ids", &one), ("logits", &fortran)]), &["Fortran"]);
}

#[test]
fn top_logits_must_be_ordered_and_distinct() {
    let prompt = |values: &[f32], tokens: &[i32]| {
        let data: Vec<u8> = tokens.iter().flat_map(|v| v.to_le_bytes()).collect();
        refusal(&[
            ("p0_ids", &ids(&[1])),
            ("p0_cont", &ids(&[])),
            ("p0_top_ids", &array("<i4", "(1, 2)", &data)),
            ("p0_top_vals", &floats("(1, 2)", values)),
        ])
    };
    expect(&prompt(&[1.0, 2.0], &[3, 4]), &["falling order"]);
    expect(&prompt(&[2.0, 1.0], &[3, 3]), &["token 3 appears twice"]);
    expect(&prompt(&[2.0, 1.0], &[3, 4]), &["\"p0_lse\" is missing"]);
}

#[test]
fn a_flipped_byte_is_found_by_the_checksum() {
    let dir = tempfile::tempdir().unwrap();
    let logits = floats("(2, 2)", &[0.5, 1234.5, 2.5, 3.5]);
    let entries = [("ids", &ids(&[0, 1])[..]), ("logits_f32", &logits[..])];
    let path = write_packed(dir.path(), &entries, CompressionMethod::Stored);
    assert!(read_goldens(&path).is_ok());
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(4).position(|w| w == 1234.5_f32.to_le_bytes()).unwrap();
    bytes[at + 3] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let message = read_goldens(&path).unwrap_err().to_string();
    expect(&message, &["\"logits_f32\"", "checksum"]);
}

/// A small well-formed file in the layout of many prompts.
fn sound() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let tokens =
        |values: &[i32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let path = write(
        dir.path(),
        &[
            ("p0_ids", &ids(&[1, 2])),
            ("p0_cont", &ids(&[3])),
            ("p0_top_ids", &array("<i4", "(3, 2)", &tokens(&[1, 2, 3, 4, 5, 6]))),
            ("p0_top_vals", &floats("(3, 2)", &[2.0, 1.0, 2.0, 1.0, 2.0, 1.0])),
            ("p0_lse", &floats("(3,)", &[3.0, 3.0, 3.0])),
            ("p0_text", &array("<U2", "()", &tokens(&[104, 105]))),
        ],
    );
    assert_eq!(read_goldens(&path).unwrap()[0].text.as_deref(), Some("hi"));
    std::fs::read(path).unwrap()
}

#[test]
fn random_damage_is_refused_or_read_but_never_panics() {
    use proptest::prelude::*;
    let sound = sound();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.npz");
    let damage = proptest::collection::vec((0..sound.len(), any::<u8>()), 1..8);
    let cut = 0..sound.len() * 4;
    let config = ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() };
    proptest!(config, |(damage in damage, cut in cut)| {
        let mut bytes = sound.clone();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(goldens) = read_goldens(&path) {
            prop_assert!(goldens.iter().all(|g| !g.ids.is_empty()));
        }
    });
}
