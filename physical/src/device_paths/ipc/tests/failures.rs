//! What fails after it was enqueued: a rank that is killed while others' streams wait for it, and one whose stream never
//! ends; and what is found before.

use super::processes::{said, start};
use super::{End, LONG, is_fake, queue, sum_of_floats};
use crate::device::Queue;
use crate::device::cuda::CudaQueue;
use crate::device::cuda::tests::faults::count;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::memory::dtype::{DType, ReduceOp};
use crate::testing::spawn;
use crate::transport::TransportKind;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::world::World;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Time from a failure to the error that names it.
const SOON: Duration = Duration::from_secs(1);

/// Plays a rank of a job in which something fails.
pub(super) fn play(role: &str, world: World) {
    let queue = queue().unwrap();
    let limit = if role.ends_with("late") { SOON } else { LONG };
    let endpoint = world.open(0).unwrap();
    assert_eq!(endpoint.devices().unwrap().attach(&queue, limit).unwrap(), Some(TransportKind::Ipc));
    let end = End::over(endpoint, vec![queue.clone()]);
    let is_message = role.starts_with("message");
    let played = if is_message { super::messages::play(&end, &queue) } else { play_collective(&end, &queue) };
    if role.ends_with("refused") {
        return play_refused(world.rank(), played, &queue, is_message);
    }
    let buffer = played.unwrap();
    if world.rank() == 0 && role.starts_with("held up") {
        hold_up_the_driver(&queue);
    }
    println!("enqueued");
    if world.rank() == 1 {
        std::thread::sleep(LONG);
        return;
    }
    drop(end);
    let error = queue.check().unwrap_err();
    println!("failed {error}");
    let is_known = matches!(error, Error::PeerFailed { .. } | Error::Deadline { .. });
    assert!(is_known && world.health().verdict().is_some());
    assert!(queue.check().is_ok(), "the memory is free, and the stream goes on");
    drop(buffer);
    // Without a farewell, for which the other rank would have to live.
    std::process::exit(0);
}

