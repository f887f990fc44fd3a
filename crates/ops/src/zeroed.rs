//! Zeroed memory whose parts can be handed back to the system.
//!
//! It is a private anonymous mapping, so what a page of it holds after it was handed back is defined: zeros, as in the
//! beginning, taken up anew when it is next written.

use memmap2::MmapMut;
use std::ops::{Deref, DerefMut, Range};

/// Whether this system takes memory back.
pub(crate) const CAN_GIVE_BACK: bool = cfg!(any(target_os = "linux", target_vendor = "apple"));

/// Values in f32, zero at first. Memory is taken up when it is first written.
#[derive(Debug)]
pub(crate) struct Zeroed {
    map: MmapMut,
}

impl Zeroed {
    /// So many zeros; `None` if there is not the memory, or they cannot be counted.
    pub(crate) fn new(values: usize) -> Option<Self> {
        let bytes = values.checked_mul(size_of::<f32>())?;
        MmapMut::map_anon(bytes).ok().map(|map| Self { map })
    }

    /// Hands the memory of the system's pages that lie wholly inside of `values` back, which makes them zero: their bytes.
    /// What lies outside stays. Zero where the system refuses, or where this is not known how to be done.
    pub(crate) fn give_back(&mut self, values: Range<usize>) -> usize {
        let values = values.start * size_of::<f32>()..values.end * size_of::<f32>();
        let pages = whole_pages(values, system::page_bytes());
        let Some(bytes) = self.map.get_mut(pages).filter(|bytes| !bytes.is_empty()) else {
            return 0;
        };
        if system::give_back(bytes) { bytes.len() } else { 0 }
    }
}

impl Deref for Zeroed {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // A mapping starts at a page, and so where an f32 may lie; its length is that of whole values.
        bytemuck::cast_slice(&self.map)
    }
}

impl DerefMut for Zeroed {
    fn deref_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.map)
    }
}

impl Clone for Zeroed {
    /// # Panics
    /// If there is not the memory, as for any clone.
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.len()).expect("memory for a copy");
        copy.copy_from_slice(self);
        copy
    }
}

impl PartialEq for Zeroed {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

/// The largest range inside of `bytes` that starts and ends at multiples of `page`.
fn whole_pages(bytes: Range<usize>, page: usize) -> Range<usize> {
    let (start, end) = (bytes.start.next_multiple_of(page), bytes.end / page * page);
    start..end.max(start)
}

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
mod system {
    use rustix::mm;
    use std::ffi::c_void;

    pub(super) fn page_bytes() -> usize {
        rustix::param::page_size()
    }

    /// Has the system take back whole pages of a private anonymous mapping; false, with nothing changed, if it refuses.
    #[cfg(target_os = "linux")]
    pub(super) fn give_back(pages: &mut [u8]) -> bool {
        let start = pages.as_mut_ptr().cast::<c_void>();
        // SAFETY: the pages are whole, and borrowed by nobody else. In a private anonymous mapping (that is all that
        // `Zeroed` has) this makes them zero, which any f32 may be; madvise(2) says so.
        unsafe { mm::madvise(start, pages.len(), mm::Advice::LinuxDontNeed) }.is_ok()
    }

    #[cfg(target_vendor = "apple")]
    pub(super) fn give_back(pages: &mut [u8]) -> bool {
        replace(pages)
    }

    /// Puts new zeroed pages in the place of old ones. On Macs instead of `madvise`, after whose `MADV_FREE` a page may
    /// hold what it held or zeros, and become zeros at any time until it is written.
    #[cfg(any(target_vendor = "apple", test))]
    pub(super) fn replace(pages: &mut [u8]) -> bool {
        let start = pages.as_mut_ptr().cast::<c_void>();
        let access = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
        let flags = mm::MapFlags::PRIVATE | mm::MapFlags::FIXED;
        // SAFETY: the pages are whole, and borrowed by nobody else, so nothing but them is replaced. They are zero
        // then, which any f32 may be, and belong to the mapping around them, which is unmapped as one.
        unsafe { mm::mmap_anonymous(start, pages.len(), access, flags) }.is_ok()
    }
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
mod system {
    pub(super) fn page_bytes() -> usize {
        1 << 16
    }

