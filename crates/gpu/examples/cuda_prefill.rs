//! Measures attention and the DeltaNet recurrence of a prefill on an NVIDIA GPU, at full size: kernels written for it, and
//! the translated ones.
//!
//! `cargo run --release -p calla-gpu --example cuda_prefill`

use calla_gpu::attention_prefill::attention_prefill;
use calla_gpu::gated_delta::gated_delta;
use calla_gpu::{
    ChunkEntry, DeltaSlots, Device, Dispatch, Dtype, KvPool, Scratch, SpanEntry, Tables, Tensor,
};
use calla_gpu_cuda::{CudaDevice, Options};
use calla_model::Shape;
use calla_model::shape::PAGE_TOKENS;
use calla_ops::ops::DeltaTerms;
use calla_testkit::Random;
use half::bf16;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

type Error = Box<dyn std::error::Error>;

/// Rows of a slice of a prompt.
const ROWS: u32 = 2048;
/// Positions that the last of them sees.
const CONTEXTS: [u32; 3] = [4096, 32_768, 131_072];
/// Values that are random; larger tensors repeat them.
const RANDOM: usize = 1 << 20;

fn main() -> Result<(), Error> {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    println!("seed {seed}");
    for no_twins in [false, true] {
        let device = CudaDevice::new(&Options { no_twins, ..Options::from_env() })?;
        println!("{}, {}", device.name()?, if no_twins { "translated" } else { "twins" });
        let mut bench = Bench { device, random: Random::new(seed) };
        for context in CONTEXTS {
            bench.attention(context)?;
        }
        bench.gated_delta()?;
    }
    Ok(())
}

struct Bench {
    device: CudaDevice,
    random: Random,
}

impl Scratch for Bench {
    fn tensor(&mut self, rows: u32, cols: u32, dtype: Dtype) -> Tensor {
        let bytes = u64::from(rows) * u64::from(cols) * dtype.size();
        let buffer = self.device.allocate("a tensor", bytes).expect("memory");
        Tensor::whole(buffer, rows, cols, dtype)
    }
}

impl Bench {
    /// A tensor that repeats `bytes`.
    fn filled(
        &mut self,
        rows: u32,
        cols: u32,
        dtype: Dtype,
        bytes: &[u8],
    ) -> Result<Tensor, Error> {
        let tensor = self.tensor(rows, cols, dtype);
        let len = tensor.range.len as usize;
        let all: Vec<u8> = bytes.iter().copied().cycle().take(len).collect();
        self.device.write(tensor.range, &all)?;
        Ok(tensor)
    }

    /// Values in bf16 of so large a standard deviation.
    fn bf16s(&mut self, rows: u32, cols: u32, scale: f32) -> Result<Tensor, Error> {
        let count = RANDOM.min(rows as usize * cols as usize);
        let values: Vec<bf16> =
            (0..count).map(|_| bf16::from_f32(scale * self.random.normal())).collect();
        self.filled(rows, cols, Dtype::Bf16, bytemuck::cast_slice(&values))
    }

    fn f32s(&mut self, rows: u32, cols: u32, low: f32, high: f32) -> Result<Tensor, Error> {
        let count = RANDOM.min(rows as usize * cols as usize);
        let values: Vec<f32> = (0..count).map(|_| self.random.uniform(low, high)).collect();
        self.filled(rows, cols, Dtype::F32, bytemuck::cast_slice(&values))
    }

    fn u32s(&mut self, cols: u32, values: &[u32]) -> Result<Tensor, Error> {
        let rows = values.len() as u32 / cols;
        self.filled(rows, cols, Dtype::U32, bytemuck::cast_slice(values))
    }

    /// Tables of one span, the last rows of a context, over pages in random order.
    fn tables(&mut self, context: u32) -> Result<Tables, Error> {
        let position = context - ROWS;
        let page = PAGE_TOKENS as u32;
        let count = context.div_ceil(page) as usize;
        let pages: Vec<u32> =
            self.random.distinct(count, count).into_iter().map(|page| page as u32).collect();
        let span = SpanEntry { rows: ROWS, position, slot_out: 1, ..SpanEntry::default() };
        let chunks: Vec<ChunkEntry> = (0..ROWS / page)
            .map(|i| ChunkEntry { first_row: i * page, rows: page, span: 0 })
            .collect();
        let none = self.u32s(1, &[0])?;
        Ok(Tables {
            tokens: none,
            positions: self.u32s(1, &(position..context).collect::<Vec<_>>())?,
            row_spans: self.u32s(1, &vec![0; ROWS as usize])?,
            spans: self.u32s(SpanEntry::WORDS, bytemuck::cast_slice(&[span]))?,
            pages: self.u32s(count as u32, &pages)?,
            checkpoints: none,
            chunks: self.u32s(ChunkEntry::WORDS, bytemuck::cast_slice(&chunks))?,
            outputs: none,
        })
    }

