//! A parameter server on all ranks: each keeps a shard of the parameters, and changes it by what the others send.

mod cache;
mod client;
mod shard;
mod terms;
mod update;

pub use update::{Add, Push, SgdUpdate, Update};

use super::agree::agree;
use super::clock::Clock;
use super::service::{Member, Service};
use crate::encoding::{Encoding, Feedback};
use crate::{Buffer, Communicator, DType, Primitive, Result};
use cache::Cache;
use hexagram_physical::fingerprint::{CodecDigest, Fingerprint, OperationKind};
use shard::Shard;
use std::ops::Range;
use std::sync::Arc;
use terms::{Shards, Terms};

/// Encodings of a server's numbers on their way. Equal on all ranks.
#[derive(Debug, Default)]
pub struct ServerOptions {
    /// Encoding of deltas, without feedback or with [`Feedback::Error`]; they travel as they are if `None`.
    pub pushed: Option<Encoding>,
    /// Encoding of parameters, without feedback; they travel as they are if `None`.
    pub pulled: Option<Encoding>,
}

impl ServerOptions {
    /// Returns what all ranks agree on. Fails for a feedback that servers do not know.
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

/// Age of the parameters that a pull has brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Clock before which every rank's updates are in it.
    pub clock: u64,
    /// Number of pushes that each shard that it touches had applied, in the order of shards.
    pub versions: Vec<u64>,
}

/// A vector of f32 that is spread over ranks, and changed there by what any rank pushes.
///
/// Its k shards are on ranks that are evenly spread. There is one on each of up to 16 ranks; of more ranks as many have one
/// as have 16,384 elements each, but at least 16: see [`shard_range`].
///
/// With u the update, g a delta of rank q at clock c, x the parameters:
///
/// > push: x ← u(x, g, q, c), on the ranks that have them; pull: x as it is there
///
/// A pull at clock c contains every rank's pushes of clocks before c − s, all pushes that its own rank has made, and
/// whatever else has come; s is the staleness of the [`Clock`]. With s = 0 it is exact: a delta is kept until its clock
/// is over on all ranks, and applied in the order of clocks, then ranks, then pushes; a pull at clock c gives the
/// result of all clocks before c and nothing else. This is bulk synchronous parallelism.
///
/// *Steps*: a push is one request to each shard that it touches, and does not wait. A pull waits for the clock, and is
/// one request and its reply. *Bytes* sent by the n ranks on average, with S the size of what is pushed or pulled: a push
/// (n−1)/n · S and (n−1)/n · k requests of [`REQUEST_BYTES`](super::REQUEST_BYTES), which are answered by
/// [`REPLY_BYTES`](super::REPLY_BYTES); a pull as many requests, answered by (n−1)/n · S and as many replies. Where every
/// rank has a shard, that is what each rank sends. Headers come on top; payloads of more than
/// [`INLINE_BYTES`](super::INLINE_BYTES) are messages of their own. Encoded, S is that of the messages. *Memory*: S/k for a
/// shard, S/k for what is being sent of it, S for each push and pull under way, and S for pushes that wait for their clock if
/// s = 0. *Determinism*: with s = 0 all of it, on all transports; otherwise
/// updates are applied in the order in which they come.
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
    terms: Arc<Terms>,
    shard: Arc<Shard>,
    /// With its memory.
    pushed: Option<Encoding>,
    cache: Option<Cache>,
}

impl Server {
    /// Makes a server on all ranks. A collective call. `initial` holds all parameters, equal on all ranks; a shard begins
    /// with its elements of that of the rank that has it.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ in the length or the options;
    /// [`Error::Usage`](crate::Error::Usage) if `initial` does not hold f32, an encoding has a feedback that servers do
    /// not know, or `comm` is not of the service's ranks.
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
        let peers = (0..comm.size()).map(|rank| Member::of(comm, rank).peer).collect();
        let codec = pushed.as_ref().map(|encoding| Arc::clone(encoding.codec()));
        let place = place_beside(initial)?;
        let terms = Arc::new(Terms::new(fingerprint, shards, &place, rank, peers, codec, pulled)?);
        terms.check(&(0..initial.len()), initial)?;
        let range = shards.of_rank(rank);
        let parameters = place.beside(DType::F32, range.len())?;
        parameters.write_all()?.copy_from(&initial.read(range.clone())?)?;
        let ordered = clock.staleness() == 0;
        let shard = Arc::new(Shard::new(Arc::clone(&terms), range, parameters, Box::new(update), ordered));
        let number = service.register(shard.clone())?;
        agree(comm, fingerprint).await?;
        let service = service.clone();
        let clock = clock.clone();
        Ok(Server { service, clock, number, terms, shard, pushed, cache: None })
    }

    /// Returns this rank's parameters and where they are in the whole vector, none if it has no shard; with s = 0 as of the slowest rank's
    /// clock, as far as it is known. To save a server, call it on all ranks after [`Clock::settle`]; to restore it,
    /// start one with what was saved.
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

    /// Returns the encoding of deltas with what it remembers, to be saved and restored.
    pub fn pushed(&mut self) -> Option<&mut Encoding> {
        self.pushed.as_mut()
    }
}

/// Returns the elements of a server's vector of `len` that a rank of so many has; none, at the end, if it has no shard.
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

/// Returns an empty buffer where a server's are: on the host, which computes the updates; of parameters that have sizes only,
/// beside them.
fn place_beside(parameters: &Buffer) -> Result<Buffer> {
    let has_content = parameters.queue().has_content();
    if has_content { Buffer::zeroed(DType::F32, 0) } else { parameters.beside(DType::F32, 0) }
}
