//! Reading a small text file of a checkpoint under a size bound.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{Error, Result};

/// The published `tokenizer.json` has 10 MB.
pub(crate) const TOKENIZER_BYTES_MAX: u64 = 128 << 20;
/// `tokenizer_config.json` and `generation_config.json`: kilobytes, or a few hundred of them where
/// every added token is listed.
pub(crate) const CONFIG_BYTES_MAX: u64 = 8 << 20;
/// The published template has 8 KB.
pub(crate) const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

/// The file as text, or `None` if there is none. The bound holds before and while reading, so that
/// neither a huge file nor one that grows costs memory.
pub(crate) fn read_text_if_present(path: &Path, bytes_max: u64) -> Result<Option<String>> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(read_error(e)),
    };
    if !metadata.is_file() {
        // A device or a pipe could block or never end.
        return Err(bad_file(path, "is not a regular file"));
    }
    let too_large = |bytes| Error::FileTooLarge { path: path.to_owned(), bytes, bytes_max };
    if metadata.len() > bytes_max {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    File::open(path)
        .and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes))
        .map_err(read_error)?;
    if bytes.len() as u64 > bytes_max {
        return Err(too_large(bytes.len() as u64));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(e) => Err(bad_file(
            path,
            &format!("is not UTF-8 (first bad byte at {})", e.utf8_error().valid_up_to()),
        )),
    }
}

/// The file as text; an error if there is none.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    read_text_if_present(path, bytes_max)?.ok_or_else(|| Error::Read {
        path: path.to_owned(),
        source: std::io::Error::from(std::io::ErrorKind::NotFound),
    })
}

pub(crate) fn bad_file(path: &Path, reason: &str) -> Error {
    Error::BadFile { path: path.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_too_long_or_no_file_or_not_utf8() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        assert!(read_text_if_present(&path, 10).unwrap().is_none());
        assert!(matches!(read_text(&path, 10), Err(Error::Read { .. })));
        std::fs::write(&path, "01234567890").unwrap();
        assert!(matches!(
            read_text(&path, 10),
            Err(Error::FileTooLarge { bytes: 11, bytes_max: 10, .. })
        ));
        assert_eq!(read_text(&path, 11).unwrap(), "01234567890");
        std::fs::write(&path, b"ab\xff").unwrap();
        let message = read_text(&path, 10).unwrap_err().to_string();
        assert!(message.contains("first bad byte at 2"), "{message}");
        assert!(matches!(read_text(dir.path(), 10), Err(Error::BadFile { .. })));
        #[cfg(unix)]
        assert!(matches!(read_text(Path::new("/dev/zero"), 10), Err(Error::BadFile { .. })));
    }
}
