//! AD-PSGD: every rank steps on its own, and between its steps averages its replica with that of one other rank, which need not
//! have agreed to it. With a codec it is `compressed-ad-psgd`.
//!
//! ```text
//! g ← ∇fᵢ(y)                    at a copy y of the replica xᵢ, while others may average with xᵢ
//! xᵢ ← xᵢ + optimizer(y, g) − y only the change, added to the averages made meanwhile
//! xᵢ, xⱼ ← (xᵢ + xⱼ)/2          every P-th step, with a random rank j: atomic, concurrent with the next steps
//! y ← xᵢ
//! with a codec C and its decoding D, if rank i asks rank j:
//! hᵢⱼ ← hᵢⱼ + D(C(xᵢ − hᵢⱼ))    estimate of xᵢ, kept by both; if j < i, one of xⱼ instead
//! d ← D(C((hᵢⱼ − xⱼ)/2));       xᵢ ← xᵢ − d; xⱼ ← xⱼ + d
//! ```
//!
//! Any rank may average with any other at any time: [pair exchanges](PairExchange) lock both replicas in rank order, so
//! that no cycle of ranks can deadlock, and the service of each rank answers even while the program computes. So ranks
//! need no roles, and their number may be odd. No rank waits for the step of another rank: if the last average has not
//! ended in time, the next is skipped. All averages together are a product of pairwise ones, in one order, which
//! preserves the mean of the replicas. Encoded averages preserve it too, whatever the codec loses, since both ranks add
//! the same d.
//!
//! State: x, y and the message buffers of the exchange, some 5 S in all, S being the size of the parameters; with a codec
//! also two h for every partner, 2(n−1) S. Bytes sent per rank: 2 S for each average that the rank begins, S of them by
//! itself and S by its partner, and a request with its reply of 96 bytes, or two if the partner has the lower rank; so
//! 2 S / P in a step, or less. Encoded, 2 messages of C in place of 2 S, in 8 bits 2 (d + 8⌈d/2048⌉). Defaults: P = 1;
//! 8 bits of min-max for `compressed-ad-psgd`. Elements: f32 and f64; encoded f32. Asynchronous: replicas differ, and
//! runs are not reproducible; use a final mean. A [settle](crate::DataParallel::settle), and so a checkpoint, forgets h
//! on both sides: the next message of a pair is of x itself, so C must be a fine codec. Deviations from the sources: in
//! the first, a rank waits for its average before it begins the next step; the second, Moniqua, sends x modulo a bound
//! on the replicas' distance, and has no state, but gives wrong results without an error where the bound does not hold.
//! Sources: Lian, Zhang, Zhang and Liu, "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018;
//! Lu and De Sa, "Moniqua: modulo quantized communication in decentralized SGD", ICML 2020.

use crate::plugin::{
    About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram, check_f32, settled_within_step,
};
use hexagram_logical::asynchronous::{Exchanged, PairExchange, PairOptions, Pending, Service};
use hexagram_logical::codec::{Codec, MinMax8, any_codec};
use hexagram_logical::encoding::{Encoding, Feedback, mix};
use hexagram_logical::options_text::{Options, or};
use hexagram_logical::{Buffer, Result};
use std::sync::Arc;

/// Averages of two replicas, requested by either rank at any time.
#[derive(Debug, Clone)]
pub struct AdPsgd {
    /// Number P of steps between the averages that a rank requests, at least 1. Default: 1.
    pub interval: u64,
    /// Seed of the choice of partners. Default: 0.
    pub seed: u64,
    /// Codec C of the averages; `None`, the default, averages in full precision.
    pub codec: Option<Arc<dyn Codec>>,
}

impl Default for AdPsgd {
    fn default() -> Self {
        AdPsgd { interval: 1, seed: 0, codec: None }
    }
}

impl AdPsgd {
    /// Creates `compressed-ad-psgd`, with 8 bits per parameter.
    pub fn compressed() -> Self {
        AdPsgd { codec: Some(Arc::new(MinMax8::default())), ..AdPsgd::default() }
    }
}

