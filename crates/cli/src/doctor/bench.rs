//! How fast a device is: what it reads, what it multiplies, and how it runs a model.

use super::report::{ModelSpeed, Speed};
use crate::bench::read_rate;
use anyhow::Context;
use calla_conformance::quantised;
use calla_cpu::Cpu;
use calla_gpu::products::Product;
use calla_gpu::qmm::{RowTile, qmm};
use calla_gpu::qmv::{Input, qmv};
use calla_gpu::{Device, DeviceError, Dispatch, Dtype, GpuMatrix, Range, Tensor};
use calla_model::Shape;
use calla_ops::{Batch, CacheSize, Ops as _, Rows, Runner, Span, SpanKind};
use calla_testkit::Random;
use half::bf16;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// What a model is run with: a prompt, and a short reply.
const PROMPT: usize = 512;
const REPLY: usize = 32;
/// Tokens that a model needs room for.
pub(super) const MODEL_CONTEXT: usize = PROMPT + REPLY;
/// Rows of a slice of the prompt.
const SLICE: usize = 256;

/// Bytes that processors read: more than caches hold.
const READ_BYTES: usize = 256 << 20;
/// Width of the matrices.
const WIDTH: u32 = 2048;
/// Bytes of a row of 4-bit weights: packed, and a scale and a bias for each 64.
const ROW_BYTES: u64 = WIDTH as u64 / 2 + WIDTH as u64 / 64 * 4;

/// Sizes of what a GPU is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Rows of the matrix that is read.
    pub(super) read: u32,
    /// Rows of weights of the product.
    pub(super) weights: u32,
    /// Rows of activations of the product.
    pub(super) tokens: u32,
}

impl Sizes {
    /// For a GPU of which `limit` bytes may be used. Up to 151 MB are read, more than the caches of any GPU hold; of a
    /// small one, an eighth.
    pub(super) fn fitting(limit: u64) -> Self {
        let read = (limit / 8 / ROW_BYTES).clamp(64, 131_072) as u32;
        Self { read, weights: read.min(8192), tokens: 512 }
    }
}

/// Rates of a GPU, measured in at most about `time`.
pub(super) fn gpu(
    device: &mut dyn Device,
    sizes: Sizes,
    time: Duration,
) -> Result<Speed, DeviceError> {
    let mut buffers = Buffers { device, allocated: vec![] };
    let speed = buffers.measure(sizes, time / 2);
    let released = buffers.release();
    let speed = speed?;
    released.map(|()| speed)
}

struct Buffers<'a> {
    device: &'a mut dyn Device,
    allocated: Vec<calla_gpu::BufferId>,
}

impl Buffers<'_> {
    fn tensor(&mut self, rows: u32, cols: u32, dtype: Dtype) -> Result<Tensor, DeviceError> {
        let bytes = u64::from(rows) * u64::from(cols) * dtype.size();
        let buffer = self.device.allocate("measurement", bytes)?;
        self.allocated.push(buffer);
        Ok(Tensor::whole(buffer, rows, cols, dtype))
    }

    fn filled(&mut self, rows: u32, cols: u32, value: f32) -> Result<Tensor, DeviceError> {
        let tensor = self.tensor(rows, cols, Dtype::Bf16)?;
        let values = vec![bf16::from_f32(value); rows as usize * cols as usize];
        self.device.write(tensor.range, bytemuck::cast_slice(&values))?;
        Ok(tensor)
    }

    /// Random 4-bit weights.
    fn matrix(&mut self, rows: u32) -> Result<GpuMatrix, DeviceError> {
        let packed = self.tensor(rows, WIDTH / 8, Dtype::U32)?;
        let mut random = Random::new(1);
        let words: Vec<u64> = (0..packed.range.len / 8).map(|_| random.bits()).collect();
        self.device.write(packed.range, bytemuck::cast_slice(&words))?;
        let scales = self.filled(rows, WIDTH / 64, 0.01)?;
        let biases = self.filled(rows, WIDTH / 64, -0.08)?;
        let (packed, scales, biases) = (packed.range, scales.range, biases.range);
        Ok(GpuMatrix { rows, cols: WIDTH, bits: 4, packed, scales, biases })
    }

    fn measure(&mut self, sizes: Sizes, time: Duration) -> Result<Speed, DeviceError> {
        let weight = self.matrix(sizes.read)?;
        let x = self.tensor(1, WIDTH, Dtype::F32)?;
        self.device.write(x.range, bytemuck::cast_slice(&[1.0_f32; WIDTH as usize]))?;
        let out = self.tensor(1, weight.rows, Dtype::F32)?;
        let read = qmv(Input::Plain(x), &[Product { weight: &weight, out }], false);
        let read_bytes_per_s = self.rate(read, out, weight.size_bytes() as f64, time)?;

        let Sizes { weights: rows, tokens, .. } = sizes;
        let weight = self.matrix(rows)?;
        let x = self.filled(tokens, WIDTH, 0.5)?;
        let out = self.tensor(tokens, rows, Dtype::F32)?;
        let product = qmm(x, &[Product { weight: &weight, out }], false, RowTile::R64);
        let flops = product.flops as f64;
        let product_flops_per_s = self.rate(product, out, flops, time)?;
        Ok(Speed { read_bytes_per_s, product_flops_per_s })
    }

    /// How much work a second a dispatch does that does `work`: in ever more repetitions, until they take long enough to
    /// be measured.
    fn rate(
        &mut self,
        dispatch: Dispatch,
        out: Tensor,
        work: f64,
        time: Duration,
    ) -> Result<f64, DeviceError> {
        let start = Instant::now();
        let mut repetitions = 1;
        loop {
            let dispatches = vec![dispatch.clone(); repetitions];
            let before = Instant::now();
            self.device.run(&dispatches, &vec![1; repetitions])?;
            // Waits until all is done.
            self.device.read(Range { len: 4, ..out.range }, &mut [0; 4])?;
            let took = before.elapsed();
            // The first round compiled the kernel, but where it takes so long that counts for little.
            let is_warm = repetitions > 1 || took > time;
            let is_long = took * 8 > time || took > Duration::from_secs(1);
            if is_warm && (is_long || start.elapsed() > time || repetitions >= 1 << 14) {
                return Ok(work * repetitions as f64 / took.as_secs_f64().max(1e-9));
            }
            repetitions *= 2;
        }
    }

    fn release(self) -> Result<(), DeviceError> {
        self.allocated.into_iter().try_for_each(|buffer| self.device.release(buffer))
    }
}

