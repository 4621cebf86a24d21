//! SSP: parameters are stored in shards on all ranks; every rank pushes its changes, and may be at most `staleness`
//! steps ahead of the slowest. With codecs it is `compressed-ssp`.
//!
//! ```text
//! dᵢ ← optimizer(xᵢ, gᵢ) − xᵢ   every step c, with this rank's own gradient
//! push dᵢ ÷ n                   to the shards: x ← x + dᵢ ÷ n
//! c ← c + 1
//! wait until c − min c ≤ s      the only wait: for the slowest rank, if it is too far behind
//! xᵢ ← pull x                   with the changes of all ranks before their step c − s, its own, and some later ones
//! with codecs C and P and their decoding D:
//! push D(C(dᵢ + eᵢ)) ÷ n;       eᵢ ← dᵢ + eᵢ − D(C(dᵢ + eᵢ)), kept
//! xᵢ ← D(P(x))                  x in the shards stays exact
//! ```
//!
//! s = 0 is bulk synchronous: with plain SGD it is synchronous SGD with the mean of the gradients, up to the rounding
//! of the f32 shards, and bit-identical on every rank. With any s, the other ranks wait for a temporarily slow rank
//! only when they are s steps ahead; they always wait in the end for a rank that is permanently slower. Each rank keeps
//! its own optimizer state (momentum). With codecs, x + (1/n) Σᵢ eᵢ equals x without C, whatever C loses: error
//! feedback. The error of P in a pull does not enter x, and does not accumulate, but gradients are taken at the pulled
//! values: P must be a fine codec.
//!
//! Shards: one per rank; with more than 16 ranks, one per 16,384 elements (64 KiB), but at least 16. With smaller ones,
//! the latency of messages exceeds the transfer time.
//!
//! State: the shards, S/n for each rank on average, and copies of S for the parameters pulled, the change pushed, and
//! the messages, S being the size of the parameters; with codecs e, S, which checkpoints contain. Bytes sent per rank
//! and step, the mean over ranks: 2(n−1)/n · S, and at most 3 requests with replies to each rank that has a shard, of
//! 96 bytes per pair; f32. A codec reduces the first part: `compressed-ssp` sends (n−1)/n · Σ (3c + 8⌈c/2048⌉) over the
//! n shards of c elements, slightly more than 3/8 of 2(n−1)/n · S, and the same number of requests. A settle costs an
//! all-reduce of S in both. Defaults: s = 3, with which a delay of three steps costs nothing, and gradients stay fresh;
//! C: 8 bits of min-max, P: f16 for `compressed-ssp`. Asynchronous: replicas differ, unless s = 0;
//! [settle](crate::DataParallel::settle) sets them all to the parameters of the servers, after which a checkpoint loses
//! nothing, but runs are not reproducible. Sources: Ho et al., "More effective distributed ML via a stale synchronous
//! parallel parameter server", NeurIPS 2013; with the mean over ranks, so that one learning rate suits any number of
//! ranks; error feedback as Seide et al., "1-bit stochastic gradient descent", 2014.

use crate::plugin::{
    About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram, settled_within_step,
};
use hexagram_logical::asynchronous::{Clock, Server, ServerOptions, Service, SgdUpdate};
use hexagram_logical::codec::{Codec, Half, MinMax8, Properties, any_codec};
use hexagram_logical::encoding::{self, Feedback};
use hexagram_logical::options_text::{Options, or};
use hexagram_logical::{Buffer, DType, Error, ReduceOp, Result};
use std::sync::Arc;

/// A parameter server on all ranks, with bounded staleness.
#[derive(Debug, Clone)]
pub struct Ssp {
    /// Maximum number s of steps that a rank may be ahead of the slowest. Default: 3.
    pub staleness: u64,
    /// Codec C of the pushes, with error feedback; `None`, the default, pushes in full precision.
    pub codec: Option<Arc<dyn Codec>>,
    /// Codec P of the pulls, which must be fine; `None`, the default, pulls in full precision.
    pub pulled: Option<Arc<dyn Codec>>,
}

impl Default for Ssp {
    fn default() -> Self {
        Ssp { staleness: 3, codec: None, pulled: None }
    }
}

impl Ssp {
    /// Creates `compressed-ssp`: pushes of 8 bits per parameter, and pulls of 16.
    pub fn compressed() -> Self {
        let codec: Arc<dyn Codec> = Arc::new(MinMax8::default());
        Ssp { codec: Some(codec), pulled: Some(Arc::new(Half::F16)), ..Ssp::default() }
    }

    fn is_encoded(&self) -> bool {
        self.codec.is_some() || self.pulled.is_some()
    }

    /// Fails for a push codec that error feedback does not suit.
    fn check_pushes(&self) -> Result<()> {
        let Some(codec) = &self.codec else { return Ok(()) };
        let Properties { unbiased, contraction, .. } = codec.properties();
        if !unbiased || contraction.is_some() {
            return Ok(());
        }
        let what = format!(
            "codec of ssp is {}: its error may be larger than its input, and error feedback would add up the errors",
            codec.name()
        );
        Err(Error::usage(what, "choose min-max8, sign, top-k or another with a bounded error"))
    }
}