    /// Median milliseconds of one run, of batches of runs of 50 ms or more where the first was shorter.
    fn milliseconds(&mut self, dispatches: &[Dispatch], out: Tensor) -> Result<f64, Error> {
        let mut bytes = [0; 16];
        let mut batch = |count: usize| -> Result<f64, Error> {
            let all: Vec<Dispatch> = (0..count).flat_map(|_| dispatches.to_vec()).collect();
            let start = Instant::now();
            self.device.run(&all, &vec![1; all.len()])?;
            // Waits for it.
            self.device.read(calla_gpu::Range { len: 16, ..out.range }, &mut bytes)?;
            Ok(start.elapsed().as_secs_f64() * 1e3 / count as f64)
        };
        batch(1)?;
        let first = batch(1)?;
        let count = (50.0 / first).clamp(1.0, 200.0) as usize;
        let samples = if first > 200.0 { 1 } else { 7 };
        let mut times = (0..samples).map(|_| batch(count)).collect::<Result<Vec<_>, _>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    fn attention(&mut self, context: u32) -> Result<(), Error> {
        let shape = Shape::full(4);
        let tables = self.tables(context)?;
        let (queries, keys) = (shape.query_dim() as u32, shape.kv_dim() as u32);
        let (pages, page) = (tables.pages.cols, keys * PAGE_TOKENS as u32);
        let pool =
            KvPool { keys: self.bf16s(pages, page, 1.0)?, values: self.bf16s(pages, page, 1.0)? };
        let (q, q_gate) = (self.bf16s(ROWS, queries, 1.0)?, self.bf16s(ROWS, 2 * queries, 2.0)?);
        let out = self.tensor(ROWS, queries, Dtype::Bf16);
        let dispatch = attention_prefill(&shape, q, q_gate, &pool, &tables, context, out);
        let milliseconds = self.milliseconds(&[dispatch], out)?;
        // What the rows see, two products each.
        let seen = f64::from(ROWS) * (f64::from(context) - f64::from(ROWS - 1) / 2.0);
        let flops = 4.0 * seen * f64::from(queries);
        println!(
            "attention_prefill, {ROWS} rows of {context}: {milliseconds:.3} ms, {:.1} TFLOP/s",
            flops / milliseconds / 1e9
        );
        for tensor in [pool.keys, pool.values, q, q_gate, out] {
            let calla_gpu::Place::Buffer(buffer) = tensor.range.place else { continue };
            self.device.release(buffer)?;
        }
        Ok(())
    }

    fn gated_delta(&mut self) -> Result<(), Error> {
        let shape = Shape::full(4);
        let tables = self.tables(ROWS)?;
        let (keys, values) = (shape.delta_key_dim() as u32, shape.delta_value_dim() as u32);
        let heads = shape.delta_value_heads as u32;
        // Keys of about unit length.
        let terms = DeltaTerms {
            q: self.bf16s(ROWS, keys, 1.0 / 128.0)?,
            k: self.bf16s(ROWS, keys, 0.088)?,
            v: self.bf16s(ROWS, values, 1.0)?,
            beta: self.f32s(ROWS, heads, 0.0, 1.0)?,
            log_decay: self.f32s(ROWS, heads, -0.2, 0.0)?,
        };
        let states = self.f32s(2, values * 128, -0.1, 0.1)?;
        let windows = self.bf16s(2, 3 * shape.conv_dim() as u32, 1.0)?;
        let out = self.tensor(ROWS, values, Dtype::Bf16);
        let slots = DeltaSlots { states, windows };
        let dispatches = gated_delta(&shape, &terms, &slots, &tables, self, out);
        for dispatch in &dispatches {
            let milliseconds = self.milliseconds(std::slice::from_ref(dispatch), out)?;
            println!(
                "{}, {ROWS} rows: {milliseconds:.3} ms, {:.1} TFLOP/s",
                dispatch.entry,
                dispatch.flops as f64 / milliseconds / 1e9
            );
        }
        Ok(())
    }
}
