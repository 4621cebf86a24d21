//! The memory that can still be allocated: on the machine, in the containers around this process, and in the file
//! system that holds the memory. A process that allocates more is killed, or has others killed.
//!
//! Control groups publish their limit and their usage in files, whose names differ between version 1 and version 2. A
//! container may be inside others, so the folders above its own count as well, as far as they are visible.

use rustix::fs::fstatvfs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Share of each limit that stays free for other processes, as a divisor.
const PARTS: u64 = 32;
/// Minimum number of bytes that stay free for other processes.
const LEAST: u64 = 16 << 20;

/// Something that limits the memory of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MemoryLimit {
    /// Memory of the machine, from this file.
    Machine(PathBuf),
    /// Control group with its folder.
    Group(&'static CgroupFiles, PathBuf),
}

/// Names of files and fields in one version of control groups.
#[derive(Debug, PartialEq, Eq)]
struct CgroupFiles {
    file_system: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Fields of `memory.stat` with memory that the kernel reclaims automatically: cached files on disks.
    reclaimable: [&'static str; 2],
}

/// Names of version 2.
static V2: CgroupFiles = CgroupFiles {
    file_system: "cgroup2",
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

/// Names of version 1.
static V1: CgroupFiles = CgroupFiles {
    file_system: "cgroup",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

/// Total and free bytes under one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MemoryAmount {
    total: u64,
    left: u64,
}

/// All limits on the memory of this process.
pub(crate) struct MemoryLimits(Vec<MemoryLimit>);

impl MemoryLimits {
    /// Finds the limits of this process. A file that cannot be read gives no limit.
    pub(crate) fn find() -> Self {
        Self::below(Path::new("/"))
    }

    /// Finds the limits in a system whose files are below `root`.
    fn below(root: &Path) -> Self {
        let proc = root.join("proc");
        let text = |name: &str| fs::read_to_string(proc.join(name)).unwrap_or_default();
        let mounts = text("self/mountinfo");
        let groups = text("self/cgroup");
        let folders = [&V2, &V1].into_iter().flat_map(|names| {
            cgroup_folders(names, &mounts, &groups).into_iter().map(move |folder| (names, folder))
        });
        let within = |folder: PathBuf| root.join(folder.strip_prefix("/").unwrap_or(&folder));
        let groups = folders.map(|(names, folder)| MemoryLimit::Group(names, within(folder)));
        MemoryLimits([MemoryLimit::Machine(proc.join("meminfo"))].into_iter().chain(groups).collect())
    }

    /// Checks that `bytes` more can be allocated for `file` and that a share of each limit stays free.
    ///
    /// # Errors
    /// Out of memory, naming the limit.
    pub(crate) fn allow(&self, file: &OwnedFd, bytes: u64) -> io::Result<()> {
        let bounds = self.0.iter().filter_map(|bound| Some((bound.name(), bound.amount()?)));
        let held = file_system(file).map(|amount| ("the file system of shared memory".to_owned(), amount));
        for (name, amount) in bounds.chain(held) {
            refusal(&name, amount, bytes)
                .map_or(Ok(()), |what| Err(io::Error::new(io::ErrorKind::OutOfMemory, what)))?;
        }
        Ok(())
    }
}

/// Returns why `bytes` more exceed a limit, or `None` if they do not.
fn refusal(name: &str, amount: MemoryAmount, bytes: u64) -> Option<String> {
    let MemoryAmount { total, left } = amount;
    let spare = (total / PARTS).max(LEAST);
    let mib = |bytes: u64| bytes >> 20;
    (left < bytes.saturating_add(spare)).then(|| {
        let bytes = mib(bytes);
        let left = mib(left);
        let total = mib(total);
        let spare = mib(spare);
        format!("{name} has {left} of {total} MiB left; {bytes} MiB and a reserve of {spare} MiB are needed")
    })
}

impl MemoryLimit {
    /// Returns the name of the limit for messages.
    fn name(&self) -> String {
        match self {
            MemoryLimit::Machine(_) => "the machine".to_owned(),
            MemoryLimit::Group(_, folder) => format!("the container ({})", folder.display()),
        }
    }

    /// Reads the total and the free bytes. Returns `None` without such a limit.
    fn amount(&self) -> Option<MemoryAmount> {
        match self {
            MemoryLimit::Machine(table) => machine(&fs::read_to_string(table).ok()?),
            MemoryLimit::Group(names, folder) => {
                let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
                group(
                    names,
                    &text(names.limit)?,
                    &text(names.usage)?,
                    &text("memory.stat").unwrap_or_default(),
                )
            }
        }
    }
}

/// Parses the memory of the machine from `/proc/meminfo`.
fn machine(table: &str) -> Option<MemoryAmount> {
    let field = |name: &str| -> Option<u64> {
        let line = table.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.saturating_mul(1024))
    };
    Some(MemoryAmount { total: field("MemTotal:")?, left: field("MemAvailable:")? })
}

/// Parses the files of a control group. Returns `None` if it has no limit.
fn group(names: &CgroupFiles, limit: &str, usage: &str, stat: &str) -> Option<MemoryAmount> {
    let total: u64 = limit.trim().parse().ok()?;
    // Version 1 writes the largest number of pages for no limit.
    if total >= 1 << 62 {
        return None;
    }
    let field = |name: &str| -> Option<u64> {
        let mut words = stat.lines().map(str::split_whitespace);
        words.find_map(|mut line| (line.next() == Some(name)).then(|| line.next()?.parse().ok())?)
    };
    let reclaimable: u64 = names.reclaimable.iter().filter_map(|name| field(name)).sum();
    let usage = usage.trim().parse::<u64>().ok()?.saturating_sub(reclaimable);
    Some(MemoryAmount { total, left: total.saturating_sub(usage) })
}

/// Returns the folders of the control groups that limit memory, from that of this process up to the topmost mounted
/// one.
fn cgroup_folders(names: &CgroupFiles, mounts: &str, groups: &str) -> Vec<PathBuf> {
    let Some(path) = groups.lines().find_map(|line| own_group(names, line)) else { return Vec::new() };
    let Some((root, point)) = mounts.lines().find_map(|line| mount(names, line)) else { return Vec::new() };
    // A group outside the mount belongs to a container that sees only itself.
    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    let below = below.strip_prefix("/").unwrap_or(below);
    below.ancestors().map(|below| Path::new(point).join(below)).collect()
}

/// Returns the path of the process's group from a line `number:controllers:path`; version 2 names no controllers.
fn own_group<'a>(names: &CgroupFiles, line: &'a str) -> Option<&'a str> {
    let mut fields = line.splitn(3, ':');
    let _ = fields.next()?;
    let controllers = fields.next()?;
    let path = fields.next()?;
    let bounds =
        if *names == V2 { controllers.is_empty() } else { controllers.split(',').any(|c| c == "memory") };
    bounds.then_some(path)
}

