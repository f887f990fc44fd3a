//! What a device can do, measured where it can be: bytes that it reads per second, and operations that it does.

use crate::plan::CHIPS;
use calla_gpu::argmax::argmax;
use calla_gpu::copy::{clear, copy};
use calla_gpu::{BufferId, Device, DeviceError, Dispatch, Dtype, Place, Range, Scratch, Tensor};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A rate, and where it is from.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    pub(crate) source: String,
}

/// Rates of a device. `None` where nothing is known.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Bytes read from memory.
    pub(crate) read_bytes: Option<Rate>,
    /// Floating-point operations.
    pub(crate) flops: Option<Rate>,
}

impl Rates {
    /// The least time of a step that reads `bytes` and does `flops`, if all of it overlaps. Nothing where the rate of
    /// reading is unknown; where that of operations is, memory alone decides.
    pub(crate) fn least_seconds(&self, bytes: u64, flops: u64) -> Option<f64> {
        let memory = bytes as f64 / self.read_bytes.as_ref()?.per_second;
        let arithmetic = self.flops.as_ref().map_or(0.0, |rate| flops as f64 / rate.per_second);
        Some(memory.max(arithmetic))
    }
}

/// Most bytes that are read: more than the caches of any processor or GPU hold.
const READ_BYTES_MAX: u64 = 1 << 30;
/// Runs of which the fastest counts.
const RUNS: usize = 5;

/// Rates of `threads` threads of the processor. `available`: bytes of memory that may be used.
pub(crate) fn cpu(threads: usize, available: u64) -> Rates {
    let threads = threads.max(1);
    let count = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let bytes = (available / 4).clamp(1 << 26, READ_BYTES_MAX) as usize;
    let read = Rate {
        per_second: read_rate(threads, bytes),
        source: format!("measured: {} MB read by {count}", bytes >> 20),
    };
    let (flops, vectors) = arithmetic_rate(threads);
    let source = format!("measured: f32 multiply-adds on {vectors} by {count}, in registers");
    Rates { read_bytes: Some(read), flops: Some(Rate { per_second: flops, source }) }
}

/// Bytes per second that `threads` threads read together, the fastest of some passes over so many bytes.
pub(crate) fn read_rate(threads: usize, bytes: usize) -> f64 {
    let mut words = vec![0_u64; bytes / 8];
    let part = words.len().div_ceil(threads);
    // Each thread touches its own part first, so that it lies near it.
    std::thread::scope(|scope| {
        for words in words.chunks_mut(part) {
            scope.spawn(|| words.fill(1));
        }
    });
    let seconds = fastest(RUNS, || {
        std::thread::scope(|scope| {
            for words in words.chunks(part) {
                scope.spawn(|| {
                    black_box(words.iter().fold(0_u64, |sum, &word| sum.wrapping_add(word)))
                });
            }
        });
    });
    (words.len() * 8) as f64 / seconds
}

/// Operations per second that `threads` threads do together, and the vectors that they do them on.
fn arithmetic_rate(threads: usize) -> (f64, &'static str) {
    const ROUNDS: u64 = 4_000_000;
    let (kernel, per_round, vectors) = multiply_adds::best();
    kernel(ROUNDS / 100);
    let seconds = fastest(RUNS, || {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| black_box(kernel(ROUNDS)));
            }
        });
    });
    ((per_round * ROUNDS) as f64 * threads as f64 / seconds, vectors)
}

fn fastest(runs: usize, mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..runs).map(once).fold(f64::INFINITY, f64::min)
}

/// Loops of multiply-adds that touch no memory.
mod multiply_adds {
    /// Sums that do not wait for one another: the latency of a multiply-add, times two units, and some.
    const SUMS: usize = 12;

    /// Runs rounds of [`SUMS`] vectors each.
    pub(super) type Kernel = fn(u64) -> f32;

