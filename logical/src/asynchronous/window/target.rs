//! Serves the requests of other ranks for the part of this rank in a window.

use crate::asynchronous::links::{ReceiveLink, SendLink, ValueEncoding};
use crate::asynchronous::saved_states::{OF, SavedStates, restore_value, unknown};
use crate::asynchronous::service::{
    ElementsPayload, Handler, ReceivedPayload, Reply, Request, Served, ServiceMember, TaskLock,
};
use crate::encoding::{Encoding, Feedback, State};
use crate::{Buffer, Error, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The arguments are the weight and the push-sum scalar of the sender, as bits.
pub(super) const PUT: u16 = 0;
pub(super) const ACCUMULATE: u16 = 1;
/// The first argument of its answer is the push-sum scalar.
pub(super) const GET: u16 = 2;

/// Names of saved states: of links from ranks that put here, from the sources of gets, and to ranks that get.
const PUT_BY: &str = "put by";
const GOT_FROM: &str = "got from";
const GIVEN_TO: &str = "given to";

/// The buffer of an in-neighbour.
pub(super) struct Neighbour {
    pub(super) value: Arc<Buffer>,
    pub(super) mass: f64,
    /// Links for its puts, and for gets from it.
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

/// Buffers that are read and written together with their scalars.
pub(super) struct WindowState {
    pub(super) neighbours: BTreeMap<usize, Neighbour>,
    /// Links to the ranks that get.
    getters: HashMap<usize, SendLink>,
}

/// The part of one rank in a window.
pub(super) struct WindowTarget {
    pub(super) me: ServiceMember,
    pub(super) fingerprint: Fingerprint,
    pub(super) encoding: ValueEncoding,
    /// Written only by the program of this rank, under the lock of the state.
    pub(super) value: Buffer,
    /// Push-sum scalar p of the value, as bits: written under the lock of the state, read without.
    mass: AtomicU64,
    /// For every in-neighbour, how often its buffer was written: counted under the lock of the state, read without.
    versions: BTreeMap<usize, AtomicU64>,
    pub(super) state: TaskLock<WindowState>,
}

impl WindowTarget {
    pub(super) fn new(
        me: ServiceMember,
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
            neighbours.insert(*source, Neighbour { value, mass: 0.0, put, got });
        }
        let own = value.copied()?;
        let versions = sources.iter().map(|source| (*source, AtomicU64::new(0))).collect();
        let mass = AtomicU64::new(1f64.to_bits());
        let state = TaskLock::new(WindowState { neighbours, getters: HashMap::new() });
        Ok(WindowTarget { me, fingerprint, encoding, value: own, mass, versions, state })
    }

    /// Returns true if `rank` may put here.
    pub(super) fn is_source(&self, rank: usize) -> bool {
        self.versions.contains_key(&rank)
    }

    /// Returns the ranks that may put here, in order.
    pub(super) fn sources(&self) -> impl Iterator<Item = usize> {
        self.versions.keys().copied()
    }

    /// Returns how often the buffer of an in-neighbour was written.
    pub(super) fn version(&self, of: usize) -> Option<u64> {
        self.versions.get(&of).map(|version| version.load(Ordering::Acquire))
    }

    pub(super) fn mass(&self) -> f64 {
        f64::from_bits(self.mass.load(Ordering::Acquire))
    }

    /// Stores the push-sum scalar. The caller holds the lock of the state.
    pub(super) fn set_mass(&self, mass: f64) {
        self.mass.store(mass.to_bits(), Ordering::Release);
    }

    /// Calls `write` with the buffer of a neighbour and the value of a message.
    fn write(
        &self,
        from: &ServiceMember,
        (message, bytes): (&Arc<Buffer>, usize),
        link: impl Fn(&mut Neighbour) -> &mut ReceiveLink,
        write: impl FnOnce(&mut Neighbour, Arc<Buffer>) -> Result<()>,
    ) -> Result<()> {
        let no_neighbour = || {
            let what = format!("rank {} is not an in-neighbour of rank {}", from.rank, self.me.rank);
            Error::usage(what, "list it in the sources of the window")
        };
        let version = self.versions.get(&from.rank).ok_or_else(no_neighbour)?;
        let mut state = self.state.lock();
        let neighbour = state.neighbours.get_mut(&from.rank).ok_or_else(no_neighbour)?;
        let value = self.encoding.decode(link(neighbour), &from.peer, message, bytes)?;
        write(neighbour, value)?;
        version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Stores a fetched value of `from`.
    pub(super) fn fetched(
        &self,
        from: &ServiceMember,
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

    pub(super) fn save(&self, state: &WindowState, saved: &mut SavedStates) -> Result<()> {
        saved.add_value(self.me.rank, &self.value, self.mass(), 0)?;
        for (rank, Neighbour { value, mass, put, got }) in &state.neighbours {
            saved.add_value(*rank, value, *mass, self.version(*rank).unwrap_or(0))?;
            saved.add(PUT_BY, *rank, &put.0)?;
            saved.add(GOT_FROM, *rank, &got.0)?;
        }
        state
            .getters
            .iter()
            .filter_map(|(rank, link)| Some((*rank, link.state()?)))
            .try_for_each(|(rank, state)| saved.add(GIVEN_TO, rank, state))
    }

    pub(super) fn restore(
        &self,
        state: &mut WindowState,
        what: &str,
        rank: usize,
        saved: State,
    ) -> Result<()> {
        if (what, rank) == (OF, self.me.rank) {
            self.set_mass(restore_value(&saved, &self.value)?);
            return Ok(());
        }
        match (what, state.neighbours.get_mut(&rank)) {
            (OF, Some(neighbour)) => {
                neighbour.mass = restore_value(&saved, &neighbour.value)?;
                if let Some(version) = self.versions.get(&rank) {
                    version.store(saved.operations(), Ordering::Release);
                }
            }
            (PUT_BY, Some(neighbour)) => neighbour.put.0 = saved,
            (GOT_FROM, Some(neighbour)) => neighbour.got.0 = saved,
            (GIVEN_TO, _) if self.encoding.encodes() => {
                let link = state.getters.entry(rank).or_insert_with(|| self.encoding.send_link(GET));
                link.restore(saved);
            }
            _ => return Err(unknown(&format!("{what} {rank}"))),
        }
        Ok(())
    }

    fn give(&self, to: usize) -> Result<Reply> {
        let mut state = self.state.lock();
        let link = state.getters.entry(to).or_insert_with(|| self.encoding.send_link(GET));
        let payload: ElementsPayload = self.encoding.encode(link, &self.me.peer, to, &self.value)?;
        Ok(Reply { arguments: [self.mass.load(Ordering::Acquire), 0], payload: Some(payload) })
    }
}

/// Multiplies all elements, unless the factor is 1.
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
    fn admit(&self, from: &ServiceMember, request: &Request) -> Result<Arc<Buffer>> {
        request.expect(&self.fingerprint, &from.peer)?;
        match request.verb {
            GET => self.encoding.values.empty(),
            _ => self.encoding.room(),
        }
    }

    fn serve(&self, from: &ServiceMember, request: &Request, payload: &ReceivedPayload) -> Result<Served> {
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
            _ => return Err(request.unknown(&from.peer)),
        }
        Ok(Served::Done(Reply::empty()))
    }
}
