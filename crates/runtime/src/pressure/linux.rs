//! Memory pressure on Linux: memory that can be had in the system and in the control groups (version 2) that limit this
//! process, and how long tasks wait for it (pressure stall information, Documentation/accounting/psi.rst).
//!
//! A control group's count holds the page cache, mapped weights among it, which gives way first; so it is taken off, as
//! `MemAvailable` takes it off for the system. Where the limit is an older system's (version 1), it is not seen.

use super::PressureLevel;
use super::watch::Reading;
use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

/// Less than a tenth, and less than this, is a warning. Half of what a plan of memory leaves to the system.
const LOW_BYTES: u64 = 512 << 20;
/// Less than a twentieth, and less than this, is critical.
const VERY_LOW_BYTES: u64 = 256 << 20;
/// Percent of ten seconds in which some task waited for memory: the share (200 ms of 2 s) at which systemd by default tells
/// a service to shrink its caches, `MemoryPressureThresholdSec` of systemd.resource-control(5).
const SOME_STALLED: f32 = 10.0;
/// Percent of ten seconds in which all tasks waited: half of what systemd-oomd by default kills at,
/// `DefaultMemoryPressureLimit` of oomd.conf(5).
const ALL_STALLED: f32 = 30.0;
/// Most of a file that is read.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Where the system tells of its memory.
pub(super) struct Places {
    meminfo: PathBuf,
    pressure: PathBuf,
    /// The folders of this process's control group and of those around it.
    groups: Vec<PathBuf>,
}

/// Memory of the system or of a control group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Memory {
    /// Bytes there are, or that the group may have.
    total: u64,
    /// Bytes that can be had.
    available: u64,
    /// If it is known.
    stalls: Option<Stalls>,
}

/// Percent of the last ten seconds in which tasks waited for memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stalls {
    /// At least one.
    some: f32,
    /// All of them.
    full: f32,
}

impl Places {
    /// Those of this process, in a system whose files are under `root`.
    pub(super) fn find(root: &Path) -> Self {
        let proc = root.join("proc");
        let mounted = root.join("sys/fs/cgroup");
        let own =
            read(&proc.join("self/cgroup")).as_deref().and_then(group_path).unwrap_or_default();
        let groups = own.ancestors().map(|group| mounted.join(group)).collect();
        Self { meminfo: proc.join("meminfo"), pressure: proc.join("pressure/memory"), groups }
    }

    /// The worst of system and groups; `None` if there is no pressure, or it cannot be told.
    pub(super) fn look(&self) -> Option<Reading> {
        let system = self.system().and_then(|memory| memory.judge("the system"));
        let groups = self.groups.iter().filter_map(|folder| group(folder));
        let groups = groups.filter_map(|memory| memory.judge("this process's control group"));
        system.into_iter().chain(groups).max_by_key(|reading| reading.level)
    }

    fn system(&self) -> Option<Memory> {
        let info = read(&self.meminfo)?;
        let bytes = |key| value(&info, key)?.checked_mul(1024);
        let stalls = read(&self.pressure).as_deref().and_then(parse_stalls);
        Some(Memory { total: bytes("MemTotal:")?, available: bytes("MemAvailable:")?, stalls })
    }
}

impl Memory {
    fn judge(&self, whose: &str) -> Option<Reading> {
        let Self { total, available, stalls } = *self;
        let mb = |bytes: u64| bytes / 1_000_000;
        let left = format!("{} MB of {whose}'s {} MB can be had", mb(available), mb(total));
        let by_bytes = if available < (total / 20).min(VERY_LOW_BYTES) {
            Some(PressureLevel::Critical)
        } else if available < (total / 10).min(LOW_BYTES) {
            Some(PressureLevel::Warning)
        } else {
            None
        };
        // With plenty of memory, tasks wait for it in some other group at its own limit, or for mapped weights that do
        // not fit into memory: a cache that is given up would help neither.
        let stalls = stalls.filter(|_| available < total / 4);
        let by_stalls = stalls.and_then(|Stalls { some, full }| match () {
            () if full >= ALL_STALLED => Some(PressureLevel::Critical),
            () if some >= SOME_STALLED => Some(PressureLevel::Warning),
            () => None,
        });
        let level = by_bytes.max(by_stalls)?;
        let words = match stalls {
            Some(Stalls { some, .. }) => {
                format!("{left}, and tasks wait for it {some:.0} % of the time")
            }
            None => left,
        };
        Some(Reading { level, words })
    }
}

