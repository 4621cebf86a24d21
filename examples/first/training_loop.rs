//! Fits y = 3x on four ranks, each with its own points: the engine averages the gradients, and steps.

use hexagram::{
    Buffer, Communicator, DType, DataParallel, EngineOptions, GradientAllReduce, Mode, Parameter, Result,
    Sgd, TransportKind, testing,
};
use std::sync::Arc;

fn train(comm: &Communicator) -> Result<f32> {
    let parameter = Parameter { name: "w".to_owned(), dtype: DType::F32, shape: vec![1] };
    let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..EngineOptions::default() };
    let mut engine = DataParallel::new(comm, vec![parameter], Arc::new(GradientAllReduce), options)?;
    engine.set_learning_rate(0.1);
    let hooks = engine.hooks();
    let values = Buffer::zeroed(DType::F32, 1)?;
    let mut w = 0.0;
    for step in 0..50 {
        let x = 1.0 + (step + comm.rank()) as f32 % 3.0 / 3.0;
        engine.forward()?;
        engine.begin(Mode::Synchronize)?;
        // The gradient of (wx − 3x)², from the backward pass of this rank.
        hooks.ready_slice(0, &[2.0 * x * (w * x - 3.0 * x)])?;
        engine.finish_and_step()?;
        values.write_all()?.copy_from(&engine.parameter(0)?)?;
        w = values.host::<f32>()?[0];
    }
    Ok(w)
}

fn main() -> Result<()> {
    let weights = testing::spawn(TransportKind::Shm, 4, |comm| train(&comm))?;
    assert!(weights.iter().all(|w| (w - 3.0).abs() < 1e-3 && *w == weights[0]));
    Ok(())
}

#[test]
fn it_runs() -> Result<()> {
    main()
}
