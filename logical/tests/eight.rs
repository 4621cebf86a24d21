//! The eight trigrams, each by one of its primitives, on every transport with 2 to 8 ranks: the table of the README.
//!
//! Every rank begins with different numbers. The final result is the mean: exact where numbers travel unchanged and
//! every rank meets every other, and close to it otherwise.

use crate::matrix;
use hexagram_logical::asynchronous::{
    Add, Background, Clock, Model, PairExchange, PairOptions, Server, ServerOptions, Service,
};
use hexagram_logical::codec::MinMax8;
use hexagram_logical::decentralized::{GossipOptions, Topology};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing;
use hexagram_logical::{Buffer, Communicator, ReduceOp, Result};
use std::sync::{Arc, Mutex};

const RANKS: [usize; 7] = [2, 3, 4, 5, 6, 7, 8];
const LEN: usize = 5000;
/// How far from the mean numbers between 0 and 8 may be that have been encoded in 8 bits some times.
const NEAR: f32 = 0.1;

/// Multiples of 1/8, whose sums are exact.
fn number(rank: usize, at: usize) -> f32 {
    ((rank * 11 + at * 7) % 64) as f32 / 8.0
}

fn mine(comm: &Communicator) -> Result<Buffer> {
    let numbers: Vec<f32> = (0..LEN).map(|at| number(comm.rank(), at)).collect();
    Ok(testing::buffer(&numbers))
}

fn sum(ranks: usize) -> Vec<f32> {
    (0..LEN).map(|at| (0..ranks).map(|rank| number(rank, at)).sum()).collect()
}

fn mean(ranks: usize) -> Vec<f32> {
    sum(ranks).iter().map(|sum| (f64::from(*sum) / ranks as f64) as f32).collect()
}

fn eight_bits(feedback: Feedback) -> Encoding {
    Encoding::new(Arc::new(MinMax8::default())).with_feedback(feedback)
}

/// The largest distance of any rank's numbers from the mean.
fn distance(comm: &Communicator, buffer: &Buffer) -> Result<f32> {
    let far = |(x, mean): (&f32, f32)| (x - mean).abs();
    let mut far = [buffer.host::<f32>()?.iter().zip(mean(comm.size())).map(far).fold(0.0, f32::max)];
    comm.blocking().all_reduce(&mut far, ReduceOp::Max)?;
    Ok(far[0])
}

fn assert_identical(comm: &Communicator, buffer: &Buffer) -> Result<()> {
    let mine: Vec<i32> = buffer.host::<f32>()?.iter().map(|x| x.to_bits() as i32).collect();
    let mut low = mine.clone();
    let mut high = mine;
    comm.blocking().all_reduce(&mut low, ReduceOp::Min)?;
    comm.blocking().all_reduce(&mut high, ReduceOp::Max)?;
    assert_eq!(low, high, "ranks differ");
    Ok(())
}

/// Does `service`'s work, and closes it when all ranks have done theirs.
fn serving<R>(comm: &Communicator, work: impl FnOnce(&Service) -> Result<R>) -> Result<R> {
    let service = comm.block_on(Service::start(comm))?;
    let result = work(&service)?;
    comm.blocking().barrier()?;
    service.blocking().close()?;
    Ok(result)
}

#[test]
fn centralized_synchronous_full_precision() {
    matrix(&RANKS, |comm| {
        let mut buffer = mine(comm)?;
        comm.block_on(comm.all_reduce(&mut buffer, ReduceOp::Mean))?;
        assert_eq!(*buffer.host::<f32>()?, mean(comm.size()));
        Ok(())
    });
}

#[test]
fn centralized_synchronous_low_precision() {
    matrix(&RANKS, |comm| {
        let mut buffer = mine(comm)?;
        let mut encoding = eight_bits(Feedback::TwoLevel);
        comm.block_on(comm.all_reduce_encoded(&mut buffer, ReduceOp::Mean, &mut encoding))?;
        assert_identical(comm, &buffer)?;
        assert!(distance(comm, &buffer)? < NEAR);
        Ok(())
    });
}

#[test]
fn decentralized_synchronous_full_precision() {
    matrix(&RANKS, |comm| {
        let mut buffer = mine(comm)?;
        for step in 0..60 {
            comm.block_on(comm.gossip(&mut buffer, &Topology::Exponential, step))?;
        }
        assert!(distance(comm, &buffer)? < 1e-4);
        Ok(())
    });
}

