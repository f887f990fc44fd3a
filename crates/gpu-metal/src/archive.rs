//! Where translated kernels are kept: which file is whose, and what becomes of one that is damaged.
//!
//! A file is a serialised `MTLBinaryArchive`. Its name has a key, of all that machine code depends on, and a digest of what
//! is in it: what has another digest is damaged, and Metal never sees it. Files that no start has used for long, of an earlier
//! system or an earlier calla, are removed.

use crate::api::Language;
use crate::capabilities::Capabilities;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};
use std::{fs, io, process};

/// What the names of all archives begin with.
const PREFIX: &str = "calla-";
/// What they end with.
const SUFFIX: &str = ".binarchive";
/// What those end with that are not written to their end yet.
const PARTIAL_SUFFIX: &str = ".tmp";
/// What was not used for so long is removed.
const AGE_MAX: Duration = Duration::from_secs(60 * 24 * 3600);
/// Hexadecimal digits of a key and of a digest in a name.
const DIGITS: usize = 32;

/// Gathers the key: all kernels that a device compiles, the device, its system, and this version of calla.
#[derive(Clone, Debug, Default)]
pub struct Key(blake3::Hasher);

impl Key {
    fn part(&mut self, bytes: &[u8]) {
        // With its length, so that no two lists of parts are the same bytes.
        self.0.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }

    /// Adds a source as the compiler gets it.
    pub fn source(&mut self, name: &str, text: &str, language: Language) {
        self.part(name.as_bytes());
        self.part(text.as_bytes());
        self.part(format!("{language:?}").as_bytes());
    }

    /// The key of these sources on such a device.
    #[must_use]
    pub fn on(&self, capabilities: &Capabilities) -> String {
        let mut key = self.clone();
        for part in [&capabilities.name, &capabilities.system, env!("CARGO_PKG_VERSION")] {
            key.part(part.as_bytes());
        }
        key.0.finalize().to_hex()[..DIGITS].to_owned()
    }
}

/// The archives of one key in a folder.
#[derive(Clone, Debug)]
pub struct Archives {
    folder: PathBuf,
    prefix: String,
}

impl Archives {
    /// Those of a key, in a folder that is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(folder: &Path, key: &str) -> Result<Self, String> {
        let made = fs::create_dir_all(folder);
        made.map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        Ok(Self { folder: folder.to_owned(), prefix: format!("{PREFIX}{key}-") })
    }

    /// Files of this key.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let named = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(&self.prefix) && name.ends_with(SUFFIX)
        });
        named.map(|entry| entry.path()).collect()
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.folder.join(format!("{}{digest}{SUFFIX}", self.prefix))
    }

    /// The archive that was kept, if it is what was written. Those that are damaged are removed.
    #[must_use]
    pub fn find(&self) -> Option<PathBuf> {
        let mut found = None;
        for path in self.files() {
            match digest(&path) {
                Ok(digest) if self.path(&digest) == path => found = Some(path),
                Ok(_) => {
                    tracing::warn!("{} is damaged: it is made anew", path.display());
                    remove(&path);
                }
                Err(error) => tracing::warn!("cannot read {}: {error}", path.display()),
            }
        }
        found
    }

    /// Keeps what `write` writes to the path that it is given, in place of what was kept before.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn replace(
        &self,
        write: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<PathBuf, String> {
        let partial = self.partial();
        let kept = write(&partial).and_then(|()| {
            let failed = |error: io::Error| format!("{}: {error}", partial.display());
            let path = self.path(&digest(&partial).map_err(failed)?);
            // Who reads the folder meanwhile finds the old one or the whole new one.
            fs::rename(&partial, &path).map_err(failed)?;
            Ok(path)
        });
        match &kept {
            Ok(path) => self.files().iter().filter(|old| *old != path).for_each(|old| remove(old)),
            // What is left of it is of no use; it may not be there at all.
            Err(_) => drop(fs::remove_file(&partial)),
        }
        kept
    }

    /// Marks an archive as used now, and removes those of any key, and unfinished ones, that were not used for 60 days.
    /// A program that has one open keeps it: only its name goes.
    pub fn tend(&self, used: Option<&Path>) {
        let now = SystemTime::now();
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| is_ours(path)) {
            if used == Some(&path) {
                mark(&path, now);
            } else if is_old(&path, now) {
                tracing::debug!("{} was not used for long and is removed", path.display());
                remove(&path);
            }
        }
    }

    /// Removes what is kept.
    pub fn clear(&self) {
        self.files().iter().for_each(|path| remove(path));
    }

    /// A path beside the archives that nobody else uses.
    fn partial(&self) -> PathBuf {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("{}{}-{count}{PARTIAL_SUFFIX}", self.prefix, process::id()))
    }
}

