//! What others do with this rank's value.

use crate::asynchronous::core::Payload;
use crate::asynchronous::saved::{OF, Saved, restore_value, unknown};
use crate::asynchronous::service::{Handler, Landed, Reply, Served};
use crate::asynchronous::spares::{add, copy_all, scale};
use crate::asynchronous::speech::{Language, Listener, Speaker, fresh};
use crate::asynchronous::wire::Request;
use crate::encoding::{Encoding, Feedback, State as Memory};
use crate::{Buffer, Device, Error, Host, Peer, Result};
use hexagram_physical::error::During;
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// With a value, answered with a difference, or without one as [`PASSED`]. The first argument of every answer counts
/// the exchanges of who gives it.
pub(super) const EXCHANGE: u16 = 0;
/// Answered with a value, which stays locked.
pub(super) const LOCK: u16 = 1;
/// With a difference, which ends the lock.
pub(super) const RELEASE: u16 = 2;

/// Second argument of an answer: the exchange that the asked rank has begun itself counts for both.
pub(super) const PASSED: u64 = 1;

/// What is saved as what: of those who are told values, and of those who tell.
const TOLD: &str = "told to";
const HEARD: &str = "heard from";

/// What is read and written together.
pub(super) struct State {
    pub(super) value: Buffer,
    pub(super) exchanges: u64,
    /// An exchange has the value.
    pub(super) locked: bool,
    /// This rank has begun an exchange.
    pub(super) turn_taken: bool,
    /// With whom, while that one has this rank's value and may change its own.
    pub(super) asking: Option<usize>,
    /// Who asked for the lock, if another rank has it.
    holder: Option<usize>,
    /// What is remembered of each partner.
    speakers: HashMap<usize, Speaker>,
    listeners: HashMap<usize, Listener>,
}

/// One rank's value.
pub(super) struct Target {
    me: Peer,
    pub(super) fingerprint: Fingerprint,
    pub(super) values: Language,
    pub(super) differences: Language,
    /// Whether exchanges exclude each other.
    pub(super) locked: bool,
    state: Mutex<State>,
}