    /// The loop on the widest vectors here, its operations of a round, and what the vectors are.
    pub(super) fn best() -> (Kernel, u64, &'static str) {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                // SAFETY: this machine has AVX-512 F.
                return (|rounds| unsafe { avx512(rounds) }, operations(16), "AVX-512 vectors");
            }
            if std::arch::is_x86_feature_detected!("avx2")
                && std::arch::is_x86_feature_detected!("fma")
            {
                // SAFETY: this machine has AVX2 and FMA.
                return (|rounds| unsafe { avx2(rounds) }, operations(8), "AVX2 vectors");
            }
        }
        common()
    }

    /// The loop that every processor of the architecture can run.
    fn common() -> (Kernel, u64, &'static str) {
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every such processor has NEON.
        let kernel: (Kernel, _) = (|rounds| unsafe { neon(rounds) }, "NEON vectors");
        #[cfg(not(target_arch = "aarch64"))]
        let kernel: (Kernel, _) = (portable, "vectors of four");
        (kernel.0, operations(4), kernel.1)
    }

    /// Operations of a round of so many lanes.
    fn operations(lanes: usize) -> u64 {
        (2 * SUMS * lanes) as u64
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn avx512(rounds: u64) -> f32 {
        use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_reduce_add_ps, _mm512_set1_ps};
        let (factor, term) = (_mm512_set1_ps(0.999), _mm512_set1_ps(0.001));
        let mut sums = [term; SUMS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, term);
            }
        }
        sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(rounds: u64) -> f32 {
        use std::arch::x86_64::{_mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps};
        let (factor, term) = (_mm256_set1_ps(0.999), _mm256_set1_ps(0.001));
        let mut sums = [term; SUMS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, term);
            }
        }
        sums.into_iter().map(|sum| _mm256_cvtss_f32(sum)).sum()
    }

    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon")]
    fn neon(rounds: u64) -> f32 {
        use std::arch::aarch64::{vaddvq_f32, vdupq_n_f32, vfmaq_f32};
        let (factor, term) = (vdupq_n_f32(0.999), vdupq_n_f32(0.001));
        let mut sums = [term; SUMS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = vfmaq_f32(term, *sum, factor);
            }
        }
        sums.into_iter().map(|sum| vaddvq_f32(sum)).sum()
    }

    #[cfg(not(target_arch = "aarch64"))]
    fn portable(rounds: u64) -> f32 {
        let mut sums = [[0.001_f32; 4]; SUMS];
        for _ in 0..rounds {
            for lane in sums.as_flattened_mut() {
                *lane = *lane * 0.999 + 0.001;
            }
        }
        sums.as_flattened().iter().sum()
    }
}

/// Rates of a GPU that is called `name`. `available`: bytes of its memory that may be used. What it reads is measured: the
/// faster of a copy, whose bytes count twice, and a search for the largest of many values. Its rate of operations is that
/// of the table of chips.
///
/// # Errors
/// If the device failed.
pub(crate) fn gpu(
    device: &mut dyn Device,
    name: &str,
    available: u64,
) -> Result<Rates, DeviceError> {
    let chip = CHIPS.iter().find(|chip| chip.title == name);
    let flops = chip.and_then(|chip| {
        let source = format!("table of chips, {}: {}", chip.name, chip.source);
        Some(Rate { per_second: chip.flops? as f64, source })
    });
    Ok(Rates { read_bytes: Some(gpu_read(device, available)?), flops })
}

/// Values of a row in which the largest is looked for.
const ROW: u32 = 1 << 18;

fn gpu_read(device: &mut dyn Device, available: u64) -> Result<Rate, DeviceError> {
    let rows = (available / 8).clamp(1 << 24, READ_BYTES_MAX) / (4 * u64::from(ROW));
    let (rows, bytes) = (rows as u32, rows * 4 * u64::from(ROW));
    let mut buffers = Buffers { device, allocated: vec![] };
    let rate = buffers.read_rate(rows, bytes);
    let released = buffers.release();
    let (copied, searched) = rate?;
    released?;
    let (per_second, what) = if copied > searched {
        (copied, "a copy, bytes read and written")
    } else {
        (searched, "a kernel that reads")
    };
    Ok(Rate { per_second, source: format!("measured: {what}, {} MB", bytes >> 20) })
}

/// Buffers that are given back.
struct Buffers<'a> {
    device: &'a mut dyn Device,
    allocated: Vec<BufferId>,
}

