//! Bagua's low-precision decentralized: against a reference in which every rank keeps a replica of each neighbour,
//! after a switch, and over hosts.

use super::*;
use hexagram_algorithms::EngineOptions;
use hexagram_algorithms::logical::codec::{Codec, MinMax8};
use hexagram_algorithms::logical::testing::{queue, spawn_hosts, transports};

const LEN: usize = 3000;
const RATE: f32 = 0.1;

fn gradient(rank: usize, step: usize, x: &[f32]) -> Vec<f32> {
    let noise = |at: usize| ((at * 7 + rank * 31 + step * 13) as f32 * 0.7391).sin() / 2.0;
    x.iter().enumerate().map(|(at, x)| 0.5 * x - noise(at)).collect()
}

/// The values that a receiver decodes from x.
fn decoded(x: &[f32]) -> Vec<f32> {
    let codec = MinMax8::default();
    let mut message = vec![0; codec.encoded_len(x.len())];
    let mut result = vec![0.0; x.len()];
    let bytes = codec.encode(x, &mut message, 0).unwrap();
    codec.decode_add(&message[..bytes], 1.0, &mut result).unwrap();
    result
}

fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// Bagua's rule with its two replicas per rank, which are compared with the replicas they represent.
fn reference(mut own: Vec<Vec<f32>>, steps: std::ops::Range<usize>, interval: usize) -> Vec<Vec<f32>> {
    let ranks = own.len();
    let neighbours = |rank: usize| ((rank + ranks - 1) % ranks, (rank + 1) % ranks);
    let mut left: Vec<Vec<f32>> = (0..ranks).map(|rank| own[neighbours(rank).0].clone()).collect();
    let mut right: Vec<Vec<f32>> = (0..ranks).map(|rank| own[neighbours(rank).1].clone()).collect();
    let mut x = own.clone();
    for step in steps {
        for (rank, x) in x.iter_mut().enumerate() {
            let gradient = gradient(rank, step, x);
            x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= RATE * g);
        }
        if !step.is_multiple_of(interval) {
            continue;
        }
        let difference = |rank: usize, at: usize| {
            let known = (left[rank][at] + right[rank][at]) / 3.0 - own[rank][at] * 5.0 / 3.0;
            x[rank][at] + known
        };
        let said: Vec<Vec<f32>> = (0..ranks)
            .map(|rank| decoded(&(0..LEN).map(|at| difference(rank, at)).collect::<Vec<_>>()))
            .collect();
        for rank in 0..ranks {
            add(&mut own[rank], &said[rank]);
            add(&mut left[rank], &said[neighbours(rank).0]);
            add(&mut right[rank], &said[neighbours(rank).1]);
        }
        x.clone_from(&own);
        for rank in 0..ranks {
            assert_eq!((&left[rank], &right[rank]), (&own[neighbours(rank).0], &own[neighbours(rank).1]));
        }
    }
    x
}

/// Up to two codes where the last bit of a sum differs, and a fraction where that element was the largest of a block.
fn assert_close(found: &[Vec<f32>], expected: &[Vec<f32>]) {
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    let off: Vec<f32> = pairs.map(|(a, b)| (a - b).abs()).collect();
    let most = off.iter().copied().fold(0.0, f32::max);
    let mean = off.iter().sum::<f32>() / off.len() as f32;
    assert!(most < 4e-3 && mean < 4e-4, "off by {most} at most, by {mean} on average");
}

fn low_precision(interval: u64) -> Algorithm {
    LowPrecisionDecentralized { interval, ..LowPrecisionDecentralized::default() }.into()
}

#[test]
fn it_is_what_bagua_computes() {
    for (interval, ranks) in [(1, 4), (2, 4), (1, 3), (3, 5)] {
        let place = (TransportKind::Thread, ranks);
        let setup = Setup { learning_rate: f64::from(RATE), ..Setup::default() };
        let found = train(place, &low_precision(interval), &setup, &[0.7; LEN], 15, gradient).unwrap();
        let expected = reference(vec![vec![0.7; LEN]; ranks], 0..15, interval as usize);
        assert_close(&found, &expected);
    }
}

#[test]
fn what_is_known_of_neighbours_is_right_after_a_switch() {
    let runs = spawn(TransportKind::Thread, 4, |comm| {
        let before = Arc::new(Decentralized::new(Topology::ShiftOne, 1));
        let setup = Setup { learning_rate: f64::from(RATE), ..Setup::default() };
        let mut trainer = Trainer::new(&comm, before, setup, &[vec![0.7f32; LEN]])?;
        for step in 0..6 {
            trainer.step(|_, x| gradient(comm.rank(), step, x))?;
        }
        trainer.engine().switch(low_precision(1))?;
        let switched = trainer.parameters()?.remove(0);
        for step in 6..20 {
            trainer.step(|_, x| gradient(comm.rank(), step, x))?;
        }
        Ok((switched, trainer.parameters()?.remove(0)))
    });
    let (switched, found): (Vec<_>, Vec<_>) = runs.unwrap().into_iter().unzip();
    assert_close(&found, &reference(switched, 6..20, 1));
}

