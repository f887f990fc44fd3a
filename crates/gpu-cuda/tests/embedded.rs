//! What this build embeds, if it embeds anything.

use calla_gpu::copy::clear;
use calla_gpu::{Place, Range};
use calla_gpu_cuda::archive::Archive;
use calla_gpu_cuda::{EMBEDDED, Library, SOURCES};

#[test]
fn what_is_embedded_is_of_these_sources_and_whole() {
    assert_eq!(SOURCES.len(), 64, "{SOURCES}");
    let Some(bytes) = EMBEDDED else {
        println!("skipped: this build embeds no machine code (CALLA_CUBINS names none)");
        return;
    };
    let archive = Archive::read(bytes).unwrap();
    assert_eq!(archive.sources, SOURCES);
    let source = clear(Range { place: Place::Scratch(0), start: 0, len: 16 });
    for architecture in archive.architectures() {
        let library = Library::new(Some(architecture.block_memory())).unwrap();
        let block = archive.block(architecture).unwrap().unwrap();
        let key = library.source(&source).unwrap().key();
        assert!(block.get(key).is_some(), "{architecture}");
    }
}
