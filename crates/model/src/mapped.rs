//! Files that are mapped into memory, for a device that can use their pages where they lie.

use bytes::Bytes;
use std::fmt;
use std::ops::Range;

/// A whole file, mapped into memory to be read.
///
/// Holding one, or [`MappedPages`] of it, proves: the pages of the file are readable, to the end of the last one (what lies
/// there behind the file's end is zero), and stay so as long as one of them is held. It does not prove that the bytes stay
/// the same: another process may rewrite the file, or cut it short.
#[derive(Clone)]
pub struct MappedFile {
    bytes: Bytes,
    page_bytes: usize,
}

impl MappedFile {
    /// A file whose bytes, all of them, are a map in pages of `page_bytes`.
    ///
    /// # Safety
    /// `bytes` lie where the map starts, which is where a page does. Each page that has one of them is readable as a whole,
    /// the rest of the last one is zero, and all this holds until every clone and slice of `bytes` is dropped. Nothing in
    /// this process writes there meanwhile.
    #[must_use]
    pub unsafe fn new(bytes: Bytes, page_bytes: usize) -> Self {
        assert!(page_bytes.is_power_of_two(), "pages of {page_bytes} bytes");
        Self { bytes, page_bytes }
    }

    /// Bytes of a page, as the system has them: a power of two.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes as u64
    }

    /// Where a view of the file starts in it; `None` if the bytes are not the file's own, but a copy of them, for one.
    #[must_use]
    pub fn offset_of(&self, view: &[u8]) -> Option<u64> {
        let start = view.as_ptr().addr().checked_sub(self.bytes.as_ptr().addr())?;
        let end = start.checked_add(view.len())?;
        (!view.is_empty() && end <= self.bytes.len()).then_some(start as u64)
    }

    /// The pages that hold a range of the file's bytes; `None` if that is empty or ends behind the file.
    #[must_use]
    pub fn pages(&self, range: Range<u64>) -> Option<MappedPages> {
        let start = usize::try_from(range.start).ok()?;
        let end = usize::try_from(range.end).ok().filter(|&end| end <= self.bytes.len())?;
        let first = start / self.page_bytes * self.page_bytes;
        // A slice has at most `isize::MAX` bytes, so this does not overflow.
        let len = end.next_multiple_of(self.page_bytes) - first;
        (start < end).then(|| MappedPages { file: self.clone(), first, len })
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile[{} bytes]", self.bytes.len())
    }
}

/// Whole pages of a mapped file, which stays mapped as long as this is held.
#[derive(Clone)]
pub struct MappedPages {
    file: MappedFile,
    /// Where they start in the file.
    first: usize,
    /// Bytes of all of them.
    len: usize,
}

impl MappedPages {
    /// Where they start in the file, in bytes: at a multiple of [`MappedFile::page_bytes`].
    #[must_use]
    pub fn start(&self) -> u64 {
        self.first as u64
    }

    /// Bytes of all pages, those of the last one behind the file's end included: a multiple of [`MappedFile::page_bytes`].
    #[expect(clippy::len_without_is_empty, reason = "there is at least one page")]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.file.page_bytes()
    }

    /// Address of the first byte: a multiple of [`MappedFile::page_bytes`]. [`MappedPages::len`] bytes may be read from there
    /// on as long as this is held, and none written.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.file_bytes().as_ptr()
    }

    /// Those of the bytes that are the file's.
    #[must_use]
    pub fn file_bytes(&self) -> &[u8] {
        let end = self.file.bytes.len().min(self.first + self.len);
        &self.file.bytes[self.first..end]
    }
}

impl fmt::Debug for MappedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedPages[{} bytes from {} on]", self.len, self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const PAGE: usize = 64;

    /// Pages of 64 bytes, of which the file fills all but the end of the last.
    #[repr(align(64))]
    struct Pages([u8; 4 * PAGE]);

    /// A file of some bytes in such pages, and what lives as long.
    struct File {
        pages: Box<Pages>,
        len: usize,
        _life: Arc<()>,
    }

    impl AsRef<[u8]> for File {
        fn as_ref(&self) -> &[u8] {
            &self.pages.0[..self.len]
        }
    }

    fn file(len: usize) -> (Bytes, MappedFile) {
        kept(len, Arc::default())
    }

    fn kept(len: usize, life: Arc<()>) -> (Bytes, MappedFile) {
        let mut pages = Box::new(Pages([0; 4 * PAGE]));
        for (i, byte) in pages.0[..len].iter_mut().enumerate() {
            *byte = i as u8 + 1;
        }
        let bytes = Bytes::from_owner(File { pages, len, _life: life });
        // SAFETY: the box is aligned to 64, has four pages of which the file ends in the last, zeros behind it, and is
        // freed with the last clone of `bytes`. Nothing writes it any more.
        let mapped = unsafe { MappedFile::new(bytes.clone(), PAGE) };
        (bytes, mapped)
    }

    #[test]
    fn pages_hold_what_was_asked_for_and_start_where_pages_do() {
        let (bytes, file) = file(200);
        for range in [0..1, 0..64, 63..65, 64..128, 100..200, 199..200, 0..200] {
            let pages = file.pages(range.clone()).unwrap();
            assert!(pages.start() <= range.start && range.end <= pages.start() + pages.len());
            assert!(
                pages.start() + 64 > range.start && range.end + 64 > pages.start() + pages.len()
            );
            assert!(pages.start().is_multiple_of(64) && pages.len().is_multiple_of(64));
            assert!(pages.as_ptr().addr().is_multiple_of(64), "{pages:?}");
            let end = 200.min(pages.start() + pages.len());
            assert_eq!(pages.file_bytes(), &bytes[pages.start() as usize..end as usize]);
        }
        assert_eq!(file.pages(100..200).unwrap().len(), 192);
    }

    #[test]
    fn nothing_behind_the_file_has_pages() {
        let (_, file) = file(200);
        let (backwards, len) = (Range { start: 9, end: 8 }, u64::MAX);
        for range in [0..201, 200..200, 5..5, backwards, 0..len, len - 1..len, 300..310] {
            assert!(file.pages(range.clone()).is_none(), "{range:?}");
        }
        // SAFETY: there is no byte, and so no page.
        let empty = unsafe { MappedFile::new(Bytes::new(), PAGE) };
        assert!(empty.pages(0..1).is_none() && empty.pages(0..0).is_none());
    }

    #[test]
    fn views_are_known_by_where_they_lie() {
        let (bytes, file) = file(200);
        assert_eq!(file.offset_of(&bytes), Some(0));
        assert_eq!(file.offset_of(&bytes[70..200]), Some(70));
        assert_eq!(file.offset_of(&bytes.slice(199..)), Some(199));
        assert_eq!(file.offset_of(&bytes[..0]), None);
        // The same values elsewhere.
        let copy = bytes[70..200].to_vec();
        assert_eq!(file.offset_of(&copy), None);
    }

    #[test]
    fn pages_keep_the_file_mapped() {
        let life = Arc::new(());
        let (bytes, file) = kept(200, Arc::clone(&life));
        let pages = file.pages(70..200).unwrap();
        drop((bytes, file));
        assert_eq!(pages.file_bytes()[..2], [65, 66]);
        let clone = pages.clone();
        drop(pages);
        assert_eq!((clone.file_bytes().len(), Arc::strong_count(&life)), (136, 2));
        drop(clone);
        assert_eq!(Arc::strong_count(&life), 1);
    }
}
