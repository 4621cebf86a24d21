//! Ranks with different amounts of data.

use super::*;
use std::sync::Barrier;

fn uneven(order: Order) -> EngineOptions {
    EngineOptions { uneven: true, order, ..options(40, 40) }
}

/// Steps of each rank.
const BATCHES: [usize; 3] = [2, 5, 0];

/// γ of each step.
fn rate(step: usize) -> f64 {
    1.0 / (1 << step) as f64
}

/// Trains with gradients of rank + 1, joins, and returns the parameters and the number of steps.
fn train(transport: TransportKind, order: Order, algorithm: fn() -> AnyAlgorithm) -> Vec<(f32, u64)> {
    let found = spawn(transport, 3, |comm| {
        let mut engine = trained_by(&comm, parameters(2, 10), algorithm(), uneven(order), (7.0, 0.0))?;
        for step in 0..BATCHES[comm.rank()] {
            engine.set_learning_rate(rate(step));
            engine.forward()?;
            pass(&mut engine, Mode::Synchronize, &vec![vec![comm.rank() as f32 * 3.0 + 3.0; 10]; 2])?;
            engine.step()?;
        }
        engine.uneven().join()?;
        Ok((value(&engine, 1)[7], engine.steps()))
    });
    found.unwrap()
}

#[test]
fn replicas_stay_identical_and_means_are_over_all_ranks() {
    let mut expected = 0.0;
    for step in 0..5 {
        let sum = if step < 2 { 3.0 + 6.0 } else { 6.0 };
        expected -= rate(step) as f32 * sum / 3.0;
    }
    for (transport, order) in
        transports().into_iter().flat_map(|t| [(t, Order::Listed), (t, Order::Observed)])
    {
        let found = train(transport, order, || GradientAllReduce.into());
        assert_eq!(found, [(expected, 5); 3], "{transport}, {order:?}");
    }
}

#[test]
fn local_sgd_goes_on_with_joined_ranks() {
    // In every fourth step all replicas become their mean; only rank 1 makes the fifth.
    let alone = |rank: usize, steps: std::ops::Range<usize>| -> f32 {
        steps
            .filter(|step| *step < BATCHES[rank])
            .map(|step| -rate(step) as f32 * (rank as f32 * 3.0 + 3.0))
            .sum()
    };
    let mean = (alone(0, 0..4) + alone(1, 0..4) + alone(2, 0..4)) / 3.0;
    for transport in transports() {
        let found =
            train(transport, Order::Observed, || LocalSgd { period: 4, ..LocalSgd::default() }.into());
        for (rank, (x, steps)) in found.into_iter().enumerate() {
            let expected = mean + alone(rank, 4..5);
            assert!(
                (x - expected).abs() < 1e-6 && steps == 5,
                "{transport}, rank {rank}: {x}, not {expected}"
            );
        }
    }
}

#[test]
fn what_was_only_accumulated_counts_in_the_next_step() {
    let found = spawn(TransportKind::Thread, 2, |comm| {
        let algorithm = Arc::new(GradientAllReduce);
        let mut engine = trained_by(&comm, parameters(1, 10), algorithm, uneven(Order::Listed), (1.0, 0.0))?;
        if comm.rank() == 0 {
            pass(&mut engine, Mode::Accumulate, &[vec![4.0; 10]])?;
        } else {
            pass(&mut engine, Mode::Synchronize, &[vec![2.0; 10]])?;
            engine.step()?;
        }
        engine.uneven().join()?;
        Ok(value(&engine, 0)[0])
    });
    assert_eq!(found.unwrap(), [-3.0; 2]);
}

