//! While one bucket waits, another continues, in every algorithm of the registry.
//!
//! Two ranks train two buckets. In every hook after the first step, and in the last `settle`, rank 1 delays its part of
//! bucket 0 until rank 0 has finished the same hook of bucket 1. An algorithm that blocks the communication thread of
//! rank 0 while it waits for bucket 0 deadlocks.

use super::*;
use crate::async_model_average::AsyncModelAverage;
use crate::compressed_allreduce::CompressedAllReduce;
use crate::diloco::DiLoCo;
use crate::easgd::Easgd;
use crate::engine::runner::HookStage;
use crate::plugin::{Erased, Fields, HookFuture, ImplementedHooks, Instance, Needs, Slots};
use crate::qadam::QAdam;
use crate::slowmo::SlowMo;
use crate::sparse_loco::SparseLoCo;
use crate::ssp::Ssp;
use crate::streaming_diloco::StreamingDiLoCo;
use crate::{registry, zero_one_adam::ZeroOneAdam};
use hexagram_logical::options_text::{NamedOptions, Options};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

const STEPS: u64 = 3;
/// Maximum time of a hook of bucket 1: generous, as only a hang takes this long.
const LIMIT: Duration = Duration::from_secs(20);

/// Hooks of bucket 1 that rank 0 has finished.
#[derive(Default)]
struct Finished(Mutex<Hooks>);

#[derive(Default)]
struct Hooks {
    finished: Vec<(HookStage, u64)>,
    waiting: Vec<Waker>,
}

impl Finished {
    fn add(&self, hook: (HookStage, u64)) {
        let mut state = self.0.lock().unwrap();
        state.finished.push(hook);
        state.waiting.drain(..).for_each(Waker::wake);
    }

    async fn wait(&self, hook: (HookStage, u64)) -> Result<()> {
        let start = Instant::now();
        poll_fn(|polling| {
            let mut state = self.0.lock().unwrap();
            if state.finished.contains(&hook) {
                return Poll::Ready(Ok(()));
            }
            if start.elapsed() > LIMIT {
                let what = format!("bucket 0 kept bucket 1 from finishing {hook:?}");
                return Poll::Ready(Err(Error::usage(what, "let hooks await instead of block")));
            }
            state.waiting.push(polling.waker().clone());
            Poll::Pending
        })
        .await
    }

    async fn hold(&self, stage: HookStage, context: &Context, hook: HookFuture<'_>) -> Result<()> {
        let at = (stage, context.step());
        // Services are started in the first step, in the same order on all ranks.
        if (context.rank(), context.bucket()) == (1, 0) && context.step() > 0 {
            self.wait(at).await?;
        }
        hook.await?;
        if (context.rank(), context.bucket()) == (0, 1) {
            self.add(at);
        }
        Ok(())
    }
}

/// An algorithm in buckets by size, whose first bucket rank 1 delays.
struct HeldBack {
    algorithm: AnyAlgorithm,
    finished: Arc<Finished>,
}

/// Has the same text on all ranks, as ranks compare it.
impl std::fmt::Debug for HeldBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.algorithm.fmt(f)
    }
}

impl Erased for HeldBack {
    fn about(&self) -> About {
        let algorithm = &self.algorithm;
        let about = About::new(algorithm.name(), algorithm.trigram());
        About { period: algorithm.period(), ..about }
            .keeps_replicas_identical(algorithm.keeps_replicas_identical())
            .remembers_parameters(algorithm.remembers_parameters())
            .needs(Needs { buckets: Buckets::BySize, ..algorithm.needs() })
            .clipping(algorithm.clipping())
            .optimizers(algorithm.optimizers())
    }

    fn without_warm_up(&self) -> Option<AnyAlgorithm> {
        self.algorithm.without_warm_up()
    }

    fn reads_slots(&self) -> bool {
        self.algorithm.reads_slots()
    }

    fn written(&self) -> ImplementedHooks {
        self.algorithm.written()
    }

    fn evaluations(&self, own_step: u64) -> u32 {
        self.algorithm.evaluations(own_step)
    }

    fn visited(&self, options: &mut Options) -> Result<AnyAlgorithm> {
        let mut own = self.algorithm.clone();
        own.options(options)?;
        Ok(own)
    }

    fn uncalled_hook(&self) -> Option<&'static str> {
        self.algorithm.uncalled_hook()
    }

    fn instance<'a>(
        self: Arc<Self>,
        context: &'a Context,
        bucket: &'a Bucket,
    ) -> HookFuture<'a, Box<dyn Instance>> {
        Box::pin(async move {
            let instance = self.algorithm.instance(context, bucket).await?;
            let finished = Arc::clone(&self.finished);
            Ok(Box::new(Held { instance, finished }) as Box<dyn Instance>)
        })
    }
}

