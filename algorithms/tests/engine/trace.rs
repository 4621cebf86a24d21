//! Traces of real ranks: they contain the hooks of every algorithm, and the report names the slowest rank.

use super::warmed_up::sampled;
use hexagram_algorithms::ad_psgd::AdPsgd;
use hexagram_algorithms::async_model_average::AsyncModelAverage;
use hexagram_algorithms::logical::testing::{spawn, transports};
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::ssp::Ssp;
use hexagram_algorithms::streaming_diloco::StreamingDiLoCo;
use hexagram_algorithms::testing::{Setup, Trainer, fitting};
use hexagram_algorithms::trace::{Kind, Place, RankTrace, Span, Trace};
use hexagram_algorithms::{AnyAlgorithm, EngineOptions, registry};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const STEPS: usize = 4;

/// The trace of some steps with three buckets; a rank calls `compute` with the step for each gradient.
fn traced(
    transport: TransportKind,
    ranks: usize,
    algorithm: impl Fn() -> AnyAlgorithm + Sync,
    compute: impl Fn(&Communicator, usize) + Sync,
) -> Trace {
    let traces = spawn(transport, ranks, |comm: Communicator| {
        let engine = EngineOptions { bucket_bytes: 256, first_bucket_bytes: 256, ..Setup::default().engine };
        let algorithm = algorithm();
        let setup = Setup { engine, ..Setup::default() };
        let setup = Setup { optimizer: fitting(&algorithm, Arc::clone(&setup.optimizer)), ..setup };
        let mut trainer = Trainer::new(&comm, algorithm, setup, &vec![vec![1.0f32; 64]; 3])?;
        trainer.engine().trace().begin()?;
        for step in 0..STEPS {
            assert_eq!(trainer.engine().trace().loading(|| step), step);
            // The trainer marks it only after its function was called: by then hooks may own the parameters.
            if !trainer.engine().algorithm().needs().parameters {
                trainer.engine().forward()?;
            }
            trainer.step(|_, x| {
                compute(&comm, step);
                x.iter().map(|x| x - comm.rank() as f32).collect()
            })?;
        }
        trainer.engine().settle()?;
        let trace = trainer.engine().trace().collect()?;
        assert!(trainer.engine().trace().collect().is_err(), "it was collected");
        Ok(trace)
    });
    let mut traces = traces.unwrap();
    assert!(traces[1..].iter().all(Option::is_none), "rank 0 has it");
    traces.remove(0).unwrap()
}

#[test]
fn every_algorithm_has_its_hooks_in_the_trace_of_every_rank() {
    for algorithm in sampled(registry::all()) {
        let trace = traced(TransportKind::Thread, 4, || algorithm.clone(), |_, _| ());
        assert_eq!((trace.algorithm.as_str(), trace.ranks.len()), (algorithm.name(), 4));
        assert!(trace.buckets.concat().contains("p0"), "{:?}", trace.buckets);
        for rank in &trace.ranks {
            let in_place = |place: Place, kind: Kind| {
                rank.spans.iter().filter(|span| (span.place, span.kind) == (place, kind)).count()
            };
            let count = |kind: Kind| in_place(Place::Host, kind);
            // A device with timestamps reports the times of all hooks.
            let tells = in_place(Place::Device, Kind::State) > 0;
            let buckets = count(Kind::State);
            assert!(buckets > 0, "{}", algorithm.name());
            let around = if algorithm.needs().parameters { buckets * STEPS } else { 0 };
            let hooks = [
                (Kind::BeforeForward, around),
                (Kind::GradientsReady, buckets * STEPS),
                (Kind::AfterBackward, if algorithm.written().after_backward { buckets * STEPS } else { 0 }),
                (Kind::AfterStep, around),
            ];
            for (kind, expected) in hooks {
                assert_eq!(count(kind), expected, "{} of {}", kind.name(), algorithm.name());
                let told = if tells { expected } else { 0 };
                assert_eq!(in_place(Place::Device, kind), told, "{} of {}", kind.name(), algorithm.name());
            }
        }
        let mut text = Vec::new();
        trace.write(&mut text).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert!(file["traceEvents"].as_array().unwrap().len() > 4 * STEPS);
    }
}

