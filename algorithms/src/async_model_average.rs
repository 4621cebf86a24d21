//! Asynchronous model average: every rank steps on its own, while a thread beside it averages the replicas over and over.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)        every step, with this rank's own gradient
//! beside it, one after another, τ seconds between their beginnings at least:
//!     sᵢ ← xᵢ                   a copy, after a step
//!     r ← (1/n) Σⱼ sⱼ           all-reduce in the background, as many steps as it takes
//!     xᵢ ← (xᵢ − sᵢ) + r        one pass, after the step in which it has come
//! ```
//!
//! What a rank adds to its replica meanwhile is kept, and the mean of the replicas stays as it is, up to rounding, since
//! Σᵢ (r − sᵢ) = 0. No rank waits for another: the k-th average begins when the slowest rank has come to it, and the others
//! go on. A step in which no average begins or ends costs nothing but the question. The first W steps, if asked for, are
//! plain gradient all-reduce.
//!
//! State: s and r, 2 S in all, S being the size of the parameters. Bytes sent per rank: 2(n−1)/n · S for an average, and
//! n − 1 bytes to agree on it, at most once in τ seconds (without hierarchy); 2(n−1)/n · S for a step of the warm-up.
//! Defaults: τ = 0.1 s, which leaves the network idle half of the time where an average takes 50 ms; 0 averages without a
//! pause, and on a small model keeps a processor busy with it; W = 0. Asynchronous: replicas differ.
//! [`DataParallel::settle`](crate::DataParallel::settle) aborts what has not begun and applies what has; the next step
//! resumes. Source: Gan et al., "BAGUA: scaling up distributed learning with system relaxations", VLDB 2021, where τ is
//! 0.5 s.

use crate::plugin::{Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::asynchronous::{Background, Pending};
use hexagram_logical::runtime::{self, Instant};
use hexagram_logical::{Buffer, Error, ReduceOp, Result};
use std::time::Duration;

/// Mean of the parameters, beside the training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AsyncModelAverage {
    /// Seconds τ from the start of an average to that of the next, if it is over; 0 for at once. Default: 0.1.
    pub interval: f64,
    /// Number W of steps of gradient all-reduce in the beginning. Default: 0.
    pub warm_up: u64,
}

impl Default for AsyncModelAverage {
    fn default() -> Self {
        AsyncModelAverage { interval: 0.1, warm_up: 0 }
    }
}

/// Average under way: `s` as it was, and `r`, which becomes the mean.
struct Average {
    s: Buffer,
    r: Buffer,
}

/// State of one bucket.
pub struct Averaging {
    background: Background,
    interval: Duration,
    under_way: Option<Pending<Option<Average>>>,
    /// Buffers for the next average.
    spare: Option<Average>,
    /// Moment at which the last average was posted.
    posted: Option<Instant>,
}

impl Algorithm for AsyncModelAverage {
    type State = Averaging;

    fn name(&self) -> &'static str {
        "async-model-average"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: false, full_precision: true }
    }

    fn needs(&self) -> Needs {
        Needs { buckets: Buckets::Whole, parameters: true }
    }

    async fn state(&self, context: &Context, _: &Bucket) -> Result<Averaging> {
        let interval = Duration::try_from_secs_f64(self.interval).map_err(|_| {
            let what = format!("an average every {} s is not possible", self.interval);
            Error::usage(what, "set async-model-average's interval to 0 or more seconds")
        })?;
        let background = Background::start(context.comm()).await?;
        Ok(Averaging { background, interval, under_way: None, spare: None, posted: None })
    }

    async fn gradients_ready(&self, context: &Context, _: &mut Averaging, bucket: &mut Bucket) -> Result<()> {
        if context.own_step() < self.warm_up {
            context.mean(&mut bucket.gradients).await?;
        }
        Ok(())
    }

    async fn after_step(&self, context: &Context, state: &mut Averaging, bucket: &mut Bucket) -> Result<()> {
        if context.own_step() < self.warm_up {
            return Ok(());
        }
        if state.has_come() {
            state.apply(context, &bucket.parameters).await?;
        }
        if state.under_way.is_none() && state.posted.is_none_or(|posted| posted.elapsed() >= state.interval) {
            state.post(context, &bucket.parameters)?;
        }
        Ok(())
    }

    /// Aborts an average that has not begun, and applies one that has.
    async fn settle(&self, context: &Context, state: &mut Averaging, bucket: &mut Bucket) -> Result<()> {
        state.background.abort().await?;
        state.apply(context, &bucket.parameters).await?;
        state.posted = None;
        Ok(())
    }

    /// Names nothing: what is in flight was settled.
    fn checkpoint(&self, _: &mut Averaging, _: &mut Fields) -> Result<()> {
        Ok(())
    }
}

impl Averaging {
    /// Returns true if there is an average to be applied.
    fn has_come(&self) -> bool {
        self.under_way.as_ref().is_some_and(Pending::is_done)
    }

    /// Copies `s ← x`, and makes `r ← mean(s)` on the other thread.
    fn post(&mut self, context: &Context, parameters: &Buffer) -> Result<()> {
        let new = || Ok(Average { s: context.zeros_like(parameters)?, r: context.zeros_like(parameters)? });
        let Average { s, mut r } = self.spare.take().map_or_else(new, Ok)?;
        context.copy(parameters, &s)?;
        self.under_way = Some(self.background.call(async move |comm| {
            r.write_all()?.copy_from(&s.read_all()?)?;
            comm.all_reduce(&mut r, ReduceOp::Mean).await?;
            Ok(Average { s, r })
        }));
        self.posted = Some(runtime::now());
        Ok(())
    }

    /// Applies an average, if there is one and it was not aborted: `x ← (x − s) + r`. Waits for it.
    async fn apply(&mut self, context: &Context, parameters: &Buffer) -> Result<()> {
        let Some(under_way) = self.under_way.take() else { return Ok(()) };
        let Some(average) = under_way.await? else { return Ok(()) };
        context.combine(1.0, parameters, &[(-1.0, &average.s), (1.0, &average.r)])?;
        self.spare = Some(average);
        Ok(())
    }
}
