//! A parameter server on all ranks: each holds a shard of the parameters, and applies the updates of all ranks to it.

mod cache;
mod client;
mod shard;
mod shard_layout;
mod update;

pub use update::{Add, Push, SgdUpdate, Update};

use super::clock::Clock;
use super::service::{Service, ServiceMember, agree};
use crate::encoding::{Encoding, Feedback};
use crate::{Buffer, Communicator, DType, Primitive, Result};
use cache::Cache;
use hexagram_physical::fingerprint::{CodecDigest, Fingerprint, OperationKind};
use shard::Shard;
use shard_layout::{ShardLayout, Shards};
use std::ops::Range;
use std::sync::Arc;

/// Encodings of the messages of a server. Must be equal on all ranks.
#[derive(Debug, Default)]
pub struct ServerOptions {
    /// Encoding of deltas, without feedback or with [`Feedback::Error`]; `None` sends them unencoded.
    pub pushed: Option<Encoding>,
    /// Encoding of parameters, without feedback; `None` sends them unencoded.
    pub pulled: Option<Encoding>,
}

impl ServerOptions {
    /// Returns the fingerprint of the options. Fails for feedback that servers do not support.
    fn fingerprint(&self, shards: Shards) -> Result<Fingerprint> {
        let ServerOptions { pushed, pulled } = self;
        let feedbacks = [(pushed, &[Feedback::None, Feedback::Error][..]), (pulled, &[Feedback::None])];
        for (encoding, known) in feedbacks {
            encoding.iter().try_for_each(|encoding| encoding.expect_feedback("a server", known))?;
        }
        let name = |encoding: &Option<Encoding>| encoding.as_ref().map(|it| it.digest().to_string());
        let names = [name(pushed), name(pulled)];
        let codec = names.iter().any(Option::is_some).then(|| CodecDigest::of(&format!("{names:?}")));
        Ok(Fingerprint { codec, ..Fingerprint::new(OperationKind::Server, DType::F32, shards.len) })
    }
}

/// Age of pulled parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Clock before which the updates of all ranks are included.
    pub clock: u64,
    /// Number of pushes that each of the shards had applied, in the order of shards.
    pub versions: Vec<u64>,
}

/// A vector of f32 that is distributed over ranks, and updated by pushes from any rank.
///
/// Its k shards are on evenly spaced ranks. Up to 16 ranks have one shard each. With more ranks, k is the number of
/// shards of at least 16,384 elements, but at least 16: see [`shard_range`].
///
/// With u the update, g a delta of rank q at clock c, and x the parameters:
///
/// > push: x ← u(x, g, q, c), on the ranks that have them; pull: the current x of those ranks
///
/// A pull at clock c contains the pushes of every rank from clocks before c − s, all pushes of its own rank, and
/// possibly more; s is the staleness of the [`Clock`]. With s = 0 the result is exact: a delta is kept until its
/// clock has ended on all ranks, and deltas are applied in the order of clocks, then ranks, then pushes. A pull at
/// clock c returns the result of exactly the clocks before c, as in bulk synchronous parallelism.
///
/// *Steps*: a push is one request to each of its shards, and does not wait. A pull waits for the clock, and is one
/// request and its reply per shard. *Bytes* sent by the n ranks on average, with S the size of the pushed or pulled
/// parameters. A push: (n−1)/n · S and (n−1)/n · k requests of [`REQUEST_BYTES`](super::REQUEST_BYTES), each answered
/// by [`REPLY_BYTES`](super::REPLY_BYTES). A pull: the same number of requests, answered by (n−1)/n · S and the same
/// number of replies. If every rank has a shard, each rank sends exactly that. Headers are additional; payloads of
/// more than [`INLINE_BYTES`](super::INLINE_BYTES) are separate messages. Encoded, S is the size of the messages.
/// *Memory*: S/k for a shard, S/k for its messages, S for each running push and pull, and, if s = 0, S for pushes
/// that wait for their clock. *Determinism*: complete with s = 0, on all transports; otherwise updates are applied in
/// the order of arrival.
///
/// Sources: Li et al., "Scaling distributed machine learning with the parameter server", 2014; Ho et al., "More
/// effective distributed ML via a stale synchronous parallel parameter server", 2013.
///
/// ```
/// use hexagram_logical::asynchronous::{Clock, Server, ServerOptions, Service, SgdUpdate};
/// use hexagram_logical::testing::spawn;
/// use hexagram_logical::{Buffer, Communicator, Result, TransportKind};
///
/// async fn train(comm: &Communicator) -> Result<f32> {
///     let service = Service::start(comm).await?;
///     let clock = Clock::start(comm, &service, 0).await?;
///     let mut x = Buffer::from_slice(&[10f32; 100])?;
///     let rule = SgdUpdate { rate: 0.5 };
///     let mut server = Server::start(comm, &service, &clock, &x, rule, ServerOptions::default()).await?;
///     for _ in 0..3 {
///         server.pull(0..100, &mut x).await?;
///         let gradient = Buffer::from_slice(&[comm.rank() as f32; 100])?;
///         server.push(0..100, &gradient).await?;
///         clock.tick();
///     }
///     // The same, for programs without `await`.
///     server.blocking().pull(0..100, &mut x)?;
///     Ok(x.host::<f32>()?[99])
/// }
///
/// let ranks = spawn(TransportKind::Thread, 4, |comm| comm.block_on(train(&comm)));
/// assert_eq!(ranks.unwrap(), [1.0; 4]);
/// ```
pub struct Server {
    service: Service,
    clock: Clock,
    number: u32,
    terms: Arc<ShardLayout>,
    shard: Arc<Shard>,
    /// With its memory.
    pushed: Option<Encoding>,
    cache: Option<Cache>,
}

