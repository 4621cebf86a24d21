//! Windows: what each operation does, what it sends, and that nobody waits for anybody's step.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram_logical::asynchronous::{INLINE_BYTES, REPLY_BYTES, REQUEST_BYTES, Service, Window};
use hexagram_logical::codec::{Half, MinMax8, Qsgd};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{cases, on_threads, spawn};
use hexagram_logical::{Buffer, Communicator, Element, Error, HEADER_BYTES, Result};
use std::sync::Arc;

const RANKS: [usize; 4] = [2, 3, 4, 8];

fn half(feedback: Feedback) -> Encoding {
    Encoding::new(Arc::new(Half::F16)).with_feedback(feedback)
}

fn of<T: Element>(window: &Window, len: usize, load: impl Fn(&Window, &mut Buffer) -> Result<()>) -> Vec<T> {
    let mut buffer = Buffer::from_slice(&vec![T::zeroed(); len]).unwrap();
    load(window, &mut buffer).unwrap();
    let elements = buffer.host::<T>().unwrap();
    elements.to_vec()
}

fn value(window: &Window, len: usize) -> Vec<f32> {
    of(window, len, Window::load)
}

fn neighbour(window: &Window, of_rank: usize, len: usize) -> Vec<f32> {
    of(window, len, |window, buffer| window.load_neighbour(of_rank, buffer))
}

