//! Asynchronous model average: every rank steps on its own, while a background thread averages the replicas repeatedly.
//! With a codec it is `compressed-async-model-average`.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)        every step, with this rank's own gradient
//! in the background, one after another, started at least τ seconds apart:
//!     sᵢ ← xᵢ                   a copy, after a step
//!     r ← (1/n) Σⱼ sⱼ           all-reduce in the background, as many steps as it takes
//!     xᵢ ← (xᵢ − sᵢ) + r        one pass, after the step in which it has arrived
//! with a codec C and its decoding D:
//!     hᵢ ← hᵢ + D(C(sᵢ − hᵢ))   shared estimate of sᵢ, kept
//!     m ← (1/n) Σⱼ hⱼ           by the owner of each chunk
//!     H ← H + D(C(m − H))       shared estimate of m, kept
//!     xᵢ ← xᵢ + α (H − hᵢ), and + α n (m − H) in the own chunk
//! ```
//!
//! The updates of a rank during an average are kept. The mean of the replicas is preserved, up to rounding, since Σᵢ (r
//! − sᵢ) = 0; encoded averages preserve it too, whatever the codec loses, since Σᵢ (H − hᵢ) + n (m − H) = 0. No rank
//! waits for another: the k-th average begins when the slowest rank has reached it; the other ranks continue. A step in
//! which no average begins or ends costs only the check. The first W steps, if requested, are plain gradient
//! all-reduce.
//!
//! State: s and r, 2 S in all, S being the size of the parameters; with a codec also h and H, and for the own chunk m
//! and the h of every rank: 3 S + S/n more, which checkpoints contain. Bytes sent per rank: for an average, at most
//! every τ seconds, 2(n−1)/n · S, or (n−1) · S if n · S ≤ 64 KiB, and n − 1 to agree on it (without hierarchy); in 8
//! bits 2(n−1)/n · Σ (c + 8⌈c/B⌉) over the n chunks of c elements, B = 2048, and n − 1; a step of the warm-up is never
//! encoded, and sends the bytes of full precision. Hierarchical communication is for averages without a codec.
//! Defaults: τ = 0.1 s, at which the network is idle half of the time if an average takes 50 ms; 0 averages without a
//! pause, which keeps a processor busy on a small model; W = 0; α = 1, and 8 bits of min-max for
//! `compressed-async-model-average`; a coarse codec, of contraction δ, needs α of about δ. Asynchronous: replicas
//! differ, and runs are not reproducible; a checkpoint loses nothing.
//! [`DataParallel::settle`](crate::DataParallel::settle) aborts an average that has not begun and applies one that has;
//! the next step resumes. Metric: `staleness`, the number of steps that an average took. Elements: floats; encoded f32.
//! Sources: Gan et al., "BAGUA: scaling up distributed learning with system relaxations", VLDB 2021, where τ is 0.5 s;
//! encoded [`mean_kept_encoded`](hexagram_logical::Communicator::mean_kept_encoded), after Koloskova, Stich and Jaggi,
//! "CHOCO", 2019.