/// Memory of a control group that has a limit.
fn group(folder: &Path) -> Option<Memory> {
    let number = |file| read(&folder.join(file))?.trim().parse::<u64>().ok();
    // A file that says `max`, or that is not there, is no limit.
    let total = [number("memory.max"), number("memory.high")].into_iter().flatten().min()?;
    let used = number("memory.current")?;
    let stat = read(&folder.join("memory.stat"));
    let of_files = |key| stat.as_deref().and_then(|stat| value(stat, key)).unwrap_or(0);
    let cached = of_files("active_file").saturating_add(of_files("inactive_file"));
    let available = total.saturating_sub(used.saturating_sub(cached));
    let stalls = read(&folder.join("memory.pressure")).as_deref().and_then(parse_stalls);
    Some(Memory { total, available, stalls })
}

/// The path of a process's control group in the hierarchy of version 2, relative to its root, from `/proc/self/cgroup`.
/// `None` if it lies outside of what this process sees.
fn group_path(text: &str) -> Option<PathBuf> {
    let path = Path::new(text.lines().find_map(|line| line.strip_prefix("0::/"))?);
    let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    is_inside.then(|| path.to_owned())
}

/// The number behind a word at the start of a line.
fn value(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| {
        let (word, rest) = line.split_once(' ')?;
        (word == key).then_some(rest)
    })?;
    rest.split_whitespace().next()?.parse().ok()
}

fn parse_stalls(text: &str) -> Option<Stalls> {
    let average = |kind| {
        let line = text.lines().find(|line| line.split(' ').next() == Some(kind))?;
        let percent: f32 =
            line.split(' ').find_map(|part| part.strip_prefix("avg10="))?.parse().ok()?;
        (0.0..=100.0).contains(&percent).then_some(percent)
    };
    Some(Stalls { some: average("some")?, full: average("full")? })
}

