//! Facts about other processes, from /proc.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::fd::OwnedFd;

/// Number of reads of an apparently empty environment of a process, before the result is accepted.
const LOOKS: usize = 100;

/// State of a process at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    /// Process id.
    pub(crate) pid: Pid,
    /// Name of its program; the system keeps 15 bytes of it.
    pub(crate) name: String,
    /// Id of its process group.
    pub(crate) group: i32,
    /// Process id of its parent.
    parent: i32,
    /// True if it has ended, and has not been waited for.
    ended: bool,
    /// Start of the process, in ticks since the system's start. Two processes with the same id differ in it.
    started: u64,
    /// Memory of the process, in bytes: zero for one that has ended, and for kernel threads.
    size: u64,
}

impl Process {
    /// Reads the state of a process. Returns `None` if it does not exist, or is hidden from this user.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &stat)
    }

    /// Decodes the line `pid (name) state parent group …`, where the name may contain any characters, even
    /// parentheses.
    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let ended = ["Z", "X"].contains(fields.first()?);
        let parent = fields.get(1)?.parse().ok()?;
        let group = fields.get(2)?.parse().ok()?;
        let started = fields.get(19)?.parse().ok()?;
        let size = fields.get(20)?.parse().ok()?;
        Some(Process { pid, name: name.to_owned(), group, parent, ended, started, size })
    }

    /// Returns true if this very process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        Self::of(self.pid).is_none_or(|now| now.ended || now.started != self.started)
    }

    /// Returns the parent of this process, its parent, and so on, as far as they are visible.
    pub(crate) fn ancestors() -> impl Iterator<Item = Self> {
        let parent = rustix::process::getppid().and_then(Self::of);
        std::iter::successors(parent, |process| Pid::from_raw(process.parent).and_then(Self::of))
    }

    /// Returns the command line of the process.
    pub(crate) fn arguments(&self) -> Vec<String> {
        words(self.pid, "cmdline").unwrap_or_default()
    }
}

/// Sends `signal` to every process of this user whose environment holds an entry that `is_meant`, except to the process
/// groups `but`. Returns the number of those processes.
pub fn signal_all(signal: Signal, but: &[i32], is_meant: impl Fn(&str) -> bool) -> usize {
    let me = rustix::process::getpid();
    let there = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = there.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let mut signalled = 0;
    for pid in pids.filter(|pid| *pid != me) {
        // Held during the check: otherwise the number may belong to a different process when the signal is sent.
        let held = pidfd_open(pid, PidfdFlags::empty()).ok();
        if !environment(pid).iter().any(|word| is_meant(word)) {
            continue;
        }
        if Process::of(pid).is_some_and(|process| !process.ended && !but.contains(&process.group)) {
            signalled += usize::from(send(pid, held.as_ref(), signal));
        }
    }
    signalled
}

/// Sends a signal to a process, by its descriptor if there is one. Returns true if it was sent.
fn send(pid: Pid, held: Option<&OwnedFd>, signal: Signal) -> bool {
    let sent = match held {
        Some(held) => pidfd_send_signal(held, signal),
        None => rustix::process::kill_process(pid, signal),
    };
    sent.is_ok()
}

/// Reads the initial environment of the program of a process. A process that is about to start a program has none for
/// a moment.
fn environment(pid: Pid) -> Vec<String> {
    for _ in 0..LOOKS {
        match words(pid, "environ") {
            Some(words) if words.is_empty() && Process::of(pid).is_some_and(|process| process.size > 0) => {}
            known => return known.unwrap_or_default(),
        }
        std::thread::yield_now();
    }
    Vec::new()
}

/// Reads a list of texts about a process. Returns `None` if this user may not see it.
fn words(pid: Pid, file: &str) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).ok()?;
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    Some(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_name_may_hold_anything() {
        let pid = Pid::from_raw(7).unwrap();
        let rest = "S 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1234 5678 0";
        let process = Process::parse(pid, &format!("7 (a) Z 9 (b) {rest}\n")).unwrap();
        assert_eq!((process.name.as_str(), process.parent, process.group), ("a) Z 9 (b", 3, 4));
        assert!(!process.ended && process.started == 1234);
        for damaged in ["", "7", "7 (a", "7 (a) S", "7 (a) S x 4 5"] {
            assert_eq!(Process::parse(pid, damaged), None);
        }
    }

    #[test]
    fn a_process_has_ended_before_anybody_has_asked_how() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let process = Process::of(Pid::from_child(&child)).unwrap();
        assert!(!process.has_ended() && process.parent == std::process::id() as i32);
        drop(child.stdin.take());
        // Its end of the pipe is closed as it ends.
        std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !process.has_ended() {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(process.has_ended());
    }

    #[test]
    fn ancestors_lead_to_the_first_process() {
        let ancestors: Vec<Process> = Process::ancestors().collect();
        assert_eq!(Some(ancestors[0].pid), rustix::process::getppid());
        assert!(!ancestors[0].arguments().is_empty());
    }
}