#[test]
fn decentralized_synchronous_low_precision() {
    matrix(&RANKS, |comm| {
        let mut buffer = mine(comm)?;
        let mut encoding = eight_bits(Feedback::Difference);
        let options = GossipOptions { consensus: 0.9, ..GossipOptions::default() };
        for step in 0..60 {
            let schedule = &Topology::Exponential;
            comm.block_on(comm.gossip_encoded(&mut buffer, schedule, step, &mut encoding, options))?;
        }
        assert!(distance(comm, &buffer)? < NEAR);
        Ok(())
    });
}

/// Every rank pushes its numbers in three parts, one a clock, and pulls the sum of all.
fn push_and_pull(comm: &Communicator, options: fn() -> ServerOptions) -> Result<Buffer> {
    serving(comm, |service| {
        let clock = comm.block_on(Clock::start(comm, service, 1))?;
        let mut x = testing::buffer(&[0.0f32; LEN]);
        let mut server = comm.block_on(Server::start(comm, service, &clock, &x, Add, options()))?;
        for part in 0..3 {
            let range = part * LEN / 3..(part + 1) * LEN / 3;
            let numbers: Vec<f32> = range.clone().map(|at| number(comm.rank(), at)).collect();
            server.blocking().pull(range.clone(), &mut testing::buffer(&numbers))?;
            server.blocking().push(range, &testing::buffer(&numbers))?;
            clock.tick();
        }
        clock.blocking().settle()?;
        server.blocking().pull(0..LEN, &mut x)?;
        Ok(x)
    })
}

#[test]
fn centralized_asynchronous_full_precision() {
    matrix(&RANKS, |comm| {
        let x = push_and_pull(comm, ServerOptions::default)?;
        assert_eq!(*x.host::<f32>()?, sum(comm.size()));
        Ok(())
    });
}

#[test]
fn centralized_asynchronous_low_precision() {
    matrix(&RANKS, |comm| {
        let encoded = || ServerOptions {
            pushed: Some(eight_bits(Feedback::Error)),
            pulled: Some(eight_bits(Feedback::None)),
        };
        let x = push_and_pull(comm, encoded)?;
        let far = |(x, sum): (&f32, f32)| (x - sum).abs() / comm.size() as f32;
        assert!(x.host::<f32>()?.iter().zip(sum(comm.size())).map(far).all(|far| far < NEAR));
        let model: Model = Arc::new(Mutex::new(mine(comm)?));
        let background = comm.block_on(Background::start(comm))?;
        let encoding = Arc::new(Mutex::new(eight_bits(Feedback::None)));
        background.post_mean_encoded(&model, &encoding).blocking()?;
        let model = model.lock().unwrap();
        assert!(distance(comm, &model)? < NEAR);
        Ok(())
    });
}

/// Every rank averages with every other rank, at random times, several times.
fn average_in_pairs(comm: &Communicator, options: fn() -> PairOptions) -> Result<Buffer> {
    serving(comm, |service| {
        let pair = comm.block_on(PairExchange::create(comm, service, &mine(comm)?, options()))?;
        for peer in (0..10).flat_map(|_| 0..comm.size()).filter(|peer| *peer != comm.rank()) {
            pair.exchange(peer).blocking()?;
        }
        comm.blocking().barrier()?;
        let mut buffer = mine(comm)?;
        pair.blocking().load(&mut buffer)?;
        Ok(buffer)
    })
}

#[test]
fn decentralized_asynchronous_full_precision() {
    matrix(&RANKS, |comm| {
        let locked = || PairOptions { locked: true, encoding: None };
        let buffer = average_in_pairs(comm, locked)?;
        assert!(distance(comm, &buffer)? < NEAR);
        Ok(())
    });
}

#[test]
fn decentralized_asynchronous_low_precision() {
    matrix(&RANKS, |comm| {
        let encoded = || PairOptions { locked: true, encoding: Some(eight_bits(Feedback::Difference)) };
        let buffer = average_in_pairs(comm, encoded)?;
        assert!(distance(comm, &buffer)? < 2.0 * NEAR);
        Ok(())
    });
}