impl Server {
    /// Creates a server. A collective call. `initial` holds all parameters, equal on all ranks; each shard starts
    /// with the elements of its own rank.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ in the length or the options.
    /// [`Error::Usage`](crate::Error::Usage) if `initial` does not hold f32, an encoding has a feedback that servers
    /// do not support, or `comm` has other ranks than the service.
    pub async fn start(
        comm: &Communicator,
        service: &Service,
        clock: &Clock,
        initial: &Buffer,
        update: impl Update + 'static,
        options: ServerOptions,
    ) -> Result<Self> {
        service.check_ranks(comm)?;
        let shards = Shards::of(initial.len(), service.size());
        let fingerprint = options.fingerprint(shards)?;
        let ServerOptions { pushed, pulled } = options;
        let rank = service.rank();
        let peers = (0..comm.size()).map(|rank| ServiceMember::of(comm, rank).peer).collect();
        let codec = pushed.as_ref().map(|encoding| Arc::clone(encoding.codec()));
        let place = place_beside(initial)?;
        let terms = Arc::new(ShardLayout::new(fingerprint, shards, &place, rank, peers, codec, pulled)?);
        terms.check(&(0..initial.len()), initial)?;
        let range = shards.of_rank(rank);
        let parameters = place.zeroed_same_device(DType::F32, range.len())?;
        parameters.write_all()?.copy_from(&initial.read(range.clone())?)?;
        let ordered = clock.staleness() == 0;
        let shard = Arc::new(Shard::new(Arc::clone(&terms), range, parameters, Box::new(update), ordered));
        let number = service.register(shard.clone())?;
        agree(comm, fingerprint).await?;
        let service = service.clone();
        let clock = clock.clone();
        Ok(Server { service, clock, number, terms, shard, pushed, cache: None })
    }

    /// Returns the parameters of this rank, and their range in the whole vector; empty without a shard. With s = 0
    /// they are those of the lowest known clock. To save a server, call this on all ranks after [`Clock::settle`]; to
    /// restore it, start a server with the saved parameters.
    ///
    /// # Errors
    /// [`Error::PeerFailed`](crate::Error::PeerFailed) with a rank whose delta cannot be decoded.
    pub fn shard<'a>(&'a self) -> Primitive<'a, (Range<usize>, Vec<f32>)> {
        Box::pin(async move {
            Ok((
                self.terms.shards.of_rank(self.terms.rank),
                self.shard.parameters(self.clock.slowest()).await?,
            ))
        })
    }

    /// Returns the encoding of deltas with its memory, for saving and restoring.
    pub fn pushed(&mut self) -> Option<&mut Encoding> {
        self.pushed.as_mut()
    }
}

/// Returns the elements that `rank` of `ranks` has, in a server vector of length `len`. Empty, at the end, without a
/// shard.
///
/// ```
/// use hexagram_logical::asynchronous::shard_range;
///
/// assert_eq!(shard_range(100, 4, 1), 25..50);
/// // Of 32 ranks every second one has a shard of so short a vector.
/// assert_eq!(shard_range(1600, 32, 2), 100..200);
/// assert_eq!(shard_range(1600, 32, 3), 1600..1600);
/// ```
pub fn shard_range(len: usize, ranks: usize, rank: usize) -> Range<usize> {
    Shards::of(len, ranks.max(1)).of_rank(rank)
}

/// Returns an empty buffer for the data of a server: on the host, which computes the updates; for parameters that
/// have sizes only, on their device.
fn place_beside(parameters: &Buffer) -> Result<Buffer> {
    let has_content = parameters.queue().has_content();
    if has_content { Buffer::zeroed(DType::F32, 0) } else { parameters.zeroed_same_device(DType::F32, 0) }
}