impl Buffers<'_> {
    /// Bytes per second of a copy and of a search.
    fn read_rate(&mut self, rows: u32, bytes: u64) -> Result<(f64, f64), DeviceError> {
        let [from, to] = [self.range(bytes)?, self.range(bytes)?];
        self.device.run(&[clear(from), clear(to)], &[1, 1])?;
        let copied = self.rate(&[copy(from, to)], 2 * bytes)?;
        let values = Tensor { range: from, rows, cols: ROW, dtype: Dtype::F32 };
        let out = Tensor { range: Range { len: u64::from(rows) * 4, ..to }, cols: 1, ..values };
        let out = Tensor { dtype: Dtype::U32, ..out };
        // What the search leaves lies in the second buffer: its result first, then its temporaries.
        let mut scratch = Within { range: to, next: out.range.len.next_multiple_of(256) };
        let search = argmax(values, ROW, &mut scratch, out);
        Ok((copied, self.rate(&search, bytes)?))
    }

    fn range(&mut self, len: u64) -> Result<Range, DeviceError> {
        let buffer = self.device.allocate("a measurement of memory", len)?;
        self.allocated.push(buffer);
        Ok(Range { place: Place::Buffer(buffer), start: 0, len })
    }

    /// Bytes per second of dispatches that come one after the other and move `bytes`.
    fn rate(&mut self, dispatches: &[Dispatch], bytes: u64) -> Result<f64, DeviceError> {
        const ENOUGH: Duration = Duration::from_millis(20);
        const REPEATS_MAX: usize = 256;
        let mut repeats = 1;
        loop {
            let all: Vec<Dispatch> =
                std::iter::repeat_n(dispatches, repeats).flatten().cloned().collect();
            let stages = vec![1; all.len()];
            let mut best = Duration::MAX;
            // The first run compiles kernels.
            for _ in 0..RUNS {
                let start = Instant::now();
                self.device.run(&all, &stages)?;
                self.wait()?;
                best = best.min(start.elapsed());
            }
            if best >= ENOUGH || repeats >= REPEATS_MAX {
                return Ok(bytes as f64 * repeats as f64 / best.as_secs_f64());
            }
            repeats *= 4;
        }
    }

    /// Until the device is through: reading waits for what runs.
    fn wait(&mut self) -> Result<(), DeviceError> {
        let range = Range { place: Place::Buffer(self.allocated[0]), start: 0, len: 16 };
        self.device.read(range, &mut [0; 16])
    }

    fn release(&mut self) -> Result<(), DeviceError> {
        self.allocated.drain(..).try_for_each(|buffer| self.device.release(buffer))
    }
}

/// Temporaries one after the other in a range.
struct Within {
    range: Range,
    next: u64,
}

impl Scratch for Within {
    fn tensor(&mut self, rows: u32, cols: u32, dtype: Dtype) -> Tensor {
        let tensor = Tensor::new(self.range.place, self.range.start + self.next, rows, cols, dtype);
        self.next += tensor.range.len.next_multiple_of(256);
        tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: f64) -> Option<Rate> {
        Some(Rate { per_second, source: String::new() })
    }

    #[test]
    fn the_slower_of_memory_and_arithmetic_decides() {
        let rates = |flops| Rates { read_bytes: rate(100.0), flops };
        assert_eq!(rates(None).least_seconds(200, 3000), Some(2.0));
        assert_eq!(rates(rate(3000.0)).least_seconds(200, 3000), Some(2.0));
        assert_eq!(rates(rate(1000.0)).least_seconds(200, 3000), Some(3.0));
        let unknown = Rates { read_bytes: None, flops: rate(1.0) };
        assert_eq!(unknown.least_seconds(200, 3000), None);
    }

    #[test]
    fn a_processor_has_rates_that_are_possible() {
        let rates = cpu(1, 1 << 28);
        let [read, flops] = [rates.read_bytes, rates.flops].map(Option::unwrap);
        assert!((1e8..1e13).contains(&read.per_second), "{read:?}");
        // Slower than one operation in ten cycles, or faster than a thousand in one, would be a mistake.
        assert!((1e8..1e13).contains(&flops.per_second), "{flops:?}");
        assert!(read.source.starts_with("measured: 64 MB read by 1 thread"), "{read:?}");
    }
}
