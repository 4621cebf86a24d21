//! The staleness clock: it limits how many steps a rank may be ahead of the slowest.

use super::pending::Pending;
use super::service::{
    Handler, OutgoingRequest, ReceivedPayload, Reply, Request, Served, Service, ServiceMember, agree,
};
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
/// With s = 0 every wait is a barrier (BSP, bulk synchronous parallelism); with s = [`Clock::UNBOUNDED`] ranks never
/// wait. The clock that other ranks see includes this rank's requests to a [`Server`](super::Server) with this clock.
/// It does not pass a tick until all requests that the rank made before it are answered. Therefore a clock that a
/// rank sees implies that the updates before it are in place.
///
/// *Steps*: a tick sends no message. A wait asks all ranks whose known clock is too low, concurrently. Each answers
/// when its clock is high enough: one round trip after the slowest. The answer contains the clock of that rank, which
/// saves later questions if it is ahead. *Bytes* sent per rank: [`REQUEST_BYTES`](super::REQUEST_BYTES) for each
/// question, [`REPLY_BYTES`](super::REPLY_BYTES) for each answer, and headers; with s = 0 each rank asks all others
/// once per clock. *Memory*: 8 n bytes. *Determinism*: results of servers are deterministic with s = 0 only.
///
/// A rank has finished once it has dropped its clock and its servers, or called [`Clock::finish`]; other ranks no
/// longer wait for it. Cheap to clone.
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
    /// Highest known clock of each rank.
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
    /// The staleness with which ranks never wait.
    pub const UNBOUNDED: u64 = u64::MAX;

    /// Starts a clock at 0. A collective call.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ in `staleness`;
    /// [`Error::Usage`](crate::Error::Usage) if `comm` has other ranks than the service.
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

    /// Returns the clock of this rank: the number of its ticks.
    pub fn now(&self) -> u64 {
        self.0.ticks.lock().now
    }

    /// Returns the lowest known clock of all ranks: all updates of earlier clocks are in place.
    pub fn slowest(&self) -> u64 {
        let seen = self.0.ticks.lock().seen();
        let mut known = self.known();
        known[self.0.service.rank()] = seen;
        known.iter().copied().fold(u64::MAX, u64::min)
    }

    /// Ends the current clock of this rank; returns the number of the next one.
    pub fn tick(&self) -> u64 {
        let now = {
            let mut state = self.0.ticks.lock();
            state.now += 1;
            state.now
        };
        self.0.service.wake();
        now
    }

    /// Announces that this rank makes no more ticks, as dropping the clock does. Other ranks no longer wait for it.
    pub fn finish(&self) {
        self.0.finish();
    }

    /// Waits until the slowest rank is at most s clocks behind. Returns a lower bound of its clock.
    ///
    /// # Errors
    /// [`Error::Deadline`](crate::Error::Deadline) with the late rank,
    /// [`Error::PeerFailed`](crate::Error::PeerFailed) with the failed one.
    pub fn wait<'a>(&'a self) -> Primitive<'a, u64> {
        Box::pin(async move { self.wait_until(self.now().saturating_sub(self.0.staleness)).await })
    }

    /// Waits until every rank has reached the clock of this one, as with s = 0. Use it before evaluating or saving
    /// the common result.
    ///
    /// # Errors
    /// As [`Clock::wait`].
    pub fn settle<'a>(&'a self) -> Primitive<'a, u64> {
        Box::pin(async move { self.wait_until(self.now()).await })
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

    /// Asks a rank, which may be this one, for its clock. The answer comes once that is at least `clock`.
    fn ask(&self, rank: usize, clock: u64) -> Pending<u64> {
        let handler = self.0.number;
        let fingerprint = self.0.fingerprint;
        let arguments = [clock, 0, 0];
        let ask = OutgoingRequest { handler, verb: 0, fingerprint, arguments, payload: None, into: None };
        self.0
            .service
            .submit(move |dispatcher| async move { Ok(dispatcher.request(rank, ask).await?.arguments[0]) })
    }

    fn known(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps other ranks from seeing a later clock than the current one, until the value is dropped.
    pub(super) fn hold(&self) -> RequestClock {
        let mut state = self.0.ticks.lock();
        let clock = state.now;
        *state.held.entry(clock).or_default() += 1;
        RequestClock { ticks: Arc::clone(&self.0.ticks), clock }
    }
}

/// A request that was begun at a clock.
pub(super) struct RequestClock {
    ticks: Arc<Ticks>,
    pub(super) clock: u64,
}

impl Drop for RequestClock {
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

/// The clock of one rank, which answers the other ranks.
struct Ticks {
    fingerprint: Fingerprint,
    state: Mutex<ClockState>,
}

#[derive(Default)]
struct ClockState {
    now: u64,
    /// Number of unanswered requests that were begun at each clock.
    held: BTreeMap<u64, usize>,
    finished: bool,
}

impl ClockState {
    /// Returns the clock of this rank that other ranks may see.
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
    fn admit(&self, from: &ServiceMember, request: &Request) -> Result<Arc<Buffer>> {
        request.expect(&self.fingerprint, &from.peer)?;
        Buffer::zeroed(DType::U8, 0).map(Arc::new)
    }

    fn serve(&self, _: &ServiceMember, request: &Request, _: &ReceivedPayload) -> Result<Served> {
        let seen = self.lock().seen();
        if seen < request.arguments[0] {
            return Ok(Served::Later);
        }
        Ok(Served::Done(Reply { arguments: [seen, 0], payload: None }))
    }
}
