//! Systems that deny a call, as old containers and gVisor do: a job runs without it, or an error names the call.

use super::harness::{Ended, hexagram, run, wrapped};
use std::os::unix::process::CommandExt;

/// Denies one system call to the program that is run, and to all that it starts.
fn deny(call: libc::c_long) -> std::io::Result<()> {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    // BPF: load the number of the call; if it is this one, continue with the next statement, otherwise skip it.
    let filter = [
        statement(0x20, 0),
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: call as u32 },
        statement(0x06, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(0x06, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: both calls read their arguments only, which are valid.
    let outcome = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            failed => failed,
        }
    };
    if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Runs an all-reduce of two ranks without a call.
fn without(call: libc::c_long, transport: &str) -> Ended {
    let own = env!("CARGO_BIN_EXE_hexagram");
    let mut command = hexagram(&[
        "-n",
        "2",
        "--",
        own,
        "bench",
        "all_reduce",
        "-b",
        "8",
        "-e",
        "8",
        "--transport",
        transport,
    ]);
    // SAFETY: between fork and exec, `deny` makes two system calls and allocates nothing.
    unsafe { command.pre_exec(move || deny(call)) };
    run(command)
}

#[test]
fn a_job_runs_without_what_it_can_do_without() {
    for (name, call) in [
        ("pidfd_open", libc::SYS_pidfd_open),
        ("prlimit64", libc::SYS_prlimit64),
        ("sched_getaffinity", libc::SYS_sched_getaffinity),
        ("sched_setaffinity", libc::SYS_sched_setaffinity),
        ("membarrier", libc::SYS_membarrier),
        ("process_vm_readv", libc::SYS_process_vm_readv),
        ("statx", libc::SYS_statx),
        ("sysinfo", libc::SYS_sysinfo),
        ("set_robust_list", libc::SYS_set_robust_list),
    ] {
        for transport in ["mixed", "tcp"] {
            let ended = without(call, transport);
            assert_eq!(ended.code, Some(0), "{name} over {transport}: {:#?}", ended.stderr);
        }
    }
}

#[test]
fn a_limit_of_file_sizes_ends_nothing() {
    let script = "ulimit -f 8; exec \"$0\" run -n 2 -- \"$0\" bench all_reduce -b 8 -e 8 --transport";
    for (transport, is_there) in [("mixed", true), ("shm", false)] {
        let ended = run(wrapped(&format!("{script} {transport}")));
        let text = ended.stderr.join("\n");
        assert_eq!(ended.code == Some(0), is_there, "{transport}: {:?} {text}", ended.code);
        assert!(is_there || text.contains("ulimit -f"), "{text}");
    }
}

#[test]
fn what_cannot_be_done_without_is_named() {
    for (name, call, transport) in [
        ("memfd_create", libc::SYS_memfd_create, "mixed"),
        ("eventfd", libc::SYS_eventfd2, "mixed"),
        ("epoll", libc::SYS_epoll_create1, "tcp"),
        ("getrandom", libc::SYS_getrandom, "mixed"),
    ] {
        let ended = without(call, transport);
        let text = ended.stderr.join("\n");
        assert!(ended.code == Some(0) || text.contains(name), "{name}: {:?} {text}", ended.code);
        assert!(!text.contains("panicked"), "{name}: {text}");
    }
}
