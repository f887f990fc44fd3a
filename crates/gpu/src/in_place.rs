//! Which arrays of a checkpoint a device can use where they lie in a mapped file, and in which windows of it.
//!
//! An array can be used in place if it is stored as kernels read it: a quantised matrix, whose experts, where it has several,
//! follow one another, from an offset on that the kernels' loads can start at. Pages, and so windows, start at larger
//! multiples than any load needs, so the offset in the file decides. MLX does not pad the headers of its files, which leaves
//! that to chance; the `safetensors` library pads them to 8 bytes.

use crate::layout::BUFFER_BYTES_END;
use calla_model::{MappedFile, MappedPages};
use std::ops::Range;

/// What may lie between two arrays of a window. Less costs more buffers, more would keep resident what nobody reads.
const GAP_BYTES_MAX: u64 = 1 << 20;

/// An array that lies in a file as kernels read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InFile {
    /// Index of the file.
    file: usize,
    /// Where its bytes are there.
    bytes: Range<u64>,
}

impl InFile {
    /// Finds parts of equal length that follow one another from a multiple of `alignment` on.
    pub(crate) fn find(files: &[MappedFile], parts: &[&[u8]], alignment: u64) -> Option<Self> {
        let (first, len) = (parts.first()?, parts[0].len() as u64);
        let found = files.iter().enumerate().find_map(|(i, f)| Some((i, f.offset_of(first)?)));
        let (file, start) = found.filter(|(_, start)| start.is_multiple_of(alignment))?;
        let ends = (start..).step_by(usize::try_from(len).ok()?);
        let follow = parts.iter().zip(ends).all(|(p, at)| files[file].offset_of(p) == Some(at));
        follow.then(|| Self { file, bytes: start..start + len * parts.len() as u64 })
    }
}

/// Pages of a file, and the arrays that lie in them.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    file: usize,
    bytes: Range<u64>,
    pub(crate) pages: MappedPages,
    /// Indices of arrays, and where each starts in the window.
    pub(crate) arrays: Vec<(usize, u64)>,
}