#[test]
fn overflows_and_clipping_hold_for_joined_ranks_too() {
    let found = spawn(TransportKind::Shm, 2, |comm| {
        let loss_scale = Some(LossScale { initial: 4.0, ..LossScale::default() });
        let options = EngineOptions { loss_scale, clip_norm: Some(1.0), ..uneven(Order::Observed) };
        let algorithm = Arc::new(GradientAllReduce);
        let mut engine = trained_by(&comm, parameters(1, 1), algorithm, options, (1.0, 0.0))?;
        for g in [f32::INFINITY, 8.0, 16.0].into_iter().filter(|_| comm.rank() == 1) {
            pass(&mut engine, Mode::Synchronize, &[vec![g]])?;
            engine.step()?;
        }
        engine.uneven().join()?;
        Ok((value(&engine, 0)[0], engine.steps(), engine.loss_scaling().scale()))
    });
    assert_eq!(found.unwrap(), [(-2.0, 2, 2.0); 2]);
}

#[test]
fn a_framework_that_steps_by_itself_shadows() {
    let found = spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = engine(&comm, parameters(1, 1), uneven(Order::Observed))?;
        let mut x = 0.0;
        let batches = [1, 3][comm.rank()];
        for _ in 0..batches {
            pass(&mut engine, Mode::Synchronize, &[vec![2.0]])?;
            x -= gradient(&engine, 0)[0];
            engine.stepped()?;
        }
        while engine.uneven().shadow()? {
            x -= gradient(&engine, 0)[0];
            engine.stepped()?;
        }
        Ok((x, engine.steps()))
    });
    assert_eq!(found.unwrap(), [(-4.0, 3); 2]);
}

/// Rank 0 has joined, and announces it, before rank 1 makes its next steps; no rank hangs.
#[test]
fn of_an_asynchronous_algorithm_nobody_waits() {
    let joined = Barrier::new(2);
    let found = spawn(TransportKind::Thread, 2, |comm| {
        let mut probe = Probe::new(|_, _| Act::Nothing);
        probe.synchronous = false;
        let algorithm = Arc::new(probe);
        let mut engine = trained_by(&comm, parameters(1, 1), algorithm, uneven(Order::Observed), (1.0, 0.0))?;
        if comm.rank() == 0 {
            engine.uneven().join()?;
            joined.wait();
        } else {
            for step in 0..4 {
                pass(&mut engine, Mode::Synchronize, &[vec![1.0]])?;
                engine.step()?;
                if step == 0 {
                    joined.wait();
                }
            }
            engine.uneven().join()?;
        }
        engine.average()?;
        Ok((value(&engine, 0)[0], engine.steps()))
    });
    assert_eq!(found.unwrap(), [(-2.0, 1), (-2.0, 4)], "rank 0's one step is of zeros");
}

/// Background work begins and ends on all ranks, including those without data.
#[test]
fn asynchronous_algorithms_end_with_any_numbers_of_steps() {
    let algorithms: [fn() -> AnyAlgorithm; 3] = [
        || crate::async_model_average::AsyncModelAverage::default().into(),
        || crate::ad_psgd::AdPsgd::default().into(),
        || crate::ssp::Ssp::default().into(),
    ];
    for (algorithm, order) in algorithms.into_iter().flat_map(|a| [(a, Order::Listed), (a, Order::Observed)])
    {
        for (x, steps) in train(TransportKind::Thread, order, algorithm) {
            assert!(x.is_finite() && [1, 2, 5].contains(&steps), "{:?}", algorithm());
        }
    }
}

#[test]
fn a_rank_alone_has_nobody_to_wait_for() {
    let found = spawn(TransportKind::Thread, 1, |comm| {
        let algorithm = Arc::new(GradientAllReduce);
        let mut engine = trained_by(&comm, parameters(1, 1), algorithm, uneven(Order::Observed), (1.0, 0.0))?;
        pass(&mut engine, Mode::Synchronize, &[vec![2.0]])?;
        engine.step()?;
        engine.uneven().join()?;
        Ok((value(&engine, 0)[0], engine.steps()))
    });
    assert_eq!(found.unwrap(), [(-2.0, 1)]);
}

#[test]
fn joining_has_to_be_announced() {
    spawn(TransportKind::Thread, 1, |comm| {
        let mut engine = engine(&comm, parameters(1, 1), options(4, 4))?;
        let text = engine.uneven().join().unwrap_err().to_string();
        assert!(text.contains("set the option `uneven` on all ranks"), "{text}");
        Ok(())
    })
    .unwrap();
}
