//! The order of buckets: observed in the first pass of rank 0, and the same on all ranks.

use super::*;

/// Parameter i has i + 1 elements, and its own bucket, so the lengths of buckets show their order.
fn telling(count: usize) -> Vec<Parameter> {
    (0..count).map(|index| parameter(&format!("p{index}"), DType::F32, index + 1)).collect()
}

fn observed() -> EngineOptions {
    EngineOptions { order: Order::Observed, ..options(4, 4) }
}

fn lengths(engine: &DataParallel) -> Vec<usize> {
    engine.telemetry().buckets().into_iter().map(|(_, len)| len).collect()
}

/// A pass in which gradients arrive in this order, each filled with `value`.
fn in_order(engine: &mut DataParallel, mode: Mode, order: &[usize], value: f32) -> Result<()> {
    engine.begin(mode)?;
    for index in order {
        engine.hooks().ready_slice(*index, &vec![value; index + 1])?;
    }
    engine.finish()
}

#[test]
fn all_ranks_take_the_order_of_rank_0() {
    for transport in transports() {
        let found = spawn(transport, 3, |comm| {
            let mut engine = engine(&comm, telling(4), observed())?;
            assert_eq!(lengths(&engine), [4, 3, 2, 1], "until it is known");
            let order = [[2, 0, 3, 1], [0, 1, 2, 3], [3, 2, 1, 0]][comm.rank()];
            for step in 0..3 {
                in_order(&mut engine, Mode::Synchronize, &order, (comm.rank() + step) as f32)?;
                for index in 0..4 {
                    assert_eq!(gradient(&engine, index), vec![1.0 + step as f32; index + 1]);
                }
            }
            Ok(lengths(&engine))
        });
        assert_eq!(found.unwrap(), vec![[3, 1, 4, 2]; 3], "{transport}");
    }
}

#[test]
fn parameters_that_the_first_pass_did_not_reach_come_last() {
    let found = spawn(TransportKind::Shm, 2, |comm| {
        let options = EngineOptions { unused: Unused::Zero, ..observed() };
        let mut engine = engine(&comm, telling(4), options)?;
        let order: &[usize] = if comm.rank() == 0 { &[1, 2] } else { &[0, 1, 2, 3] };
        in_order(&mut engine, Mode::Synchronize, order, 2.0)?;
        let means: Vec<f32> = (0..4).map(|index| gradient(&engine, index)[index]).collect();
        assert_eq!(means, [1.0, 2.0, 2.0, 1.0]);
        Ok(lengths(&engine))
    });
    assert_eq!(found.unwrap(), [[2, 3, 4, 1]; 2]);
}

#[test]
fn passes_that_only_accumulate_are_observed_too_and_lose_nothing_when_buckets_change() {
    let found = spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = engine(&comm, telling(3), observed())?;
        in_order(&mut engine, Mode::Accumulate, &[1, 0], 10.0)?;
        in_order(&mut engine, Mode::Accumulate, &[2, 1, 0], 100.0)?;
        in_order(&mut engine, Mode::Synchronize, &[0, 2, 1], comm.rank() as f32)?;
        let sums: Vec<f32> = (0..3).map(|index| gradient(&engine, index)[index]).collect();
        assert_eq!(sums, [110.5, 110.5, 100.5]);
        Ok(lengths(&engine))
    });
    assert_eq!(found.unwrap(), [[2, 1, 3]; 2]);
}

#[test]
fn parameters_and_what_the_optimizer_remembers_move_with_the_buckets() {
    spawn(TransportKind::Thread, 2, |comm| {
        let optimizer = Arc::new(Sgd { momentum: 0.5, ..Sgd::default() });
        let options = EngineOptions { optimizer: Some(optimizer), ..observed() };
        let algorithm = Arc::new(GradientAllReduce);
        let mut engine = trained_by(&comm, telling(3), algorithm, options, (1.0, 8.0))?;
        for _ in 0..2 {
            in_order(&mut engine, Mode::Synchronize, &[1, 2, 0], 1.0)?;
            engine.step()?;
        }
        for index in 0..3 {
            assert_eq!(value(&engine, index), vec![8.0 - 1.0 - 1.5; index + 1]);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_listed_order_stays() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = engine(&comm, telling(3), options(4, 4))?;
        in_order(&mut engine, Mode::Synchronize, &[0, 1, 2], 1.0)?;
        assert_eq!(lengths(&engine), [3, 2, 1]);
        Ok(())
    })
    .unwrap();
}
