//! Switching between algorithms on one model: all ranks agree, and the optimizer state is kept.

use super::*;
use crate::engine::runner::HookStage;
use std::sync::Barrier;

/// Averages gradients, in one bucket, with parameters.
fn whole() -> AnyAlgorithm {
    let mut probe = Probe::new(|stage, _| match stage {
        HookStage::Gradients => Act::Mean,
        _ => Act::Nothing,
    });
    probe.needs.buckets = Buckets::Whole;
    probe.into()
}

fn momentum(order: Order) -> EngineOptions {
    let optimizer = Arc::new(Sgd { momentum: 0.9, weight_decay: 0.01, ..Sgd::default() });
    EngineOptions { optimizer: Some(optimizer), order, ..options(40, 80) }
}

/// Gradients that are the same on every rank: their mean over two is exact.
fn gradients(step: usize) -> Vec<Vec<f32>> {
    (0..4).map(|p| (0..10).map(|at| ((step * 7 + p * 3 + at) % 11) as f32 - 4.7).collect()).collect()
}

#[test]
fn the_optimizer_goes_on_bit_for_bit_through_other_buckets_and_needs() {
    let train = |order: Order, phases: fn() -> Vec<AnyAlgorithm>| {
        let found = spawn(TransportKind::Shm, 2, |comm| {
            let first = Arc::new(GradientAllReduce);
            let mut engine = trained_by(&comm, parameters(4, 10), first, momentum(order), (0.1, 1.0))?;
            let mut buckets = Vec::new();
            for (phase, algorithm) in phases().into_iter().enumerate() {
                engine.switch(algorithm)?;
                for step in 0..3 {
                    engine.forward()?;
                    pass(&mut engine, Mode::Synchronize, &gradients(phase * 3 + step))?;
                    engine.step()?;
                }
                buckets.push(engine.telemetry().buckets().len());
            }
            let parameters: Vec<Vec<f32>> = (0..4).map(|index| value(&engine, index)).collect();
            Ok((parameters, buckets, engine.steps()))
        });
        found.unwrap()
    };
    for order in [Order::Listed, Order::Observed] {
        let alone = train(order, || (0..5).map(|_| AnyAlgorithm::from(GradientAllReduce)).collect());
        let switching = train(order, || {
            let local = || AnyAlgorithm::from(LocalSgd { period: 1, ..LocalSgd::default() });
            vec![whole(), GradientAllReduce.into(), local(), whole(), local()]
        });
        assert_eq!(alone[0].1, [3; 5]);
        for (other, one) in switching.iter().zip(&alone) {
            assert_eq!((&other.0, other.2), (&one.0, one.2));
            assert_eq!(other.1, [1, 3, 3, 1, 3]);
        }
    }
}

#[test]
fn ranks_that_switch_to_different_algorithms_are_told_so_on_all_of_them() {
    for transport in transports() {
        let opened = Barrier::new(3);
        let errors = spawn(transport, 3, |comm| {
            let first = Arc::new(GradientAllReduce);
            let mut engine = trained_by(&comm, parameters(2, 4), first, options(40, 80), (0.1, 0.0))?;
            opened.wait();
            let period = if comm.rank() == 2 { 3 } else { 2 };
            Ok(engine.switch(Arc::new(LocalSgd { period, ..LocalSgd::default() })).err())
        });
        for error in errors.unwrap() {
            let text = error.unwrap().to_string();
            assert!(
                text.contains("`period` of local-sgd is 2 on rank 0, and it is 3 on rank 2"),
                "{transport}: {text}"
            );
        }
    }
}

#[test]
fn replicas_that_differ_become_their_mean_and_steps_the_largest_number() {
    let found = spawn(TransportKind::Tcp, 3, |comm| {
        let mut alone = Probe::new(|_, _| Act::Nothing);
        alone.synchronous = false;
        let algorithm = Arc::new(alone);
        let mut engine = trained_by(&comm, parameters(2, 4), algorithm, options(40, 80), (1.0, 9.0))?;
        engine.initial().prepare()?;
        for _ in 0..comm.rank() * 3 {
            pass(&mut engine, Mode::Synchronize, &vec![vec![1.0; 4]; 2])?;
            engine.step()?;
        }
        engine.switch(Arc::new(LocalSgd { period: 7, ..LocalSgd::default() }))?;
        assert_eq!((value(&engine, 1), engine.steps()), (vec![6.0; 4], 6), "the mean of 9, 6 and 3");
        // The seventh step is the first, on all ranks.
        pass(&mut engine, Mode::Synchronize, &vec![vec![comm.rank() as f32; 4]; 2])?;
        engine.step()?;
        Ok(value(&engine, 0))
    });
    assert_eq!(found.unwrap(), vec![[5.0; 4]; 3]);
}

#[test]
fn an_algorithm_that_needs_parameters_cannot_follow_without_them() {
    spawn(TransportKind::Thread, 1, |comm| {
        let mut engine = engine(&comm, parameters(1, 4), options(40, 80))?;
        let text = engine.switch(Arc::new(LocalSgd::default())).unwrap_err().to_string();
        assert!(text.contains("local-sgd works on parameters"), "{text}");
        Ok(())
    })
    .unwrap();
}
