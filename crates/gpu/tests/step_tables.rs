//! Tables of a step, out of its batch.

mod common;

use calla_gpu::cache::{DeviceCache, SlotMoves};
use calla_gpu::step_tables::{StepTables, TableBuffer, TableCounts, page_entries};
use calla_gpu::{BufferId, ChunkEntry, Described, Device as _, SpanEntry, Tables, Tensor};
use calla_ops::{Batch, CacheSize, Span, SpanKind};
use calla_testkit::{Random, shapes};

const CACHE: CacheSize = CacheSize { pages: 64, slots: 40 };
const VOCAB: usize = 1000;

fn cache() -> DeviceCache {
    DeviceCache::new(&mut Described::new(true), &shapes::tiny(), CACHE, 8, true)
        .expect("no memory is needed")
}

fn batch(random: &mut Random, spans: Vec<Span>, outputs: &[usize]) -> (Batch, SlotMoves) {
    let rows = spans.last().map_or(0, |span| span.rows.end);
    let tokens = random.tokens(rows, VOCAB);
    let batch = Batch::new(tokens, spans, outputs.to_vec(), VOCAB, CACHE).expect("a batch");
    let moves = cache().begin(batch.spans()).expect("spare slots");
    (batch, moves)
}

/// A prefill of three chunks, one of a single row, and one of exactly a chunk; the last two share their first page.
fn prefill(random: &mut Random) -> (Batch, SlotMoves) {
    let span = |rows, position, slot, pages: &[usize]| {
        Span::new(SpanKind::Prefill, rows, position, slot, pages.to_vec())
    };
    let spans = vec![
        Span { cuts: vec![20, 84], ..span(0..130, 10, 5, &[9, 1, 30]) },
        span(130..131, 64, 0, &[3, 4]),
        span(131..195, 64, 7, &[3, 2, 6]),
    ];
    batch(random, spans, &[129, 130, 194])
}

/// Decodes with drafts and without.
fn decode(random: &mut Random) -> (Batch, SlotMoves) {
    let span = |rows, position, slot, pages: &[usize], checkpoints: &[usize]| {
        let span = Span::new(SpanKind::Decode, rows, position, slot, pages.to_vec());
        Span { checkpoints: checkpoints.to_vec(), ..span }
    };
    let spans = vec![
        span(0..3, 64, 8, &[20, 21], &[2, 30]),
        span(3..4, 0, 1, &[0], &[]),
        span(4..7, 5, 4, &[50], &[]),
        span(7..9, 128, 6, &[20, 40, 41], &[39]),
    ];
    batch(random, spans, &[0, 1, 2, 3, 7, 8])
}

#[test]
fn a_prefill_has_chunks() {
    let (batch, moves) = prefill(&mut Random::new(1));
    let tables = StepTables::new(&batch, &moves);
    assert_eq!(tables.tokens, batch.tokens());
    assert_eq!(tables.outputs, [129, 130, 194]);
    assert_eq!(tables.pages, [9, 1, 30, 3, 4, 3, 2, 6]);
    assert_eq!(tables.positions[..2], [10, 11]);
    assert_eq!(tables.positions[128..133], [138, 139, 64, 64, 65]);
    assert_eq!(tables.row_spans[129..132], [0, 1, 2]);
    assert_eq!(tables.row_spans.len(), 195);
    assert!(tables.checkpoints.is_empty());
    let chunk = |first_row, rows, span| ChunkEntry { first_row, rows, span };
    let chunks =
        [chunk(0, 10, 0), chunk(10, 64, 0), chunk(74, 56, 0), chunk(130, 1, 1), chunk(131, 64, 2)];
    assert_eq!(tables.chunks, chunks);
    let [slot_in, slot_out] = moves.of(7).expect("a move");
    let last = SpanEntry {
        first_row: 131,
        rows: 64,
        position: 64,
        slot_in,
        slot_out,
        first_page: 5,
        first_checkpoint: 0,
        checkpoints: 0,
    };
    assert_eq!(tables.spans[2], last);
    let counts = TableCounts { rows: 195, spans: 3, chunks: 5, outputs: 3 };
    assert_eq!((TableCounts::of(&batch), tables.counts()), (counts, counts));
    assert_eq!(page_entries(&batch), 8);
}