/// Windows of at most `most` bytes, below 4 GiB, that hold the arrays; one that is too long for any is left out.
pub(crate) fn windows(files: &[MappedFile], arrays: &[Option<InFile>], most: u64) -> Vec<Window> {
    let most = most.min(BUFFER_BYTES_END - 1);
    let found = arrays.iter().enumerate().filter_map(|(i, array)| Some((i, array.as_ref()?)));
    let mut found: Vec<(usize, &InFile)> = found.collect();
    found.sort_by_key(|(_, array)| (array.file, array.bytes.start));
    let mut windows: Vec<Window> = vec![];
    for (index, InFile { file, bytes }) in found {
        let fit = |bytes: &Range<u64>| {
            files[*file].pages(bytes.clone()).filter(|pages| pages.len() <= most)
        };
        let widened = windows.last_mut().and_then(|last| {
            let is_near = last.file == *file && bytes.start <= last.bytes.end + GAP_BYTES_MAX;
            let wider = last.bytes.start..last.bytes.end.max(bytes.end);
            let pages = fit(&wider).filter(|_| is_near)?;
            (last.bytes, last.pages) = (wider, pages);
            Some(last)
        });
        if let Some(last) = widened {
            last.arrays.push((index, bytes.start - last.pages.start()));
        } else if let Some(pages) = fit(bytes) {
            let arrays = vec![(index, bytes.start - pages.start())];
            windows.push(Window { file: *file, bytes: bytes.clone(), pages, arrays });
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const PAGE: u64 = 4096;

    #[repr(align(4096))]
    struct Pages([u8; 4 * PAGE as usize]);

    struct File(Box<Pages>, usize);

    impl AsRef<[u8]> for File {
        fn as_ref(&self) -> &[u8] {
            &self.0.0[..self.1]
        }
    }

    /// A file of zeros that ends in the fourth of its pages.
    fn file(len: usize) -> (Bytes, MappedFile) {
        assert!((3 * PAGE as usize + 1..=4 * PAGE as usize).contains(&len));
        let bytes = Bytes::from_owner(File(Box::new(Pages([0; 4 * PAGE as usize])), len));
        // SAFETY: the box is aligned to 4096, has four pages of which the file ends in the last, zeros behind it, is freed
        // with the last clone of `bytes`, and nothing writes it.
        (bytes.clone(), unsafe { MappedFile::new(bytes, PAGE as usize) })
    }

    fn find(files: &[MappedFile], parts: &[&[u8]], alignment: u64) -> Option<(usize, Range<u64>)> {
        InFile::find(files, parts, alignment).map(|found| (found.file, found.bytes))
    }

    #[test]
    fn an_array_is_found_where_its_parts_follow_one_another() {
        let ((a, file_a), (b, file_b)) = (file(13_000), file(16_384));
        let files = [file_a, file_b];
        assert_eq!(find(&files, &[&a[8..24]], 8), Some((0, 8..24)));
        assert_eq!(find(&files, &[&b[16_368..]], 16), Some((1, 16_368..16_384)));
        assert_eq!(find(&files, &[&b[16..32], &b[32..48], &b[48..64]], 16), Some((1, 16..64)));
        // At an offset that loads cannot start at, with a gap, in another order, over two files, elsewhere.
        assert_eq!(find(&files, &[&a[8..24]], 16), None);
        assert_eq!(find(&files, &[&a[16..32], &a[48..64]], 16), None);
        assert_eq!(find(&files, &[&a[32..48], &a[16..32]], 16), None);
        assert_eq!(find(&files, &[&a[..16], &b[16..32]], 16), None);
        assert_eq!(find(&files, &[&[0; 16]], 16), None);
        assert_eq!(find(&[], &[&a[..16]], 16), None);
    }

    /// File, first byte and bytes of a window, and what lies where in it.
    type Planned = (usize, u64, u64, Vec<(usize, u64)>);

    fn planned(
        files: &[MappedFile],
        arrays: &[Option<(usize, Range<u64>)>],
        most: u64,
    ) -> Vec<Planned> {
        let arrays: Vec<Option<InFile>> = arrays
            .iter()
            .map(|array| array.clone().map(|(file, bytes)| InFile { file, bytes }))
            .collect();
        let planned = windows(files, &arrays, most).into_iter();
        planned.map(|w| (w.file, w.pages.start(), w.pages.len(), w.arrays)).collect()
    }

    #[test]
    fn windows_are_whole_pages_that_hold_whole_arrays() {
        let ((_, first), (_, second)) = (file(13_000), file(16_384));
        let files = [first, second];
        let arrays = [
            Some((1, 0..100)),
            None,
            Some((0, 4100..8200)),
            Some((0, 8200..13_000)),
            Some((0, 64..128)),
        ];
        let all =
            [(0, 0, 4 * PAGE, vec![(4, 64), (2, 4100), (3, 8200)]), (1, 0, PAGE, vec![(0, 0)])];
        assert_eq!(planned(&files, &arrays, u64::MAX), all);
        assert_eq!(planned(&files, &arrays, 4 * PAGE), all);
        // The page that one array ends in and another starts in is in two windows.
        let two = [
            (0, 0, 3 * PAGE, vec![(4, 64), (2, 4100)]),
            (0, 2 * PAGE, 2 * PAGE, vec![(3, 8)]),
            (1, 0, PAGE, vec![(0, 0)]),
        ];
        assert_eq!(planned(&files, &arrays, 4 * PAGE - 1), two);
        // Arrays of two pages are in none.
        let small = [(0, 0, PAGE, vec![(4, 64)]), (1, 0, PAGE, vec![(0, 0)])];
        assert_eq!(planned(&files, &arrays, PAGE), small);
        assert_eq!(planned(&files, &arrays, PAGE - 1), []);
    }

    #[test]
    fn what_nobody_reads_is_left_out_of_windows() {
        let len = GAP_BYTES_MAX as usize + 3 * PAGE as usize;
        let bytes = Bytes::from_owner(vec![0_u8; len + PAGE as usize]);
        let skipped = bytes.as_ptr().addr().next_multiple_of(PAGE as usize) - bytes.as_ptr().addr();
        // SAFETY: the file ends where a page does, within the vector, which starts no later than its first page; it is freed
        // with the last clone of `bytes`, and nothing writes it.
        let file = unsafe { MappedFile::new(bytes.slice(skipped..skipped + len), PAGE as usize) };
        let far = GAP_BYTES_MAX + PAGE;
        let near = [Some((0, 0..PAGE)), Some((0, far..far + 8))];
        let one = [(0, 0, far + PAGE, vec![(0, 0), (1, far)])];
        assert_eq!(planned(std::slice::from_ref(&file), &near, u64::MAX), one);
        let apart = [Some((0, 0..PAGE)), Some((0, far + 8..far + 16))];
        let two = [(0, 0, PAGE, vec![(0, 0)]), (0, far, PAGE, vec![(1, 8)])];
        assert_eq!(planned(&[file], &apart, u64::MAX), two);
    }
}
