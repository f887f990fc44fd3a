//! Bytes and rows that are moved and not computed.

use super::{On, Verdict};
use crate::check::Check;
use crate::delta::Layout;
use crate::values;
use calla_gpu::copy::{clear, copy};
use calla_gpu::mtp_rows::{keep_rows, previous_rows, side_by_side};
use calla_gpu::{Dtype, Range};
use calla_ops::Rows;
use calla_testkit::Random;

pub(super) fn copy_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(0.0);
    let mut random = Random::new(30);
    // Around words of 16 bytes and the 16 KiB of a threadgroup.
    for len in [1, 17, 16_400_u64] {
        let words = (len as usize + 64).div_ceil(4);
        let mut words = || -> Vec<u32> { (0..words).map(|_| random.bits() as u32 | 1).collect() };
        let (new, old) = (words(), words());
        let (from, to) = (values::u32s(device, &new, 1), values::u32s(device, &old, 1));
        let part = |tensor: calla_gpu::Tensor, start| Range { start, len, ..tensor.range };
        let middle = 32..32 + len as usize;

        values::run(device, &[copy(part(from, 16), part(to, 32))]);
        let mut expected: Vec<u8> = bytemuck::cast_slice(&old).to_vec();
        let new: &[u8] = bytemuck::cast_slice(&new);
        expected[middle.clone()].copy_from_slice(&new[16..16 + len as usize]);
        let found = values::integers(device, to);
        check.equal(&format!("copy of {len} bytes"), bytemuck::cast_slice(&found), &expected);

        values::run(device, &[clear(part(to, 32))]);
        expected[middle].fill(0);
        let found = values::integers(device, to);
        check.equal(&format!("clear of {len} bytes"), bytemuck::cast_slice(&found), &expected);
    }
    check.done()
}

pub(super) fn mtp_rows_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(0.0);
    let mut random = Random::new(31);
    let hidden = 192;
    let layout = Layout::new(&mut random, &[5, 1, 33], true);
    let h = random.rows(layout.rows(), hidden, 1.0);
    let kept = random.rows(layout.slots, hidden, 1.0);
    let (mut previous, mut after) = (Rows::zeros(layout.rows(), hidden), kept.clone());
    for span in &layout.spans {
        for i in 0..span.rows {
            let row = (span.first_row + i) as usize;
            let before = if i == 0 { kept.row(span.slot_in as usize) } else { h.row(row - 1) };
            previous.row_mut(row).copy_from_slice(before);
            let checkpoint = layout.checkpoints.get((span.first_checkpoint + i) as usize);
            let slot = match checkpoint {
                Some(&slot) if i + 1 < span.rows => slot,
                _ => span.slot_out,
            };
            after.row_mut(slot as usize).copy_from_slice(h.row(row));
        }
    }
    let joined: Vec<f32> =
        h.iter().zip(previous.iter()).flat_map(|(left, right)| [left, right].concat()).collect();
    let joined = Rows::from_vec(2 * hidden, joined);

    let tables = layout.tables(device, &[]);
    let (gpu_h, gpu_kept) = (values::f32s(device, &h), values::f32s(device, &kept));
    let out = values::output(device, layout.rows(), hidden, Dtype::F32);
    let both = values::output(device, layout.rows(), 2 * hidden, Dtype::F32);
    let dispatches = [
        previous_rows(gpu_h, gpu_kept, &tables, out),
        keep_rows(gpu_h, gpu_kept, &tables),
        side_by_side(gpu_h, out, both),
    ];
    values::run(device, &dispatches);
    check.identical("rows before", &values::rows(device, out), &previous);
    check.identical("kept rows", &values::rows(device, gpu_kept), &after);
    check.identical("joined rows", &values::rows(device, both), &joined);
    check.done()
}
