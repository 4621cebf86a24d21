//! Pair exchange: two ranks average their values, at any time, without a third and without either's program waiting for
//! the other's step. The primitive of AD-PSGD.

mod target;

use super::BlockingPairExchange;
use super::agree::{check, tell_everyone};
use super::dispatcher::{Dispatcher, Outgoing, Payload};
use super::pending::Pending;
use super::saved::{Saved, parse, unknown};
use super::service::{Landed, Member, Service};
use crate::encoding::{Encoding, State};
use crate::{Buffer, Communicator, Error, Primitive, Result};
use std::rc::Rc;
use std::sync::Arc;
use target::{EXCHANGE, LOCK, PASSED, PairState, PairTarget, RELEASE};

/// Options of a pair exchange. Equal on all ranks.
#[derive(Debug, Default)]
pub struct PairOptions {
    /// True if an exchange excludes all others on both partners from its beginning to its end, so that all exchanges
    /// together are the product of their pairwise averagings, in one order.
    pub locked: bool,
    /// Encoding of the difference; with difference feedback, of values too.
    pub encoding: Option<Encoding>,
}

/// Numbers of an exchange that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchanged {
    /// Number of the exchange on this rank: 1 for the first that changed its value, whoever began it. Without a lock,
    /// several may be under way, and this is the last so far.
    pub mine: u64,
    /// Number of the exchange on its partner.
    pub theirs: u64,
}

/// One rank's value x, which it averages with those of others.
///
/// > d = (xₐ − x_b) / 2, x_b ← x_b + d, xₐ ← xₐ − d
///
/// *Steps*, of a rank a that exchanges with b: a sends its value; b's service computes d, adds it to its own, and
/// answers with d; a's service subtracts it. Whatever was done to xₐ meanwhile is kept. The mean of all values stays
/// as it is, up to the rounding of one addition on each side, since both apply the same d; nobody waits for a lock,
/// so that nothing can block, even if all exchange with each other at once. But exchanges that overlap mix values of
/// different times, so that values come together only in the long run. For that, a rank begins one exchange at a
/// time, and more wait for their turn: many with one old value would feed back on themselves, and diverge. And where
/// two ranks begin one with each other at the same moment, which would have them swap their values, the lower rank's
/// counts for both.
///
/// *Locked* ([`PairOptions::locked`]), none do: each rank's value has a lock, which an exchange takes on both
/// partners, that of the lower rank first. Ranks that wait for a lock hold only those of lower ranks, so that no
/// circle of them can wait for each other. If a < b, a locks its own, and its request waits at b until b's is free.
/// If a > b, a first asks for b's lock, with which comes x_b, then takes its own, computes d by itself, and releases
/// b's with d.
///
/// *Encoded*, d is replaced by D(C(d)) on both sides, so that the mean is kept all the same: `C` need be neither
/// unbiased nor a contraction for that. The value travels as it is, or with
/// [`Feedback::Difference`](crate::encoding::Feedback::Difference) as C(x − h), both sides remembering h.
///
/// | | messages, V being a value and D a difference as they travel |
/// |---|---|
/// | difference; locked and a < b | request with V; answer with D, or without where another counts for both |
/// | locked and a > b | request; answer with V; request with D; answer |
///
/// *Bytes*: of requests, answers and payloads as said of [`Window`](super::Window). *State*: x, as many V and D as
/// are under way, and with difference feedback two h for every partner, S each. *Determinism*: none, as the order of
/// exchanges is that of events; locked, the result is that of the pairwise averagings in the order that [`Exchanged`]
/// tells.
///
/// Source: Lian, Zhang, Zhang and Liu, "Asynchronous decentralized parallel stochastic gradient descent", 2018.
///
/// It can be used from any thread, and lives as long as its service.
///
/// ```
/// use hexagram_logical::asynchronous::{PairExchange, PairOptions, Service};
/// use hexagram_logical::testing::spawn;
/// use hexagram_logical::{Buffer, TransportKind};
///
/// let values = spawn(TransportKind::Thread, 2, |comm| {
///     let service = comm.block_on(Service::start(&comm))?;
///     let mut x = Buffer::from_slice(&[comm.rank() as f32])?;
///     let pair = comm.block_on(PairExchange::create(&comm, &service, &x, PairOptions::default()))?;
///     if comm.rank() == 0 {
///         pair.exchange(1).blocking()?;
///     }
///     service.blocking().close()?;
///     pair.blocking().load(&mut x)?;
///     let x = x.host::<f32>()?[0];
///     Ok(x)
/// });
/// assert_eq!(values.unwrap(), [0.5, 0.5]);
/// ```
pub struct PairExchange {
    service: Service,
    target: Arc<PairTarget>,
    /// Number of its handler in the service.
    number: u32,
}

