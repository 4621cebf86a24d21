//! Initial state of all ranks, and state that they share between steps.

use super::*;

#[test]
fn tensors_are_broadcast_from_rank_0() {
    spawn(TransportKind::Tcp, 3, |comm| {
        let mut engine = engine(&comm, parameters(1, 1), EngineOptions::default())?;
        let mut tensor = buffer(&[comm.rank() as f32 + 7.0; 100]);
        engine.initial().broadcast(&mut tensor)?;
        assert_eq!(*tensor.host::<f32>()?, [7.0; 100]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_initial_state_is_rank_0s() {
    for transport in transports() {
        spawn(transport, 3, |comm| {
            let optimizer = Arc::new(Sgd { momentum: 0.5, ..Sgd::default() });
            let options = EngineOptions { optimizer: Some(optimizer), ..options(40, 80) };
            let start = comm.rank() as f32 + 4.0;
            let algorithm = Arc::new(GradientAllReduce);
            let mut engine = trained_by(&comm, parameters(3, 10), algorithm, options, (1.0, start))?;
            if comm.rank() == 0 {
                // As if only rank 0 had loaded a checkpoint.
                engine.present.step = 12;
                for (at, buffer) in engine.replica.get_mut().buffers(true)?.into_iter().enumerate() {
                    if at % 2 == 1 {
                        buffer.host_mut::<f32>()?.fill(2.0);
                    }
                }
            }
            let mine = comm.rank() as i64;
            let mut tensors = [buffer(&[mine + 1; 3]), buffer(&[mine as f32; 5]), buffer::<f64>(&[])];
            engine.initial().broadcast_state(&mut tensors)?;
            assert_eq!(
                (&*tensors[0].host::<i64>()?, &*tensors[1].host::<f32>()?),
                (&[1; 3][..], &[0.0; 5][..])
            );
            assert_eq!((engine.steps(), value(&engine, 1)), (12, vec![4.0; 10]));
            pass(&mut engine, Mode::Synchronize, &vec![vec![1.0; 10]; 3])?;
            engine.step()?;
            assert_eq!(value(&engine, 2), [4.0 - (1.0 + 0.5 * 2.0); 10], "with rank 0's momentum");
            Ok(())
        })
        .unwrap();
    }
}

/// The synchronized buffers of three ranks, and the number of messages that each sent.
fn synchronized(buffers: Buffers) -> Vec<(Vec<f32>, f64, i64, u64)> {
    let found = spawn(TransportKind::Thread, 3, |comm| {
        let mut engine =
            engine(&comm, parameters(1, 1), EngineOptions { buffers, ..EngineOptions::default() })?;
        let mine = comm.rank() as f32;
        let mut all = [
            buffer(&[mine; 3]),
            Buffer::from_slice(&[i64::from(comm.rank() as u32) + 5])?,
            buffer(&[f64::from(mine) * 2.0]),
            buffer(&[mine + 10.0, mine + 20.0]),
        ];
        comm.blocking().barrier()?;
        let before = comm.world().traffic().messages_sent();
        engine.synchronize_buffers(&mut all)?;
        let sent = comm.world().traffic().messages_sent() - before;
        let singles = [&*all[0].host::<f32>()?, &*all[3].host::<f32>()?].concat();
        Ok((singles, all[2].host::<f64>()?[0], all[1].host::<i64>()?[0], sent))
    });
    found.unwrap()
}

#[test]
fn buffers_are_rank_0s_in_one_message() {
    let found = synchronized(Buffers::Broadcast);
    for (singles, double, count, _) in &found {
        assert_eq!((&singles[..], *double, *count), (&[0.0, 0.0, 0.0, 10.0, 20.0][..], 0.0, 5));
    }
    assert_eq!(found.iter().map(|rank| rank.3).sum::<u64>(), 2, "one to each of the others");
}

#[test]
fn buffers_become_their_mean_and_integers_rank_0s() {
    for (singles, double, count, _) in synchronized(Buffers::Average) {
        assert_eq!((&singles[..], double, count), (&[1.0, 1.0, 1.0, 11.0, 21.0][..], 2.0, 5));
    }
}

#[test]
fn buffers_may_be_each_ranks_own() {
    for (rank, (singles, double, count, sent)) in synchronized(Buffers::Off).into_iter().enumerate() {
        assert_eq!((singles[0], double, count, sent), (rank as f32, rank as f64 * 2.0, rank as i64 + 5, 0));
    }
}

/// Ranks make different numbers of passes: no other rank would wait for a message of one.
#[test]
fn buffers_stay_where_ranks_do_not_step_together() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut alone = Probe::new(|_, _| Act::Nothing);
        alone.synchronous = false;
        let uneven = EngineOptions { uneven: true, ..options(4, 4) };
        let mut asynchronous = DataParallel::new(&comm, parameters(1, 1), Arc::new(alone), options(4, 4))?;
        let mut joinable = engine(&comm, parameters(1, 1), uneven)?;
        let mut buffers = [buffer(&[comm.rank() as f32])];
        for _ in 0..comm.rank() {
            asynchronous.synchronize_buffers(&mut buffers)?;
            joinable.synchronize_buffers(&mut buffers)?;
        }
        assert_eq!(*buffers[0].host::<f32>()?, [comm.rank() as f32]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_final_average_is_the_mean_of_all_replicas() {
    for transport in transports() {
        let found = spawn(transport, 3, |comm| {
            let optimizer = Arc::new(Sgd { momentum: 0.5, ..Sgd::default() });
            let options = EngineOptions { optimizer: Some(optimizer), ..options(40, 80) };
            let algorithm = Arc::new(LocalSgd { period: 100, ..LocalSgd::default() });
            let mut engine = trained_by(&comm, parameters(3, 10), algorithm, options, (1.0, 9.0))?;
            let step = |engine: &mut DataParallel| {
                pass(engine, Mode::Synchronize, &vec![vec![comm.rank() as f32 * 3.0; 10]; 3])?;
                engine.step()
            };
            step(&mut engine)?;
            engine.average()?;
            assert_eq!(value(&engine, 1), [9.0 - 3.0; 10]);
            // Each rank keeps its own optimizer memory.
            step(&mut engine)?;
            Ok(value(&engine, 0)[0])
        });
        assert_eq!(found.unwrap(), [6.0, 6.0 - 4.5, 6.0 - 9.0], "{transport}");
    }
}

#[test]
fn the_average_leaves_identical_replicas_as_they_are_to_the_last_bit() {
    // The rounded mean of five copies of this number differs from it.
    let mean = |x: f32| (f64::from(x + x + x + x + x) * 0.2) as f32;
    let x = (1..1000).map(|k| k as f32 * 0.01).find(|x| mean(*x) != *x).unwrap();
    spawn(TransportKind::Thread, 5, |comm| {
        let algorithm = Arc::new(GradientAllReduce);
        let mut engine = trained_by(&comm, parameters(1, 10), algorithm, options(40, 80), (1.0, x))?;
        engine.average()?;
        assert_eq!(value(&engine, 0), [x; 10]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_engine_without_parameters_cannot_average_them() {
    spawn(TransportKind::Thread, 1, |comm| {
        let mut engine = engine(&comm, parameters(1, 1), options(4, 4))?;
        let text = engine.average().unwrap_err().to_string();
        assert!(text.contains("the engine does not have the parameters"), "{text}");
        Ok(())
    })
    .unwrap();
}

/// A model of three tensors, the second of which is frozen or ignored, so it is not in the list.
#[test]
fn what_is_left_out_of_the_list_is_neither_sent_nor_missed() {
    let sent = spawn(TransportKind::Tcp, 2, |comm| {
        let list = vec![parameter("a", DType::F32, 2), parameter("c", DType::F32, 2)];
        let algorithm = Arc::new(GradientAllReduce);
        let mut engine = trained_by(&comm, list, algorithm, options(40, 80), (1.0, 1.0))?;
        engine.initial().prepare()?;
        let before = comm.world().traffic().bytes_sent();
        pass(&mut engine, Mode::Synchronize, &[vec![1.0; 2], vec![comm.rank() as f32; 2]])?;
        engine.step()?;
        assert_eq!((value(&engine, 0), value(&engine, 1)), (vec![0.0; 2], vec![0.5; 2]));
        Ok(comm.world().traffic().bytes_sent() - before)
    });
    assert_eq!(
        sent.unwrap(),
        [(4 * 4 + HEADER_BYTES) as u64; 2],
        "the gradients of two tensors, and no third"
    );
}

#[test]
fn states_that_were_made_before_the_broadcast_are_made_of_what_it_brings() {
    let found = spawn(TransportKind::Thread, 2, |comm| {
        let algorithm = Arc::new(crate::diloco::DiLoCo { period: 1, ..Default::default() });
        let at = comm.rank() as f32 * 8.0 + 1.0;
        let mut engine = trained_by(&comm, parameters(2, 4), algorithm, options(16, 16), (0.5, at))?;
        engine.initial().prepare()?;
        engine.initial().broadcast_state(&mut [])?;
        pass(&mut engine, Mode::Synchronize, &vec![vec![0.0; 4]; 2])?;
        engine.step()?;
        Ok(value(&engine, 1))
    });
    assert_eq!(found.unwrap(), [[1.0; 4]; 2]);
}

#[test]
fn buffers_are_averaged_and_replicas_compared() {
    spawn(TransportKind::Thread, 2, |comm| {
        let own = comm.rank() as f32;
        let mut engine =
            trained_by(&comm, parameters(2, 3), Arc::new(GradientAllReduce), options(40, 40), (1.0, 0.0))?;
        let count = Buffer::from_slice(&[comm.rank() as i64])?;
        let mut buffers = [buffer(&[own, 4.0]), count];
        engine.average_buffers(&mut buffers)?;
        assert_eq!(floats(&buffers[0].read_all()?.bytes_on_host()?), [0.5, 4.0]);
        assert_eq!(buffers[1].host::<i64>()?[0], 0, "rank 0's");
        let [statistic, _] = &buffers;
        engine.check_replicas(&[("statistic".to_owned(), statistic)])?;
        engine.average()?;
        let parted = buffer(&[own]);
        let told = engine.check_replicas(&[("statistic".to_owned(), &parted)]).unwrap_err().to_string();
        assert!(told.contains("`statistic` of rank 1") && told.contains("1 of 3 tensors"), "{told}");
        engine.set_parameter(1, &buffer(&[own; 3]))?;
        let told = engine.average().unwrap_err().to_string();
        assert!(told.contains("`p1` of rank 1"), "{told}");
        Ok(())
    })
    .unwrap();
}
