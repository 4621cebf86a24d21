//! Pair exchanges: they preserve the mean even if they overlap, nothing blocks, and under the lock every exchange is
//! exact.

#[cfg(feature = "sim")]
mod orders;

use hexagram_logical::asynchronous::{
    Exchanged, INLINE_BYTES, PairExchange, PairOptions, REPLY_BYTES, REQUEST_BYTES, Service,
};
use hexagram_logical::codec::{Half, Qsgd};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{self, cases, on_threads, spawn};
use hexagram_logical::{Communicator, Error, HEADER_BYTES, ReduceOp, Result};
use std::sync::Arc;

const RANKS: [usize; 4] = [2, 3, 4, 8];

fn half(feedback: Feedback) -> Encoding {
    Encoding::new(Arc::new(Half::F16)).with_feedback(feedback)
}

/// A sequence of draws that only the seed decides (xorshift).
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    /// A random other rank.
    fn peer(&mut self, comm: &Communicator) -> usize {
        (comm.rank() + 1 + self.below(comm.size() - 1)) % comm.size()
    }
}

fn draws(comm: &Communicator, seed: u64) -> Draws {
    Draws((seed + 1 + 100 * comm.rank() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn value(pair: &PairExchange, len: usize) -> Vec<f32> {
    let mut buffer = testing::buffer(&vec![0f32; len]);
    pair.blocking().load(&mut buffer).unwrap();
    let value = buffer.host::<f32>().unwrap();
    value.to_vec()
}

/// Every combination of lock and encoding.
fn all_options() -> impl Iterator<Item = PairOptions> {
    let encodings = [None, Some(Feedback::None), Some(Feedback::Difference)];
    let with = move |locked| encodings.map(|feedback| PairOptions { locked, encoding: feedback.map(half) });
    [false, true].into_iter().flat_map(with)
}

#[test]
fn the_mean_is_kept_by_many_exchanges_at_once() {
    for (transport, ranks) in cases(&RANKS) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            for (seed, (options, len)) in all_options().zip([1, 300, 1, 2000, 1, 300]).enumerate() {
                let context = format!("{options:?}, {len} elements, {ranks} ranks over {transport}");
                let locked = options.locked;
                let mine: Vec<f32> = (0..len).map(|at| (comm.rank() * 100 + at % 7) as f32).collect();
                let pair =
                    comm.block_on(PairExchange::create(&comm, &service, &testing::buffer(&mine), options))?;
                let mut draws = draws(&comm, seed as u64);
                let mut under_way = Vec::new();
                for _ in 0..40 {
                    under_way.push(pair.exchange(draws.peer(&comm)));
                    // Sometimes this rank makes a local step, up or down.
                    if draws.below(4) == 0 {
                        let step = testing::buffer(&vec![1f32; len]);
                        pair.blocking().add(1.0, &step)?;
                        pair.blocking().add(-1.0, &step)?;
                    }
                    if draws.below(3) == 0 {
                        under_way.drain(..).try_for_each(|exchange| exchange.blocking().map(drop))?;
                    }
                }
                under_way.into_iter().try_for_each(|exchange| exchange.blocking().map(drop))?;
                comm.blocking().barrier()?;
                let total = |values: &[f32]| -> Result<f64> {
                    let mut total = [values.iter().map(|x| f64::from(*x)).sum::<f64>()];
                    comm.blocking().all_reduce(&mut total, ReduceOp::Sum)?;
                    Ok(total[0] / (ranks * len) as f64)
                };
                let before = total(&mine)?;
                let after = total(&value(&pair, len))?;
                // Each of the 40 n exchanges rounds twice, at values below 1024.
                assert!((after - before).abs() < 1e-2, "{before} became {after}: {context}");
                let mut exchanges = [pair.exchanges() as i64];
                comm.blocking().all_reduce(&mut exchanges, ReduceOp::Sum)?;
                // Of two that meet each other, one counts.
                let all = 2 * 40 * ranks as i64;
                let some = if locked { all } else { all / 8 };
                assert!((some..=all).contains(&exchanges[0]), "{exchanges:?}: {context}");
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn values_come_together() {
    for (transport, ranks) in cases(&RANKS) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            for options in all_options() {
                let context = format!("{options:?}");
                let mine = testing::buffer(&[comm.rank() as f32; 3]);
                let pair = comm.block_on(PairExchange::create(&comm, &service, &mine, options))?;
                let mut draws = draws(&comm, 5);
                // In turn: otherwise the result would depend on the ranks' speeds.
                for turn in (0..20).flat_map(|_| 0..ranks) {
                    if turn == comm.rank() {
                        pair.exchange(draws.peer(&comm)).blocking()?;
                    }
                    comm.blocking().barrier()?;
                }
                let mean = (ranks - 1) as f32 / 2.0;
                for x in value(&pair, 3) {
                    assert!((x - mean).abs() < 0.05, "{x} instead of {mean}: {context}, over {transport}");
                }
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn under_the_lock_the_result_is_the_product_of_pairwise_averagings() {
    const EACH: usize = 50;
    for (transport, ranks) in cases(&RANKS) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let start = |rank: usize| (rank * rank) as f64 / 3.0;
            let options = PairOptions { locked: true, encoding: None };
            let mine = testing::buffer(&[start(comm.rank())]);
            let pair = comm.block_on(PairExchange::create(&comm, &service, &mine, options))?;
            let mut draws = draws(&comm, 11);
            let peers: Vec<usize> = (0..EACH).map(|_| draws.peer(&comm)).collect();
            let begun: Vec<_> = peers.iter().map(|peer| pair.exchange(*peer)).collect();
            let done: Result<Vec<Exchanged>> =
                begun.into_iter().map(|exchange| exchange.blocking()).collect();
            let log: Vec<i64> = peers
                .iter()
                .zip(done?)
                .flat_map(|(peer, it)| [*peer as i64, it.mine as i64, it.theirs as i64])
                .collect();
            comm.blocking().barrier()?;
            let mut x = testing::buffer(&[0f64]);
            pair.blocking().load(&mut x)?;
            let x = x.host::<f64>()?[0];
            let mut logs = vec![0; ranks * log.len()];
            let mut values = vec![0.0; ranks];
            comm.blocking().all_gather(&log, &mut logs)?;
            comm.blocking().all_gather(&[x], &mut values)?;
            let logs: Vec<_> = logs.chunks(3).enumerate().map(|(at, log)| (at / EACH, log)).collect();
            assert_eq!(values, replay(ranks, &logs, start), "{ranks} ranks over {transport}");
            service.blocking().close()
        })
        .unwrap();
    }
}

/// The values after all exchanges of a log, one at a time, in the order of the counters.
fn replay(ranks: usize, log: &[(usize, &[i64])], start: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = (0..ranks).map(start).collect();
    let mut count = vec![0; ranks];
    let mut left = log.to_vec();
    while !left.is_empty() {
        let next = |(rank, entry): &(usize, &[i64])| {
            entry[1] == count[*rank] + 1 && entry[2] == count[entry[0] as usize] + 1
        };
        let at = left.iter().position(next).expect("some exchange was the next on both partners");
        let (rank, entry) = left.swap_remove(at);
        // The higher rank computes the difference.
        let low = rank.min(entry[0] as usize);
        let high = rank.max(entry[0] as usize);
        let difference = (values[low] - values[high]) * 0.5;
        values[high] += difference;
        values[low] -= difference;
        count[low] += 1;
        count[high] += 1;
    }
    values
}

#[test]
fn everyone_with_everyone_at_once_comes_to_an_end() {
    for (transport, ranks) in cases(&RANKS) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            for options in all_options() {
                let mine = testing::buffer(&[comm.rank() as f32; 2000]);
                let pair = comm.block_on(PairExchange::create(&comm, &service, &mine, options))?;
                let others = (0..ranks).filter(|rank| *rank != comm.rank());
                let begun: Vec<_> =
                    others.cycle().take(2 * (ranks - 1)).map(|peer| pair.exchange(peer)).collect();
                begun.into_iter().try_for_each(|exchange| exchange.blocking().map(drop))?;
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn bytes_are_those_of_the_formula() {
    for (transport, ranks) in cases(&[2, 3]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            for (len, options) in
                [1, 256, 257].into_iter().flat_map(|len| all_options().map(move |o| (len, o)))
            {
                let encoded = options.encoding.as_ref().map(|encoding| encoding.feedback());
                let value = if encoded == Some(Feedback::Difference) { 2 * len } else { 4 * len };
                let difference = if encoded.is_some() { 2 * len } else { 4 * len };
                let carried = |bytes: usize| bytes + if bytes > INLINE_BYTES { HEADER_BYTES } else { 0 };
                let ask = HEADER_BYTES + REQUEST_BYTES;
                let answer = HEADER_BYTES + REPLY_BYTES;
                // Rank 0 begins one with rank 1, or the other way round.
                for first in [0, 1] {
                    let locked = options.locked && first == 1;
                    let options = PairOptions { locked: options.locked, encoding: encoded.map(half) };
                    let mine = testing::buffer(&vec![1f32; len]);
                    let pair = comm.block_on(PairExchange::create(&comm, &service, &mine, options))?;
                    let sent = || comm.world().traffic().bytes_sent();
                    comm.blocking().barrier()?;
                    let before = sent();
                    comm.blocking().barrier()?;
                    let barrier = sent() - before;
                    let before = before + barrier;
                    comm.blocking().barrier()?;
                    if comm.rank() == first {
                        pair.exchange(1 - first).blocking()?;
                    }
                    comm.blocking().barrier()?;
                    let got = sent() - before - 2 * barrier;
                    let expected = match (comm.rank(), locked) {
                        (rank, false) if rank == first => ask + carried(value),
                        (rank, true) if rank == first => 2 * ask + carried(difference),
                        (0 | 1, false) => answer + carried(difference),
                        (0 | 1, true) => 2 * answer + carried(value),
                        _ => 0,
                    };
                    assert_eq!(
                        got,
                        expected as u64,
                        "rank {}, {len} elements, begun by {first}",
                        comm.rank()
                    );
                }
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn ranks_that_differ_both_see_it() {
    for transport in on_threads() {
        for (differ, words) in [("length", "pair_exchange(5 × f32)"), ("lock", "rank 1 locks")] {
            let open = std::sync::Barrier::new(2);
            let errors = spawn(transport, 2, |comm| {
                let service = comm.block_on(Service::start(&comm))?;
                open.wait();
                let odd = comm.rank() == 1;
                let mine = testing::buffer(&vec![0f32; if odd && differ == "length" { 5 } else { 4 }]);
                let options = PairOptions { locked: odd && differ == "lock", encoding: None };
                let error = comm
                    .block_on(PairExchange::create(&comm, &service, &mine, options))
                    .map(drop)
                    .unwrap_err();
                Ok(error.to_string())
            });
            for error in errors.unwrap() {
                assert!(error.contains(words), "{error}");
            }
        }
    }
}

/// Every rank exchanges with the next, one after the other: the bits of this rank's final state.
fn rounds(comm: &Communicator, pair: &PairExchange, rounds: std::ops::Range<usize>) -> Result<Vec<u32>> {
    for round in rounds {
        let step = |at: usize| ((at * 37 + comm.rank() * 11 + round * 53) % 101) as f32 * 0.01;
        pair.blocking().add(1.0, &testing::buffer(&(0..70).map(step).collect::<Vec<_>>()))?;
        for turn in 0..comm.size() {
            comm.blocking().barrier()?;
            if turn == comm.rank() {
                pair.exchange((turn + 1) % comm.size()).blocking()?;
            }
        }
        comm.blocking().barrier()?;
    }
    Ok(value(pair, 70).into_iter().map(f32::to_bits).collect())
}

#[test]
fn what_was_saved_goes_on_bit_for_bit() {
    for (transport, ranks) in cases(&[3]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            for (locked, feedback) in
                [(false, Feedback::None), (false, Feedback::Difference), (true, Feedback::Difference)]
            {
                let make = |len: usize| {
                    let codec = Arc::new(Qsgd::new(7)?);
                    let encoding = Some(Encoding::new(codec).with_feedback(feedback).with_seed(5));
                    let mine = testing::buffer(&vec![comm.rank() as f32; len]);
                    comm.block_on(PairExchange::create(
                        &comm,
                        &service,
                        &mine,
                        PairOptions { locked, encoding },
                    ))
                };
                let pair = make(70)?;
                rounds(&comm, &pair, 0..3)?;
                let saved = pair.blocking().save()?;
                let values = pair.blocking().save()?;
                let expected = (rounds(&comm, &pair, 3..6)?, pair.exchanges());
                let again = make(70)?;
                again.blocking().restore(saved)?;
                let went_on = (rounds(&comm, &again, 3..6)?, again.exchanges());
                assert!(went_on == expected, "{feedback:?}, locked {locked}, over {transport}");
                // The memory of partners is part of it.
                let forgetful = make(70)?;
                forgetful
                    .blocking()
                    .restore(values.into_iter().filter(|(name, _)| name.starts_with("value of ")))?;
                let differs = rounds(&comm, &forgetful, 3..6)? != expected.0;
                assert_eq!(differs, feedback == Feedback::Difference, "locked {locked}, over {transport}");
                let refused = make(69)?.blocking().restore(pair.blocking().save()?);
                assert!(matches!(refused, Err(Error::Usage { .. })), "{refused:?}");
                comm.blocking().barrier()?;
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn wrong_partners_are_refused() {
    for (transport, ranks) in cases(&[2]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let mine = testing::buffer(&[0f32]);
            let pair = comm.block_on(PairExchange::create(&comm, &service, &mine, PairOptions::default()))?;
            for peer in [comm.rank(), 2] {
                assert!(matches!(pair.exchange(peer).blocking(), Err(Error::Usage { .. })));
            }
            let options = PairOptions { locked: false, encoding: Some(half(Feedback::Error)) };
            assert!(matches!(
                comm.block_on(PairExchange::create(&comm, &service, &mine, options)),
                Err(Error::Usage { .. })
            ));
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn a_value_that_is_not_finite_is_named_where_it_is() {
    for transport in on_threads() {
        let open = std::sync::Barrier::new(2);
        let errors = spawn(transport, 2, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            open.wait();
            let mine = testing::buffer(&[0.0, if comm.rank() == 0 { f32::NAN } else { 1.0 }]);
            let options = PairOptions { locked: false, encoding: Some(half(Feedback::None)) };
            let pair = comm.block_on(PairExchange::create(&comm, &service, &mine, options))?;
            // No rank fails while the other is still creating its part.
            open.wait();
            // The other rank computes the difference, and cannot encode it.
            let exchanged = if comm.rank() == 0 { pair.exchange(1).blocking().map(drop) } else { Ok(()) };
            Ok(exchanged.and(service.blocking().close()).unwrap_err().to_string())
        });
        for error in errors.unwrap() {
            assert!(error.contains("element 1 is NaN on rank 0 "), "{error}");
        }
    }
}