#[test]
fn replicas_agree_once_there_are_no_gradients() {
    for transport in transports() {
        let gradient = |rank: usize, step: usize, x: &[f32]| {
            if step < 5 { gradient(rank, step, x) } else { vec![0.0; x.len()] }
        };
        let place = (transport, 4);
        let found = train(place, &low_precision(1), &Setup::default(), &[0.7; LEN], 45, gradient).unwrap();
        for replica in &found {
            assert_close(std::slice::from_ref(replica), &found[..1]);
        }
    }
}

#[test]
fn hosts_take_the_place_of_ranks() {
    let engine = EngineOptions { hierarchical: true, ..Setup::default().engine };
    let setup = Setup { engine, learning_rate: f64::from(RATE), ..Setup::default() };
    let noise = |rank: usize, step: usize| gradient(rank, step, &[0.0; LEN]);
    let of_ranks = spawn_hosts(&[0, 0, 1, 1], |comm| {
        let mut trainer = Trainer::new(&comm, low_precision(1), setup.clone(), &[vec![0.7f32; LEN]])?;
        for step in 0..10 {
            trainer.step(|_, _| noise(comm.rank(), step))?;
        }
        Ok(trainer.parameters()?.remove(0))
    });
    let of_hosts = |host: usize, step: usize, _: &[f32]| -> Vec<f32> {
        let pair = noise(2 * host, step).into_iter().zip(noise(2 * host + 1, step));
        pair.map(|(one, other)| (one + other) / 2.0).collect()
    };
    let setup = Setup { learning_rate: f64::from(RATE), ..Setup::default() };
    let place = (TransportKind::Thread, 2);
    let expected = train(place, &low_precision(1), &setup, &[0.7; LEN], 10, of_hosts).unwrap();
    let of_ranks = of_ranks.unwrap();
    assert_eq!((&of_ranks[0], &of_ranks[2]), (&of_ranks[1], &of_ranks[3]));
    assert_close(&[of_ranks[0].clone(), of_ranks[2].clone()], &expected);
}

#[test]
fn the_bytes_are_those_of_its_header() {
    let eighth = (32768.0 + 8.0 * 16.0) / (4.0 * 32768.0);
    for (interval, ranks, neighbours) in [(1, 4, 2.0), (2, 3, 2.0), (1, 2, 1.0)] {
        assert_sends(ranks, 4, &low_precision(interval), neighbours * eighth / interval as f64);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let error = refusal(2, &low_precision(0));
    assert!(matches!(error, Error::Usage { .. }) && error.to_string().contains("is 0"), "{error}");
    let gradient = |_: usize, _: usize, x: &[f64]| x.to_vec();
    let place = (TransportKind::Thread, 2);
    let error = train(place, &low_precision(1), &Setup::default(), &[1.0f64; 4], 1, gradient).unwrap_err();
    assert!(matches!(error, Error::Usage { .. }) && error.to_string().contains("encode"), "{error}");
}

#[test]
fn a_gradient_that_is_not_finite_ends_all_ranks_and_names_its_place() {
    let errors = spawn(TransportKind::Thread, 3, |comm| {
        let mut trainer = Trainer::new(&comm, low_precision(1), Setup::default(), &[vec![1.0f32; 9]])?;
        let mut gradient = [1.0; 9];
        let mut step = |step| {
            gradient[2] = if (comm.rank(), step) == (1, 3) { f32::NAN } else { 1.0 };
            trainer.step(|_, _| gradient.to_vec())
        };
        Ok((0..9).find_map(|at| step(at).err()).unwrap().to_string())
    });
    let errors = errors.unwrap();
    // A device reports an error late, when the bucket is no longer known.
    let named = if queue().is_host() { "element 2 of p0" } else { "element 2" };
    assert!(errors[1].contains(named), "{}", errors[1]);
    // A GPU does so after the message has left; the error of the rank is then that of the device.
    let is_told_by_gpu = errors[1].contains("on cuda:");
    let told = |error: &String| error.contains("element 2") && error.contains("on rank 1");
    let told_of_gpu = |error: &String| error.contains("rank 1 ") || error.contains("element 2 is NaN");
    assert!(errors.iter().all(if is_told_by_gpu { told_of_gpu } else { told }), "{errors:?}");
}
