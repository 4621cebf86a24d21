//! The staleness clock: who may go on, when nobody may be more than some steps ahead of the slowest.

use super::BlockingClock;
use super::agree::agree;
use super::dispatcher::Outgoing;
use super::pending::Pending;
use super::service::{Handler, Landed, Member, Reply, Served, Service};
use super::wire::Request;
use crate::{Buffer, Communicator, DType, Primitive, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The clock of stale synchronous parallelism (SSP): no rank is more than s clocks ahead of the slowest.
///
/// With c the number of a rank's [ticks](Clock::tick), [`Clock::wait`] returns once
///
/// > c − min over ranks of c ≤ s
///
/// With s = 0 every wait is a barrier (BSP, bulk synchronous parallelism); with s = [`Clock::UNBOUNDED`] there is none.
/// The clock that the others see of a rank stays behind while requests are under way that the rank has made of a
/// [`Server`](super::Server) with this clock before it ticked on: who sees a clock can rely on its updates being in
/// place.
///
/// *Steps*: a tick tells nobody. A wait asks the ranks that are not known to be far enough, all at once, and each
/// answers when it is: one round trip after the slowest. The answer says how far that rank has come, which spares later
/// questions when it is ahead. *Bytes* sent per rank: for each rank that it asks
/// [`REQUEST_BYTES`](super::REQUEST_BYTES), for each that asks [`REPLY_BYTES`](super::REPLY_BYTES), and headers; with
/// s = 0 each asks all others once a clock. *Memory*: 8 n bytes. *Determinism*: results of servers are deterministic
/// with s = 0 only.
///
/// A rank that has dropped its clock, and its servers, or called [`Clock::finish`], has finished: nobody waits for it
/// any more. Cheap to clone.
///
/// Source: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", 2013.
///
/// ```
/// # use hexagram_logical::testing::spawn;
/// # use hexagram_logical::{TransportKind};
/// # use hexagram_logical::asynchronous::{Clock, Service};
/// # spawn(TransportKind::Thread, 3, |comm| {
/// let service = comm.block_on(Service::start(&comm))?;
/// let clock = comm.block_on(Clock::start(&comm, &service, 2))?;
/// for _ in 0..10 {
///     // Returns once the slowest rank is at most 2 clocks behind.
///     let slowest = clock.blocking().wait()?;
///     assert!(clock.now() <= slowest + 2);
///     clock.tick();
/// }
/// clock.finish();
/// # Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Clock(Arc<ClockInner>);

struct ClockInner {
    service: Service,
    number: u32,
    fingerprint: Fingerprint,
    staleness: u64,
    ticks: Arc<Ticks>,
    /// Clock that each rank is known to have reached.
    known: Mutex<Vec<u64>>,
}

impl ClockInner {
    fn finish(&self) {
        self.ticks.lock().finished = true;
        self.service.wake();
    }
}

impl Drop for ClockInner {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Clock {
    /// The staleness with which nobody waits.
    pub const UNBOUNDED: u64 = u64::MAX;

    /// Starts a clock at 0, on all ranks. A collective call.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ in `staleness`;
    /// [`Error::Usage`](crate::Error::Usage) if `comm` is not of the service's ranks.
    pub fn start<'a>(comm: &'a Communicator, service: &'a Service, staleness: u64) -> Primitive<'a, Self> {
        Box::pin(async move {
            service.check_ranks(comm)?;
            let bound = usize::try_from(staleness).unwrap_or(usize::MAX);
            let fingerprint = Fingerprint::new(OperationKind::Clock, DType::I64, bound);
            let ticks = Arc::new(Ticks { fingerprint, state: Mutex::default() });
            let number = service.register(ticks.clone())?;
            agree(comm, fingerprint).await?;
            let known = Mutex::new(vec![0; service.size()]);
            Ok(Clock(Arc::new(ClockInner {
                service: service.clone(),
                number,
                fingerprint,
                staleness,
                ticks,
                known,
            })))
        })
    }

    /// Returns s: the number of clocks that a rank may be ahead of the slowest.
    pub fn staleness(&self) -> u64 {
        self.0.staleness
    }

    /// Returns this rank's clock: the number of its ticks.
    pub fn now(&self) -> u64 {
        self.0.ticks.lock().now
    }

    /// Returns the slowest rank's clock, as far as this rank knows: all updates of clocks before it are in place.
    pub fn slowest(&self) -> u64 {
        let seen = self.0.ticks.lock().seen();
        let mut known = self.known();
        known[self.0.service.rank()] = seen;
        known.iter().copied().fold(u64::MAX, u64::min)
    }

    /// Ends this clock of this rank; returns the number of the next.
    pub fn tick(&self) -> u64 {
        let now = {
            let mut state = self.0.ticks.lock();
            state.now += 1;
            state.now
        };
        self.0.service.wake();
        now
    }

    /// Says that this rank ticks no more, as dropping the clock does: nobody waits for it any more.
    pub fn finish(&self) {
        self.0.finish();
    }

    /// Waits until the slowest rank is at most s clocks behind; returns how far it has come at least.
    ///
    /// # Errors
    /// [`Error::Deadline`](crate::Error::Deadline) with the rank that is late,
    /// [`Error::PeerFailed`](crate::Error::PeerFailed) with the one that failed.
    pub fn wait<'a>(&'a self) -> Primitive<'a, u64> {
        Box::pin(async move { self.wait_until(self.now().saturating_sub(self.0.staleness)).await })
    }

    /// Waits until every rank has come as far as this one, as with s = 0: for whoever evaluates or saves what all have
    /// made.
    ///
    /// # Errors
    /// As [`Clock::wait`].
    pub fn settle<'a>(&'a self) -> Primitive<'a, u64> {
        Box::pin(async move { self.wait_until(self.now()).await })
    }

    /// Returns the same waits, blocking.
    pub fn blocking(&self) -> BlockingClock<'_> {
        BlockingClock(self)
    }

    async fn wait_until(&self, clock: u64) -> Result<u64> {
        let late = |known: &[u64]| (0..known.len()).filter(|rank| known[*rank] < clock).collect::<Vec<_>>();
        let asked: Vec<_> =
            late(&self.known()).into_iter().map(|rank| (rank, self.ask(rank, clock))).collect();
        for (rank, answer) in asked {
            let clock = answer.await?;
            let known = &mut self.known()[rank];
            *known = clock.max(*known);
        }
        Ok(self.slowest())
    }

    /// Asks for a rank's clock, this one's too: it is told once that is `clock` or later.
    fn ask(&self, rank: usize, clock: u64) -> Pending<u64> {
        let handler = self.0.number;
        let fingerprint = self.0.fingerprint;
        let arguments = [clock, 0, 0];
        let ask = Outgoing { handler, verb: 0, fingerprint, arguments, payload: None, into: None };
        self.0
            .service
            .submit(move |dispatcher| async move { Ok(dispatcher.request(rank, ask).await?.arguments[0]) })
    }

    fn known(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the others from seeing a later clock than this one, until it is dropped.
    pub(super) fn hold(&self) -> Hold {
        let mut state = self.0.ticks.lock();
        let clock = state.now;
        *state.held.entry(clock).or_default() += 1;
        Hold { ticks: Arc::clone(&self.0.ticks), clock }
    }
}