/// State of one bucket.
pub struct AdPsgdState {
    /// Replica that other ranks access, between the first step and the end, or a [`settle`](Algorithm::settle).
    shared: Option<SharedReplica>,
    /// Last known parameters y, and then the change.
    y: Buffer,
}

/// Replica that other ranks access.
struct SharedReplica {
    x: PairExchange,
    under_way: Option<Pending<Exchanged>>,
    /// Service, which is closed last.
    service: Service,
}

impl Algorithm for AdPsgd {
    type State = AdPsgdState;

    fn about(&self) -> About {
        About::new(
            if self.codec.is_some() { "compressed-ad-psgd" } else { "ad-psgd" },
            Trigram { centralized: false, synchronous: false, full_precision: self.codec.is_none() },
        )
        .source("Lian, Zhang, Zhang and Liu, ICML 2018; encoded after Koloskova, Stich and Jaggi, ICML 2019")
        .period(self.interval)
        .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field(
            "interval",
            &mut self.interval,
            1..,
            "P, steps between the averages that a rank requests",
        )?;
        options.field("seed", &mut self.seed, 0.., "of the choice of partners")?;
        options.field("codec", &mut self.codec, or("none", any_codec()), "C, of the averages")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<AdPsgdState> {
        if self.codec.is_some() {
            check_f32(bucket)?;
        }
        Ok(AdPsgdState { shared: None, y: context.zeros_like(&bucket.parameters)? })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut AdPsgdState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if state.shared.is_none() {
            let codec = self.codec.clone();
            let encoding = codec.map(|codec| context.encoding(codec, Feedback::Difference));
            state.shared = Some(SharedReplica::open(context, &bucket.parameters, encoding).await?);
            context.copy(&bucket.parameters, &state.y)?;
        }
        Ok(())
    }

    async fn after_step(
        &self,
        context: &Context,
        state: &mut AdPsgdState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        let AdPsgdState { shared: Some(shared), y } = state else { return Err(settled_within_step()) };
        context.blend(-1.0, y, 1.0, &bucket.parameters)?;
        shared.x.add(1.0, y).await?;
        if context.round(self.interval).is_some() && context.size() > 1 && shared.is_free().await? {
            shared.under_way = Some(shared.x.exchange(self.partner(context)));
        }
        shared.x.load(&mut bucket.parameters).await?;
        context.copy(&bucket.parameters, y)
    }

    /// Ends all averages, so that only the engine accesses the replica.
    async fn settle(&self, _: &Context, state: &mut AdPsgdState, bucket: &mut Bucket) -> Result<()> {
        let Some(SharedReplica { x, under_way, service }) = state.shared.take() else { return Ok(()) };
        if let Some(under_way) = under_way {
            under_way.await?;
        }
        service.close().await?;
        x.load(&mut bucket.parameters).await
    }

    /// Saves nothing: no average is in progress, and partners follow from the step number.
    fn checkpoint(&self, _: &mut AdPsgdState, _: &mut Fields) -> Result<()> {
        Ok(())
    }
}

impl AdPsgd {
    /// Returns a random other rank, with uniform probability.
    fn partner(&self, context: &Context) -> usize {
        let words = [context.rank() as u64, context.bucket() as u64, context.step()];
        let draw = words.iter().fold(self.seed, |hash, word| mix(hash ^ word));
        let other = (draw % (context.size() as u64 - 1)) as usize;
        if other < context.rank() { other } else { other + 1 }
    }
}

impl SharedReplica {
    /// Makes the replica accessible to other ranks. A collective call.
    async fn open(context: &Context, parameters: &Buffer, encoding: Option<Encoding>) -> Result<Self> {
        let service = Service::start(context.comm()).await?;
        let options = PairOptions { locked: true, encoding };
        let x = PairExchange::create(context.comm(), &service, parameters, options).await?;
        Ok(SharedReplica { x, under_way: None, service })
    }

    /// Returns true if the last average that this rank requested has ended.
    async fn is_free(&mut self) -> Result<bool> {
        if self.under_way.as_ref().is_some_and(|exchange| !exchange.is_done()) {
            return Ok(false);
        }
        if let Some(over) = self.under_way.take() {
            over.await?;
        }
        Ok(true)
    }
}