/// State of one bucket.
pub struct Pulling {
    /// Servers, between the first step and the end, or a [`settle`](Algorithm::settle).
    session: Option<BucketServer>,
    /// Parameters xᵢ as pulled, and then the change.
    pulled: Buffer,
    /// Error eᵢ of the pushes, while no servers hold it.
    error: encoding::State,
}

/// Servers of one bucket, with their clock.
struct BucketServer {
    server: Server,
    clock: Clock,
    /// Service, which is closed last.
    service: Service,
}

impl Algorithm for Ssp {
    type State = Pulling;

    fn about(&self) -> About {
        About::new(
            if self.is_encoded() { "compressed-ssp" } else { "ssp" },
            Trigram { centralized: true, synchronous: false, full_precision: !self.is_encoded() },
        )
        .period(1)
        .source("Ho et al., NeurIPS 2013")
        .keeps_replicas_identical(self.staleness == 0)
        .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field(
            "staleness",
            &mut self.staleness,
            0..,
            "s, steps that a rank may be ahead of the slowest",
        )?;
        options.field("codec", &mut self.codec, or("none", any_codec()), "C, of the pushes")?;
        options.field("pulled", &mut self.pulled, or("none", any_codec()), "P, of the pulls")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Pulling> {
        if bucket.parameters.dtype() != DType::F32 {
            let what = format!("the servers of ssp have f32, not {}", bucket.parameters.dtype());
            return Err(Error::usage(what, "train in f32, or with another algorithm"));
        }
        self.check_pushes()?;
        let pulled = context.zeros_like(&bucket.parameters)?;
        Ok(Pulling { session: None, pulled, error: encoding::State::default() })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut Pulling,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if state.session.is_none() {
            let encoding = |codec: &Option<Arc<dyn Codec>>, feedback| {
                codec.clone().map(|codec| context.encoding(codec, feedback))
            };
            let mut pushed = encoding(&self.codec, Feedback::Error);
            if let Some(pushed) = &mut pushed {
                *pushed.state_mut() = std::mem::take(&mut state.error);
            }
            let pulled = encoding(&self.pulled, Feedback::None);
            let options = ServerOptions { pushed, pulled };
            let session = BucketServer::open(context, &bucket.parameters, self.staleness, options).await?;
            state.session = Some(session);
            context.copy(&bucket.parameters, &state.pulled)?;
        }
        Ok(())
    }

    async fn after_step(&self, context: &Context, state: &mut Pulling, bucket: &mut Bucket) -> Result<()> {
        let Pulling { session: Some(BucketServer { server, clock, .. }), pulled, .. } = state else {
            return Err(settled_within_step());
        };
        let all = 0..bucket.len();
        context.blend(-1.0, pulled, 1.0, &bucket.parameters)?;
        server.push(all.clone(), pulled).await?;
        clock.tick();
        server.pull(all, &mut bucket.parameters).await?;
        context.copy(&bucket.parameters, pulled)
    }

    /// Stops the servers, once all ranks have arrived; no rank waits for the clock of this rank meanwhile.
    async fn settle(&self, context: &Context, state: &mut Pulling, bucket: &mut Bucket) -> Result<()> {
        let Some(BucketServer { mut server, clock, service }) = state.session.take() else { return Ok(()) };
        clock.finish();
        service.close().await?;
        if let Some(pushed) = server.pushed() {
            state.error = std::mem::take(pushed.state_mut());
        }
        let (range, shard) = server.shard().await?;
        bucket.parameters.write_all()?.clear();
        bucket.parameters.write(range)?.copy_from(&Buffer::from_slice(&shard)?.read_all()?)?;
        context.comm().all_reduce(&mut bucket.parameters, ReduceOp::Sum).await
    }

    /// Saves the error of the pushes: after a settle, the parameters are the only other state.
    fn checkpoint(&self, state: &mut Pulling, fields: &mut Fields) -> Result<()> {
        if self.codec.is_none() {
            return Ok(());
        }
        fields.averaged(|fields| fields.memory("error", &mut state.error))
    }
}

impl BucketServer {
    /// Starts the servers. A collective call, with the same parameters on all ranks.
    async fn open(
        context: &Context,
        parameters: &Buffer,
        staleness: u64,
        options: ServerOptions,
    ) -> Result<Self> {
        let comm = context.comm();
        let service = Service::start(comm).await?;
        let clock = Clock::start(comm, &service, staleness).await?;
        // x ← x − rate · d
        let mean = SgdUpdate { rate: -1.0 / context.size() as f32 };
        let server = Server::start(comm, &service, &clock, parameters, mean, options).await?;
        Ok(BucketServer { server, clock, service })
    }
}
