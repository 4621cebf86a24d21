//! Communication during the next forward pass: bit for bit the same training as without, or refused; and the order of
//! its events.

use super::waiting::eager;
use super::*;
use crate::optimizer::Adam;
use crate::registry;
use crate::slowmo::SlowMo;
use crate::trace::{Kind, Place, Span};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::Poll;

const STEPS: usize = 6;
const LAYERS: usize = 4;

/// Makes a step whose gradients are functions of the parameters. Each layer reads them when the forward pass reaches
/// it, with or without waiting first.
fn step(engine: &mut DataParallel, waits: bool) -> Result<()> {
    let step = engine.steps();
    let rank = engine.communicator().rank();
    engine.step_with(|engine| {
        // Without overlap, the algorithm owns the parameters from here on.
        let ahead = engine.overlaps_forward();
        if ahead {
            engine.forward()?;
        }
        let mut seen = Vec::new();
        for layer in 0..LAYERS {
            if waits {
                engine.wait_for(&[layer])?;
            }
            seen.push(engine.values::<f32>(layer)?);
        }
        if !ahead {
            engine.forward()?;
        }
        engine.set_loss(1.0);
        engine.begin(Mode::Synchronize)?;
        for (layer, values) in seen.iter().enumerate().rev() {
            let pull = |at: usize, x: f32| x - ((at * 7 + layer * 3 + rank * 5 + step as usize) % 11) as f32;
            let gradient: Vec<f32> = values.iter().enumerate().map(|(at, x)| pull(at, *x)).collect();
            engine.hooks().ready_slice(layer, &gradient)?;
        }
        Ok::<(), Error>(())
    })
}

fn all_values(engine: &DataParallel) -> Result<Vec<Vec<f32>>> {
    (0..LAYERS).map(|layer| engine.values(layer)).collect()
}

/// Returns the result of a training on each rank: the parameters, and the content of a checkpoint.
fn trained(algorithm: &AnyAlgorithm, options: &EngineOptions, waits: bool) -> Result<Vec<String>> {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut engine =
            trained_by(&comm, parameters(LAYERS, 32), algorithm.clone(), options.clone(), (0.05, 1.0))?;
        (0..STEPS).try_for_each(|_| step(&mut engine, waits))?;
        let values = all_values(&engine)?;
        let state = engine.checkpoint().save()?.checksum()?;
        Ok(format!("{values:?} {state}"))
    })
}

/// Trains with and without communication during the next forward pass, and compares the results.
fn assert_same(name: &str, algorithm: &AnyAlgorithm, options: EngineOptions, waits: bool) {
    let with = |overlap| trained(algorithm, &EngineOptions { overlap, ..options.clone() }, waits).unwrap();
    assert!(with(Overlap::Forward) == with(Overlap::Backward), "{name}");
}

#[test]
fn every_algorithm_trains_bit_for_bit_as_without_or_is_refused_by_name() {
    let mut refused = Vec::new();
    for algorithm in registry::all().into_iter().map(eager) {
        match algorithm.refuses_forward() {
            None => assert_same(algorithm.name(), &algorithm, options(128, 128), true),
            Some(reason) => {
                let ahead = EngineOptions { overlap: Overlap::Forward, ..options(128, 128) };
                let text = trained(&algorithm, &ahead, true).unwrap_err().to_string();
                assert!(text.contains(algorithm.name()) && text.contains(reason), "{text}");
                refused.push(algorithm.name());
            }
        }
    }
    // docs/algorithms.md has the same list.
    let expected = [
        "ad-psgd",
        "async-model-average",
        "compressed-ad-psgd",
        "compressed-async-model-average",
        "compressed-ssp",
        "d-psgd",
        "decentralized",
        "extra",
        "gradient-tracking",
        "ssp",
    ];
    assert_eq!(refused.iter().copied().collect::<BTreeSet<_>>(), BTreeSet::from(expected));
}