/// Returns root and mount point of a group from a line `number number device root point options … - type source
/// options`.
fn mount<'a>(names: &CgroupFiles, line: &'a str) -> Option<(&'a str, &'a str)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let file_system = kind.next()?;
    let options = kind.nth(1)?;
    let bounds = *names == V2 || options.split(',').any(|option| option == "memory");
    let mut place = place.split(' ').skip(3);
    (file_system == names.file_system && bounds).then_some((place.next()?, place.next()?))
}

/// Returns the free bytes of the file system of `file`, if it has a size.
fn file_system(file: &OwnedFd) -> Option<MemoryAmount> {
    let about = fstatvfs(file).ok().filter(|about| about.f_blocks > 0)?;
    let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
    Some(MemoryAmount { total: bytes(about.f_blocks), left: bytes(about.f_bavail) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::collections::HashMap;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_table_of_memory_is_read() {
        let amount = MemoryAmount { total: 9 << 10, left: 12 << 10 };
        assert_eq!(machine("MemTotal:  9 kB\nMemAvailable:     12 kB\n"), Some(amount));
        for table in ["", "MemTotal: 9 kB\nMemAvailable: 12", "MemTotal: 9 kB", "MemAvailable: 12 kB"] {
            assert_eq!(machine(table), None, "{table}");
        }
    }

    #[test]
    fn a_share_is_left_to_everybody_else() {
        let amount = |left: u64| MemoryAmount { total: 64 * 1024 * MIB, left: left * MIB };
        assert_eq!(refusal("it", amount(2048 + 5), 5 * MIB), None);
        let what = refusal("it", amount(2048 + 4), 5 * MIB).unwrap();
        assert_eq!(what, "it has 2052 of 65536 MiB left; 5 MiB and a reserve of 2048 MiB are needed");
        let small = |left: u64| MemoryAmount { total: 100 * MIB, left: left * MIB };
        assert_eq!((refusal("it", small(17), MIB), refusal("it", small(16), MIB).is_some()), (None, true));
        assert!(refusal("it", small(100), u64::MAX).is_some());
    }

    #[test]
    fn a_group_counts_what_the_system_takes_back_by_itself_as_left() {
        let stat = "file 70\ninactive_file 20\nactive_file 10\ntotal_inactive_file 3\ntotal_active_file 4\n";
        assert_eq!(group(&V2, "100\n", "60\n", stat), Some(MemoryAmount { total: 100, left: 70 }));
        assert_eq!(group(&V1, "100\n", "60\n", stat), Some(MemoryAmount { total: 100, left: 47 }));
        assert_eq!(group(&V2, "100\n", "160\n", ""), Some(MemoryAmount { total: 100, left: 0 }));
        assert_eq!(group(&V2, "max\n", "60\n", stat), None);
        assert_eq!(group(&V1, "9223372036854771712\n", "60\n", stat), None);
    }

    /// Folder of files that is removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(files: &HashMap<&str, &str>) -> Self {
            let name = u128::from_le_bytes(crate::bootstrap::random().unwrap());
            let root = std::env::temp_dir().join(format!("hexagram-test-{name:032x}"));
            for (name, text) in files {
                let path = root.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Root(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Checks 8 MiB and 128 MiB in a system of these files.
    fn allows(files: &[(&str, &str)]) -> [Option<String>; 2] {
        let meminfo = ("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
        let root = Root::new(&[meminfo].iter().chain(files).copied().collect());
        let file = memfd_create("hexagram-test", MemfdFlags::CLOEXEC).unwrap();
        let bounds = MemoryLimits::below(&root.0);
        [8, 128].map(|mib| bounds.allow(&file, mib * MIB).err().map(|error| error.to_string()))
    }

    #[test]
    fn every_group_above_a_process_bounds_its_memory() {
        assert_eq!(allows(&[]), [None, None], "no groups");
        let v2 = [
            ("proc/self/cgroup", "0::/jobs/mine\n"),
            (
                "proc/self/mountinfo",
                "30 23 0:26 / /groups rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
            ),
            ("groups/jobs/mine/memory.max", "max\n"),
            ("groups/jobs/mine/memory.current", "1000\n"),
            ("groups/jobs/memory.max", "134217728\n"),
            ("groups/jobs/memory.current", "104857600\n"),
            ("groups/jobs/memory.stat", "anon 7\ninactive_file 41943040\n"),
        ];
        let [few, many] = allows(&v2);
        assert_eq!(few, None, "8 of 68 MiB, 16 of which are to spare");
        let many = many.unwrap();
        assert!(many.contains("/groups/jobs)") && many.contains("68 of 128 MiB left"), "{many}");
    }

    #[test]
    fn a_container_that_sees_only_itself_is_bounded_by_what_it_sees() {
        let mounts = "31 23 0:27 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n\
                      32 23 0:28 /docker/abc /sys/fs/cgroup/memory ro master:9 - cgroup cgroup rw,memory\n";
        for path in ["/docker/abc", "/", "/elsewhere"] {
            let groups = format!("5:cpu,cpuacct:/other\n4:memory:{path}\n0::/\n");
            let limit = "sys/fs/cgroup/memory/memory.limit_in_bytes";
            let usage = "sys/fs/cgroup/memory/memory.usage_in_bytes";
            let files = [
                ("proc/self/cgroup", &*groups),
                ("proc/self/mountinfo", mounts),
                (limit, "67108864"),
                (usage, "33554432"),
            ];
            let [few, many] = allows(&files);
            assert_eq!(few, None, "{path}");
            assert!(many.unwrap().contains("32 of 64 MiB left"), "{path}");
        }
    }
}