#[test]
fn a_trace_has_every_bucket_and_every_step_on_one_clock() {
    for transport in transports() {
        let trace = traced(transport, 3, || registry::named("gradient-allreduce").unwrap(), |_, _| ());
        for (rank, report) in trace.ranks.iter().zip(&trace.report().ranks) {
            assert_eq!(report.steps.iter().map(|step| step.step).collect::<Vec<_>>(), [0, 1, 2, 3]);
            let of_host = rank.spans.iter().filter(|span| span.place == Place::Host);
            let loads = of_host.clone().filter(|span| span.kind == Kind::Loading);
            assert_eq!(loads.map(|span| span.step).collect::<Vec<_>>(), [0, 1, 2, 3]);
            let hooks: Vec<_> = of_host.filter(|span| span.kind == Kind::GradientsReady).collect();
            for step in 0..STEPS as u64 {
                let mut of_step: Vec<_> = hooks.iter().filter(|span| span.step == step).collect();
                of_step.sort_unstable_by_key(|span| span.bucket);
                let found: Vec<_> = of_step.iter().map(|span| (span.bucket, span.bytes)).collect();
                assert_eq!(found, [(0, 256), (1, 256), (2, 256)], "{transport}");
            }
            assert!(hooks.iter().all(|span| span.start <= span.end));
        }
        // No rank has the mean of a bucket before the last one has begun with it, within the error of the clocks.
        for (step, bucket) in (0..STEPS as u64).flat_map(|step| (0..3).map(move |bucket| (step, bucket))) {
            let all = trace.ranks.iter().flat_map(|rank| {
                let of_it = |kind| move |span: &&_| matches(span, kind, step, bucket);
                let error = rank.clock_error.as_nanos() as i64;
                let hook = rank.spans.iter().find(of_it(Kind::GradientsReady));
                hook.map(|hook| (hook.start - error, hook.end + error))
            });
            let (starts, ends): (Vec<i64>, Vec<i64>) = all.unzip();
            assert!(starts.iter().max() <= ends.iter().min(), "{transport}: {starts:?} {ends:?}");
        }
    }
}

fn matches(span: &Span, kind: Kind, step: u64, bucket: usize) -> bool {
    (span.place, span.kind, span.step, span.bucket) == (Place::Host, kind, step, bucket)
}

#[test]
fn the_rank_that_burns_more_time_is_the_slowest() {
    let (done, others) = channel();
    let others = Mutex::new(others);
    // Longer than the others, however long they take.
    let burn = |comm: &Communicator, _| {
        if comm.rank() != 1 {
            return done.send(()).unwrap();
        }
        (0..2).for_each(|_| others.lock().unwrap().recv().unwrap());
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(40) {
            std::hint::spin_loop();
        }
    };
    let trace = traced(TransportKind::Shm, 3, || registry::named("gradient-allreduce").unwrap(), burn);
    let report = trace.report();
    let slowest = report.slowest.unwrap();
    assert_eq!((slowest.rank, slowest.kind), (1, Kind::Forward), "{report}");
    assert!(slowest.alone_in_kind >= 3.0 * 40e6, "three parameters: {slowest:?}");
    assert!(
        report.ranks[0].shares.communication_only > report.ranks[1].shares.communication_only,
        "{report}"
    );
    assert!(report.to_string().contains("slowest is rank 1"), "{report}");
}

#[test]
fn what_is_communicated_in_the_background_counts() {
    let traced = |algorithm: AnyAlgorithm| traced(TransportKind::Thread, 3, || algorithm.clone(), |_, _| ());
    let often = StreamingDiLoCo { period: 2, fragments: 1, delay: 1, ..StreamingDiLoCo::default() };
    let algorithms: [AnyAlgorithm; 3] = [AdPsgd::default().into(), Ssp::default().into(), often.into()];
    for algorithm in algorithms {
        assert_background(&traced(algorithm));
    }
    let trace = traced(registry::named("gradient-allreduce").unwrap());
    assert_eq!(trace.ranks.iter().map(|rank| background(rank).len()).sum::<usize>(), 0);
}

#[test]
fn an_average_of_models_in_the_background_counts() {
    let before = [0; 3].map(AtomicU64::new);
    // An average that has not begun when the training settles is aborted, so no rank continues before it has begun.
    let begun = |comm: &Communicator, step| {
        let sent = comm.world().traffic().bytes_sent();
        if step == 0 {
            return before[comm.rank()].store(sent, Ordering::Relaxed);
        }
        let started = Instant::now();
        // More bytes than the agreement to begin.
        while comm.world().traffic().bytes_sent() < before[comm.rank()].load(Ordering::Relaxed) + 400 {
            assert!(started.elapsed() < Duration::from_secs(60), "nothing begins");
            std::thread::yield_now();
        }
    };
    let without_a_pause = AsyncModelAverage { interval: 0.0, ..AsyncModelAverage::default() };
    assert_background(&traced(TransportKind::Thread, 3, || without_a_pause.clone().into(), begun));
}

/// Every rank has background work, as communication, in its steps.
fn assert_background(trace: &Trace) {
    for rank in &trace.ranks {
        let spans = background(rank);
        assert!(!spans.is_empty(), "{}", trace.algorithm);
        assert!(spans.iter().all(|span| span.kind.is_communication() && span.sent > 0));
        assert!(spans.iter().all(|span| 0 <= span.end - span.start && span.step <= STEPS as u64));
    }
}

fn background(rank: &RankTrace) -> Vec<Span> {
    rank.spans.iter().filter(|span| span.kind == Kind::Background).copied().collect()
}

#[test]
fn collecting_where_nothing_is_recorded_is_refused() {
    spawn(TransportKind::Thread, 2, |comm| {
        let algorithm = registry::named("local-sgd")?;
        let mut trainer = Trainer::new(&comm, algorithm, Setup::default(), &[vec![1.0f32; 8]])?;
        trainer.step(|_, x| x.to_vec())?;
        let error = trainer.engine().trace().collect().unwrap_err().to_string();
        assert!(error.contains("begin the trace"), "{error}");
        // It does not end the recording.
        trainer.step(|_, x| x.to_vec())
    })
    .unwrap();
}
