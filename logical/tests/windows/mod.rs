//! Windows: the effect and the bytes of each operation, and that no rank waits for another's step.

mod failures;
mod state;

use hexagram_logical::asynchronous::{INLINE_BYTES, REPLY_BYTES, REQUEST_BYTES, Service, Window};
use hexagram_logical::codec::{Half, MinMax8, Qsgd};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{self, cases, on_threads, spawn};
use hexagram_logical::{Buffer, Communicator, Element, Error, HEADER_BYTES, Result};
use std::sync::Arc;

const RANKS: [usize; 4] = [2, 3, 4, 8];

fn half(feedback: Feedback) -> Encoding {
    Encoding::new(Arc::new(Half::F16)).with_feedback(feedback)
}

fn of<T: Element>(window: &Window, len: usize, load: impl Fn(&Window, &mut Buffer) -> Result<()>) -> Vec<T> {
    let mut buffer = testing::buffer(&vec![T::zeroed(); len]);
    load(window, &mut buffer).unwrap();
    let elements = buffer.host::<T>().unwrap();
    elements.to_vec()
}

fn value(window: &Window, len: usize) -> Vec<f32> {
    of(window, len, |window, buffer| window.blocking().load(buffer))
}

fn neighbour(window: &Window, of_rank: usize, len: usize) -> Vec<f32> {
    of(window, len, |window, buffer| window.blocking().load_neighbour(of_rank, buffer))
}

/// A window in which every rank may put to every other, of `len` elements equal to the rank.
fn complete(
    comm: &Communicator,
    service: &Service,
    len: usize,
    encoding: Option<Encoding>,
) -> Result<(Window, Vec<usize>)> {
    let others: Vec<usize> = (0..comm.size()).filter(|rank| *rank != comm.rank()).collect();
    let mine = testing::buffer(&vec![comm.rank() as f32; len]);
    Ok((comm.block_on(Window::create(comm, service, &mine, &others, encoding))?, others))
}

fn weighted(ranks: &[usize], weight: f64) -> Vec<(usize, f64)> {
    ranks.iter().map(|rank| (*rank, weight)).collect()
}

