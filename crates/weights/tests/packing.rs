//! Our quantiser and our unpacker against arrays packed by MLX, bit for bit.
//!
//! The fixture and what its rows hold are described in `tools/peers/make_packing_fixture.py`.

use calla_model::{AffineFormat, FloatType};
use calla_weights::quantize;
use half::bf16;
use npyz::NpyFile;
use std::fs::File;
use zip::ZipArchive;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mlx_packing.npz");
const ROWS: usize = 8;
const COLS: usize = 384;

fn read<T: npyz::Deserialize>(
    file: &mut ZipArchive<File>,
    format: AffineFormat,
    name: &str,
) -> Vec<T> {
    let name = format!("b{}_g{}_{name}.npy", format.bits(), format.group());
    let array = file.by_name(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
    NpyFile::new(array).unwrap().into_vec().unwrap()
}

fn fixture() -> ZipArchive<File> {
    ZipArchive::new(File::open(FIXTURE).unwrap()).unwrap()
}

fn formats() -> impl Iterator<Item = AffineFormat> {
    AffineFormat::BITS.into_iter().flat_map(|bits| {
        AffineFormat::GROUPS.into_iter().map(move |group| AffineFormat::new(bits, group).unwrap())
    })
}

#[test]
fn quantising_gives_the_bits_that_mlx_gives() {
    let mut file = fixture();
    for format in formats() {
        let weight: Vec<f32> = read(&mut file, format, "weight");
        let packed: Vec<u32> = read(&mut file, format, "packed");
        let scales: Vec<f32> = read(&mut file, format, "scales");
        let biases: Vec<f32> = read(&mut file, format, "biases");
        let ours = quantize(&weight, format);
        let rounded = |values: &[f32]| -> Vec<f32> {
            values.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
        };
        assert_eq!(rounded(&ours.scales), scales, "{format:?}");
        assert_eq!(rounded(&ours.biases), biases, "{format:?}");
        let expected: Vec<u8> = packed.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(ours.packed, expected, "{format:?}");
    }
}

#[test]
fn unpacking_gives_the_values_that_mlx_gives() {
    let mut file = fixture();
    for format in formats() {
        let weight: Vec<f32> = read(&mut file, format, "weight");
        let expected: Vec<f32> = read(&mut file, format, "dequantized");
        let matrix = quantize(&weight, format).to_matrix(ROWS, COLS, FloatType::Bf16).unwrap();
        let mut row = vec![0.0; COLS];
        for i in 0..ROWS {
            matrix.read_row(i, &mut row);
            for (j, (&ours, &mlx)) in row.iter().zip(&expected[i * COLS..]).enumerate() {
                // MLX rounds the product and the sum, we round once.
                let tolerance =
                    2.0 * f32::EPSILON * (ours.abs() + weight[i * COLS + j].abs() + 1.0);
                assert!((ours - mlx).abs() <= tolerance, "{format:?} [{i}, {j}]: {ours} {mlx}");
            }
        }
    }
}
