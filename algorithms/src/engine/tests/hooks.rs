//! Hooks: their order, and which of them overlap.

use super::*;
use crate::engine::runner::HookStage;
use crate::slowmo::SlowMo;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const MEAN: fn(HookStage, &Context) -> Act = |_, _| Act::Mean;

/// Generous: only a hang takes this long.
fn until(flag: impl Fn() -> bool) {
    let started = Instant::now();
    while !flag() {
        assert!(started.elapsed() < Duration::from_secs(30), "it never happened");
        std::thread::yield_now();
    }
}

#[test]
fn every_stage_starts_in_plan_order_and_every_bucket_sees_all_stages() {
    for (transport, streams) in transports().into_iter().flat_map(|t| [(t, 1), (t, 2), (t, usize::MAX)]) {
        spawn(transport, 3, |comm| {
            let probe = Arc::new(Probe::new(MEAN));
            let options = EngineOptions { streams, ..options(4, 4) };
            let algorithm = AnyAlgorithm::from(Arc::clone(&probe));
            let mut engine = trained_by(&comm, parameters(4, 1), algorithm, options, (0.1, 0.0))?;
            for step in 0..3 {
                engine.forward()?;
                engine.begin(Mode::Synchronize)?;
                for at in 0..4 {
                    engine.hooks().ready_slice((at + comm.rank() + step) % 4, &[1.0f32])?;
                }
                engine.finish()?;
                engine.step()?;
            }
            engine.settle()?;
            let step = [HookStage::Forward, HookStage::Gradients, HookStage::Backward, HookStage::Step];
            let stages =
                [&[HookStage::Start], &step[..], &step[..], &step[..], &[HookStage::Settle]].concat();
            let all: Vec<_> = stages.iter().flat_map(|stage| (0..4).map(move |b| (*stage, b))).collect();
            // Buckets overlap, so one may be in a later stage than the next; but stages start in plan order.
            let mut log = probe.log();
            for (bucket, stage) in (0..4).flat_map(|b| step.map(|stage| (b, stage))) {
                let of_stage = log.iter().filter(|(s, _)| *s == stage).map(|(_, b)| *b);
                assert_eq!(of_stage.collect::<Vec<_>>(), [0, 1, 2, 3].repeat(3), "{stage:?} on {transport}");
                let of_bucket = log.iter().filter(|(_, b)| *b == bucket).map(|(s, _)| *s);
                assert_eq!(of_bucket.collect::<Vec<_>>(), stages);
            }
            if streams == 1 {
                assert_eq!(log, all);
            }
            log.sort_by_key(|(stage, bucket)| (*stage as usize, *bucket));
            assert_eq!(log.len(), all.len());
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn the_base_of_slowmo_sees_all_stages() {
    spawn(TransportKind::Thread, 2, |comm| {
        let probe = Arc::new(Probe::new(MEAN));
        let slowmo = SlowMo { base: Some(Arc::clone(&probe).into()), ..SlowMo::default() };
        let mut engine = trained_by(&comm, parameters(1, 1), slowmo, options(4, 4), (0.1, 0.0))?;
        engine.step_with(|engine| {
            engine.forward()?;
            engine.begin(Mode::Synchronize)?;
            engine.hooks().ready_slice(0, &[1.0f32])
        })?;
        engine.settle()?;
        let stages: Vec<HookStage> = probe.log().into_iter().map(|(stage, _)| stage).collect();
        let step = [HookStage::Forward, HookStage::Gradients, HookStage::Backward, HookStage::Step];
        assert_eq!(stages, [&[HookStage::Start], &step[..], &[HookStage::Settle]].concat());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_hook_before_the_forward_pass_may_run_until_the_gradients_are_ready() {
    spawn(TransportKind::Shm, 2, |comm| {
        let flag = Arc::new(AtomicBool::new(false));
        let waits_for = Arc::clone(&flag);
        let probe = Arc::new(Probe::new(move |stage, _| match stage {
            HookStage::Forward => Act::Until(Arc::clone(&waits_for)),
            _ => Act::Mean,
        }));
        let algorithm = AnyAlgorithm::from(Arc::clone(&probe));
        let mut engine = trained_by(&comm, parameters(2, 1), algorithm, options(4, 4), (0.1, 0.0))?;
        engine.initial().prepare()?;
        engine.forward()?;
        until(|| probe.log().ends_with(&[(HookStage::Forward, 0), (HookStage::Forward, 1)]));
        assert!(engine.parameter(0).is_err(), "it is being worked on");
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(1, &[1.0f32])?;
        engine.hooks().ready_slice(0, &[1.0f32])?;
        assert!(!probe.log().iter().any(|(stage, _)| *stage == HookStage::Gradients));
        flag.store(true, Ordering::SeqCst);
        engine.finish()?;
        engine.step()
    })
    .unwrap();
}

#[test]
fn no_more_hooks_run_at_once_than_there_are_streams() {
    for streams in [1, 2, 3] {
        spawn(TransportKind::Thread, 1, |comm| {
            let flag = Arc::new(AtomicBool::new(false));
            let waits_for = Arc::clone(&flag);
            let probe = Arc::new(Probe::new(move |stage, _| match stage {
                HookStage::Gradients => Act::Until(Arc::clone(&waits_for)),
                _ => Act::Nothing,
            }));
            let algorithm = AnyAlgorithm::from(Arc::clone(&probe));
            let options = EngineOptions { streams, ..options(4, 4) };
            let mut engine = DataParallel::new(&comm, parameters(6, 1), algorithm, options)?;
            let started = || probe.log().iter().filter(|(stage, _)| *stage == HookStage::Gradients).count();
            engine.begin(Mode::Synchronize)?;
            for index in (0..6).rev() {
                engine.hooks().ready_slice(index, &[1.0f32])?;
            }
            until(|| started() == streams);
            assert_eq!(started(), streams);
            flag.store(true, Ordering::SeqCst);
            engine.finish()?;
            assert_eq!(started(), 6);
            Ok(())
        })
        .unwrap();
    }
}

/// Rank 0 has its first gradients before the forward hooks have all begun, rank 1 has not: both begin with the same.
#[test]
fn ranks_with_one_stream_never_start_different_hooks() {
    spawn(TransportKind::Thread, 2, |comm| {
        comm.set_deadline(Duration::from_secs(10));
        let flag = Arc::new(AtomicBool::new(comm.rank() != 0));
        let waits_for = Arc::clone(&flag);
        let probe = Arc::new(Probe::new(move |stage, context| match (stage, context.bucket()) {
            (HookStage::Forward, 0) => Act::Until(Arc::clone(&waits_for)),
            _ => Act::Mean,
        }));
        let algorithm = AnyAlgorithm::from(Arc::clone(&probe));
        let options = EngineOptions { streams: 1, ..options(4, 4) };
        let mut engine = trained_by(&comm, parameters(2, 1), algorithm, options, (0.1, 0.0))?;
        engine.initial().prepare()?;
        engine.forward()?;
        if comm.rank() == 1 {
            until(|| probe.log().contains(&(HookStage::Forward, 1)));
        }
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(1, &[1.0f32])?;
        flag.store(true, Ordering::SeqCst);
        engine.hooks().ready_slice(0, &[1.0f32])?;
        engine.finish()
    })
    .unwrap();
}

#[test]
fn a_slow_bucket_does_not_keep_the_next_from_starting() {
    spawn(TransportKind::Shm, 2, |comm| {
        let second_is_done = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&second_is_done);
        let probe = Probe::new(move |stage, context| match (stage, context.bucket()) {
            (HookStage::Gradients, 0) => Act::Until(Arc::clone(&flag)),
            (HookStage::Gradients, _) => {
                flag.store(true, Ordering::SeqCst);
                Act::Mean
            }
            _ => Act::Nothing,
        });
        let mut engine = DataParallel::new(&comm, parameters(2, 1), Arc::new(probe), options(4, 4))?;
        pass(&mut engine, Mode::Synchronize, &[vec![1.0], vec![1.0]])
    })
    .unwrap();
}
