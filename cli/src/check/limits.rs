//! Shared memory, limits and cores that ranks may use.

use super::report::CheckReport;
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io;

/// Size with which a memfd is tried.
const PROBE: u64 = 1 << 20;
/// A rank needs some 20 descriptors, and several for each other rank.
const DESCRIPTORS: u64 = 256;

/// Describes the kernel.
pub(super) fn system() -> String {
    let uname = rustix::system::uname();
    let words = [uname.sysname(), uname.release(), uname.machine()];
    words.map(|word| word.to_string_lossy().into_owned()).join(" ")
}

pub(super) fn memory(report: &mut CheckReport) {
    report.title("shared memory");
    match memfd() {
        Ok(()) => report.good(&format!("memfd: {} created and reserved", size(PROBE))),
        Err(cause) => report.bad(&format!(
            "memfd: {cause}; the shm transport needs it: allow memfd_create and fallocate in this container's seccomp \
             profile, or use --transport tcp"
        )),
    }
    match rustix::fs::statvfs("/dev/shm") {
        Ok(of) => {
            let free = of.f_bavail.saturating_mul(of.f_frsize);
            let all = of.f_blocks.saturating_mul(of.f_frsize);
            report.note(&format!(
                "/dev/shm: {} of {} free; memfd is not limited by it",
                size(free),
                size(all)
            ));
        }
        Err(_) => report.note("/dev/shm: not found; memfd does not need it"),
    }
    let control = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match memory_limit(&control, |path| fs::read_to_string(path).ok()) {
        Some((limit, used)) => report.note(&format!(
            "cgroup memory: {} of {} used, including shared memory",
            size(used),
            size(limit)
        )),
        None => report.note("cgroup memory: no limit"),
    }
}

/// Makes a small version of the shm segment.
fn memfd() -> io::Result<()> {
    let memory = rustix::fs::memfd_create("hexagram-check", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    Ok(rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, PROBE)?)
}

/// Returns the tightest limit of the control groups in `/proc/self/cgroup` (version 1 or 2), and the memory in use.
fn memory_limit(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<(u64, u64)> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let group = parts.next()?;
        let (root, limit, used) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        // A container sees its own group at the root; elsewhere every group above limits it, too.
        let mut at = Some(group.trim_end_matches('/'));
        while let Some(group) = at {
            let number = |name| read(&format!("{root}{group}/{name}"))?.trim().parse::<u64>().ok();
            found.extend(number(limit).zip(number(used)));
            at = group.rsplit_once('/').map(|(above, _)| above);
        }
    }
    // Version 1 writes "no limit" as the highest number of whole pages.
    found.into_iter().filter(|(limit, _)| *limit < i64::MAX as u64 / 2).min_by_key(|(limit, _)| *limit)
}

pub(super) fn limits(report: &mut CheckReport) {
    report.title("limits");
    let files = getrlimit(Resource::Nofile);
    let number = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let said =
        format!("open files (ulimit -n): {} of at most {}", number(files.current), number(files.maximum));
    // The launcher, or a rank that joins, raises the current limit to the maximum.
    if files.maximum.is_none_or(|limit| limit >= DESCRIPTORS) {
        report.good(&said);
    } else {
        report.bad(&format!(
            "{said}; several ranks need more: raise the hard limit (`ulimit -Hn 4096` as root, or nofile in limits.conf)"
        ));
    }
    let locked = getrlimit(Resource::Memlock).current.map_or_else(|| "unlimited".to_owned(), size);
    report.note(&format!("locked memory (ulimit -l): {locked}"));
    report.note(&format!("processes (ulimit -u): {}", number(getrlimit(Resource::Nproc).current)));
}

pub(super) fn cores(report: &mut CheckReport) {
    report.title("cores");
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let affinity = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let list = |text: Option<&str>| {
        text.map(str::trim).filter(|text| !text.is_empty()).unwrap_or("unknown").to_owned()
    };
    report.good(&format!(
        "{usable} usable; affinity {}, online {}; if ranks outnumber cores, they share them",
        list(affinity),
        list(Some(&online))
    ));
}

fn size(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(unit, name)| format!("{:.1} {name}", bytes as f64 / unit as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (64 << 20, "64.0 MiB"), (3 << 29, "1.5 GiB")] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn the_tightest_control_group_counts() {
        let files = [
            ("/sys/fs/cgroup/job/memory.max", "max\n"),
            ("/sys/fs/cgroup/job/step/memory.max", "1000\n"),
            ("/sys/fs/cgroup/job/step/memory.current", "10\n"),
            ("/sys/fs/cgroup/memory/old/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/old/memory.usage_in_bytes", "5"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "700"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "7"),
        ];
        let read =
            |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        assert_eq!(memory_limit("0::/job/step\n", read), Some((1000, 10)));
        assert_eq!(memory_limit("0::/job\n", read), None);
        assert_eq!(memory_limit("5:cpu:/\n4:hugetlb,memory:/old\n", read), Some((700, 7)));
        assert_eq!(memory_limit("", read), None);
        assert_eq!(memory_limit("nonsense", read), None);
    }
}