struct Held {
    instance: Box<dyn Instance>,
    finished: Arc<Finished>,
}

impl Instance for Held {
    fn before_forward<'a>(&'a mut self, context: &'a Context, parameters: &'a Buffer) -> HookFuture<'a> {
        let hook = self.instance.before_forward(context, parameters);
        Box::pin(self.finished.hold(HookStage::Forward, context, hook))
    }

    fn evaluated<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a> {
        let hook = self.instance.evaluated(context, bucket);
        Box::pin(self.finished.hold(HookStage::Evaluate, context, hook))
    }

    fn gradients_ready<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a> {
        let hook = self.instance.gradients_ready(context, bucket);
        Box::pin(self.finished.hold(HookStage::Gradients, context, hook))
    }

    fn after_backward<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a> {
        let hook = self.instance.after_backward(context, bucket);
        Box::pin(self.finished.hold(HookStage::Backward, context, hook))
    }

    fn slots_ready<'a>(
        &'a mut self,
        context: &'a Context,
        bucket: &'a mut Bucket,
        slots: &'a mut Slots,
    ) -> HookFuture<'a> {
        let hook = self.instance.slots_ready(context, bucket, slots);
        Box::pin(self.finished.hold(HookStage::Step, context, hook))
    }

    fn after_step<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a> {
        let hook = self.instance.after_step(context, bucket);
        Box::pin(self.finished.hold(HookStage::Step, context, hook))
    }

    fn settle<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a> {
        let hook = self.instance.settle(context, bucket);
        Box::pin(self.finished.hold(HookStage::Settle, context, hook))
    }

    fn weight(&self) -> f64 {
        self.instance.weight()
    }

    fn checkpoint(&mut self, fields: &mut Fields) -> Result<()> {
        self.instance.checkpoint(fields)
    }
}

/// The algorithm with options under which it communicates in every step, if it has such options.
pub(super) fn eager(algorithm: AnyAlgorithm) -> AnyAlgorithm {
    let outer = DiLoCo::default().outer;
    match algorithm.name() {
        "local-sgd" => LocalSgd { period: 1, ..LocalSgd::default() }.into(),
        "post-local-sgd" => LocalSgd { period: 1, ..LocalSgd::post(2) }.into(),
        "slowmo" => SlowMo { period: 1, ..SlowMo::default() }.into(),
        "diloco" => DiLoCo { period: 1, outer, ..DiLoCo::default() }.into(),
        "muloco" => DiLoCo { period: 1, ..DiLoCo::muon() }.into(),
        "sparse-loco" => SparseLoCo { period: 1, ..SparseLoCo::default() }.into(),
        "streaming-diloco" => {
            StreamingDiLoCo { period: 1, fragments: 1, delay: 0, ..StreamingDiLoCo::default() }.into()
        }
        "easgd" => Easgd { period: 1, ..Easgd::default() }.into(),
        "ssp" => Ssp { staleness: 0, ..Ssp::default() }.into(),
        "async-model-average" => {
            AsyncModelAverage { interval: 0.0, warm_up: 0, ..AsyncModelAverage::default() }.into()
        }
        "powersgd" => CompressedAllReduce::LowRank { rank: 2, saving: 2.0, start: 1 }.into(),
        "qadam" => QAdam { warmup: 2, ..QAdam::default() }.into(),
        "zero-one-adam" => ZeroOneAdam { freeze: 2, ..ZeroOneAdam::default() }.into(),
        _ => algorithm,
    }
}

fn train(comm: &Communicator, algorithm: impl Into<AnyAlgorithm>) -> Result<()> {
    comm.set_deadline(LIMIT);
    let mut engine = trained_by(comm, parameters(2, 64), algorithm, options(256, 256), (0.1, 1.0))?;
    for _ in 0..STEPS {
        engine.forward()?;
        pass(&mut engine, Mode::Synchronize, &[vec![0.5; 64], vec![0.25; 64]])?;
        engine.step()?;
    }
    assert_eq!(engine.telemetry().buckets().len(), 2);
    engine.settle()
}

#[test]
fn a_bucket_that_waits_does_not_keep_the_next_from_finishing() {
    let mut failures = Vec::new();
    for algorithm in registry::all() {
        let name = algorithm.name();
        let finished = Arc::<Finished>::default();
        let algorithm = eager(algorithm);
        let trained = spawn(TransportKind::Thread, 2, |comm| {
            let algorithm = algorithm.clone();
            train(&comm, AnyAlgorithm::of(HeldBack { algorithm, finished: Arc::clone(&finished) }))
        });
        failures.extend(trained.err().map(|error| format!("{name}: {error}")));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