impl PairExchange {
    /// Gives every rank's `value` to be averaged. A collective call: all ranks make the same ones of a service, in
    /// the same order, with values and options that are alike. Bytes: n − 1 messages of one byte.
    ///
    /// # Errors
    /// [`Error::Mismatch`] on both sides if ranks differ in element type, length or encoding; [`Error::Usage`] if one
    /// locks and another does not, for integers, and for feedback other than none and difference.
    pub fn create<'a>(
        comm: &'a Communicator,
        service: &'a Service,
        value: &'a Buffer,
        options: PairOptions,
    ) -> Primitive<'a, Self> {
        Box::pin(async move {
            let PairOptions { locked, encoding } = options;
            check(comm, service, value, encoding.as_ref())?;
            let me = Member::of(comm, comm.rank());
            let target = Arc::new(PairTarget::new(me, value, encoding, locked)?);
            // Before the others can know that it is there.
            let number = service.register(Arc::<PairTarget>::clone(&target))?;
            let mine = u8::from(locked);
            let theirs = tell_everyone(comm, target.fingerprint, &vec![mine; comm.size()]).await?;
            if let Some(other) = (0..comm.size()).find(|rank| *rank != comm.rank() && theirs[*rank] != mine) {
                let (locks, not) = if locked { (comm.rank(), other) } else { (other, comm.rank()) };
                let what = format!("rank {locks} locks its pair exchanges, rank {not} does not");
                return Err(Error::usage(what, "give all ranks the same options"));
            }
            Ok(PairExchange { service: service.clone(), target, number })
        })
    }

    /// Averages this rank's value with that of `peer`; done when both have changed.
    ///
    /// # Errors
    /// [`Error::Usage`] if `peer` is this rank, or none. The [`Pending`] fails as every operation does, when a rank
    /// has failed, or the codec refuses a value.
    pub fn exchange(&self, peer: usize) -> Pending<Exchanged> {
        let rank = self.service.rank();
        let size = self.service.size();
        if peer == rank || peer >= size {
            let what = format!("rank {rank} of {size} cannot exchange with rank {peer}");
            return self.service.refused(Error::usage(what, "choose another rank"));
        }
        let target = Arc::clone(&self.target);
        let number = self.number;
        self.service.submit(move |dispatcher| async move {
            let exchange = Exchange { dispatcher: Rc::clone(&dispatcher), target, number, peer };
            exchange.run().await.map_err(|error| dispatcher.fail(error))
        })
    }

    /// Copies this rank's value: `into ← x`.
    ///
    /// # Errors
    /// [`Error::Usage`] if `into` is of another type or length.
    pub fn load<'a>(&'a self, into: &'a mut Buffer) -> Primitive<'a> {
        Box::pin(async move { into.write_all()?.copy_from(&self.target.enter().await.value.read_all()?) })
    }

    /// Adds a step of this rank's own: `x ← x + weight × from`. Exchanges that are under way keep it.
    ///
    /// # Errors
    /// [`Error::Usage`] if `from` is of another type or length.
    pub fn add<'a>(&'a self, weight: f64, from: &'a Buffer) -> Primitive<'a> {
        Box::pin(
            async move { self.target.enter().await.value.write_all()?.add_scaled(weight, &from.read_all()?) },
        )
    }

    /// Returns the number of exchanges that have changed x so far.
    pub fn exchanges(&self) -> u64 {
        self.target.exchanges()
    }

    /// Returns copies of everything that this rank holds and remembers, by name: x with the number of exchanges, and
    /// what the feedback remembers of each partner. For a checkpoint: save on all ranks when no exchange is under way,
    /// after all results have been waited for and a barrier.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out.
    pub fn save<'a>(&'a self) -> Primitive<'a, Vec<(String, State)>> {
        Box::pin(async move {
            let mut saved = Saved::default();
            self.target.save(&*self.target.enter().await, &mut saved)?;
            Ok(saved.into_states())
        })
    }

    /// Goes on where [`PairExchange::save`] was called, in a pair exchange that was made alike: on all ranks, before
    /// anything is exchanged.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no place for what was saved: with another encoding, type or length. The pair
    /// exchange is of no use then.
    pub async fn restore(&self, states: impl IntoIterator<Item = (String, State)>) -> Result<()> {
        let mut pair = self.target.enter().await;
        for (name, state) in states {
            let (what, rank) = parse(&name).ok_or_else(|| unknown(&name))?;
            self.target.restore(&mut pair, what, rank, state)?;
        }
        Ok(())
    }

    /// Returns the calls that wait, blocking.
    pub fn blocking(&self) -> BlockingPairExchange<'_> {
        BlockingPairExchange(self)
    }
}

