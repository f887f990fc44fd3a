//! Whether a GPU still computes: two kernels whose results are known to the last bit.

use calla_gpu::copy::copy;
use calla_gpu::embed::embed;
use calla_gpu::{BufferId, Device, DeviceError, Dtype, GpuMatrix, Place, Range, Tensor};

/// Width of the table: one group of quantised values.
const COLS: u32 = 64;
/// Rows of the table.
const ROWS: u32 = 2;
/// Label of the buffer that a test works in.
pub const LABEL: &str = "self-test";

/// Where things lie, in bytes; each at a multiple of 256.
const SCALES: u64 = 256;
const BIASES: u64 = 512;
const TOKENS: u64 = 768;
const OUT: u64 = 1024;
const COPIED: u64 = 1536;
const BYTES: u64 = 2048;

/// Why a GPU cannot be trusted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SelfTestError {
    /// It does not run the kernels.
    #[error("the self-test does not run: {0}")]
    Device(#[from] DeviceError),
    /// It runs them, to a wrong result.
    #[error("the self-test found {found} in place of {expected}, value {index} of {count}")]
    Result {
        /// Index of the first value that is wrong.
        index: usize,
        /// How many there are.
        count: usize,
        /// What it is.
        found: f32,
        /// What it should be.
        expected: f32,
    },
}

/// What a test must find: the rows 1 and 0 of a table of `q + 0.5`, where `q` counts up from 0 and from 15 down.
#[must_use]
pub fn expected() -> Vec<f32> {
    let value = |row: u32, col: u32| (if row == 0 { col % 16 } else { 15 - col % 16 }) as f32 + 0.5;
    [1, 0].into_iter().flat_map(|row| (0..COLS).map(move |col| value(row, col))).collect()
}

/// Dequantises rows of a small table and copies them, and compares with what is known. The device keeps no buffer of it.
///
/// # Errors
/// If the device fails, or a result is wrong.
pub fn self_test(device: &mut dyn Device) -> Result<(), SelfTestError> {
    let buffer = device.allocate(LABEL, BYTES)?;
    let result = run(device, buffer);
    // What ends in an error is given back too, as far as that goes.
    let released = device.release(buffer);
    let found = result?;
    released?;
    let expected = expected();
    let differs = |(found, expected): (&f32, &f32)| found.to_bits() != expected.to_bits();
    match found.iter().zip(&expected).position(differs) {
        None => Ok(()),
        Some(index) => Err(SelfTestError::Result {
            index,
            count: expected.len(),
            found: found[index],
            expected: expected[index],
        }),
    }
}

fn run(device: &mut dyn Device, buffer: BufferId) -> Result<Vec<f32>, DeviceError> {
    let place = Place::Buffer(buffer);
    let range = |start, len| Range { place, start, len };
    let packed =
        |row: u64| if row == 0 { 0xfedc_ba98_7654_3210_u64 } else { 0x0123_4567_89ab_cdef };
    let packed: Vec<u8> = [0, 0, 0, 0, 1, 1, 1, 1].map(packed).map(u64::to_le_bytes).concat();
    // bf16: 1 and 0.5.
    let (ones, halves) = ([0x80, 0x3f, 0x80, 0x3f], [0x00, 0x3f, 0x00, 0x3f]);
    device.write(range(0, packed.len() as u64), &packed)?;
    device.write(range(SCALES, 4), &ones)?;
    device.write(range(BIASES, 4), &halves)?;
    device.write(range(TOKENS, 8), &[1, 0, 0, 0, 0, 0, 0, 0])?;
    let table = GpuMatrix {
        rows: ROWS,
        cols: COLS,
        bits: 4,
        packed: range(0, packed.len() as u64),
        scales: range(SCALES, 4),
        biases: range(BIASES, 4),
    };
    let tokens = Tensor::new(place, TOKENS, ROWS, 1, Dtype::U32);
    let out = Tensor::new(place, OUT, ROWS, COLS, Dtype::F32);
    let copied = range(COPIED, out.range.len);
    device.run(&[embed(&table, tokens, out), copy(out.range, copied)], &[1, 1])?;
    let mut bytes = vec![0; copied.len as usize];
    device.read(copied, &mut bytes)?;
    let value = |four: &[u8]| f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    Ok(bytes.chunks_exact(4).map(value).collect())
}