/// The beginning of a file; `None` if it cannot be read or is no text.
fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use PressureLevel::{Critical, Warning};
    use std::fs;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn stalls_are_read_as_the_kernel_writes_them() {
        let text = "some avg10=12.34 avg60=0.49 avg300=0.69 total=5070596\n\
                    full avg10=0.15 avg60=0.41 avg300=0.58 total=3628555\n";
        assert_eq!(parse_stalls(text), Some(Stalls { some: 12.34, full: 0.15 }));
    }

    #[test]
    fn damaged_stalls_are_none() {
        let full = "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        for some in [
            "",
            "some",
            "some avg10",
            "some avg10=",
            "some avg10=x avg60=0.00",
            "some avg10=NaN",
            "some avg10=inf",
            "some avg10=-1.0",
            "some avg10=100.5",
            "some avg60=50.00",
            "somewhat avg10=50.00",
            "some\tavg10=50.00",
            "some avg10=1e400",
            "\0",
        ] {
            assert_eq!(parse_stalls(&format!("{some}\n{full}")), None, "{some:?}");
        }
        assert_eq!(parse_stalls("some avg10=50.00 avg60=0.00"), None);
    }

    #[test]
    fn numbers_are_found_by_whole_words() {
        let info = "MemTotal:       24683568 kB\nMemFree:         1495304 kB\nMemAvailable:   23672780 kB\n";
        assert_eq!(value(info, "MemTotal:"), Some(24_683_568));
        assert_eq!(value(info, "MemAvailable:"), Some(23_672_780));
        assert_eq!(value(info, "Mem"), None);
        let stat = "inactive_file 5\nfile 7\nactive_file 18446744073709551616\n";
        assert_eq!(value(stat, "file"), Some(7));
        assert_eq!(value(stat, "inactive_file"), Some(5));
        // More than can be counted.
        assert_eq!(value(stat, "active_file"), None);
        for damaged in ["", "file", "file ", "file -1", "file 1.5", "file x", " file 3"] {
            assert_eq!(value(damaged, "file"), None, "{damaged:?}");
        }
    }

    #[test]
    fn the_group_is_that_of_version_2_and_never_outside() {
        let path = |text| group_path(text).map(|path| path.to_string_lossy().into_owned());
        assert_eq!(path("0::/\n").as_deref(), Some(""));
        assert_eq!(path("4:memory:/old\n0::/user.slice/a\n").as_deref(), Some("user.slice/a"));
        for other in
            ["", "0::", "4:memory:/old\n", "0::/../../etc\n", "0::/a/../../b\n", "0:://etc\n"]
        {
            assert_eq!(path(other), None, "{other:?}");
        }
    }

    #[test]
    fn levels_follow_bytes_and_stalls() {
        let level = |total, available, stalls: Option<(f32, f32)>| {
            let stalls = stalls.map(|(some, full)| Stalls { some, full });
            Memory { total, available, stalls }.judge("the system").map(|reading| reading.level)
        };
        let (low, very_low) = (LOW_BYTES, VERY_LOW_BYTES);
        assert_eq!(level(64 * GB, low, None), None);
        assert_eq!(level(64 * GB, low - 1, None), Some(Warning));
        assert_eq!(level(64 * GB, very_low, None), Some(Warning));
        assert_eq!(level(64 * GB, very_low - 1, None), Some(Critical));
        assert_eq!(level(64 * GB, 0, None), Some(Critical));
        // Of little memory, a share.
        assert_eq!(level(GB, GB / 10, None), None);
        assert_eq!(level(GB, GB / 10 - 1, None), Some(Warning));
        assert_eq!(level(GB, GB / 20 - 1, None), Some(Critical));
        assert_eq!(level(0, 0, None), None);
        // Stalls count where memory is not plentiful.
        assert_eq!(level(16 * GB, 3 * GB, Some((9.9, 9.9))), None);
        assert_eq!(level(16 * GB, 3 * GB, Some((10.0, 0.0))), Some(Warning));
        assert_eq!(level(16 * GB, 3 * GB, Some((90.0, 30.0))), Some(Critical));
        assert_eq!(level(16 * GB, 4 * GB, Some((90.0, 90.0))), None);
        assert_eq!(level(16 * GB, 1, Some((10.0, 0.0))), Some(Critical));
    }

    #[test]
    fn pressure_is_told_in_numbers() {
        let stalls = Some(Stalls { some: 23.4, full: 1.0 });
        let memory = Memory { total: 16 * GB, available: 312_000_000, stalls };
        let words = memory.judge("the system").unwrap().words;
        assert_eq!(
            words,
            "312 MB of the system's 16000 MB can be had, and tasks wait for it 23 % of the time"
        );
    }

    /// A system's files, as far as they are looked at.
    struct System(tempfile::TempDir);

    impl System {
        fn new() -> Self {
            let system = Self(tempfile::tempdir().unwrap());
            system.write("proc/self/cgroup", "0::/outer/inner\n");
            system.memory(20 << 20);
            system
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn memory(&self, available_kb: u64) {
            let text = format!("MemTotal:       25165824 kB\nMemAvailable:   {available_kb} kB\n");
            self.write("proc/meminfo", &text);
        }

        fn look(&self) -> Option<Reading> {
            Places::find(self.0.path()).look()
        }

        fn level(&self) -> Option<PressureLevel> {
            self.look().map(|reading| reading.level)
        }
    }

    #[test]
    fn the_system_is_looked_at() {
        let system = System::new();
        assert_eq!(system.level(), None);
        system.memory(400 << 10);
        assert_eq!(system.level(), Some(Warning));
        system.memory(5 << 20);
        let stalls = "some avg10=40.00 avg60=0.00 avg300=0.00 total=1\n\
                      full avg10=31.00 avg60=0.00 avg300=0.00 total=1\n";
        system.write("proc/pressure/memory", stalls);
        assert_eq!(system.level(), Some(Critical));
        system.write("proc/pressure/memory", "what is this?");
        assert_eq!(system.level(), None);
        system.write("proc/meminfo", "MemTotal: 1 kB\n");
        assert_eq!(system.level(), None);
    }

    #[test]
    fn the_tightest_group_around_the_process_counts() {
        let system = System::new();
        let group = |path: &str, file: &str, text: &str| {
            system.write(&format!("sys/fs/cgroup/{path}/{file}"), text);
        };
        group("outer/inner", "memory.max", "max\n");
        group("outer/inner", "memory.current", "999999999999\n");
        assert_eq!(system.level(), None);
        group("outer", "memory.max", "8589934592\n");
        group("outer", "memory.current", "8500000000\n");
        assert_eq!(system.level(), Some(Critical));
        // What it holds of files gives way by itself.
        group("outer", "memory.stat", "anon 1\nactive_file 3000000000\ninactive_file 3000000000\n");
        assert_eq!(system.level(), None);
        group("outer", "memory.stat", "active_file 100000000\ninactive_file 200000000\n");
        assert_eq!(system.level(), Some(Warning));
        let words = system.look().unwrap().words;
        assert!(words.starts_with("389 MB of this process's control group's 8589 MB"), "{words}");
        // A softer limit below the hard one.
        group("outer", "memory.high", "8400000000\n");
        assert_eq!(system.level(), Some(Critical));
        // Numbers that do not fit together, or are none.
        group("outer", "memory.stat", "active_file 18446744073709551615\ninactive_file 9\n");
        assert_eq!(system.level(), None);
        group("outer", "memory.current", "-5\n");
        assert_eq!(system.level(), None);
        // A container sees its own group as the root.
        system.write("proc/self/cgroup", "0::/\n");
        system.write("sys/fs/cgroup/memory.max", "1000000000\n");
        system.write("sys/fs/cgroup/memory.current", "999000000\n");
        assert_eq!(system.level(), Some(Critical));
    }

    #[test]
    fn files_that_are_no_text_or_endless_tell_nothing() {
        let system = System::new();
        let meminfo = system.0.path().join("proc/meminfo");
        fs::write(&meminfo, [0xff, 0xfe, 0x00]).unwrap();
        assert_eq!(system.level(), None);
        fs::remove_file(&meminfo).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &meminfo).unwrap();
        assert_eq!(system.level(), None);
    }
}