/// A window in which everyone may put to everyone, of `len` elements that all are the rank.
fn complete(
    comm: &Communicator,
    service: &Service,
    len: usize,
    encoding: Option<Encoding>,
) -> Result<(Window, Vec<usize>)> {
    let others: Vec<usize> = (0..comm.size()).filter(|rank| *rank != comm.rank()).collect();
    let mine = Buffer::from_slice(&vec![comm.rank() as f32; len])?;
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
                // x ← x + Σ y / 2, in which q is 2 + 4 · 0.5 for everyone.
                window.update(1.0, &weighted(&others, 0.5), true)?;
                let sum: f32 = others.iter().map(|other| 2.0 * *other as f32).sum();
                let mass = 1.0 + 2.0 * others.len() as f64;
                assert_eq!((value(&window, len), window.mass()), (vec![rank + sum; len], mass));
                assert_eq!(neighbour(&window, others[0], len), vec![0.0; len]);
                comm.blocking().barrier()?;
                window.store(&Buffer::from_slice(&vec![rank + 1.0; len])?)?;
                window.add(2.0, &Buffer::from_slice(&vec![1f32; len])?)?;
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

/// What `operation` makes this rank send, on all ranks at once.
fn bytes_of(comm: &Communicator, operation: impl FnOnce() -> Result<()>) -> Result<u64> {
    let sent = || comm.world().traffic().bytes_sent();
    comm.blocking().barrier()?;
    let before = sent();
    comm.blocking().barrier()?;
    let (before, barrier) = (sent(), sent() - before);
    // Nobody begins before all have read their counters.
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
                assert_eq!(bytes_of(&comm, || window.collect())?, 0);
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

/// Edges 0→1, 0→2, 1→2, 2→3, 3→0, and from everyone to itself.
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
                let mine = Buffer::from_slice(&[rank as f32; 3])?;
                let window =
                    comm.block_on(Window::create(&comm, &service, &mine, &sources, feedback.map(half)))?;
                assert_eq!(window.destinations(), OUT[rank]);
                let share = 1.0 / (1.0 + OUT[rank].len() as f64);
                // No rank waits for another: some are rounds ahead.
                for _ in 0..100 + 30 * rank {
                    window.accumulate(share, &weighted(OUT[rank], share)).blocking()?;
                    window.collect()?;
                }
                comm.blocking().barrier()?;
                // In step for the last rounds, so that what the fast ones have kept comes round.
                for _ in 0..60 {
                    window.accumulate(share, &weighted(OUT[rank], share)).blocking()?;
                    comm.blocking().barrier()?;
                    window.collect()?;
                    comm.blocking().barrier()?;
                }
                let mut mass = [window.mass()];
                comm.blocking().all_reduce(&mut mass, hexagram_logical::ReduceOp::Sum)?;
                assert!((mass[0] - 4.0).abs() < 1e-9, "{mass:?}");
                for mean in of::<f32>(&window, 3, Window::estimate) {
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
                window.store(&Buffer::from_slice(&vec![round as f32; LEN])?)?;
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
                window.store(&Buffer::from_slice(&vec![round as f32; 700])?)?;
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

#[test]
fn ranks_that_differ_in_length_or_encoding_both_see_it() {
    let one = |comm: &Communicator| if comm.rank() == 1 { 13 } else { 12 };
    let codec = |comm: &Communicator| (comm.rank() == 1).then(|| half(Feedback::None));
    for transport in on_threads() {
        for differ in ["window(13 × f32)", "codec"] {
            let open = std::sync::Barrier::new(2);
            let errors = spawn(transport, 2, |comm| {
                let service = comm.block_on(Service::start(&comm))?;
                open.wait();
                let window = match differ {
                    "codec" => complete(&comm, &service, 12, codec(&comm)),
                    _ => complete(&comm, &service, one(&comm), None),
                };
                let error = window.map(drop).unwrap_err();
                assert!(service.blocking().close().is_err());
                Ok(error)
            });
            for error in errors.unwrap() {
                let text = error.to_string();
                assert!(text.contains("window(12 × f32)") && text.contains(differ), "{text}");
            }
        }
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    for (transport, ranks) in cases(&[2]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let usage =
                |error: Option<Error>| assert!(matches!(error, Some(Error::Usage { .. })), "{error:?}");
            let mine = Buffer::from_slice(&[1f32; 4])?;
            let create = |value: &Buffer, sources: &[usize], encoding| {
                usage(comm.block_on(Window::create(&comm, &service, value, sources, encoding)).err());
            };
            create(&mine, &[comm.rank()], None);
            create(&mine, &[2], None);
            create(&mine, &[1 - comm.rank(); 2], None);
            create(&mine, &[], Some(half(Feedback::Extrapolation)));
            create(&Buffer::from_slice(&[1i32])?, &[], None);
            create(&Buffer::from_slice(&[1f64])?, &[], Some(half(Feedback::None)));
            // Rank 0 hears of rank 1, and not the other way round.
            let sources: &[usize] = if comm.rank() == 0 { &[1] } else { &[] };
            let window = comm.block_on(Window::create(&comm, &service, &mine, sources, None))?;
            let peer = 1 - comm.rank();
            if comm.rank() == 0 {
                usage(window.put(1.0, &[(peer, 1.0)]).blocking().err());
                usage(window.get(&[(peer, 1.0), (peer, 1.0)]).blocking().err());
            } else {
                usage(window.get(&[(peer, 1.0)]).blocking().err());
                usage(window.accumulate(1.0, &[(peer, 1.0), (peer, 1.0)]).blocking().err());
                usage(window.update(1.0, &[(peer, 1.0)], false).err());
                usage(window.load_neighbour(peer, &mut Buffer::from_slice(&[0f32; 4])?).err());
                for odd in [f64::NAN, f64::INFINITY] {
                    usage(window.put(odd, &[]).blocking().err());
                    usage(window.accumulate(1.0, &[(peer, odd)]).blocking().err());
                    usage(window.update(odd, &[], false).err());
                    usage(window.add(odd, &mine).err());
                }
                window.put(0.0, &[]).blocking()?;
                usage(window.estimate(&mut Buffer::from_slice(&[0f32; 4])?).err());
            }
            usage(window.load(&mut Buffer::from_slice(&[0f32; 3])?).err());
            usage(window.store(&Buffer::from_slice(&[0f64; 4])?).err());
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn a_rank_that_never_closes_is_named_at_the_deadline() {
    for transport in on_threads() {
        spawn(transport, 3, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            comm.blocking().barrier()?;
            comm.set_deadline(std::time::Duration::from_secs(3));
            if comm.rank() == 2 {
                while comm.world().health().verdict().is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                return Ok(());
            }
            let error = service.blocking().close().unwrap_err();
            let text = error.to_string();
            assert!(text.contains("rank 2 ("), "{text}");
            Ok(())
        })
        .unwrap();
    }
}

/// Some rounds of everything that is encoded: the bits of what this rank has in the end.
fn rounds(
    comm: &Communicator,
    window: &Window,
    others: &[usize],
    rounds: std::ops::Range<usize>,
) -> Result<(Vec<u32>, f64, Vec<Option<u64>>)> {
    for round in rounds {
        let step = |at: usize| ((at * 37 + comm.rank() * 11 + round * 53) % 101) as f32 * 0.01;
        window.add(1.0, &Buffer::from_slice(&(0..70).map(step).collect::<Vec<_>>())?)?;
        // Whoever is late still updates, or saves.
        comm.blocking().barrier()?;
        window.accumulate(0.5, &weighted(others, 0.25)).blocking()?;
        comm.blocking().barrier()?;
        window.update(1.0, &weighted(others, 1.0), true)?;
        comm.blocking().barrier()?;
        window.get(&weighted(others, 0.5)).blocking()?;
        comm.blocking().barrier()?;
        window.update(0.5, &weighted(others, 0.5), false)?;
    }
    comm.blocking().barrier()?;
    let bits = value(window, 70).into_iter().map(f32::to_bits).collect();
    Ok((bits, window.mass(), others.iter().map(|other| window.version(*other)).collect()))
}

#[test]
fn what_was_saved_goes_on_bit_for_bit() {
    for (transport, ranks) in cases(&[3]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            for feedback in [None, Some(Feedback::None), Some(Feedback::Error), Some(Feedback::Difference)] {
                let make = || {
                    let draws = |feedback| -> Result<Encoding> {
                        Ok(Encoding::new(Arc::new(Qsgd::new(7)?)).with_feedback(feedback).with_seed(5))
                    };
                    complete(&comm, &service, 70, feedback.map(draws).transpose()?)
                };
                let (window, others) = make()?;
                rounds(&comm, &window, &others, 0..3)?;
                let saved = window.save()?;
                let values = window.save()?;
                let expected = rounds(&comm, &window, &others, 3..6)?;
                let (again, _) = make()?;
                again.restore(saved)?;
                assert_eq!(rounds(&comm, &again, &others, 3..6)?, expected, "{feedback:?} over {transport}");
                // Draws and memories are part of it.
                let (forgetful, _) = make()?;
                forgetful.restore(values.into_iter().filter(|(name, _)| name.starts_with("value of ")))?;
                let differs = rounds(&comm, &forgetful, &others, 3..6)? != expected;
                assert_eq!(differs, feedback.is_some(), "{feedback:?} over {transport}");
                let alone = comm.block_on(Window::create(
                    &comm,
                    &service,
                    &Buffer::from_slice(&[0f32; 70])?,
                    &[],
                    None,
                ))?;
                let short = complete(&comm, &service, 69, None)?.0;
                for refused in [alone.restore(window.save()?), short.restore(window.save()?)] {
                    assert!(matches!(refused, Err(Error::Usage { .. })), "{refused:?}");
                }
                comm.blocking().barrier()?;
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

/// What one receiver was to be told is remembered by then, and will never be sent.
#[test]
fn what_cannot_be_told_to_all_ends_the_service() {
    for transport in on_threads() {
        let together = std::sync::Barrier::new(3);
        let errors = spawn(transport, 3, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let encoding = Encoding::new(Arc::new(MinMax8::default())).with_feedback(Feedback::Difference);
            let (window, _) = complete(&comm, &service, 5, Some(encoding))?;
            // Nobody errs while others are still making their part.
            together.wait();
            let outcome = if comm.rank() == 0 {
                window.store(&Buffer::from_slice(&[f32::MAX; 5])?)?;
                window.put(1.0, &[(1, 1.0)]).blocking()?;
                window.store(&Buffer::from_slice(&[-f32::MAX; 5])?)?;
                // Rank 2 has heard nothing yet; from what rank 1 has heard, the way is too long.
                let refused = window.put(1.0, &[(2, 1.0), (1, 1.0)]).blocking().err();
                assert!(matches!(&refused, Some(Error::NotFinite { index: 0, .. })), "{refused:?}");
                window.put(1.0, &[(2, 1.0)]).blocking()
            } else {
                Ok(())
            };
            together.wait();
            Ok(outcome.and_then(|()| service.blocking().close()).unwrap_err())
        });
        for error in errors.unwrap() {
            assert!(error.to_string().contains("element 0"), "{transport}: {error}");
        }
    }
}

#[test]
fn what_cannot_be_encoded_is_named_and_not_sent() {
    for transport in on_threads() {
        spawn(transport, 2, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let encoding = Encoding::new(Arc::new(MinMax8::default())).with_feedback(Feedback::Error);
            let (window, others) = complete(&comm, &service, 500, Some(encoding))?;
            let to = weighted(&others, 1.0);
            window.put(0.5, &to).blocking()?;
            let mut mine = vec![1f32; 500];
            mine[123] = f32::NAN;
            window.store(&Buffer::from_slice(&mine)?)?;
            comm.blocking().barrier()?;
            let sent = comm.world().traffic().bytes_sent();
            for refused in [window.put(0.5, &to).blocking().err(), window.accumulate(0.5, &to).blocking().err()] {
                let named = matches!(&refused, Some(Error::NotFinite { place, index: 123, .. }) if place.rank == comm.rank());
                assert!(named, "{refused:?}");
            }
            assert_eq!((comm.world().traffic().bytes_sent(), window.mass()), (sent, 0.5));
            // Once it is mended, all goes on; and not before everyone has counted, as answers count, too.
            comm.blocking().barrier()?;
            window.store(&Buffer::from_slice(&vec![2f32; 500])?)?;
            window.put(0.5, &to).blocking()?;
            comm.blocking().barrier()?;
            assert_eq!(window.version(others[0]), Some(2));
            assert_eq!(neighbour(&window, others[0], 500), vec![2.0; 500]);
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn whoever_fetches_what_cannot_be_encoded_learns_where_it_is() {
    for transport in on_threads() {
        let stored = std::sync::Barrier::new(2);
        let errors = spawn(transport, 2, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let (window, others) =
                complete(&comm, &service, 500, Some(Encoding::new(Arc::new(MinMax8::default()))))?;
            if comm.rank() == 1 {
                let mut mine = vec![1f32; 500];
                mine[123] = f32::INFINITY;
                window.store(&Buffer::from_slice(&mine)?)?;
            }
            // Not one of the communicator's, in which a rank might still be.
            stored.wait();
            let got = if comm.rank() == 0 { window.get(&weighted(&others, 1.0)).blocking() } else { Ok(()) };
            Ok(got.and_then(|()| service.blocking().close()).unwrap_err().to_string())
        });
        for text in errors.unwrap() {
            assert!(text.contains("element 123") && text.contains("rank 1 ("), "{text}");
        }
    }
}