#[test]
fn every_operation_does_what_it_says_at_every_size_and_precision() {
    for (transport, ranks) in cases(&RANKS) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let encodings = [None, Some(Feedback::None), Some(Feedback::Error), Some(Feedback::Difference)];
            for (len, feedback) in
                [0, 300, 1500].into_iter().flat_map(|len| encodings.map(|feedback| (len, feedback)))
            {
                let (window, others) = complete(&comm, &service, len, feedback.map(half))?;
                assert_eq!(window.destinations(), others);
                let rank = comm.rank() as f32;
                // Small whole numbers: exact in sixteen bits.
                window.put(0.5, &weighted(&others, 2.0)).blocking()?;
                comm.blocking().barrier()?;
                for other in &others {
                    assert_eq!(neighbour(&window, *other, len), vec![2.0 * *other as f32; len]);
                    assert_eq!(window.version(*other), Some(1));
                }
                assert_eq!((value(&window, len), window.mass()), (vec![0.5 * rank; len], 0.5));
                comm.blocking().barrier()?;
                window.accumulate(2.0, &weighted(&others, 4.0)).blocking()?;
                comm.blocking().barrier()?;
                for other in &others {
                    assert_eq!(neighbour(&window, *other, len), vec![4.0 * *other as f32; len]);
                    assert_eq!(window.version(*other), Some(2));
                }
                assert_eq!((value(&window, len), window.mass()), (vec![rank; len], 1.0));
                // x ← x + Σ y / 2, in which q is 2 + 4 · 0.5 on every rank.
                window.blocking().update(1.0, &weighted(&others, 0.5), true)?;
                let sum: f32 = others.iter().map(|other| 2.0 * *other as f32).sum();
                let mass = 1.0 + 2.0 * others.len() as f64;
                assert_eq!((value(&window, len), window.mass()), (vec![rank + sum; len], mass));
                assert_eq!(neighbour(&window, others[0], len), vec![0.0; len]);
                comm.blocking().barrier()?;
                window.blocking().store(&testing::buffer(&vec![rank + 1.0; len]))?;
                window.blocking().add(2.0, &testing::buffer(&vec![1f32; len]))?;
                comm.blocking().barrier()?;
                window.get(&weighted(&others, 3.0)).blocking()?;
                for other in &others {
                    assert_eq!(neighbour(&window, *other, len), vec![3.0 * (*other as f32 + 3.0); len]);
                    assert_eq!(window.version(*other), Some(3));
                }
                assert_eq!(window.version(comm.rank()), None);
                comm.blocking().barrier()?;
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

/// The bytes of `operation` on this rank; all ranks run it together.
fn bytes_of(comm: &Communicator, operation: impl FnOnce() -> Result<()>) -> Result<u64> {
    let sent = || comm.world().traffic().bytes_sent();
    comm.blocking().barrier()?;
    let before = sent();
    comm.blocking().barrier()?;
    let barrier = sent() - before;
    let before = before + barrier;
    // No rank begins before all have read their counters.
    comm.blocking().barrier()?;
    operation()?;
    comm.blocking().barrier()?;
    Ok(sent() - before - 2 * barrier)
}

#[test]
fn bytes_are_those_of_the_formula() {
    for (transport, ranks) in cases(&RANKS) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            for (len, feedback) in [(0, None), (2, None), (256, None), (257, None), (20_000, None)]
                .into_iter()
                .chain([(512, Some(Feedback::None)), (513, Some(Feedback::Difference))])
            {
                let (window, others) = complete(&comm, &service, len, feedback.map(half))?;
                let payload = if feedback.is_some() { 2 * len } else { 4 * len };
                let apart = if payload > INLINE_BYTES { HEADER_BYTES } else { 0 };
                let expected =
                    others.len() * (2 * HEADER_BYTES + REQUEST_BYTES + REPLY_BYTES + payload + apart);
                let to = weighted(&others, 1.0);
                let put = bytes_of(&comm, || window.put(1.0, &to).blocking())?;
                let accumulated = bytes_of(&comm, || window.accumulate(0.5, &to).blocking())?;
                let got = bytes_of(&comm, || window.get(&to).blocking())?;
                assert_eq!([put, accumulated, got], [expected as u64; 3], "{len} elements, {feedback:?}");
                assert_eq!(bytes_of(&comm, || window.blocking().collect())?, 0);
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

/// Edges 0→1, 0→2, 1→2, 2→3, 3→0, and from every rank to itself.
const OUT: [&[usize]; 4] = [&[1, 2], &[2], &[3], &[0]];

#[test]
fn push_sum_over_windows_finds_the_mean_of_a_directed_graph() {
    let encodings = [None, Some(Feedback::Error), Some(Feedback::Difference)];
    for (transport, ranks) in cases(&[4]) {
        for feedback in encodings {
            let tolerance = if feedback.is_none() { 1e-5 } else { 2e-2 };
            spawn(transport, ranks, |comm| {
                let rank = comm.rank();
                let service = comm.block_on(Service::start(&comm))?;
                let sources: Vec<usize> = (0..4).filter(|from| OUT[*from].contains(&rank)).collect();
                let mine = testing::buffer(&[rank as f32; 3]);
                let window =
                    comm.block_on(Window::create(&comm, &service, &mine, &sources, feedback.map(half)))?;
                assert_eq!(window.destinations(), OUT[rank]);
                let share = 1.0 / (1.0 + OUT[rank].len() as f64);
                // No rank waits for another: some are rounds ahead.
                for _ in 0..100 + 30 * rank {
                    window.accumulate(share, &weighted(OUT[rank], share)).blocking()?;
                    window.blocking().collect()?;
                }
                comm.blocking().barrier()?;
                // In step for the last rounds, so that the fast ranks' kept values spread.
                for _ in 0..60 {
                    window.accumulate(share, &weighted(OUT[rank], share)).blocking()?;
                    comm.blocking().barrier()?;
                    window.blocking().collect()?;
                    comm.blocking().barrier()?;
                }
                let mut mass = [window.mass()];
                comm.blocking().all_reduce(&mut mass, hexagram_logical::ReduceOp::Sum)?;
                assert!((mass[0] - 4.0).abs() < 1e-9, "{mass:?}");
                for mean in of::<f32>(&window, 3, |window, mean| window.blocking().estimate(mean)) {
                    assert!((mean - 1.5).abs() < tolerance, "{mean} on rank {rank}, {feedback:?}");
                }
                service.blocking().close()
            })
            .unwrap();
        }
    }
}

#[test]
fn a_value_is_never_half_of_one_put_and_half_of_another() {
    const LEN: usize = 30_000;
    for (transport, ranks) in cases(&[3]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let (window, others) = complete(&comm, &service, LEN, None)?;
            let mut last = vec![0f32; ranks];
            for round in 1..40u32 {
                window.blocking().store(&testing::buffer(&vec![round as f32; LEN]))?;
                let put = window.put(1.0, &weighted(&others, 1.0));
                while !put.is_done() {
                    for other in &others {
                        let seen = neighbour(&window, *other, LEN);
                        assert!(seen.iter().all(|x| *x == seen[0]), "rank {other}, round {round}");
                        assert!(seen[0] >= last[*other], "an older value of rank {other}");
                        last[*other] = seen[0];
                    }
                }
                put.blocking()?;
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn puts_that_are_not_waited_for_arrive_in_order() {
    for (transport, ranks) in cases(&[2, 4]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let (window, others) = complete(&comm, &service, 700, Some(half(Feedback::Difference)))?;
            let mut puts = Vec::new();
            for round in 1..=50u32 {
                window.blocking().store(&testing::buffer(&vec![round as f32; 700]))?;
                puts.push(window.put(1.0, &weighted(&others, 1.0)));
            }
            puts.into_iter().try_for_each(|put| put.blocking())?;
            comm.blocking().barrier()?;
            for other in others {
                assert_eq!(window.version(other), Some(50));
                assert_eq!(neighbour(&window, other, 700), vec![50.0; 700]);
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn a_rank_whose_program_does_something_else_keeps_nobody_waiting() {
    for (transport, ranks) in cases(&[2, 4]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let (window, others) = complete(&comm, &service, 1000, None)?;
            comm.blocking().barrier()?;
            if comm.rank() == 0 {
                // In nothing but this receive, until all others are done with it.
                for other in others {
                    comm.blocking().recv(&mut [0u8], other)?;
                    assert_eq!(window.version(other), Some(20));
                }
            } else {
                for _ in 0..20 {
                    window.put(1.0, &[(0, 1.0)]).blocking()?;
                    window.get(&[(0, 1.0)]).blocking()?;
                }
                assert_eq!(window.version(0), Some(20));
                comm.blocking().send(&[0u8], 0)?;
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn two_windows_of_one_service_have_nothing_to_do_with_each_other() {
    for (transport, ranks) in cases(&[3]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let (one, others) = complete(&comm, &service, 4, None)?;
            let (two, _) = complete(&comm, &service, 9, None)?;
            let puts = [one.put(1.0, &weighted(&others, 1.0)), two.put(1.0, &weighted(&others, 5.0))];
            for put in puts {
                put.blocking()?;
            }
            comm.blocking().barrier()?;
            for other in others {
                assert_eq!(neighbour(&one, other, 4), [other as f32; 4]);
                assert_eq!(neighbour(&two, other, 9), [5.0 * other as f32; 9]);
            }
            service.blocking().close()
        })
        .unwrap();
    }
}
