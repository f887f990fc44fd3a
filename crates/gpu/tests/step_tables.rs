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

/// Follows the tables as kernels do, from each row to its page and its slots.
#[test]
fn rows_of_ragged_batches_find_what_is_theirs() {
    for seed in 0..50 {
        let random = &mut Random::new(seed);
        let kind = *random.pick(&[SpanKind::Prefill, SpanKind::Decode]);
        let mut slots = random.distinct(CACHE.slots, CACHE.slots);
        let mut free = random.distinct(CACHE.pages - 2, CACHE.pages - 2);
        let mut rows = 0;
        let spans: Vec<Span> = (0..random.range(1..=8))
            .map(|_| {
                let len = random.range(1..=if kind == SpanKind::Decode { 4 } else { 150 });
                let position = random.range(0..=200);
                let (whole, end) = (position / 64, (position + len).div_ceil(64));
                // Pages that are only read may be anybody's.
                let mut pages: Vec<usize> = (0..whole).map(|_| 62 + random.range(0..=1)).collect();
                pages.extend(free.drain(free.len() - (end - whole)..));
                let checkpoints = match kind {
                    SpanKind::Decode if random.one_in(2) => slots.split_off(slots.len() + 1 - len),
                    _ => vec![],
                };
                let slot = slots.pop().expect("slots for all");
                rows += len;
                let cuts = match kind {
                    SpanKind::Prefill => {
                        (position + 1..position + len).filter(|_| random.one_in(40)).collect()
                    }
                    SpanKind::Decode => vec![],
                };
                Span { kind, rows: rows - len..rows, position, slot, pages, checkpoints, cuts }
            })
            .collect();
        let (batch, moves) = batch(random, spans, &[]);
        let tables = StepTables::new(&batch, &moves);
        for (i, span) in batch.spans().iter().enumerate() {
            for (nth, row) in span.rows.clone().enumerate() {
                let entry = tables.spans[tables.row_spans[row] as usize];
                assert_eq!(tables.row_spans[row] as usize, i);
                assert_eq!(entry.first_row as usize + nth, row);
                let position = tables.positions[row] as usize;
                assert_eq!(
                    (position, entry.position as usize + nth),
                    (span.position_of(row), position)
                );
                let page = tables.pages[entry.first_page as usize + position / 64] as usize;
                assert_eq!(page * 64 + position % 64, span.kv_index(position));
                let after = if row + 1 == span.rows.end {
                    Some(entry.slot_out)
                } else if entry.checkpoints > 0 {
                    Some(tables.checkpoints[entry.first_checkpoint as usize + nth])
                } else {
                    None
                };
                let expected = match span.checkpoints.get(nth) {
                    Some(&slot) => moves.checkpoint(slot),
                    None => {
                        moves.of(span.slot).map(|to| to[1]).filter(|_| row + 1 == span.rows.end)
                    }
                };
                assert_eq!(after, expected, "row {row} of {span:?}");
            }
        }
        for span in batch.spans() {
            for cut in &span.cuts {
                let row = (span.rows.start + cut - span.position) as u32;
                assert!(tables.chunks.iter().any(|chunk| chunk.first_row == row), "{cut}");
            }
        }
        let chunked: Vec<usize> = tables
            .chunks
            .iter()
            .flat_map(|chunk| {
                let rows = chunk.first_row as usize..(chunk.first_row + chunk.rows) as usize;
                assert!((1..=64).contains(&chunk.rows));
                rows.inspect(|&row| assert_eq!(tables.row_spans[row], chunk.span))
            })
            .collect();
        let expected = if kind == SpanKind::Prefill { 0..batch.rows() } else { 0..0 };
        assert!(chunked.into_iter().eq(expected));
    }
}

#[test]
fn parts_of_a_batch_take_the_moves_of_the_whole() {
    let random = &mut Random::new(5);
    let (prefill, _) = prefill(random);
    let decode_span = Span {
        kind: SpanKind::Decode,
        rows: 0..2,
        position: 3,
        slot: 9,
        pages: vec![60],
        checkpoints: vec![10],
        cuts: vec![],
    };
    let (decode, _) = batch(random, vec![decode_span], &[1]);
    let moves = cache().begin(&[prefill.spans(), decode.spans()].concat()).expect("spare slots");
    let parts = [prefill, decode].map(|part| StepTables::new(&part, &moves));
    let written = parts.iter().flat_map(|part| {
        part.spans.iter().map(|span| span.slot_out).chain(part.checkpoints.iter().copied())
    });
    let mut written: Vec<u32> = written.collect();
    written.sort_unstable();
    written.dedup();
    assert_eq!(written.len(), 5, "{written:?}");
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
