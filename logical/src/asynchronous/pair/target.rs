//! Serves the requests of other ranks for the value of this rank.

use crate::asynchronous::links::{ReceiveLink, SendLink, ValueEncoding, fresh};
use crate::asynchronous::saved_states::{OF, SavedStates, restore_value, unknown};
use crate::asynchronous::service::{
    ElementsPayload, Handler, ReceivedPayload, Reply, Request, Served, ServiceMember, SharedGuard, TaskLock,
};
use crate::encoding::{Encoding, Feedback, State};
use crate::{Buffer, Error, Peer, Result};
use hexagram_physical::error::ErrorContext;
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Carries a value; the answer is a difference, or empty with [`PASSED`]. The first argument of every answer is the
/// number of exchanges of the answering rank.
pub(super) const EXCHANGE: u16 = 0;
/// The answer is a value, which stays locked.
pub(super) const LOCK: u16 = 1;
/// Carries a difference, which ends the lock.
pub(super) const RELEASE: u16 = 2;

/// Second argument of an answer: the exchange that the answering rank has begun itself counts for both.
pub(super) const PASSED: u64 = 1;

/// Names of saved states: of links to ranks that receive values, and from ranks that send them.
const TOLD: &str = "told to";
const HEARD: &str = "heard from";

/// State that is read and written together.
pub(super) struct PairState {
    pub(super) value: Buffer,
    /// True while an exchange has the value.
    pub(super) locked: bool,
    /// True while this rank runs its own exchange.
    pub(super) turn_taken: bool,
    /// Partner, while it has the value of this rank and may change its own.
    pub(super) asking: Option<usize>,
    /// Rank that holds the lock, if it is not this one.
    holder: Option<usize>,
    /// Links to and from each partner.
    send_links: HashMap<usize, SendLink>,
    receive_links: HashMap<usize, ReceiveLink>,
}

/// The value of one rank.
pub(super) struct PairTarget {
    me: ServiceMember,
    pub(super) fingerprint: Fingerprint,
    pub(super) values: ValueEncoding,
    pub(super) differences: ValueEncoding,
    /// True if exchanges exclude each other.
    pub(super) locked: bool,
    /// Number of exchanges that have changed the value: written under the lock of the state, read without.
    exchanges: AtomicU64,
    state: TaskLock<PairState>,
}

impl PairTarget {
    pub(super) fn new(
        me: ServiceMember,
        value: &Buffer,
        encoding: Option<Encoding>,
        locked: bool,
    ) -> Result<Self> {
        let dtype = value.dtype();
        let len = value.len();
        if let Some(encoding) = &encoding {
            encoding.expect_feedback("a pair exchange", &[Feedback::None, Feedback::Difference])?;
        }
        let fingerprint = Fingerprint {
            codec: encoding.as_ref().map(Encoding::digest),
            ..Fingerprint::new(OperationKind::PairExchange, dtype, len)
        };
        let of_values = encoding.as_ref().filter(|it| it.feedback() == Feedback::Difference).map(fresh);
        let values = ValueEncoding::new(value, of_values)?;
        let differences = ValueEncoding::new(value, encoding)?;
        let own = value.copied()?;
        let state = PairState {
            value: own,
            locked: false,
            turn_taken: false,
            asking: None,
            holder: None,
            send_links: HashMap::new(),
            receive_links: HashMap::new(),
        };
        let exchanges = AtomicU64::new(0);
        Ok(PairTarget {
            me,
            fingerprint,
            values,
            differences,
            locked,
            exchanges,
            state: TaskLock::new(state),
        })
    }

