//! A row's product with a weight is the same bits however many rows are multiplied at once.

use calla_cpu::{Cpu, Isa};
use calla_model::Shape;
use calla_ops::{CacheSize, Ops, Rows};
use calla_testkit::Random;
use calla_testkit::weights::{Stored, matrix};

/// More rows than any kernel keeps in registers.
const ROWS: usize = 14;
/// No multiple of the rows of a weight that a kernel takes at once, and more than one task has.
const OUTPUTS: usize = 67;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_number_of_rows_gives_the_same_bits() {
    let mut random = Random::new(11);
    for stored in Stored::all() {
        // Both below and above the columns whose activations fit in the first-level cache.
        for cols in [128, 17 * 128] {
            let cols = if matches!(stored, Stored::Dense(_)) { cols - 5 } else { cols };
            let weight = matrix(&mut random, OUTPUTS, cols, stored, 1.0);
            let x: Vec<f32> = (0..ROWS * cols).map(|_| random.normal()).collect();
            for isa in Isa::available() {
                let size = CacheSize::one_sequence(1);
                let mut cpu = Cpu::with_isa(Shape::demo(), size, 1, isa).unwrap();
                let mut product = |rows: &[f32]| {
                    bits(cpu.linear(&Rows::from_vec(cols, rows.to_vec()), &weight).as_slice())
                };
                let alone: Vec<u32> = x.chunks(cols).flat_map(&mut product).collect();
                for rows in 2..=ROWS {
                    let together = product(&x[..rows * cols]);
                    assert!(
                        together == alone[..rows * OUTPUTS],
                        "{stored}, {cols} columns, {rows} rows on {isa:?}"
                    );
                }
            }
        }
    }
}