use crate::plugin::{
    About, Algorithm, Bucket, Buckets, Combine, Context, Fields, Needs, Ranks, Trigram, check_f32,
};
use hexagram_logical::asynchronous::{Background, Pending};
use hexagram_logical::codec::{Codec, MinMax8, any_codec};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::{Options, above, or};
use hexagram_logical::runtime::{self, Instant};
use hexagram_logical::{Buffer, Communicator, Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Averages of the parameters in the background.
#[derive(Debug, Clone)]
pub struct AsyncModelAverage {
    /// Seconds τ from the start of an average to the start of the next, if the first has ended by then; 0 for no pause.
    /// Default: 0.1.
    pub interval: f64,
    /// Number W of steps of gradient all-reduce at the beginning. Default: 0.
    pub warm_up: u64,
    /// Codec C of the averages; `None`, the default, averages in full precision.
    pub codec: Option<Arc<dyn Codec>>,
    /// Fraction α of the distance to the mean that an average moves a replica, above 0 and at most 1. Default: 1.
    pub approach: f64,
}

impl Default for AsyncModelAverage {
    fn default() -> Self {
        AsyncModelAverage { interval: 0.1, warm_up: 0, codec: None, approach: 1.0 }
    }
}

impl AsyncModelAverage {
    /// Creates `compressed-async-model-average`, with 8 bits per parameter.
    pub fn compressed() -> Self {
        AsyncModelAverage { codec: Some(Arc::new(MinMax8::default())), ..AsyncModelAverage::default() }
    }
}

/// Average in progress: `s`, a copy of the parameters (encoded: the estimate that all ranks share), and `r`, which
/// becomes the mean.
struct AverageInProgress {
    s: Buffer,
    r: Buffer,
}

/// State of one bucket.
pub struct Averaging {
    background: Background,
    interval: Duration,
    under_way: Option<Pending<Option<AverageInProgress>>>,
    /// Buffers for the next average.
    spare: Option<AverageInProgress>,
    /// Time at which the last average was posted.
    posted: Option<Instant>,
    /// Number of steps before that time.
    posted_after: u64,
    /// Encoding of the averages; the background thread owns it during an average.
    encoding: Option<Arc<Mutex<Encoding>>>,
}

impl Algorithm for AsyncModelAverage {
    type State = Averaging;

    fn about(&self) -> About {
        About::new(
            if self.codec.is_some() { "compressed-async-model-average" } else { "async-model-average" },
            Trigram { centralized: true, synchronous: false, full_precision: self.codec.is_none() },
        )
        .period(1)
        .source("Gan et al., Bagua, VLDB 2022; encoded after Koloskova, Stich and Jaggi, ICML 2019")
        .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn without_warm_up(&self) -> Option<Self> {
        (self.warm_up > 0).then(|| Self { warm_up: 0, ..self.clone() })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field(
            "interval",
            &mut self.interval,
            0.0..,
            "τ, seconds from the start of an average to the next",
        )?;
        options.field("warm_up", &mut self.warm_up, 0.., "W, steps of gradient all-reduce at the start")?;
        options.field("codec", &mut self.codec, or("none", any_codec()), "C, of the averages")?;
        options.field(
            "approach",
            &mut self.approach,
            above(0.0).up_to(1.0),
            "α, fraction of the distance to the mean",
        )
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Averaging> {
        let interval = Duration::try_from_secs_f64(self.interval).map_err(|_| {
            let what = format!("an average every {} s is not possible", self.interval);
            Error::usage(what, "set async-model-average's interval to 0 or more seconds")
        })?;
        if self.codec.is_some() {
            check_f32(bucket)?;
        }
        let encoding = self.codec.clone().map(|codec| context.encoding(codec, Feedback::Difference));
        let encoding = encoding.map(|encoding| Arc::new(Mutex::new(encoding)));
        let background = Background::start(context.comm()).await?;
        Ok(Averaging {
            background,
            interval,
            under_way: None,
            spare: None,
            posted: None,
            posted_after: 0,
            encoding,
        })
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
            state.apply(context, &bucket.parameters, self.approach).await?;
        }
        if state.under_way.is_none() && state.posted.is_none_or(|posted| posted.elapsed() >= state.interval) {
            state.post(context, &bucket.parameters)?;
        }
        Ok(())
    }

    /// Aborts an average that has not begun, and applies one that has.
    async fn settle(&self, context: &Context, state: &mut Averaging, bucket: &mut Bucket) -> Result<()> {
        state.background.abort().await?;
        state.apply(context, &bucket.parameters, self.approach).await?;
        state.posted = None;
        Ok(())
    }

    /// Saves the state of an encoding; averages in progress have been settled.
    fn checkpoint(&self, state: &mut Averaging, fields: &mut Fields) -> Result<()> {
        let encoding = state.encoding.as_ref();
        encoding.map_or(Ok(()), |encoding| fields.encoding("encoding", &mut lock(encoding)))
    }
}

impl Averaging {
    /// Returns true if an average is ready to be applied.
    fn has_come(&self) -> bool {
        self.under_way.as_ref().is_some_and(Pending::is_done)
    }

    /// Copies `s ← x`, and computes `r ← mean(s)` on the background thread; encoded, s becomes the estimate that all
    /// ranks share.
    fn post(&mut self, context: &Context, parameters: &Buffer) -> Result<()> {
        let new = || {
            Ok(AverageInProgress { s: context.zeros_like(parameters)?, r: context.zeros_like(parameters)? })
        };
        let AverageInProgress { mut s, mut r } = self.spare.take().map_or_else(new, Ok)?;
        context.copy(parameters, &s)?;
        let encoding = self.encoding.clone();
        let hierarchical = context.is_hierarchical();
        #[allow(clippy::await_holding_lock, reason = "the thread has no other work")]
        let average = async move |comm: &Communicator| {
            if let Some(encoding) = encoding {
                comm.mean_kept_encoded(&mut s, &mut r, &mut lock(&encoding)).await?;
            } else {
                r.write_all()?.copy_from(&s.read_all()?)?;
                Ranks::of(comm, hierarchical).await?.mean(&mut r).await?;
            }
            Ok(AverageInProgress { s, r })
        };
        self.under_way = Some(self.background.call(average));
        self.posted = Some(runtime::now());
        self.posted_after = context.step();
        Ok(())
    }

    /// Waits for an average and applies it, if there is one and it was not aborted: `x ← (x − α s) + α r`.
    async fn apply(&mut self, context: &Context, parameters: &Buffer, approach: f64) -> Result<()> {
        let Some(under_way) = self.under_way.take() else { return Ok(()) };
        let Some(average) = under_way.await? else { return Ok(()) };
        let staleness = context.step().saturating_sub(self.posted_after);
        context.metric("staleness", Combine::Max, staleness as f64)?;
        context.combine(1.0, parameters, &[(-approach, &average.s), (approach, &average.r)])?;
        self.spare = Some(average);
        Ok(())
    }
}

fn lock(encoding: &Mutex<Encoding>) -> MutexGuard<'_, Encoding> {
    encoding.lock().unwrap_or_else(PoisonError::into_inner)
}