impl Target {
    pub(super) fn new(me: Peer, value: &Buffer, encoding: Option<Encoding>, locked: bool) -> Result<Self> {
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
        let values = Language::new(dtype, len, of_values);
        let differences = Language::new(dtype, len, encoding);
        let own = Host.alloc(dtype, len)?;
        copy_all(value, &own)?;
        let (speakers, listeners) = Default::default();
        let state = State {
            value: own,
            exchanges: 0,
            locked: false,
            turn_taken: false,
            asking: None,
            holder: None,
            speakers,
            listeners,
        };
        Ok(Target { me, fingerprint, values, differences, locked, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn save(&self, saved: &mut Saved) -> Result<()> {
        let State { value, exchanges, speakers, listeners, .. } = &*self.state();
        saved.add_value(self.me.rank, value, 1.0, *exchanges)?;
        for (rank, state) in speakers.iter().filter_map(|(rank, speaker)| Some((rank, speaker.state()?))) {
            saved.add(TOLD, *rank, state)?;
        }
        listeners.iter().try_for_each(|(rank, listener)| saved.add(HEARD, *rank, &listener.0))
    }

    pub(super) fn restore(&self, what: &str, rank: usize, saved: Memory) -> Result<()> {
        let State { value, exchanges, speakers, listeners, .. } = &mut *self.state();
        match what {
            OF if rank == self.me.rank => {
                restore_value(&saved, value)?;
                *exchanges = saved.operations();
            }
            TOLD if self.values.encodes() => {
                speakers.entry(rank).or_insert_with(|| self.values.speaker(EXCHANGE)).restore(saved);
            }
            HEARD if self.values.encodes() => listeners.entry(rank).or_default().0 = saved,
            _ => return Err(unknown(&format!("{what} {rank}"))),
        }
        Ok(())
    }

    /// The message that tells `to` this rank's value.
    pub(super) fn say_value(&self, to: usize) -> Result<Payload> {
        let State { value, speakers, .. } = &mut *self.state();
        let speaker = speakers.entry(to).or_insert_with(|| self.values.speaker(EXCHANGE));
        self.values.say(speaker, &self.me, to, value)
    }

    /// Averages with the value that a message of `from` tells: how many exchanges there were, and the message that
    /// tells the difference, which `from` has to subtract.
    pub(super) fn meet(&self, from: &Peer, message: &Arc<Buffer>, bytes: usize) -> Result<(u64, Payload)> {
        let State { value, exchanges, listeners, .. } = &mut *self.state();
        let listener = listeners.entry(from.rank).or_default();
        let difference = self.values.hear(listener, from, message, bytes)?;
        // d = (x_from − x) / 2
        add(-1.0, value, &difference)?;
        scale(0.5, &difference)?;
        let rounded = self.differences.round(&self.me, from.rank, *exchanges, &difference);
        let message = rounded.map_err(|error| whose(error, value, from))?;
        add(1.0, &difference, value)?;
        *exchanges += 1;
        Ok((*exchanges, message))
    }

    /// Whether an exchange that `from` has begun is one with this rank's own, which counts for both.
    fn is_met(&self, from: &Peer) -> bool {
        !self.locked && self.me.rank < from.rank && self.state().asking == Some(from.rank)
    }

    /// Lets an exchange pass, of which only what is remembered of values counts.
    fn pass(&self, from: &Peer, payload: &Landed) -> Result<Reply> {
        let State { exchanges, listeners, .. } = &mut *self.state();
        let listener = listeners.entry(from.rank).or_default();
        self.values.hear(listener, from, &payload.buffer, payload.bytes)?;
        Ok(Reply { arguments: [*exchanges, PASSED], payload: None })
    }

    /// `x ← x + sign × difference`: how many exchanges there were.
    pub(super) fn apply(&self, sign: f64, difference: &Buffer) -> Result<u64> {
        let State { value, exchanges, .. } = &mut *self.state();
        add(sign, difference, value)?;
        *exchanges += 1;
        Ok(*exchanges)
    }

    fn release(&self, from: &Peer, payload: &Landed) -> Result<Served> {
        if self.state().holder.take() != Some(from.rank) {
            let cause = "released a lock that it does not have".to_owned();
            return Err(Error::PeerFailed { culprit: from.clone(), cause, during: During::Nothing });
        }
        let difference = self.differences.rounded(from, &payload.buffer, payload.bytes)?;
        let exchanges = self.apply(-1.0, &difference)?;
        self.state().locked = false;
        Ok(Served::Done(Reply { arguments: [exchanges, 0], payload: None }))
    }
}

/// A difference is not finite where either value is not: the partner's, if this rank's is.
fn whose(mut error: Error, own: &Buffer, partner: &Peer) -> Error {
    if let (Error::NotFinite { place, index, .. }, Ok(own)) = (&mut error, own.host::<f32>())
        && own.get(*index).is_some_and(|x| x.is_finite())
    {
        *place = partner.clone();
    }
    error
}

impl Handler for Target {
    fn admit(&self, from: &Peer, request: &Request) -> Result<Arc<Buffer>> {
        request.expect(&self.fingerprint, from)?;
        match request.verb {
            EXCHANGE => self.values.room(),
            RELEASE => self.differences.room(),
            _ => Host.alloc(self.fingerprint.dtype, 0).map(Arc::new),
        }
    }

    fn serve(&self, from: &Peer, request: &Request, payload: &Landed) -> Result<Served> {
        match request.verb {
            EXCHANGE | LOCK if self.state().locked => Ok(Served::Later),
            EXCHANGE if self.is_met(from) => Ok(Served::Done(self.pass(from, payload)?)),
            EXCHANGE => {
                let (exchanges, message) = self.meet(from, &payload.buffer, payload.bytes)?;
                Ok(Served::Done(Reply { arguments: [exchanges, 0], payload: Some(message) }))
            }
            LOCK => {
                let message = self.say_value(from.rank)?;
                let mut state = self.state();
                (state.locked, state.holder) = (true, Some(from.rank));
                Ok(Served::Done(Reply { arguments: [state.exchanges, 0], payload: Some(message) }))
            }
            RELEASE => self.release(from, payload),
            _ => Err(request.unknown(from)),
        }
    }
}