#[test]
fn every_option_that_allows_it_changes_no_bit_either() {
    let mean = AnyAlgorithm::from(GradientAllReduce);
    let adam = || Some(Arc::new(Adam::default()) as Arc<dyn crate::optimizer::Optimizer>);
    let cases = [
        ("values that are read without waiting", false, options(128, 128)),
        ("one stream", true, EngineOptions { streams: 1, ..options(128, 128) }),
        ("two streams", true, EngineOptions { streams: 2, ..options(128, 128) }),
        (
            "buckets in the order observed",
            true,
            EngineOptions { order: Order::Observed, ..options(128, 128) },
        ),
        ("an optimizer that remembers", true, EngineOptions { optimizer: adam(), ..options(128, 128) }),
        (
            "a scaled loss",
            true,
            EngineOptions { loss_scale: Some(LossScale::default()), ..options(128, 128) },
        ),
        ("ranks that may end early", true, EngineOptions { uneven: true, ..options(128, 128) }),
        ("hosts first", true, EngineOptions { hierarchical: true, ..options(128, 128) }),
        ("one bucket", true, options(1 << 20, 1 << 20)),
    ];
    for (name, waits, options) in cases {
        assert_same(name, &mean, options, waits);
    }
    let clipped = EngineOptions { clip_norm: Some(0.5), ..options(128, 128) };
    let feedback = registry::named("dgc").unwrap();
    assert_same("clipped before the first hook", &feedback, clipped, true);
    let decayed = registry::named("dgc(weight_decay=0.1)").unwrap();
    assert_same("an algorithm that reads parameters", &decayed, options(128, 128), true);
    let around = SlowMo { period: 2, base: Some(registry::named("bytegrad").unwrap()), ..SlowMo::default() };
    assert_same("an algorithm around another", &around.into(), options(128, 128), true);
}

#[test]
fn what_needs_all_buckets_first_is_refused() {
    let refused = |algorithm: AnyAlgorithm, options: EngineOptions| {
        let options = EngineOptions { overlap: Overlap::Forward, ..options };
        let made = spawn(TransportKind::Thread, 2, |comm| {
            DataParallel::new(&comm, parameters(2, 8), algorithm.clone(), options.clone()).map(drop)
        });
        made.unwrap_err().to_string()
    };
    let sgd = || Some(Arc::new(Sgd::default()) as Arc<dyn crate::optimizer::Optimizer>);
    let clipped = EngineOptions { clip_norm: Some(1.0), optimizer: sgd(), ..options(32, 32) };
    let text = refused(GradientAllReduce.into(), clipped);
    assert!(text.contains("gradient-allreduce") && text.contains("norm of all of them"), "{text}");
    let text = refused(GradientAllReduce.into(), options(32, 32));
    assert!(text.contains("the framework's optimizer steps on all parameters together"), "{text}");
}

/// Mean of the gradients; the bucket of the last layers waits for a flag in the first step.
#[derive(Clone, Default)]
struct Gated {
    open: Arc<AtomicBool>,
    /// If set, ranks fail at the gate.
    fails: bool,
}

impl std::fmt::Debug for Gated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gated")
    }
}

impl Algorithm for Gated {
    type State = ();

    fn about(&self) -> About {
        About::new("gated", Trigram { centralized: true, synchronous: true, full_precision: true })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        if (context.step(), context.bucket()) == (0, 0) {
            poll_fn(|_| if self.open.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }).await;
            if self.fails && context.rank() == 1 {
                return Err(Error::usage("the plugin did not like it", "write a better one"));
            }
        }
        context.mean(&mut bucket.gradients).await
    }
}

fn gated(comm: &Communicator, gate: &Gated) -> Result<DataParallel> {
    let options = EngineOptions { overlap: Overlap::Forward, ..options(128, 128) };
    trained_by(comm, parameters(LAYERS, 32), gate.clone(), options, (1.0, 0.0))
}