/// Whether a file has a name that this module gives: no other is touched.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((key, rest)) = name.strip_prefix(PREFIX).and_then(|name| name.split_once('-')) else {
        return false;
    };
    let is_hex = |text: &str| {
        text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_whole = rest.strip_suffix(SUFFIX).is_some_and(is_hex);
    is_hex(key) && (is_whole || rest.ends_with(PARTIAL_SUFFIX))
}

/// Whether a file was written or marked longer ago than [`AGE_MAX`]. One of the future, as after a clock was set back, is not.
fn is_old(path: &Path, now: SystemTime) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|data| data.modified());
    modified.is_ok_and(|modified| now.duration_since(modified).is_ok_and(|age| age > AGE_MAX))
}

fn mark(path: &Path, now: SystemTime) {
    let marked = fs::File::options().write(true).open(path).and_then(|file| file.set_modified(now));
    if let Err(error) = marked {
        // It goes too early then, and is made anew.
        tracing::debug!("cannot mark {} as used: {error}", path.display());
    }
}

fn digest(path: &Path) -> io::Result<String> {
    Ok(blake3::hash(&fs::read(path)?).to_hex()[..DIGITS].to_owned())
}

/// Another process may have removed it already.
fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove {}: {error}", path.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::tests::mac;

    fn write(text: &str) -> impl FnOnce(&Path) -> Result<(), String> {
        move |path| fs::write(path, text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_changes_with_all_that_machine_code_depends_on() {
        let key = |name: &str, text: &str, language| {
            let mut key = Key::default();
            key.source(name, text, language);
            key
        };
        let (one, mac) = (key("a", "b", Language::V3_1), mac(9, 3, (15, 1)));
        let same = one.on(&mac);
        assert_eq!(same, key("a", "b", Language::V3_1).on(&mac));
        let named = Capabilities { name: "another GPU".to_owned(), ..mac.clone() };
        let build = Capabilities { system: "Version 15.1 (Build 2)".to_owned(), ..mac.clone() };
        let others = [
            key("a", "c", Language::V3_1).on(&mac),
            key("a", "b", Language::V4_0).on(&mac),
            key("ab", "", Language::V3_1).on(&mac),
            one.on(&named),
            one.on(&build),
        ];
        for other in others {
            assert_ne!(other, same);
        }
    }

    #[test]
    fn what_is_kept_is_found_until_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let archives = Archives::new(&folder.path().join("new"), "key").unwrap();
        let count = || fs::read_dir(folder.path().join("new")).unwrap().count();
        assert_eq!(archives.find(), None);
        archives.replace(write("old")).unwrap();
        let path = archives.replace(write("code")).unwrap();
        assert_eq!((archives.find(), count()), (Some(path.clone()), 1));
        // The same again stays.
        assert_eq!(archives.replace(write("code")).unwrap(), path);
        assert_eq!(archives.find(), Some(path.clone()));
        archives.replace(|path| write("half")(path).and(Err("no space".to_owned()))).unwrap_err();
        archives.replace(|_| Ok(())).unwrap_err();
        assert_eq!((archives.find(), count()), (Some(path.clone()), 1));
        let other = Archives::new(&folder.path().join("new"), "another").unwrap();
        assert_eq!(other.find(), None);
        fs::write(&path, "c0de").unwrap();
        assert_eq!((archives.find(), count()), (None, 0));
        archives.replace(write("code")).unwrap();
        archives.clear();
        assert_eq!((archives.find(), count()), (None, 0));
    }

    #[test]
    fn what_nobody_has_used_for_long_goes() {
        let folder = tempfile::tempdir().unwrap();
        let archives = |key: char| {
            let key = String::from_iter([key; DIGITS]);
            Archives::new(folder.path(), &key).unwrap()
        };
        let (used, other) = (archives('a'), archives('b'));
        let mine = used.replace(write("code")).unwrap();
        let old = other.replace(write("code of an earlier system")).unwrap();
        let newer = archives('c').replace(write("code of a neighbour")).unwrap();
        let partial = other.partial();
        let foreign = ["calla-mine.binarchive", "notes.txt", "calla-b-b.binarchive"];
        let foreign = foreign.map(|name| folder.path().join(name));
        for path in foreign.iter().chain([&partial]) {
            fs::write(path, "half").unwrap();
        }
        let set_age = |path: &Path, age: Duration| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        };
        let day = Duration::from_secs(24 * 3600);
        for path in [&mine, &old, &partial].into_iter().chain(&foreign) {
            set_age(path, AGE_MAX + day);
        }
        set_age(&newer, AGE_MAX - day);
        used.tend(Some(&mine));
        assert!(!old.exists() && !partial.exists());
        for path in [&mine, &newer].into_iter().chain(&foreign) {
            assert!(path.exists(), "{}", path.display());
        }
        // It was marked as used.
        used.tend(None);
        assert!(mine.exists());
        set_age(&mine, AGE_MAX + day);
        used.tend(None);
        assert!(!mine.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_said() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Archives::new(&file.path().join("folder"), "key").unwrap_err();
        assert!(error.contains("cannot make"), "{error}");
    }
}