#[test]
fn a_decode_has_checkpoints() {
    let (batch, moves) = decode(&mut Random::new(2));
    let tables = StepTables::new(&batch, &moves);
    assert_eq!(tables.positions, [64, 65, 66, 0, 5, 6, 7, 128, 129]);
    assert_eq!(tables.row_spans, [0, 0, 0, 1, 2, 2, 2, 3, 3]);
    let checkpoints = [2, 30, 39].map(|slot| moves.checkpoint(slot).expect("a checkpoint"));
    assert_eq!(tables.checkpoints, checkpoints);
    let of_spans: Vec<_> =
        tables.spans.iter().map(|span| (span.first_checkpoint, span.checkpoints)).collect();
    assert_eq!(of_spans, [(0, 2), (2, 0), (2, 0), (2, 1)]);
    for (span, entry) in batch.spans().iter().zip(&tables.spans) {
        assert_eq!(Some([entry.slot_in, entry.slot_out]), moves.of(span.slot));
    }
    let counts = TableCounts { rows: 9, spans: 4, chunks: 0, outputs: 6 };
    assert_eq!((TableCounts::of(&batch), tables.counts()), (counts, counts));
}

fn list(tables: &Tables) -> [Tensor; 8] {
    [
        tables.tokens,
        tables.positions,
        tables.row_spans,
        tables.spans,
        tables.checkpoints,
        tables.chunks,
        tables.outputs,
        tables.pages,
    ]
}

#[test]
fn one_write_fills_all_tables() {
    let Some(mut device) = common::device() else { return };
    for ((batch, moves), sizes) in [
        (prefill(&mut Random::new(3)), [(195, 1), (3, 8), (1, 192), (5, 3), (3, 1)]),
        (decode(&mut Random::new(4)), [(9, 1), (4, 8), (1, 5), (0, 3), (6, 1)]),
    ] {
        let values = StepTables::new(&batch, &moves);
        let counts = TableCounts::of(&batch);
        let bytes = values.to_bytes();
        assert_eq!(bytes.len() as u64, counts.bytes(page_entries(&batch)));
        let buffer = TableBuffer::new(&mut device, bytes.len() as u64 + 40).expect("memory");
        let tables = buffer.tables(counts).expect("room");
        let start = Tensor::whole(buffer.buffer, 1, bytes.len() as u32 / 4, calla_gpu::Dtype::U32);
        device.write(start.range, &bytes).expect("a write");

        let all = list(&tables);
        let [rows, spans, checkpoints, chunks, outputs] = sizes;
        let pages = (1, page_entries(&batch) as u32 + 10);
        let expected = [rows, rows, rows, spans, checkpoints, chunks, outputs, pages];
        assert_eq!(all.map(|table| (table.rows, table.cols)), expected);
        for pair in all.windows(2) {
            assert!(pair[1].range.start.is_multiple_of(16));
            assert!(pair[0].range.start + pair[0].range.len <= pair[1].range.start);
        }
        let read = all.map(|table| common::integers(&mut device, table));
        assert_eq!(read[0], values.tokens);
        assert_eq!(read[1], values.positions);
        assert_eq!(read[2], values.row_spans);
        assert_eq!(read[3], bytemuck::cast_slice::<SpanEntry, u32>(&values.spans));
        assert_eq!(read[4][..values.checkpoints.len()], values.checkpoints);
        assert_eq!(read[5], bytemuck::cast_slice::<ChunkEntry, u32>(&values.chunks));
        assert_eq!(read[6], values.outputs);
        assert_eq!(read[7][..values.pages.len()], values.pages);
    }
}

#[test]
fn places_follow_from_counts_alone() {
    let counts = TableCounts { rows: 5, spans: 5, chunks: 0, outputs: 5 };
    let small = TableBuffer { buffer: BufferId(1), bytes: counts.bytes(1) };
    let large = TableBuffer { bytes: counts.bytes(1000), ..small };
    let (few, many) = (small.tables(counts).expect("room"), large.tables(counts).expect("room"));
    assert_eq!(list(&few)[..7], list(&many)[..7]);
    assert_eq!(few.pages.range.start, many.pages.range.start);
    assert_eq!((few.pages.cols, many.pages.cols), (1, 1000));
    assert_eq!(few.checkpoints.range.len, 0);
    for bytes in [counts.bytes(0), 0] {
        let error = TableBuffer { bytes, ..small }.tables(counts).expect_err("no room");
        assert!(error.to_string().contains("make it larger"), "{error}");
    }
}
