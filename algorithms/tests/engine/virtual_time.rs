//! A training in a world with a virtual clock: the communication thread of the engine is a task of that world, and slow
//! ranks cost virtual time, not real time.

use crate::virtual_ranks::in_virtual_time;
use hexagram_algorithms::logical::runtime;
use hexagram_algorithms::logical::{Buffer, Communicator, DType, Result};
use hexagram_algorithms::{DataParallel, EngineOptions, GradientAllReduce, Mode, Parameter, Sgd};
use std::sync::Arc;
use std::time::Duration;

/// Trains three steps, each with `rank + 1` seconds of computation on this rank; returns the end of each step, and the
/// weights.
fn train(comm: &Communicator) -> Result<(Vec<Duration>, Vec<u8>)> {
    let start = runtime::now();
    let weights = Parameter { name: "weights".into(), dtype: DType::F32, shape: vec![2] };
    let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..EngineOptions::default() };
    let mut engine = DataParallel::new(comm, vec![weights], Arc::new(GradientAllReduce), options)?;
    engine.set_learning_rate(0.5);
    engine.set_parameter(0, &Buffer::from_slice(&[1.0f32, 1.0])?)?;
    let mut ended = Vec::new();
    for _ in 0..3 {
        engine.begin(Mode::Synchronize)?;
        runtime::sleep(Duration::from_secs(comm.rank() as u64 + 1));
        engine.hooks().ready_slice(0, &[2.0 * comm.rank() as f32, 1.0])?;
        engine.finish()?;
        engine.step()?;
        ended.push(start.elapsed());
    }
    Ok((ended, engine.parameter(0)?.host_bytes().unwrap_or_default().to_vec()))
}

#[test]
fn a_step_takes_as_long_as_the_slowest_rank_in_virtual_time() {
    let trained = || in_virtual_time(2, train);
    let first = trained();
    for (ended, weights) in &first {
        let seconds: Vec<u64> = ended.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [2, 4, 6]);
        assert_eq!(*weights, first[0].1);
    }
    assert!((0..3).all(|_| trained() == first), "a run differs from the first");
}