#[test]
fn a_step_returns_and_the_next_forward_pass_runs_while_a_bucket_is_on_its_way() {
    let traces = spawn(TransportKind::Thread, 2, |comm| {
        let gate = Gated::default();
        let mut engine = gated(&comm, &gate)?;
        engine.trace().begin()?;
        pass(&mut engine, Mode::Synchronize, &vec![vec![1.0; 32]; LAYERS])?;
        engine.step()?;
        engine.forward()?;
        engine.wait_for(&[0, 1, 2])?;
        assert_eq!(value(&engine, 0), [-1.0; 32]);
        // All of this happened before the gradients of the last layer left.
        gate.open.store(true, Ordering::SeqCst);
        engine.wait_for(&[3])?;
        assert_eq!(value(&engine, 3), [-1.0; 32]);
        pass(&mut engine, Mode::Synchronize, &vec![vec![1.0; 32]; LAYERS])?;
        engine.step()?;
        engine.trace().collect()
    });
    let trace = traces.unwrap().remove(0).unwrap();
    for rank in &trace.ranks {
        let of = |kind: Kind, step: u64| {
            let is_of_it =
                move |span: &&Span| (span.place, span.kind, span.step) == (Place::Host, kind, step);
            rank.spans.iter().filter(is_of_it)
        };
        let forward = of(Kind::Forward, 1).map(|span| span.start).min().unwrap();
        let backward = of(Kind::Backward, 1).map(|span| span.start).min().unwrap();
        let hook = of(Kind::GradientsReady, 0).find(|span| span.bucket == 0).unwrap();
        assert!(hook.start < backward && forward < hook.end, "it is under way beside the forward pass");
        let others = of(Kind::GradientsReady, 0).filter(|span| span.bucket != 0);
        assert!(others.count() == LAYERS - 1 && of(Kind::Waiting, 1).count() > 0);
    }
}

#[test]
fn every_other_call_waits_by_itself() {
    type Work = fn(&mut DataParallel) -> Result<()>;
    let calls: [(&str, Work); 9] = [
        ("begin", |engine| pass(engine, Mode::Synchronize, &vec![vec![0.0; 32]; LAYERS])),
        ("settle", DataParallel::settle),
        ("average", DataParallel::average),
        ("with_mean", |engine| engine.with_mean(|engine| engine.values::<f32>(3))?.result.map(drop)),
        ("save", |engine| engine.checkpoint().save().map(drop)),
        ("switch", |engine| engine.switch(GradientAllReduce)),
        ("trace", |engine| engine.trace().begin()),
        ("parameter", |engine| (0..LAYERS).try_for_each(|layer| engine.parameter(layer).map(drop))),
        ("broadcast_state", |engine| engine.initial().broadcast_state(&mut [])),
    ];
    for (name, call) in calls {
        let values = spawn(TransportKind::Thread, 2, |comm| {
            let gate = Gated::default();
            let mut engine = gated(&comm, &gate)?;
            pass(&mut engine, Mode::Synchronize, &vec![vec![1.0; 32]; LAYERS])?;
            engine.step()?;
            gate.open.store(true, Ordering::SeqCst);
            call(&mut engine)?;
            let values = all_values(&engine)?;
            engine.settle()?;
            Ok(values)
        });
        assert_eq!(values.unwrap(), vec![vec![vec![-1.0; 32]; LAYERS]; 2], "{name}");
    }
}

#[test]
fn gradients_can_be_read_between_finish_and_step() {
    spawn(TransportKind::Thread, 2, |comm| {
        let gate = Gated::default();
        gate.open.store(true, Ordering::SeqCst);
        let mut engine = gated(&comm, &gate)?;
        pass(&mut engine, Mode::Synchronize, &vec![vec![comm.rank() as f32; 32]; LAYERS])?;
        assert_eq!((gradient(&engine, 2), value(&engine, 2)), (vec![0.5; 32], vec![0.0; 32]));
        engine.step()?;
        assert_eq!(all_values(&engine)?, vec![vec![-0.5; 32]; LAYERS]);
        Ok(())
    })
    .unwrap();
}

