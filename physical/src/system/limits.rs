//! Resource limits of this process, and advice about the one that is too low.
//!
//! The soft limit of open files is 1024 almost everywhere, only because `select` supports no descriptor above; the
//! hard limit is for programs that use `poll`, as this library does. Therefore a process that starts ranks or joins a
//! world raises its soft limit to the hard limit, as programs in Go and Java do, and programs that it starts
//! afterwards inherit it. A program that uses `select` is unaffected while fewer than 1024 files are open, and could
//! not have opened more before.

use crate::bootstrap::exhausted;
use crate::error::Error;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io;

/// Highest soft limit of open files that is set, even if the hard limit is higher or absent. Programs that close
/// every possible descriptor before they start another program would otherwise take minutes.
const HIGHEST: u64 = 1 << 20;
/// Descriptors of a launcher, in addition to those of each rank.
pub const LAUNCHER: u64 = 32;
/// Descriptors of a rank, in addition to those of each peer.
const OWN: u64 = 32;
/// Descriptors of a rank for each peer: its control connection, and some for each channel.
const PER_PEER: u64 = 4;
/// Address space of a thread, in bytes: its stack, and the reservation of the allocator.
const THREAD: u64 = 80 << 20;

/// Returns a limit of this process; none if the system does not report it.
fn getrlimit(resource: Resource) -> Rlimit {
    let mut found = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the place has room for one limit. If the call fails, the place is unchanged.
    unsafe { libc::getrlimit(resource as _, &mut found) };
    let bound = |limit| (limit != libc::RLIM_INFINITY).then_some(limit);
    Rlimit { current: bound(found.rlim_cur), maximum: bound(found.rlim_max) }
}

/// Raises the limit of open files of this process to the maximum that the system allows.
pub fn raise_open_files() {
    if cfg!(miri) {
        // A simulated world has no limits.
        return;
    }
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(HIGHEST).min(HIGHEST);
    if current.is_some_and(|current| current < wanted) {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
        tracing::debug!("open files: {current:?} raised to {wanted}: {raised:?}");
    }
}

/// Returns the remedy for a process that could not open more files, and needs about `needed` for `what`.
pub fn more_open_files(needed: u64, what: &str) -> String {
    format!("{}; {MORE_OPEN_FILES}", open_files_needed("this process", needed, what))
}

/// Advice for a process that may open too few files.
pub(crate) const MORE_OPEN_FILES: &str =
    "raise the hard limit there (ulimit -Hn, or nofile in limits.conf), or use fewer ranks";

/// Returns a statement that the process `who` may open too few files for `what`.
fn open_files_needed(who: &str, needed: u64, what: &str) -> String {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST);
    format!("{who} may have {allowed} open files (ulimit -n) and needs some {needed} for {what}")
}

/// Returns a statement of how many files the process `who` may open, and needs in a world with `peers` other ranks.
pub(crate) fn open_files_for(who: &str, peers: usize) -> String {
    let peers = peers as u64;
    let needed = (OWN + PER_PEER * peers).max(open_files() + peers);
    open_files_needed(who, needed, &format!("a world of {} ranks", peers + 1))
}

/// Returns true if this process cannot even open one connection to each of `peers` other ranks.
pub(crate) fn has_too_few_open_files_for(peers: usize) -> bool {
    let least = open_files() + peers as u64;
    getrlimit(Resource::Nofile).current.is_some_and(|allowed| allowed < least)
}

/// Returns half of the number of files that this process may open in addition to those of a world with `peers` other
/// ranks. The other half is left to the program.
pub(crate) fn spare_open_files(peers: usize) -> usize {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST);
    let kept = open_files() + OWN + PER_PEER * peers as u64;
    usize::try_from(allowed.saturating_sub(kept) / 2).unwrap_or(usize::MAX)
}

/// Returns the number of files that this process has open.
fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64)
}

impl Error {
    /// Creates the error for a system that provides no thread, with `cause`, which does not identify the limit.
    pub fn no_thread(cause: io::Error) -> Self {
        Error::system("start a thread", cause, more_threads())
    }
}

/// Creates the error of a system that gives no descriptor for `doing`: a limit, or a container that denies the call.
pub(crate) fn no_descriptor(doing: &str, cause: impl Into<io::Error>) -> Error {
    let cause = cause.into();
    if !exhausted(&cause) {
        let remedy = "allow eventfd2 and epoll_create1; a container may deny them";
        return Error::system(doing, cause, remedy);
    }
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST);
    let remedy = format!(
        "raise the hard limit of open files there (ulimit -Hn, or nofile in limits.conf), which is {allowed} now"
    );
    Error::system(doing, cause, remedy)
}

/// Fails if this process may write no file of `size` bytes: the system would end it by SIGXFSZ.
pub(crate) fn check_file_size(size: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current.filter(|allowed| *allowed < size) {
        None => Ok(()),
        Some(allowed) => Err(io::Error::other(format!("files are limited to {allowed} bytes (ulimit -f)"))),
    }
}

/// Returns the advice for a thread or process that could not be started.
pub fn more_threads() -> String {
    more_addresses(THREAD).unwrap_or_else(|| {
        let allowed = getrlimit(Resource::Nproc).current;
        let allowed = allowed.map_or_else(|| "unlimited".to_owned(), |allowed| allowed.to_string());
        format!(
            "allow this user more processes and threads (ulimit -u: {allowed} now), or its container (pids.max), or \
             use fewer ranks"
        )
    })
}

/// Returns the advice if it is the limit of address space that forbids `bytes` more.
pub(crate) fn more_addresses(bytes: u64) -> Option<String> {
    let allowed = getrlimit(Resource::As).current?;
    let used = addresses()?;
    (used.saturating_add(bytes) > allowed).then(|| {
        format!(
            "this process may use {} MiB of addresses (ulimit -v) and uses {}: raise or lift that limit",
            allowed >> 20,
            used >> 20
        )
    })
}

/// Returns the address space that this process uses, in bytes.
fn addresses() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    size.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}
