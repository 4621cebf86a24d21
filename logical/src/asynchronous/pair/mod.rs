//! Pair exchange: two ranks average their values at any time, without other ranks, and without waiting for the step
//! of the other program. The primitive of AD-PSGD.

mod target;

use super::pending::Pending;
use super::saved_states::{SavedStates, parse, unknown};
use super::service::{
    Dispatcher, ElementsPayload, OutgoingRequest, ReceivedPayload, Service, ServiceMember, check,
    tell_everyone,
};
use crate::encoding::{Encoding, State};
use crate::{Buffer, Communicator, Error, Primitive, Result};
use std::rc::Rc;
use std::sync::Arc;
use target::{EXCHANGE, LOCK, PASSED, PairState, PairTarget, RELEASE};

/// Options of a pair exchange. Must be equal on all ranks.
#[derive(Debug, Default)]
pub struct PairOptions {
    /// True if an exchange excludes all others on both partners while it runs. All exchanges together are then a
    /// product of pairwise averagings, in one order.
    pub locked: bool,
    /// Encoding of the difference; with difference feedback, also of values.
    pub encoding: Option<Encoding>,
}

/// Numbers of a finished exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchanged {
    /// Number of the exchange on this rank: 1 for the first that changed its value, whichever rank began it. Without
    /// a lock, exchanges may overlap, and this is the last number so far.
    pub mine: u64,
    /// Number of the exchange on its partner.
    pub theirs: u64,
}

/// The value x of one rank, which it averages with other ranks.
///
/// > d = (xₐ − x_b) / 2, x_b ← x_b + d, xₐ ← xₐ − d
///
/// *Steps* of rank a in an exchange with b: a sends its value; the service of b computes d, adds it to its value, and
/// answers with d; the service of a subtracts it. Changes of xₐ in between are kept. Both sides apply the same d, so
/// that the mean of all values is preserved up to the rounding of one addition on each side. No rank waits for a
/// lock, so that exchanges cannot deadlock, even if all ranks begin one at the same time. But overlapping exchanges
/// mix values of different times, so that values agree only in the long run. To ensure that they do, a rank begins
/// one exchange at a time, and queues further ones: several with one old value would feed back on themselves, and
/// diverge. If two ranks begin an exchange with each other at the same moment, the exchange of the lower rank counts
/// for both; two exchanges would swap their values.
///
/// *Locked* ([`PairOptions::locked`]), exchanges do not overlap: each value has a lock, and an exchange takes the
/// locks of both partners, that of the lower rank first. A rank that waits for a lock holds only locks of lower
/// ranks, so that no deadlock is possible. If a < b, a locks its own value, and its request waits at b until the lock
/// of b is free. If a > b, a requests the lock of b and gets x_b; then it takes its own lock, computes d itself, and
/// releases the lock of b with d.
///
/// *Encoded*, both sides replace d by D(C(d)), which preserves the mean: `C` need be neither unbiased nor a
/// contraction. The value is sent unencoded, or, with
/// [`Feedback::Difference`](crate::encoding::Feedback::Difference), as C(x − h), where both sides remember h.
///
/// | | messages, V being a value and D a difference as they travel |
/// |---|---|
/// | difference; locked and a < b | request with V; answer with D, or without where another counts for both |
/// | locked and a > b | request; answer with V; request with D; answer |
///
/// *Bytes*: requests, answers and payloads as for [`Window`](super::Window). *State*: x, a V and a D for each running
/// exchange, and with difference feedback two h for every partner, S each. *Determinism*: none, since the order of
/// exchanges depends on timing. With locks, the result is that of the pairwise averagings in the order of the numbers
/// in [`Exchanged`].
///
/// Source: Lian, Zhang, Zhang and Liu, "Asynchronous decentralized parallel stochastic gradient descent", 2018.
///
/// Usable from any thread; it keeps its service alive.
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
    /// Number of the handler in the service.
    number: u32,
}