/// Something under way that was begun at a clock.
pub(super) struct Hold {
    ticks: Arc<Ticks>,
    pub(super) clock: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.ticks.lock();
        if let Some(count) = state.held.get_mut(&self.clock) {
            *count -= 1;
            if *count == 0 {
                state.held.remove(&self.clock);
            }
        }
    }
}

/// One rank's own clock, which answers the others.
struct Ticks {
    fingerprint: Fingerprint,
    state: Mutex<ClockState>,
}

#[derive(Default)]
struct ClockState {
    now: u64,
    /// Number of requests under way that were begun at each clock.
    held: BTreeMap<u64, usize>,
    finished: bool,
}

impl ClockState {
    /// Returns the clock that the others may see of this rank.
    fn seen(&self) -> u64 {
        let now = if self.finished { u64::MAX } else { self.now };
        self.held.keys().next().map_or(now, |held| *held.min(&now))
    }
}

impl Ticks {
    fn lock(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler for Ticks {
    fn admit(&self, from: &Member, request: &Request) -> Result<Arc<Buffer>> {
        request.expect(&self.fingerprint, &from.peer)?;
        Buffer::zeroed(DType::U8, 0).map(Arc::new)
    }

    fn serve(&self, _: &Member, request: &Request, _: &Landed) -> Result<Served> {
        let seen = self.lock().seen();
        if seen < request.arguments[0] {
            return Ok(Served::Later);
        }
        Ok(Served::Done(Reply { arguments: [seen, 0], payload: None }))
    }
}