    /// Takes the lock on the service thread.
    pub(super) fn state(&self) -> SharedGuard<'_, PairState> {
        self.state.lock()
    }

    /// Takes the lock for the program of this rank, once it is free.
    pub(super) async fn enter(&self) -> SharedGuard<'_, PairState> {
        self.state.enter().await
    }

    /// Returns the number of exchanges that have changed the value.
    pub(super) fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::Acquire)
    }

    /// Counts an exchange that has changed the value, and returns its number. The caller holds the lock of the state.
    fn count(&self) -> u64 {
        self.exchanges.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(super) fn save(&self, state: &PairState, saved: &mut SavedStates) -> Result<()> {
        let PairState { value, send_links, receive_links, .. } = state;
        saved.add_value(self.me.rank, value, 1.0, self.exchanges())?;
        for (rank, state) in send_links.iter().filter_map(|(rank, link)| Some((rank, link.state()?))) {
            saved.add(TOLD, *rank, state)?;
        }
        receive_links.iter().try_for_each(|(rank, link)| saved.add(HEARD, *rank, &link.0))
    }

    pub(super) fn restore(&self, state: &mut PairState, what: &str, rank: usize, saved: State) -> Result<()> {
        let PairState { value, send_links, receive_links, .. } = state;
        match what {
            OF if rank == self.me.rank => {
                restore_value(&saved, value)?;
                self.exchanges.store(saved.operations(), Ordering::Release);
            }
            TOLD if self.values.encodes() => {
                send_links.entry(rank).or_insert_with(|| self.values.send_link(EXCHANGE)).restore(saved);
            }
            HEARD if self.values.encodes() => receive_links.entry(rank).or_default().0 = saved,
            _ => return Err(unknown(&format!("{what} {rank}"))),
        }
        Ok(())
    }

    /// Encodes the value of this rank for `to`.
    pub(super) fn encode_value(&self, to: usize) -> Result<ElementsPayload> {
        let PairState { value, send_links, .. } = &mut *self.state();
        let link = send_links.entry(to).or_insert_with(|| self.values.send_link(EXCHANGE));
        self.values.encode(link, &self.me.peer, to, value)
    }

    /// Averages with the value in a message of `from`. Returns the number of exchanges, and the message with the
    /// difference that `from` must subtract.
    pub(super) fn meet(
        &self,
        from: &ServiceMember,
        message: &Arc<Buffer>,
        bytes: usize,
    ) -> Result<(u64, ElementsPayload)> {
        let PairState { value, receive_links, .. } = &mut *self.state();
        let link = receive_links.entry(from.rank).or_default();
        let difference = self.values.decode(link, &from.peer, message, bytes)?;
        // d = (x_from − x) / 2
        difference.write_all()?.add_scaled(-1.0, &value.read_all()?)?;
        difference.write_all()?.scale(0.5)?;
        let rounded =
            self.differences.encode_rounded(&self.me.peer, from.rank, self.exchanges(), &difference);
        let message = rounded.map_err(|error| whose(error, value, &from.peer))?;
        value.write_all()?.add_scaled(1.0, &difference.read_all()?)?;
        Ok((self.count(), message))
    }

    /// Returns true if an exchange that `from` has begun meets an exchange of this rank, which counts for both.
    fn is_met(&self, from: &ServiceMember) -> bool {
        !self.locked && self.me.rank < from.rank && self.state().asking == Some(from.rank)
    }

    /// Skips an exchange, but updates the memory of values.
    fn pass(&self, from: &ServiceMember, payload: &ReceivedPayload) -> Result<Reply> {
        let PairState { receive_links, .. } = &mut *self.state();
        let link = receive_links.entry(from.rank).or_default();
        self.values.decode(link, &from.peer, &payload.buffer, payload.bytes)?;
        Ok(Reply { arguments: [self.exchanges(), PASSED], payload: None })
    }

    /// Applies a difference, `x ← x + sign × difference`. Returns the number of exchanges.
    pub(super) fn apply(&self, sign: f64, difference: &Buffer) -> Result<u64> {
        let state = self.state();
        state.value.write_all()?.add_scaled(sign, &difference.read_all()?)?;
        Ok(self.count())
    }

    fn release(&self, from: &ServiceMember, payload: &ReceivedPayload) -> Result<Served> {
        if self.state().holder.take() != Some(from.rank) {
            let cause = "released a lock that it does not have".to_owned();
            return Err(Error::PeerFailed {
                culprit: from.peer.clone(),
                cause,
                context: ErrorContext::Nothing,
            });
        }
        let difference = self.differences.decode_rounded(&from.peer, &payload.buffer, payload.bytes)?;
        let exchanges = self.apply(-1.0, &difference)?;
        self.state().locked = false;
        Ok(Served::Done(Reply { arguments: [exchanges, 0], payload: None }))
    }
}

/// Adds to an error the rank whose value is not finite: the partner, if the value of this rank is finite.
fn whose(mut error: Error, own: &Buffer, partner: &Peer) -> Error {
    if let (Error::NotFinite { place, index, .. }, Ok(own)) = (&mut error, own.host::<f32>())
        && own.get(*index).is_some_and(|x| x.is_finite())
    {
        *place = partner.clone();
    }
    error
}

impl Handler for PairTarget {
    fn admit(&self, from: &ServiceMember, request: &Request) -> Result<Arc<Buffer>> {
        request.expect(&self.fingerprint, &from.peer)?;
        match request.verb {
            EXCHANGE => self.values.room(),
            RELEASE => self.differences.room(),
            _ => self.values.values.empty(),
        }
    }

    fn serve(&self, from: &ServiceMember, request: &Request, payload: &ReceivedPayload) -> Result<Served> {
        match request.verb {
            EXCHANGE | LOCK if self.state().locked => Ok(Served::Later),
            EXCHANGE if self.is_met(from) => Ok(Served::Done(self.pass(from, payload)?)),
            EXCHANGE => {
                let (exchanges, message) = self.meet(from, &payload.buffer, payload.bytes)?;
                Ok(Served::Done(Reply { arguments: [exchanges, 0], payload: Some(message) }))
            }
            LOCK => {
                let message = self.encode_value(from.rank)?;
                let mut state = self.state();
                state.locked = true;
                state.holder = Some(from.rank);
                Ok(Served::Done(Reply { arguments: [self.exchanges(), 0], payload: Some(message) }))
            }
            RELEASE => self.release(from, payload),
            _ => Err(request.unknown(&from.peer)),
        }
    }
}