impl PairExchange {
    /// Registers `value` of each rank for averaging. A collective call: all ranks make the same calls on a service in
    /// the same order, with values and options that match. Bytes: n − 1 messages of one byte.
    ///
    /// # Errors
    /// [`Error::Mismatch`] on both sides if ranks differ in element type, length or encoding; [`Error::Usage`] if
    /// ranks differ in `locked`, for integers, and for feedback other than none and difference.
    pub fn create<'a>(
        comm: &'a Communicator,
        service: &'a Service,
        value: &'a Buffer,
        options: PairOptions,
    ) -> Primitive<'a, Self> {
        Box::pin(async move {
            let PairOptions { locked, encoding } = options;
            check(comm, service, value, encoding.as_ref())?;
            let me = ServiceMember::of(comm, comm.rank());
            let target = Arc::new(PairTarget::new(me, value, encoding, locked)?);
            // Registered before any other rank can send a request.
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

    /// Averages the value of this rank with that of `peer`. Completes when both have changed.
    ///
    /// # Errors
    /// [`Error::Usage`] if `peer` is this rank or out of range. The [`Pending`] fails if a rank has failed, or if the
    /// codec refuses a value.
    pub fn exchange(&self, peer: usize) -> Pending<Exchanged> {
        let rank = self.service.rank();
        let size = self.service.size();
        if peer == rank || peer >= size {
            let what = format!("rank {rank} of {size} cannot exchange with rank {peer}");
            return self.service.refused(Error::usage(what, "choose a different rank"));
        }
        let target = Arc::clone(&self.target);
        let number = self.number;
        self.service.submit(move |dispatcher| async move {
            let exchange = RunningExchange { dispatcher: Rc::clone(&dispatcher), target, number, peer };
            exchange.run().await.map_err(|error| dispatcher.fail(error))
        })
    }

    /// Copies the value of this rank: `into ← x`.
    ///
    /// # Errors
    /// [`Error::Usage`] if `into` has a different type or length.
    pub fn load<'a>(&'a self, into: &'a mut Buffer) -> Primitive<'a> {
        Box::pin(async move { into.write_all()?.copy_from(&self.target.enter().await.value.read_all()?) })
    }

    /// Adds a local change: `x ← x + weight × from`. Running exchanges keep it.
    ///
    /// # Errors
    /// [`Error::Usage`] if `from` has a different type or length.
    pub fn add<'a>(&'a self, weight: f64, from: &'a Buffer) -> Primitive<'a> {
        Box::pin(
            async move { self.target.enter().await.value.write_all()?.add_scaled(weight, &from.read_all()?) },
        )
    }

    /// Returns the number of exchanges that have changed x.
    pub fn exchanges(&self) -> u64 {
        self.target.exchanges()
    }

    /// Returns copies of the whole state of this rank, by name: x with the number of exchanges, and the feedback
    /// memory for each partner. For a checkpoint: wait for all results and a barrier first, and save on all ranks.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out.
    pub fn save<'a>(&'a self) -> Primitive<'a, Vec<(String, State)>> {
        Box::pin(async move {
            let mut saved = SavedStates::default();
            self.target.save(&*self.target.enter().await, &mut saved)?;
            Ok(saved.into_states())
        })
    }

    /// Restores the state of [`PairExchange::save`] in a pair exchange that was created with the same arguments. Call
    /// it on all ranks, before the first exchange.
    ///
    /// # Errors
    /// [`Error::Usage`] if the state does not match the encoding, type or length. The pair exchange is then unusable.
    pub async fn restore(&self, states: impl IntoIterator<Item = (String, State)>) -> Result<()> {
        let mut pair = self.target.enter().await;
        for (name, state) in states {
            let (what, rank) = parse(&name).ok_or_else(|| unknown(&name))?;
            self.target.restore(&mut pair, what, rank, state)?;
        }
        Ok(())
    }
}

/// An exchange that this rank has begun.
struct RunningExchange {
    dispatcher: Rc<Dispatcher>,
    target: Arc<PairTarget>,
    number: u32,
    peer: usize,
}

impl RunningExchange {
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
        let label = super::service::request_label()?;
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
        payload: Option<ElementsPayload>,
        into: Option<Arc<Buffer>>,
    ) -> Result<([u64; 2], Option<ReceivedPayload>)> {
        let handler = self.number;
        let fingerprint = self.target.fingerprint;
        let ask = OutgoingRequest { handler, verb, fingerprint, arguments: [0; 3], payload, into };
        let answer = self.dispatcher.request(self.peer, ask).await?;
        Ok((answer.arguments, answer.payload))
    }

    fn nothing(&self) -> Error {
        Error::usage(format!("rank {} sent an empty answer", self.peer), "report it as a bug")
    }
}
