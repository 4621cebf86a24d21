//! SSP: parameters live in shards on all ranks; every rank pushes what its steps change, and may be some steps ahead of the
//! slowest, but no more.
//!
//! ```text
//! dᵢ ← optimizer(xᵢ, gᵢ) − xᵢ   every step c, with this rank's own gradient
//! push dᵢ ÷ n                   to the shards: x ← x + dᵢ ÷ n
//! c ← c + 1
//! wait until c − min c ≤ s      the only wait: for the slowest rank, if it is too far behind
//! xᵢ ← pull x                   with all changes that any rank made before its step c − s, its own, and others
//! ```
//!
//! s = 0 is bulk synchronous: with plain SGD it is synchronous SGD with the mean of the gradients, up to the rounding of the
//! shards' f32, and the same on every rank, bit for bit. With any s, a rank that is slow for a while keeps nobody waiting
//! until the others are s steps ahead; a rank that is slower all the time does in the end, by definition. The optimizer's
//! memory (momentum) stays each rank's own.
//!
//! State: S/n for the shard, and copies of S for the parameters pulled, the change pushed, and what travels; S: the size
//! of the parameters. Bytes sent per rank and step: 2(n−1)/n · S, and requests and replies; f32. Default: s = 3, with which
//! a hiccup of three steps costs nothing, and gradients stay young. Asynchronous: replicas differ, unless s = 0; to
//! [settle](crate::DataParallel::settle) makes them all the servers' parameters. Source: Ho et al., "More effective
//! distributed ML via a stale synchronous parallel parameter server", NeurIPS 2013; with the mean over ranks, so that one
//! learning rate does for any number of them.

use crate::plugin::{Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram, settled_within_step};
use hexagram_logical::asynchronous::{Clock, Server, ServerOptions, Service, SgdUpdate};
use hexagram_logical::{Buffer, DType, Error, ReduceOp, Result};

/// A parameter server on all ranks, with bounded staleness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ssp {
    /// Number s of steps that a rank may be ahead of the slowest. Default: 3.
    pub staleness: u64,
}

impl Default for Ssp {
    fn default() -> Self {
        Ssp { staleness: 3 }
    }
}

/// State of one bucket.
pub struct Pulling {
    /// Servers, between the first step and the end, or a [`settle`](Algorithm::settle).
    session: Option<Session>,
    /// Parameters xᵢ as they were pulled, and then the change.
    pulled: Buffer,
}

/// Servers of one bucket, with their clock.
struct Session {
    server: Server,
    clock: Clock,
    /// Service, which is closed last.
    service: Service,
}

impl Algorithm for Ssp {
    type State = Pulling;

    fn name(&self) -> &'static str {
        "ssp"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: false, full_precision: true }
    }

    fn keeps_replicas_identical(&self) -> bool {
        self.staleness == 0
    }

    fn needs(&self) -> Needs {
        Needs { buckets: Buckets::Whole, parameters: true }
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Pulling> {
        if bucket.parameters.dtype() != DType::F32 {
            let what = format!("ssp's servers have f32, not {}", bucket.parameters.dtype());
            return Err(Error::usage(what, "train in f32, or with another algorithm"));
        }
        Ok(Pulling { session: None, pulled: context.zeros_like(&bucket.parameters)? })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut Pulling,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if state.session.is_none() {
            state.session = Some(Session::open(context, &bucket.parameters, self.staleness).await?);
            context.copy(&bucket.parameters, &state.pulled)?;
        }
        Ok(())
    }

    async fn after_step(&self, context: &Context, state: &mut Pulling, bucket: &mut Bucket) -> Result<()> {
        let Pulling { session: Some(Session { server, clock, .. }), pulled } = state else {
            return Err(settled_within_step());
        };
        let all = 0..bucket.len();
        context.blend(-1.0, pulled, 1.0, &bucket.parameters)?;
        server.push(all.clone(), pulled).await?;
        clock.tick();
        server.pull(all, &mut bucket.parameters).await?;
        context.copy(&bucket.parameters, pulled)
    }

    /// Ends the servers, once all ranks have come here; nobody waits for this rank's clock meanwhile.
    async fn settle(&self, context: &Context, state: &mut Pulling, bucket: &mut Bucket) -> Result<()> {
        let Some(Session { server, clock, service }) = state.session.take() else { return Ok(()) };
        clock.finish();
        service.close().await?;
        let (range, shard) = server.shard().await?;
        bucket.parameters.write_all()?.clear();
        bucket.parameters.write(range)?.copy_from(&Buffer::from_slice(&shard)?.read_all()?)?;
        context.comm().all_reduce(&mut bucket.parameters, ReduceOp::Sum).await
    }

    /// Names nothing: once settled, the parameters are all there is.
    fn checkpoint(&self, _: &mut Pulling, _: &mut Fields) -> Result<()> {
        Ok(())
    }
}

impl Session {
    /// Starts the servers. All ranks call it together, with the same parameters.
    async fn open(context: &Context, parameters: &Buffer, staleness: u64) -> Result<Self> {
        let comm = context.comm();
        let service = Service::start(comm).await?;
        let clock = Clock::start(comm, &service, staleness).await?;
        // x ← x − rate · d
        let mean = SgdUpdate { rate: -1.0 / context.size() as f32 };
        let server =
            Server::start(comm, &service, &clock, parameters, mean, ServerOptions::default()).await?;
        Ok(Session { server, clock, service })
    }
}
