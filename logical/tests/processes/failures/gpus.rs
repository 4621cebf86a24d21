//! GPUs that fail in the middle of collectives, each rank a process with its own fake driver. Without that driver
//! these tests report that they are skipped.

use super::{PROMPT, all_blame, report, transports};
use crate::processes::job::{Failed, Job, on_this_host};
use hexagram_logical::TransportKind;
use hexagram_physical::device::cuda::devices;
use hexagram_physical::nccl;
use rustix::process::Signal;
use std::time::Instant;

/// Three ranks of a role that communicate memory of GPUs until something fails: rank 1 has a driver that is set so. `None`
/// without the fake driver.
fn started(role: &str, transport: TransportKind, settings: &str) -> Option<Job> {
    if !devices().is_ok_and(|gpus| gpus.iter().any(|gpu| gpu.name.starts_with("Fake"))) {
        report(format_args!("skipped: no fake CUDA driver"));
        return None;
    }
    let commands = on_this_host(3).enumerate().map(|(rank, mut command)| {
        let settings = if rank == 1 { settings } else { "seed=2" };
        command.env("HEXAGRAM_TEST_DEVICE", "cuda").env("HEXAGRAM_FAKE_CUDA", settings);
        command
    });
    Some(Job::of(commands, role, transport))
}

/// Ranks as [`started`] makes them, once all have communicated.
fn job(role: &str, transport: TransportKind, settings: &str) -> Option<Job> {
    let mut job = started(role, transport, settings)?;
    job.all_hear("ready");
    Some(job)
}

/// Rank 1 fails with words that contain `cause` and `more`, and the others name it with `cause`, promptly.
fn all_are_told(transport: TransportKind, settings: &str, cause: &str, more: &str) {
    let Some(mut job) = started("device", transport, settings) else { return };
    let Failed { at, text, .. } = job.failure(1);
    assert!(text.contains(cause) && text.contains(more), "{text}");
    let worst = all_blame(&mut job, [0, 2].into_iter(), 1, cause, at);
    assert!(worst < PROMPT, "over {transport} with {settings} it took {worst:?}");
    report(format_args!("{settings} over {transport}: told after {worst:.0?}"));
    job.ends();
}

#[test]
fn a_kernel_fault_is_told_to_all() {
    all_are_told(TransportKind::Shm, "seed=2,fault=150", "CUDA_ERROR_ILLEGAL_ADDRESS", "cuda:0");
}

#[test]
fn a_lost_device_is_told_to_all() {
    all_are_told(TransportKind::Tcp, "seed=2,lost=500", "CUDA_ERROR_UNKNOWN", "cuda:0");
}

#[test]
fn a_launch_that_is_refused_is_told_to_all() {
    all_are_told(TransportKind::Mixed, "seed=2,launch=150", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "cuda:0");
}

#[test]
fn memory_that_runs_out_is_told_to_all_with_what_was_asked_and_what_is_free() {
    let settings = "seed=2,memory=8M";
    all_are_told(TransportKind::Shm, settings, "CUDA_ERROR_OUT_OF_MEMORY", " bytes on cuda:0, where ");
}

#[test]
fn a_stream_that_never_ends_is_a_deadline_and_keeps_no_process() {
    let Some(mut job) = job("impatient device", TransportKind::Tcp, "seed=2,hang=150") else { return };
    let begun = Instant::now();
    for rank in 0..3 {
        let Failed { culprit, text, .. } = job.failure(rank);
        assert!(culprit == Some(1) && text.contains("device ha"), "rank {rank}: {text}");
    }
    job.ends();
    // 5 s of them are the operation's deadline.
    report(format_args!("a stream that never ends: all processes have ended after {:.1?}", begun.elapsed()));
}

#[test]
fn a_rank_that_is_killed_is_named_by_those_whose_gpus_are_at_work() {
    for transport in transports() {
        let Some(mut job) = job("device", transport, "seed=2") else { return };
        let killed = job.signal(1, Signal::KILL);
        let worst = all_blame(&mut job, [0, 2].into_iter(), 1, "died", killed);
        assert!(worst < PROMPT, "over {transport} it took {worst:?}");
        job.ends();
    }
}

/// Three ranks with a GPU each that communicate through NCCL until something fails: that of rank 1 is set so. `None`
/// without the fakes.
fn job_by_nccl(role: &str, transport: TransportKind, settings: &str) -> Option<Job> {
    if nccl::version().is_err()
        || !devices().is_ok_and(|gpus| gpus.iter().any(|gpu| gpu.name.starts_with("Fake")))
    {
        report(format_args!("skipped: no fake NCCL and CUDA driver"));
        return None;
    }
    let commands = on_this_host(3).enumerate().map(|(rank, mut command)| {
        command.env("HEXAGRAM_TEST_DEVICE", format!("cuda:{rank}")).env("HEXAGRAM_DEVICE_PATH", "nccl");
        command.env("HEXAGRAM_FAKE_CUDA", "seed=2,devices=3");
        command.env("HEXAGRAM_FAKE_NCCL", if rank == 1 { settings } else { "seed=2" });
        command
    });
    let mut job = Job::of(commands, role, transport);
    job.all_hear("ready");
    Some(job)
}

#[test]
fn a_rank_that_is_killed_is_named_by_those_whose_streams_wait_for_it() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let Some(mut job) = job_by_nccl("device", transport, "seed=2") else { return };
        let killed = job.signal(1, Signal::KILL);
        let worst = all_blame(&mut job, [0, 2].into_iter(), 1, "died", killed);
        assert!(worst < PROMPT, "over {transport} it took {worst:?}");
        report(format_args!("killed within NCCL over {transport}: named after {worst:.0?}"));
        job.ends();
    }
}

#[test]
fn work_of_nccl_that_never_ends_is_a_deadline_and_keeps_no_process() {
    let Some(mut job) = job_by_nccl("impatient device", TransportKind::Tcp, "seed=2,hang=40") else { return };
    for rank in 0..3 {
        let Failed { text, .. } = job.failure(rank);
        // The first of the two: the watch of the work, or the thread that waits for the queue.
        assert!(text.contains("within 5s"), "rank {rank}: {text}");
    }
    job.ends();
}

#[test]
fn an_error_of_nccl_s_is_told_to_all() {
    let Some(mut job) = job_by_nccl("device", TransportKind::Shm, "seed=2,async_error=40:3") else { return };
    let Failed { at, text, .. } = job.failure(1);
    assert!(text.contains("ncclInternalError"), "{text}");
    let worst = all_blame(&mut job, [0, 2].into_iter(), 1, "ncclInternalError", at);
    assert!(worst < PROMPT, "{worst:?}");
    job.ends();
}