/// Lets a thread make a call of the driver's that waits for all work, and returns once it holds up other calls.
fn hold_up_the_driver(queue: &Queue) {
    drop(queue.host_memory(DType::U8, 1).unwrap());
    let queue = queue.clone();
    std::thread::spawn(move || {
        let gpu = CudaQueue::of(&queue).unwrap().gpu();
        let _current = gpu.enter().unwrap();
        gpu.free_pinned();
    });
    while count(c"held_up") == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Plays an all-reduce in which rank 1 hangs.
fn play_collective(end: &End, queue: &Queue) -> Result<Buffer> {
    let buffer = Buffer::zeroed_on(queue, DType::F32, 100_000).unwrap();
    if end.transport.rank() == 1 {
        // The driver of this rank is set to hang here.
        buffer.write_all().unwrap().scale(2.0).unwrap();
    }
    end.wait(end.post(end.label(sum_of_floats(100_000)), None, &buffer))?;
    Ok(buffer)
}

/// Plays a rank of a job in which the driver of rank 0 refuses a launch, behind a wait that is on the stream by then.
fn play_refused(rank: usize, played: Result<Buffer>, queue: &Queue, is_message: bool) {
    let error = match played {
        Ok(_) if is_message => Ok(()),
        Ok(_) => queue.check(),
        Err(error) => Err(error),
    };
    assert_eq!(error.is_ok(), rank == 1 && is_message, "{error:?}");
    let has_failed = error.is_err();
    println!("failed {}", error.err().map_or_else(String::new, |error| error.to_string()));
    // The stream goes on, and tells of nothing again.
    let _ = queue.check();
    queue.check().unwrap();
    if has_failed {
        // Without a farewell: whoever knows that a rank has failed may end at once, as the others have been told.
        std::process::exit(0);
    }
}

/// Lines that a rank says.
pub(super) type Said = Lines<BufReader<ChildStdout>>;

/// Starts two ranks, of which the second one's stream hangs, and returns them once both have enqueued, with what the
/// first one says from then on.
pub(super) fn hanging(role: &str) -> Option<(Child, Said, Child)> {
    if !is_fake() {
        return None;
    }
    let mut ranks = start(role, &["synchronises=1", "hang=0"]).into_iter();
    let mut first = ranks.next()?;
    let mut second = ranks.next()?;
    let mut said = BufReader::new(first.stdout.take()?).lines();
    let enqueued = |line: std::io::Result<String>| line.is_ok_and(|line| line.contains("enqueued"));
    assert!(BufReader::new(second.stdout.take()?).lines().any(enqueued) && said.any(enqueued));
    Some((first, said, second))
}

/// Returns the words in which the first rank tells of its failure.
pub(super) fn failure(mut first: Child, said: Said) -> String {
    let mut lines = said.map_while(Result::ok);
    let text = lines.find_map(|line| line.split_once("failed ").map(|(_, text)| text.to_owned())).unwrap();
    assert!(first.wait().unwrap().success());
    text
}

#[test]
fn a_rank_that_is_killed_while_streams_wait_for_it_is_named_soon() {
    let Some((first, said, mut second)) = hanging("killed") else { return };
    let killed = Instant::now();
    second.kill().unwrap();
    let text = failure(first, said);
    // Far above what is promised, as the machine may be busy.
    assert!(killed.elapsed() < LONG / 2, "{:?}: {text}", killed.elapsed());
    assert!(text.starts_with("rank 1 (") && text.contains("died") && text.contains("all_reduce"), "{text}");
    second.wait().unwrap();
}

#[test]
fn it_is_named_while_the_driver_holds_up_whoever_calls_it() {
    let Some((first, said, mut second)) = hanging("held up") else { return };
    second.kill().unwrap();
    let text = failure(first, said);
    assert!(text.starts_with("rank 1 (") && text.contains("died") && text.contains("all_reduce"), "{text}");
    second.wait().unwrap();
}

#[test]
fn a_stream_that_never_ends_is_a_deadline() {
    for role in ["late", "held up, late"] {
        let Some((first, said, mut second)) = hanging(role) else { return };
        let text = failure(first, said);
        assert!(text.contains("no answer from rank 1") && text.contains("within 1s"), "{role}: {text}");
        second.kill().unwrap();
        second.wait().unwrap();
    }
}

#[test]
fn a_launch_that_the_driver_refuses_ends_the_operation_and_holds_no_stream() {
    if !is_fake() {
        return;
    }
    for role in ["refused", "message, refused"] {
        let told: Vec<String> =
            start(role, &["launch=0", ""]).into_iter().flat_map(|rank| said(rank, "failed ")).collect();
        let [refused, other] = &told[..] else { panic!("{told:?}") };
        assert!(refused.contains("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), "{role}: {refused}");
        let is_told = other.starts_with("rank 0 (") && other.contains("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES");
        assert!(is_told || (other.is_empty() && role.starts_with("message")), "{role}: {other}");
    }
}

#[test]
fn ranks_that_call_different_operations_are_told() {
    let Some(_) = queue() else { return };
    for transport in [TransportKind::Thread, TransportKind::Shm] {
        let attached = Barrier::new(3);
        let errors = spawn(transport, 3, |world| {
            let end = End::of_gpu(&world).unwrap();
            attached.wait();
            let count = if world.rank() == 2 { 11 } else { 10 };
            let fingerprint = Fingerprint::new(OperationKind::AllReduce, DType::F32, count);
            let fingerprint = Fingerprint { reduce: Some(ReduceOp::Sum), ..fingerprint };
            let buffer = Buffer::zeroed_on(&end.queues[0], DType::F32, count).unwrap();
            let error = end.wait(end.post(end.label(fingerprint), None, &buffer)).unwrap_err();
            // Whatever has been enqueued comes to an end.
            drop(end);
            error.to_string()
        });
        let told = errors.iter().filter(|error| error.contains("ranks disagree")).count();
        assert!(told >= 1, "{errors:?}");
        let is_named = |error: &String| error.contains("11 × f32") && error.contains("10 × f32");
        assert!(errors.iter().all(is_named), "{transport}: {errors:?}");
    }
}

#[test]
fn memory_of_another_device_is_refused() {
    if queue().is_none() {
        return;
    }
    let attached = Barrier::new(2);
    let errors = spawn(TransportKind::Thread, 2, |world| {
        let end = End::of_gpu(&world).unwrap();
        attached.wait();
        let late = crate::testing::late::Late::new(0);
        let queue = crate::device::Device::queue(&late).unwrap();
        let buffer = Buffer::zeroed_on(&queue, DType::F32, 4).unwrap();
        let fingerprint = Fingerprint::new(OperationKind::AllReduce, DType::F32, 4);
        end.wait(end.post(end.label(fingerprint), None, &buffer)).unwrap_err().to_string()
    });
    assert!(errors[0].contains("memory of a different device than cuda:0"), "{errors:?}");
}
