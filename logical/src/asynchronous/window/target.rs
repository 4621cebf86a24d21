//! The requests that other ranks make of this rank's part of a window.

use crate::asynchronous::dispatcher::Payload;
use crate::asynchronous::links::{ReceiveLink, SendLink, ValueEncoding};
use crate::asynchronous::saved::{OF, Saved, restore_value, unknown};
use crate::asynchronous::service::{Handler, Landed, Reply, Served};
use crate::asynchronous::wire::Request;
use crate::encoding::{Encoding, Feedback, State};
use crate::{Buffer, Error, Peer, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The arguments of these are the weight and the sender's push-sum scalar, as bits.
pub(super) const PUT: u16 = 0;
pub(super) const ACCUMULATE: u16 = 1;
/// The first argument of its answer is the push-sum scalar.
pub(super) const GET: u16 = 2;

/// Names of saved states: of links from ranks that put here, from ranks that are got from, and to ranks that get.
const PUT_BY: &str = "put by";
const GOT_FROM: &str = "got from";
const GIVEN_TO: &str = "given to";

/// The buffer of an in-neighbour.
pub(super) struct Neighbour {
    pub(super) value: Arc<Buffer>,
    pub(super) mass: f64,
    pub(super) version: u64,
    /// Links by which it puts, and by which it is got from.
    put: ReceiveLink,
    got: ReceiveLink,
}

impl Neighbour {
    pub(super) fn clear(&mut self) -> Result<()> {
        self.mass = 0.0;
        self.value.write_all()?.clear();
        Ok(())
    }
}

/// State that is written and read together.
pub(super) struct WindowState {
    pub(super) mass: f64,
    pub(super) neighbours: BTreeMap<usize, Neighbour>,
}

/// One rank's part of a window.
pub(super) struct WindowTarget {
    pub(super) me: Peer,
    pub(super) fingerprint: Fingerprint,
    pub(super) encoding: ValueEncoding,
    /// Only this rank's program writes it, under the lock of the state.
    pub(super) value: Buffer,
    state: Mutex<WindowState>,
    /// Links to the ranks that get.
    getters: Mutex<HashMap<usize, SendLink>>,
}

impl WindowTarget {
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
        let encoding = ValueEncoding::new(value, encoding)?;
        let mut neighbours = BTreeMap::new();
        for source in sources {
            let value = encoding.values.take()?;
            let put = ReceiveLink::default();
            let got = ReceiveLink::default();
            neighbours.insert(*source, Neighbour { value, mass: 0.0, version: 0, put, got });
        }
        let own = value.copied()?;
        let state = Mutex::new(WindowState { mass: 1.0, neighbours });
        Ok(WindowTarget { me, fingerprint, encoding, value: own, state, getters: Mutex::default() })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, WindowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `write` with a neighbour's buffer and the value of a message.
    fn write(
        &self,
        from: &Peer,
        (message, bytes): (&Arc<Buffer>, usize),
        link: impl Fn(&mut Neighbour) -> &mut ReceiveLink,
        write: impl FnOnce(&mut Neighbour, Arc<Buffer>) -> Result<()>,
    ) -> Result<()> {
        let no_neighbour = || {
            let what = format!("rank {} is no in-neighbour of rank {}", from.rank, self.me.rank);
            Error::usage(what, "name it where the window is created")
        };
        let mut state = self.state();
        let neighbour = state.neighbours.get_mut(&from.rank).ok_or_else(no_neighbour)?;
        let value = self.encoding.decode(link(neighbour), from, message, bytes)?;
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
            .filter_map(|(rank, link)| Some((*rank, link.state()?)))
            .try_for_each(|(rank, state)| saved.add(GIVEN_TO, rank, state))
    }

    pub(super) fn restore(&self, what: &str, rank: usize, saved: State) -> Result<()> {
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
            (GIVEN_TO, _) if self.encoding.encodes() => {
                let link = getters.entry(rank).or_insert_with(|| self.encoding.send_link(GET));
                link.restore(saved);
            }
            _ => return Err(unknown(&format!("{what} {rank}"))),
        }
        Ok(())
    }

    fn getters(&self) -> MutexGuard<'_, HashMap<usize, SendLink>> {
        self.getters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, to: usize) -> Result<Reply> {
        let mut getters = self.getters();
        let link = getters.entry(to).or_insert_with(|| self.encoding.send_link(GET));
        let state = self.state();
        let payload: Payload = self.encoding.encode(link, &self.me, to, &self.value)?;
        Ok(Reply { arguments: [state.mass.to_bits(), 0], payload: Some(payload) })
    }
}

/// Multiplies all elements, unless that leaves them as they are.
pub(super) fn scale(factor: f64, to: &Buffer) -> Result<()> {
    if factor == 1.0 { Ok(()) } else { to.write_all()?.scale(factor) }
}

/// Stores `y ← w x, q ← w p`.
fn replace(neighbour: &mut Neighbour, value: Arc<Buffer>, weight: f64, mass: f64) -> Result<()> {
    scale(weight, &value)?;
    neighbour.value = value;
    neighbour.mass = weight * mass;
    Ok(())
}

impl Handler for WindowTarget {
    fn admit(&self, from: &Peer, request: &Request) -> Result<Arc<Buffer>> {
        request.expect(&self.fingerprint, from)?;
        match request.verb {
            GET => self.encoding.values.empty(),
            _ => self.encoding.room(),
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
                    neighbour.value.write_all()?.add_scaled(weight, &value.read_all()?)
                },
            )?,
            GET => return self.give(from.rank).map(Served::Done),
            _ => return Err(request.unknown(from)),
        }
        Ok(Served::Done(Reply::empty()))
    }
}
