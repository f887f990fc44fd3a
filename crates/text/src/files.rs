//! Reading a small text file of a checkpoint under a size bound, from its own folder only.
//!
//! Symbolic links come with a download and are not trusted. A hub cache keeps
//! `models--owner--name/snapshots/<revision>/file -> ../../blobs/<hash>`, so links may leave the
//! directory that was given, but never the model's own repository folder. `calla-weights` has the same
//! rule for its files (its module `repository`); it is written twice because neither crate may depend on
//! the other.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

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
    // Of a link itself: one that leads nowhere is an error, not a file that is not there.
    match path.symlink_metadata() {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(read_error(e)),
    }
    // From here on by the path without links, so that one that changes meanwhile is not followed.
    let target = inside_repository(path)?;
    let metadata = target.metadata().map_err(read_error)?;
    if !metadata.is_file() {
        // A device or a pipe could block or never end.
        return Err(bad_file(path, "is not a regular file"));
    }
    let too_large = |bytes| Error::FileTooLarge { path: path.to_owned(), bytes, bytes_max };
    if metadata.len() > bytes_max {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    File::open(target)
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

/// Where the path leads, which must be in the repository folder of the directory that it names.
fn inside_repository(path: &Path) -> Result<PathBuf> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    let dir = dir.canonicalize().map_err(read_error)?;
    let root = hub_folder(&dir).unwrap_or(&dir);
    let target = path.canonicalize().map_err(read_error)?;
    if !target.starts_with(root) {
        let reason = format!(
            "is a link to {}, outside the model's folder {}: it is not followed",
            target.display(),
            root.display()
        );
        return Err(bad_file(path, &reason));
    }
    Ok(target)
}

/// The `models--...` folder of a hub cache that `dir` is a snapshot in.
fn hub_folder(dir: &Path) -> Option<&Path> {
    let snapshots = dir.parent()?;
    let model = snapshots.parent()?;
    let name = model.file_name()?.to_str()?;
    (snapshots.file_name()? == "snapshots" && name.starts_with("models--")).then_some(model)
}

/// The file as text; an error if there is none.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    read_text_if_present(path, bytes_max)?.ok_or_else(|| {
        let dir = path.parent().unwrap_or(path).to_owned();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Error::NoFile { dir, name }
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
        assert!(matches!(read_text(&path, 10), Err(Error::NoFile { .. })));
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

    #[cfg(unix)]
    #[test]
    fn links_may_not_leave_the_repository() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let snapshot = dir.path().join("models--a--b/snapshots/1");
        let plain = dir.path().join("plain");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir(&plain).unwrap();
        std::fs::create_dir(dir.path().join("models--a--b/blobs")).unwrap();
        std::fs::write(dir.path().join("models--a--b/blobs/0"), "blob").unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        let link = |target: &str, link: &Path| symlink(target, link).unwrap();

        link("../../blobs/0", &snapshot.join("blob"));
        link("../../../secret", &snapshot.join("out"));
        link("../secret", &plain.join("out"));
        link("nowhere", &plain.join("dangling"));
        link("loop", &plain.join("loop"));
        std::fs::write(plain.join("f"), "inside").unwrap();
        link("f", &plain.join("in"));
        link("plain", &dir.path().join("linked"));

        assert_eq!(read_text(&snapshot.join("blob"), 10).unwrap(), "blob");
        assert_eq!(read_text(&plain.join("in"), 10).unwrap(), "inside");
        assert_eq!(read_text(&dir.path().join("linked/in"), 10).unwrap(), "inside");
        for path in [snapshot.join("out"), plain.join("out")] {
            let message = read_text_if_present(&path, 10).unwrap_err().to_string();
            assert!(message.contains("outside the model's folder"), "{message}");
        }
        for name in ["dangling", "loop"] {
            let result = read_text_if_present(&plain.join(name), 10);
            assert!(matches!(result, Err(Error::Read { .. })), "{name}");
        }
    }
}