    pub(super) fn give_back(_: &mut [u8]) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_count() {
        assert_eq!(whole_pages(0..4096, 4096), 0..4096);
        assert_eq!(whole_pages(1..8191, 4096), 4096..4096);
        assert_eq!(whole_pages(1..8192, 4096), 4096..8192);
        assert_eq!(whole_pages(5000..5001, 4096), 8192..8192);
        assert_eq!(whole_pages(0..0, 4096), 0..0);
    }

    #[test]
    fn absurd_and_empty_sizes_are_no_trouble() {
        assert!(Zeroed::new(usize::MAX).is_none());
        assert!(Zeroed::new(usize::MAX / 4).is_none());
        let mut none = Zeroed::new(0).unwrap();
        assert_eq!((none.len(), none.give_back(0..0)), (0, 0));
    }

    #[cfg(target_os = "linux")]
    mod linux {
        use super::*;

        /// Bytes that are taken up, in memory or swapped out.
        fn resident(values: &Zeroed) -> usize {
            let page = rustix::param::page_size();
            let start = values.as_ptr() as usize / page;
            let count = size_of_val(&**values).div_ceil(page);
            // An entry of 8 bytes for each page of the address space, with bit 63 set if it is in memory and bit 62 if it
            // is swapped out (admin-guide/mm/pagemap of Linux).
            let mut entries = vec![0; count * 8];
            let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
            std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut entries, start as u64 * 8)
                .unwrap();
            let taken = entries.as_chunks::<8>().0.iter().map(|entry| u64::from_le_bytes(*entry));
            taken.filter(|entry| entry >> 62 != 0).count() * page
        }

        const VALUES: usize = 4 << 20;

        fn numbered() -> Zeroed {
            let mut values = Zeroed::new(VALUES).unwrap();
            assert_eq!(resident(&values), 0);
            values.iter_mut().enumerate().for_each(|(i, value)| *value = i as f32 + 0.5);
            assert_eq!(resident(&values), 4 * VALUES);
            values
        }

        fn check(give_back: impl FnOnce(&mut Zeroed, Range<usize>) -> usize) {
            let mut values = numbered();
            // Neither end is that of a page.
            let gone = 1000..3_000_001;
            let page = rustix::param::page_size();
            let whole = whole_pages(gone.start * 4..gone.end * 4, page);
            assert_eq!(give_back(&mut values, gone), whole.len());
            assert_eq!(resident(&values), 4 * VALUES - whole.len());
            for (i, &value) in values.iter().enumerate() {
                let expected = if whole.contains(&(4 * i)) { 0.0 } else { i as f32 + 0.5 };
                assert_eq!(value, expected, "{i}");
            }
            // It is memory like any other.
            values.fill(7.0);
            assert_eq!(resident(&values), 4 * VALUES);
            assert!(values.iter().all(|&value| value == 7.0));
        }

        #[test]
        fn memory_that_is_given_back_is_not_resident_and_zero() {
            check(Zeroed::give_back);
        }

        #[test]
        fn pages_that_are_replaced_are_not_resident_and_zero() {
            check(|values, range| {
                let pages = whole_pages(range.start * 4..range.end * 4, system::page_bytes());
                let bytes = &mut values.map[pages];
                assert!(system::replace(bytes));
                bytes.len()
            });
        }

        #[test]
        fn what_was_never_written_stays_unwritten() {
            let mut values = Zeroed::new(VALUES).unwrap();
            assert_eq!(values.give_back(0..VALUES), 4 * VALUES);
            assert_eq!(resident(&values), 0);
        }
    }
}
