//! What others do with this rank's part of a window.

use crate::asynchronous::core::Payload;
use crate::asynchronous::saved::{OF, Saved, restore_value, unknown};
use crate::asynchronous::service::{Handler, Landed, Reply, Served};
use crate::asynchronous::spares::{add, clear, copy_all, scale};
use crate::asynchronous::speech::{Language, Listener, Speaker};
use crate::asynchronous::wire::Request;
use crate::encoding::{Encoding, Feedback, State as Memory};
use crate::{Buffer, Device, Error, Host, Peer, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The arguments of these are the weight and the sender's push-sum scalar, as bits.
pub(super) const PUT: u16 = 0;
pub(super) const ACCUMULATE: u16 = 1;
/// The first argument of its answer is the push-sum scalar.
pub(super) const GET: u16 = 2;

/// What is saved as what: of those who put here, are got from, and get.
const PUT_BY: &str = "put by";
const GOT_FROM: &str = "got from";
const GIVEN_TO: &str = "given to";

/// What a rank has of an in-neighbour.
pub(super) struct Neighbour {
    pub(super) value: Arc<Buffer>,
    pub(super) mass: f64,
    pub(super) version: u64,
    /// Of what it puts, and of what is got from it.
    put: Listener,
    got: Listener,
}

impl Neighbour {
    pub(super) fn clear(&mut self) -> Result<()> {
        self.mass = 0.0;
        clear(&self.value)
    }
}

/// What is written and read together.
pub(super) struct State {
    pub(super) mass: f64,
    pub(super) neighbours: BTreeMap<usize, Neighbour>,
}

/// One rank's part of a window.
pub(super) struct Target {
    pub(super) me: Peer,
    pub(super) fingerprint: Fingerprint,
    pub(super) language: Language,
    /// Only this rank's program writes it, under the lock of the state.
    pub(super) value: Buffer,
    state: Mutex<State>,
    /// What is remembered of those who get.
    getters: Mutex<HashMap<usize, Speaker>>,
}

impl Target {
    pub(super) fn new(
        me: Peer,
        value: &Buffer,
        sources: &[usize],
        encoding: Option<Encoding>,
    ) -> Result<Self> {
        let dtype = value.dtype();
        let len = value.len();
        if let Some(encoding) = &encoding {
            encoding.expect_feedback("a window", &[Feedback::None, Feedback::Error, Feedback::Difference])?;
        }
        let fingerprint = Fingerprint {
            codec: encoding.as_ref().map(Encoding::digest),
            ..Fingerprint::new(OperationKind::Window, dtype, len)
        };
        let language = Language::new(dtype, len, encoding);
        let mut neighbours = BTreeMap::new();
        for source in sources {
            let value = language.values.take()?;
            let (put, got) = Default::default();
            neighbours.insert(*source, Neighbour { value, mass: 0.0, version: 0, put, got });
        }
        let own = Host.alloc(dtype, len)?;
        copy_all(value, &own)?;
        let state = Mutex::new(State { mass: 1.0, neighbours });
        Ok(Target { me, fingerprint, language, value: own, state, getters: Mutex::default() })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does with a neighbour's buffer what `write` says, with the value of a message and its scalar.
    fn write(
        &self,
        from: &Peer,
        (message, bytes): (&Arc<Buffer>, usize),
        listener: impl Fn(&mut Neighbour) -> &mut Listener,
        write: impl FnOnce(&mut Neighbour, Arc<Buffer>) -> Result<()>,
    ) -> Result<()> {
        let no_neighbour = || {
            let what = format!("rank {} is no in-neighbour of rank {}", from.rank, self.me.rank);
            Error::usage(what, "name it where the window is created")
        };
        let mut state = self.state();
        let neighbour = state.neighbours.get_mut(&from.rank).ok_or_else(no_neighbour)?;
        let value = self.language.hear(listener(neighbour), from, message, bytes)?;
        write(neighbour, value)?;
        neighbour.version += 1;
        Ok(())
    }

    /// Stores what was got of `from`.
    pub(super) fn fetched(
        &self,
        from: &Peer,
        weight: f64,
        mass: f64,
        message: &Arc<Buffer>,
        bytes: usize,
    ) -> Result<()> {
        self.write(
            from,
            (message, bytes),
            |neighbour| &mut neighbour.got,
            |neighbour, value| replace(neighbour, value, weight, mass),
        )
    }

    pub(super) fn save(&self, saved: &mut Saved) -> Result<()> {
        let getters = self.getters();
        let state = self.state();
        saved.add_value(self.me.rank, &self.value, state.mass, 0)?;
        for (rank, Neighbour { value, mass, version, put, got }) in &state.neighbours {
            saved.add_value(*rank, value, *mass, *version)?;
            saved.add(PUT_BY, *rank, &put.0)?;
            saved.add(GOT_FROM, *rank, &got.0)?;
        }
        getters
            .iter()
            .filter_map(|(rank, speaker)| Some((*rank, speaker.state()?)))
            .try_for_each(|(rank, state)| saved.add(GIVEN_TO, rank, state))
    }

    pub(super) fn restore(&self, what: &str, rank: usize, saved: Memory) -> Result<()> {
        let mut getters = self.getters();
        let mut state = self.state();
        if (what, rank) == (OF, self.me.rank) {
            state.mass = restore_value(&saved, &self.value)?;
            return Ok(());
        }
        match (what, state.neighbours.get_mut(&rank)) {
            (OF, Some(neighbour)) => {
                neighbour.mass = restore_value(&saved, &neighbour.value)?;
                neighbour.version = saved.operations();
            }
            (PUT_BY, Some(neighbour)) => neighbour.put.0 = saved,
            (GOT_FROM, Some(neighbour)) => neighbour.got.0 = saved,
            (GIVEN_TO, _) if self.language.encodes() => {
                let speaker = getters.entry(rank).or_insert_with(|| self.language.speaker(GET));
                speaker.restore(saved);
            }
            _ => return Err(unknown(&format!("{what} {rank}"))),
        }
        Ok(())
    }

    fn getters(&self) -> MutexGuard<'_, HashMap<usize, Speaker>> {
        self.getters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, to: usize) -> Result<Reply> {
        let mut getters = self.getters();
        let speaker = getters.entry(to).or_insert_with(|| self.language.speaker(GET));
        let state = self.state();
        let payload: Payload = self.language.say(speaker, &self.me, to, &self.value)?;
        Ok(Reply { arguments: [state.mass.to_bits(), 0], payload: Some(payload) })
    }
}

/// `y ← w x, q ← w p`.
fn replace(neighbour: &mut Neighbour, value: Arc<Buffer>, weight: f64, mass: f64) -> Result<()> {
    scale(weight, &value)?;
    neighbour.value = value;
    neighbour.mass = weight * mass;
    Ok(())
}

impl Handler for Target {
    fn admit(&self, from: &Peer, request: &Request) -> Result<Arc<Buffer>> {
        request.expect(&self.fingerprint, from)?;
        match request.verb {
            GET => Host.alloc(self.value.dtype(), 0).map(Arc::new),
            _ => self.language.room(),
        }
    }

    fn serve(&self, from: &Peer, request: &Request, payload: &Landed) -> Result<Served> {
        let [weight, mass] = [0, 1].map(|at| f64::from_bits(request.arguments[at]));
        let message = (&payload.buffer, payload.bytes);
        match request.verb {
            PUT => self.write(
                from,
                message,
                |neighbour| &mut neighbour.put,
                |neighbour, value| replace(neighbour, value, weight, mass),
            )?,
            ACCUMULATE => self.write(
                from,
                message,
                |neighbour| &mut neighbour.put,
                |neighbour, value| {
                    neighbour.mass += weight * mass;
                    add(weight, &value, &neighbour.value)
                },
            )?,
            GET => return self.give(from.rank).map(Served::Done),
            _ => return Err(request.unknown(from)),
        }
        Ok(Served::Done(Reply::empty()))
    }
}