/// Rates of the processor with so many threads (0: all), measured in at most about `time`.
pub(super) fn cpu(threads: usize, time: Duration) -> anyhow::Result<Speed> {
    let mut ops = Cpu::new(Shape::demo(), CacheSize { pages: 1, slots: 1 }, threads)?;
    let time = time.min(Duration::from_secs(4)) / 2;
    let read_bytes_per_s = read_rate(ops.threads(), READ_BYTES);

    let (rows, width) = (64, WIDTH as usize);
    let mut random = Random::new(1);
    let matrix = quantised::matrix(&mut random, width, width, 4);
    let x: Rows = random.rows(rows, width, 1.0);
    let mut count = 0;
    let start = Instant::now();
    while count < 2 || start.elapsed() < time {
        black_box(ops.linear(black_box(&x), &matrix));
        count += 1;
    }
    let flops = 2.0 * (rows * width * width) as f64 * f64::from(count);
    Ok(Speed { read_bytes_per_s, product_flops_per_s: flops / start.elapsed().as_secs_f64() })
}

/// Runs a model: a prompt in slices, then a reply, each for at most half of `time`.
pub(super) fn model(runner: &mut dyn Runner, time: Duration) -> anyhow::Result<ModelSpeed> {
    let (vocab, size) = (runner.shape().vocab_size, runner.cache_size());
    let length = MODEL_CONTEXT.min(runner.shape().max_positions);
    let prompt = length.saturating_sub(REPLY).max(1);
    let pages: Vec<usize> = (0..length.div_ceil(calla_model::shape::PAGE_TOKENS)).collect();
    let token = |position: usize| (position as u64 * 2_654_435_761 % (1 << 32)) as usize % vocab;
    let mut step = |kind: SpanKind, position: usize, rows: usize| -> anyhow::Result<Rows> {
        let tokens = (position..position + rows).map(|at| token(at) as u32).collect();
        let span = Span::new(kind, 0..rows, position, 0, pages.clone());
        let batch = Batch::new(tokens, vec![span], vec![rows - 1], vocab, size)
            .context("a step of the measurement")?;
        Ok(runner.step(&batch)?)
    };
    // What is compiled at first use is no part of the figures: of each kind of step one that is thrown away. A prompt that
    // begins at position 0 needs no cleared state behind it.
    step(SpanKind::Prefill, 0, SLICE.min(prompt))?;
    step(SpanKind::Decode, SLICE.min(prompt), 1)?;

    let mut done = 0;
    let start = Instant::now();
    while done < prompt && (done == 0 || start.elapsed() < time / 2) {
        let rows = SLICE.min(prompt - done);
        step(SpanKind::Prefill, done, rows)?;
        done += rows;
    }
    let prefill_tokens_per_s = done as f64 / start.elapsed().as_secs_f64();
    let mut count = 0;
    let start = Instant::now();
    while count < length - prompt && (count < 2 || start.elapsed() < time / 2) {
        step(SpanKind::Decode, done + count, 1)?;
        count += 1;
    }
    let decode_tokens_per_s = count as f64 / start.elapsed().as_secs_f64();
    Ok(ModelSpeed { prompt_tokens: done, prefill_tokens_per_s, decode_tokens_per_s })
}
