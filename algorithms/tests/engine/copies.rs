//! Copies to the host during a training on a device, apart from messages: only the numbers that the host needs.

use super::warmed_up::{SAMPLE, algorithms, common_places, sampled};
use hexagram_algorithms::bytegrad::ByteGrad;
use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::d_psgd::DPsgd;
use hexagram_algorithms::logical::testing::{Late, is_deep, spawn};
use hexagram_algorithms::logical::{Buffer, Communicator, DType, Result, TransportKind};
use hexagram_algorithms::testing::fitting;
use hexagram_algorithms::{
    AnyAlgorithm, DataParallel, EngineOptions, GradientAllReduce, Mode, Order, Parameter, Sgd, optimizer,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const SHAPES: [&[usize]; 3] = [&[9, 14], &[9], &[40]];
/// Number of steps, larger than the periods and warm-ups of most variants of algorithms.
const STEPS: u64 = 10;

/// Returns the number of copies to the host, and their bytes, per step of one rank, on average over the steps after the
/// first.
fn copied(
    comm: &Communicator,
    algorithm: AnyAlgorithm,
    optimizer: &str,
    clip_norm: Option<f64>,
) -> Result<[f64; 2]> {
    let counts = |late: &Late| [late.copies_down(), late.bytes_down()];
    let [before, after] = trained(comm, algorithm, optimizer, clip_norm, counts)?;
    Ok([0, 1].map(|at| (after[at] - before[at]) as f64 / (STEPS - 1) as f64))
}

/// Trains, and returns the counters of the device after the first step, and at the end.
fn trained<C: Default>(
    comm: &Communicator,
    algorithm: AnyAlgorithm,
    optimizer: &str,
    clip_norm: Option<f64>,
    counts: impl Fn(&Late) -> C,
) -> Result<[C; 2]> {
    let late = Late::new(1);
    let options = EngineOptions {
        optimizer: Some(optimizer::named(optimizer)?),
        queue: late.queue(),
        order: Order::Listed,
        first_bucket_bytes: 100,
        bucket_bytes: 100,
        clip_norm,
        ..EngineOptions::default()
    };
    let parameter = |(index, shape): (usize, &&[usize])| Parameter {
        name: format!("p{index}"),
        dtype: DType::F32,
        shape: shape.to_vec(),
    };
    let parameters = SHAPES.iter().enumerate().map(parameter).collect();
    let mut engine = DataParallel::new(comm, parameters, algorithm, options)?;
    engine.set_learning_rate(0.05);
    let mut before = C::default();
    for step in 0..STEPS {
        if step == 1 {
            before = counts(&late);
        }
        engine.forward()?;
        let hooks = engine.hooks();
        engine.begin(Mode::Synchronize)?;
        for (index, shape) in SHAPES.iter().enumerate().rev() {
            let values = vec![0.5 + comm.rank() as f32 + step as f32; shape.iter().product()];
            hooks.ready(index, &Buffer::from_slice_on(&late.queue(), &values)?)?;
        }
        engine.finish_and_step()?;
    }
    Ok([before, counts(&late)])
}

/// Returns the same for all ranks, on which it is equal.
fn each(algorithm: impl Into<AnyAlgorithm>, optimizer: &str, clip_norm: Option<f64>) -> [f64; 2] {
    let algorithm = algorithm.into();
    let run = |comm: Communicator| copied(&comm, algorithm.clone(), optimizer, clip_norm);
    let ranks = if algorithm.trigram().synchronous { 2 } else { 1 };
    let found = spawn(TransportKind::Thread, ranks, run).unwrap();
    assert!(found.iter().all(|copies| *copies == found[0]), "{algorithm:?} with {optimizer}: {found:?}");
    found[0]
}

/// Algorithms that compute on the host: on matrices, or on the parameters of a server.
const ON_THE_HOST: [&str; 5] = ["compressed-ssp", "demo", "dion", "powersgd", "ssp"];

#[test]
fn algorithms_copy_nothing_down_but_messages() {
    let mut copying = BTreeSet::new();
    for algorithm in sampled(algorithms()) {
        let optimizer = fitting(&algorithm, Arc::new(Sgd { momentum: 0.9, ..Sgd::default() })).spelled();
        if each(algorithm.clone(), &optimizer, None) != [0.0, 0.0] {
            copying.insert(algorithm.name());
        }
    }
    let expected = ON_THE_HOST.iter().filter(|name| is_deep() || SAMPLE.contains(name));
    assert!(copying.iter().eq(expected), "{copying:?} copy down");
}

/// Only a build with the feature `cuda` has programs.
#[test]
fn programs_of_codecs_are_made_ready_once() {
    let prepared = |algorithm: AnyAlgorithm| {
        let run = |comm: Communicator| trained(&comm, algorithm.clone(), "sgd", None, Late::prepared);
        spawn(TransportKind::Thread, 2, run).unwrap()
    };
    // The programs that an engine loads for every algorithm.
    let [[always, later], _] = prepared(GradientAllReduce.into())[..] else { panic!("there are two ranks") };
    assert_eq!(always, later);
    let linear = CompressedAllReduce::Any(common_places());
    // Three per bucket, or two if decoded values are not added to anything.
    for (algorithm, programs) in [(ByteGrad::default().into(), 3), (linear.into(), 2)] {
        for [before, after] in prepared(algorithm) {
            let is_more = before >= always + programs;
            assert!(before == after && is_more == cfg!(feature = "cuda"), "{before}, {after}");
        }
    }
}

#[test]
fn optimizers_copy_nothing_down() {
    let optimizers = [
        "sgd",
        "sgd(momentum=0.9, nesterov=true)",
        "adam",
        "adamw",
        "lion",
        "lamb",
        "lars(scale_vectors=true)",
        "muon",
    ];
    for optimizer in optimizers {
        assert_eq!(each(GradientAllReduce, optimizer, None), [0.0, 0.0], "{optimizer}");
    }
    assert_eq!(each(ByteGrad::default(), "adam", None), [0.0, 0.0]);
    let linear = CompressedAllReduce::Any(common_places());
    assert_eq!(each(linear, "adam", None), [0.0, 0.0]);
    assert_eq!(each(DPsgd::default(), "adam", None), [0.0, 0.0]);
}

#[test]
fn a_norm_is_copied_once_a_step() {
    // Two buckets, each with a sum of 8 bytes.
    assert_eq!(each(GradientAllReduce, "sgd", Some(0.1)), [1.0, 16.0]);
}
