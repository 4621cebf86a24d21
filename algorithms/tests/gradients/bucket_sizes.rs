//! Compression per tensor does not depend on the division into buckets: all replicas are bit-identical.

use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::dgc::Dgc;
use hexagram_algorithms::ef21::{Ef21, Ef21Start};
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, EngineOptions};

const SHAPES: [&[usize]; 6] = [&[9, 11], &[9], &[3, 2, 4], &[1], &[40], &[20, 2]];

/// Returns all elements of the replicas of all ranks after training with buckets of `bytes` bytes.
fn replicas(algorithm: &(dyn Fn() -> AnyAlgorithm + Sync), bytes: usize) -> Vec<Vec<u32>> {
    let run = |comm: Communicator| {
        let shapes = SHAPES.map(<[usize]>::to_vec);
        let initial = shapes.clone().map(|shape| vec![1.0f32; shape.iter().product()]);
        let engine =
            EngineOptions { first_bucket_bytes: bytes, bucket_bytes: bytes, ..Setup::default().engine };
        let setup = Setup { engine, ..Setup::default() };
        let mut trainer = Trainer::with_shapes(&comm, algorithm(), setup, &initial, &shapes)?;
        for step in 0..9 {
            let target =
                |index: usize, at: usize| ((at * 7 + comm.rank() * 31 + index * 13 + step) % 101) as f32;
            trainer.step(|index, x| x.iter().enumerate().map(|(at, x)| x - target(index, at)).collect())?;
        }
        Ok(trainer.parameters()?.concat().iter().map(|x| x.to_bits()).collect())
    };
    spawn(TransportKind::Thread, 3, run).unwrap()
}

#[test]
fn the_cut_into_buckets_changes_nothing() {
    let algorithms: [&(dyn Fn() -> AnyAlgorithm + Sync); 4] = [
        &|| CompressedAllReduce::top_k().into(),
        &|| Dgc { warm_up: 2, weight_decay: 0.1, ..Dgc::default() }.into(),
        &|| Ef21::default().into(),
        &|| Ef21 { start: Ef21Start::Gradient, ..Ef21::default() }.into(),
    ];
    for algorithm in algorithms {
        let one = replicas(algorithm, usize::MAX);
        for bytes in [1, 400] {
            assert!(replicas(algorithm, bytes) == one, "{:?} with buckets of {bytes} bytes", algorithm());
        }
    }
}
