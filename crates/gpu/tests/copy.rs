//! Copies and clears of bytes.

mod common;

use calla_gpu::copy::{clear, copy};
use calla_gpu::{Device as _, Dtype, Range};
use calla_testkit::Random;

/// Lengths around words of 16 bytes and the 16 KiB of a threadgroup.
const LENGTHS: [u64; 9] = [1, 15, 16, 17, 4096, 16_383, 16_384, 16_400, 100_003];

#[test]
fn bytes_are_copied_and_cleared_and_no_others() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(1);
    for (order, len) in (0..).zip(LENGTHS) {
        device.set_order(order % 4);
        let size = len as usize + 64;
        let bytes: Vec<u8> = (0..size).map(|_| random.range(1..=255) as u8).collect();
        let old: Vec<u8> = (0..size).map(|_| random.range(1..=255) as u8).collect();
        let mut buffer = |bytes: &[u8]| {
            let tensor = common::output(&mut device, 1, size.div_ceil(4), Dtype::U32);
            let range = Range { len: size as u64, ..tensor.range };
            device.write(range, bytes).expect("a write");
            range
        };
        let (from, to) = (buffer(&bytes), buffer(&old));
        let part = |whole: Range, start: u64| Range { start, len, ..whole };
        let middle = 32..32 + len as usize;

        common::run(&mut device, &[copy(part(from, 16), part(to, 32))]);
        let mut expected = old.clone();
        expected[middle.clone()].copy_from_slice(&bytes[16..16 + len as usize]);
        let mut actual = vec![0; size];
        device.read(to, &mut actual).expect("a read");
        assert!(actual == expected, "copy of {len} bytes");

        common::run(&mut device, &[clear(part(to, 32))]);
        expected[middle].fill(0);
        device.read(to, &mut actual).expect("a read");
        assert!(actual == expected, "clear of {len} bytes");
    }
}

#[test]
#[should_panic(expected = "overlap")]
fn a_copy_onto_itself_is_refused() {
    let tensor = calla_gpu::Tensor::whole(calla_gpu::BufferId(0), 1, 16, Dtype::U32);
    let _ = copy(Range { len: 32, ..tensor.range }, Range { start: 16, len: 32, ..tensor.range });
}
