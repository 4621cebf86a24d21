//! An algorithm scripted by a test, which records the hooks that were called.

use super::*;
use crate::engine::runner::HookStage;
use crate::plugin::Needs;
use std::sync::atomic::AtomicBool;

/// Action of a hook of the [`Probe`].
pub(super) enum Act {
    Nothing,
    /// The mean of the gradients; before the forward pass and after the step, of the parameters.
    Mean,
    /// Waits for the flag.
    Until(Arc<AtomicBool>),
    Fail,
    Panic,
}

type Script = Arc<dyn Fn(HookStage, &Context) -> Act + Send + Sync>;

#[derive(Clone)]
pub(super) struct Probe {
    pub(super) needs: Needs,
    pub(super) synchronous: bool,
    script: Script,
    log: Arc<Mutex<Vec<(HookStage, usize)>>>,
}

/// The same on all ranks, as ranks compare it.
impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probe")
    }
}

impl Probe {
    /// Works on parameters, in buckets by size.
    pub(super) fn new(script: impl Fn(HookStage, &Context) -> Act + Send + Sync + 'static) -> Self {
        let needs = Needs { buckets: Buckets::BySize, parameters: true };
        Probe { needs, synchronous: true, script: Arc::new(script), log: Arc::default() }
    }

    /// Hooks in the order in which they were called, with their buckets.
    pub(super) fn log(&self) -> Vec<(HookStage, usize)> {
        self.log.lock().unwrap().clone()
    }

    async fn act(&self, stage: HookStage, context: &Context, buffer: &mut Buffer) -> Result<()> {
        self.log.lock().unwrap().push((stage, context.bucket()));
        match (self.script)(stage, context) {
            Act::Nothing => Ok(()),
            Act::Mean => context.mean(buffer).await,
            Act::Until(flag) => {
                std::future::poll_fn(|_| match flag.load(Ordering::SeqCst) {
                    false => std::task::Poll::Pending,
                    true => std::task::Poll::Ready(()),
                })
                .await;
                Ok(())
            }
            Act::Fail => Err(Error::usage("the plugin did not like it", "write a better one")),
            Act::Panic => panic!("the plugin panicked on purpose"),
        }
    }
}

impl Algorithm for Probe {
    type State = ();

    fn about(&self) -> About {
        About::new(
            "probe",
            Trigram { centralized: true, synchronous: self.synchronous, full_precision: true },
        )
        .keeps_replicas_identical(false)
        .needs(self.needs)
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<()> {
        self.act(HookStage::Start, context, &mut context.copy_of(&bucket.gradients)?).await
    }

    async fn before_forward(&self, context: &Context, (): &mut (), parameters: &Buffer) -> Result<()> {
        self.act(HookStage::Forward, context, &mut context.copy_of(parameters)?).await
    }

    async fn gradients_ready(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        self.act(HookStage::Gradients, context, &mut bucket.gradients).await
    }

    async fn after_backward(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        self.act(HookStage::Backward, context, &mut context.copy_of(&bucket.gradients)?).await
    }

    async fn after_step(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        self.act(HookStage::Step, context, &mut bucket.parameters).await
    }

    async fn settle(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        self.act(HookStage::Settle, context, &mut bucket.gradients).await
    }
}
