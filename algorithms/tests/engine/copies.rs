//! What a training on a device copies to the host beside its messages: nothing, but for the numbers that the host needs.

use hexagram_algorithms::bytegrad::ByteGrad;
use hexagram_algorithms::d_psgd::DPsgd;
use hexagram_algorithms::logical::testing::{Late, spawn};
use hexagram_algorithms::logical::{Buffer, Communicator, DType, Result, TransportKind};
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::{
    AnyAlgorithm, DataParallel, EngineOptions, GradientAllReduce, Mode, Order, Parameter, optimizer,
};

const SHAPES: [&[usize]; 3] = [&[9, 14], &[9], &[40]];
const STEPS: u64 = 6;

/// Returns how often a step of one rank copies down, and how many bytes, in the mean of the steps after the first.
fn copied(
    comm: &Communicator,
    algorithm: AnyAlgorithm,
    optimizer: &str,
    clip_norm: Option<f64>,
) -> Result<[f64; 2]> {
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
    let mut before = [0, 0];
    for step in 0..STEPS {
        if step == 1 {
            before = [late.copies_down(), late.bytes_down()];
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
    let after = [late.copies_down(), late.bytes_down()];
    Ok([0, 1].map(|at| (after[at] - before[at]) as f64 / (STEPS - 1) as f64))
}

/// Returns the same of all ranks, which are alike.
fn each(algorithm: impl Into<AnyAlgorithm>, optimizer: &str, clip_norm: Option<f64>) -> [f64; 2] {
    let algorithm = algorithm.into();
    let run = |comm: Communicator| copied(&comm, algorithm.clone(), optimizer, clip_norm);
    let found = spawn(TransportKind::Thread, 2, run).unwrap();
    assert_eq!(found[0], found[1], "{algorithm:?} with {optimizer}");
    found[0]
}

#[test]
fn steps_copy_nothing_down_but_messages() {
    let optimizers = [
        "sgd",
        "sgd(momentum=0.9, nesterov=true)",
        "adam",
        "adamw",
        "lion",
        "lamb",
        "lars(scale_vectors=true)",
    ];
    for optimizer in optimizers {
        assert_eq!(each(GradientAllReduce, optimizer, None), [0.0, 0.0], "{optimizer}");
    }
    for optimizer in ["sgd(momentum=0.9)", "adam"] {
        assert_eq!(each(ByteGrad::default(), optimizer, None), [0.0, 0.0], "{optimizer}");
        assert_eq!(each(DPsgd::default(), optimizer, None), [0.0, 0.0], "{optimizer}");
    }
    let frozen = QAdam { warmup: 3, ..QAdam::default() };
    assert_eq!(each(frozen, "sgd", None), [0.0, 0.0]);
}

#[test]
fn a_norm_is_copied_once_a_step() {
    // Two buckets, of which each has a sum of 8 bytes.
    assert_eq!(each(GradientAllReduce, "sgd", Some(0.1)), [1.0, 16.0]);
}