/// An exchange that this rank has begun.
struct Exchange {
    dispatcher: Rc<Dispatcher>,
    target: Arc<PairTarget>,
    number: u32,
    peer: usize,
}

impl Exchange {
    async fn run(&self) -> Result<Exchanged> {
        self.take(|state| &mut state.turn_taken).await?;
        let outcome = match self.target.locked {
            false => self.by_difference().await,
            true if self.dispatcher.rank() < self.peer => {
                self.take(|state| &mut state.locked).await?;
                let outcome = self.by_difference().await;
                self.target.state().locked = false;
                outcome
            }
            true => self.under_the_peers_lock().await,
        };
        self.target.state().turn_taken = false;
        outcome
    }

    /// Waits until a flag of this rank is free, and takes it.
    async fn take(&self, flag: impl Fn(&mut PairState) -> &mut bool) -> Result<()> {
        let label = super::dispatcher::request_label()?;
        let free = || {
            let mut state = self.target.state();
            Ok((!std::mem::replace(flag(&mut state), true)).then_some(()))
        };
        self.dispatcher.until(&label, free).await
    }

    async fn by_difference(&self) -> Result<Exchanged> {
        let dispatcher = &self.dispatcher;
        let target = &self.target;
        let value = target.encode_value(self.peer)?;
        target.state().asking = Some(self.peer);
        let answer = self.ask(EXCHANGE, Some(value), Some(target.differences.room()?)).await?;
        target.state().asking = None;
        let ([theirs, passed], Some(landed)) = answer else { return Err(self.nothing()) };
        if passed == PASSED {
            return Ok(Exchanged { mine: target.exchanges(), theirs });
        }
        let difference =
            target.differences.decode_rounded(&dispatcher.peer(self.peer), &landed.buffer, landed.bytes)?;
        Ok(Exchanged { mine: target.apply(-1.0, &difference)?, theirs })
    }

    async fn under_the_peers_lock(&self) -> Result<Exchanged> {
        let dispatcher = &self.dispatcher;
        let target = &self.target;
        let (_, landed) = self.ask(LOCK, None, Some(target.values.room()?)).await?;
        let Some(landed) = landed else { return Err(self.nothing()) };
        self.take(|state| &mut state.locked).await?;
        let (mine, difference) = target.meet(&dispatcher.member(self.peer), &landed.buffer, landed.bytes)?;
        target.state().locked = false;
        let ([theirs, _], _) = self.ask(RELEASE, Some(difference), None).await?;
        Ok(Exchanged { mine, theirs })
    }

    /// Sends a request to the peer; returns the arguments and the payload of its reply.
    async fn ask(
        &self,
        verb: u16,
        payload: Option<Payload>,
        into: Option<Arc<Buffer>>,
    ) -> Result<([u64; 2], Option<Landed>)> {
        let handler = self.number;
        let fingerprint = self.target.fingerprint;
        let ask = Outgoing { handler, verb, fingerprint, arguments: [0; 3], payload, into };
        let answer = self.dispatcher.request(self.peer, ask).await?;
        Ok((answer.arguments, answer.payload))
    }

    fn nothing(&self) -> Error {
        Error::usage(format!("rank {} answered with nothing", self.peer), "report it as a bug")
    }
}