/// Continues when all buckets have begun, and records the order in which they end.
#[derive(Clone, Default)]
struct Resting {
    begun: Arc<AtomicUsize>,
    done: Arc<Mutex<Vec<usize>>>,
}

impl std::fmt::Debug for Resting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resting")
    }
}

impl Algorithm for Resting {
    type State = ();

    fn about(&self) -> About {
        About::new("resting", Trigram { centralized: true, synchronous: true, full_precision: true })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, (): &mut (), _: &mut Bucket) -> Result<()> {
        // Until all have begun, and then once more: the next to continue is chosen among all.
        let mut begins = true;
        poll_fn(|polling| {
            polling.waker().wake_by_ref();
            if std::mem::take(&mut begins) {
                self.begun.fetch_add(1, Ordering::SeqCst);
                return Poll::Pending;
            }
            if self.begun.load(Ordering::SeqCst) == LAYERS { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.done.lock().unwrap().push(context.bucket());
        Ok(())
    }
}

#[test]
fn buckets_that_the_forward_pass_needs_first_are_done_first() {
    let order = |overlap| {
        let done = spawn(TransportKind::Thread, 1, |comm| {
            let algorithm = Resting::default();
            // They begin together.
            let loss_scale = Some(LossScale::default());
            let options = EngineOptions { overlap, loss_scale, ..options(128, 128) };
            let mut engine =
                trained_by(&comm, parameters(LAYERS, 32), algorithm.clone(), options, (1.0, 0.0))?;
            pass(&mut engine, Mode::Synchronize, &vec![vec![1.0; 32]; LAYERS])?;
            engine.step()?;
            engine.settle()?;
            Ok(algorithm.done.lock().unwrap().clone())
        });
        done.unwrap().remove(0)
    };
    // Bucket 3 is that of the first layer.
    assert_eq!(order(Overlap::Backward), [0, 1, 2, 3]);
    assert_eq!(order(Overlap::Forward), [3, 2, 1, 0]);
}

#[test]
fn an_error_under_the_forward_pass_reaches_the_next_wait_of_every_rank() {
    for transport in transports() {
        let errors = spawn(transport, 3, |comm| {
            let gate = Gated { fails: true, ..Gated::default() };
            let until_it_fails = || -> Result<()> {
                let mut engine = gated(&comm, &gate)?;
                pass(&mut engine, Mode::Synchronize, &vec![vec![1.0; 32]; LAYERS])?;
                engine.step()?;
                engine.forward()?;
                gate.open.store(true, Ordering::SeqCst);
                engine.wait_for(&[3])
            };
            // Another rank may be so much faster that its error arrives before the last call of this one.
            Ok(until_it_fails().err())
        });
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            let text = error.unwrap().to_string();
            assert!(text.contains("the plugin did not like it"), "{transport}, rank {rank}: {text}");
        }
    }
}

#[test]
fn a_rank_that_ends_with_a_step_on_its_way_is_told_to_settle_and_named_by_the_others() {
    for transport in transports() {
        let errors = spawn(transport, 3, |comm| {
            let gate = Gated::default();
            let until_one_ends = || -> Result<()> {
                let mut engine = gated(&comm, &gate)?;
                pass(&mut engine, Mode::Synchronize, &vec![vec![1.0; 32]; LAYERS])?;
                engine.step()?;
                if comm.rank() != 1 {
                    gate.open.store(true, Ordering::SeqCst);
                    engine.wait_for(&[3])?;
                }
                Ok(())
            };
            Ok(until_one_ends().err())
        });
        for (rank, error) in errors.unwrap().into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
            let text = error.unwrap().to_string();
            let reason = "the training ended while its last step was being communicated";
            assert!(text.contains(reason) && text.contains("rank 1"), "{transport}, rank {rank}: {text}");
        }
    }
}
