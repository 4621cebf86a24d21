//! Windows: memory of a rank that its neighbours write and read while it computes.

mod target;

use super::links::SendLink;
use super::pending::Pending;
use super::saved_states::{SavedStates, parse, unknown};
use super::service::{OutgoingRequest, Service, ServiceMember, SharedGuard, TaskLock, check, tell_everyone};
use crate::encoding::{Encoding, State};
use crate::{Buffer, Communicator, Error, Primitive, Result};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use target::{ACCUMULATE, GET, PUT, WindowState, WindowTarget, scale};

/// Name of the saved states of links to the receivers of puts.
const PUT_TO: &str = "put to";

/// The part of one rank in a window: its value x with its scalar p (initially 1), and a buffer y with a scalar q
/// (initially 0) for every in-neighbour.
///
/// | operation | what it does | bytes that it sends |
/// |---|---|---|
/// | [`Window::put`] | yᵢ ← w x, qᵢ ← w p on every receiver | k · (payload) |
/// | [`Window::accumulate`] | yᵢ ← yᵢ + w x, qᵢ ← qᵢ + w p on every receiver | k · (payload) |
/// | [`Window::get`] | yⱼ ← w xⱼ, qⱼ ← w pⱼ here, of every sender j | k · request; each sender a reply with payload |
/// | [`Window::update`] | x ← w₀ x + Σ wⱼ yⱼ, p ← w₀ p + Σ wⱼ qⱼ, and y, q ← 0 if asked | none |
///
/// *Steps*: one request and its answer; the receiver's service answers without a call of its program. *Bytes*, with k
/// peers and P the bytes of x, or of its message if it is encoded: a request has
/// [`REQUEST_BYTES`](super::REQUEST_BYTES), an answer [`REPLY_BYTES`](super::REPLY_BYTES). A payload has P bytes. It
/// is part of the request or answer if its size (for an answer, its maximum size) is at most
/// [`INLINE_BYTES`](super::INLINE_BYTES), and a separate message otherwise. Every message has
/// [`HEADER_BYTES`](crate::HEADER_BYTES). *Memory*: x, y of every in-neighbour, P for each message in transit, and
/// the feedback memory (see [`Window::create`]). *Determinism*: none; the result depends on the order of arrival. But
/// a value and its scalar are read and written together, a value is never a mixture of two messages, and messages
/// from one rank to another arrive in order.
///
/// Source: the windows of Bluefog (Ying et al., "BlueFog: make decentralized algorithms practical for optimization
/// and deep learning", 2021), after MPI's. Push-sum: Kempe, Dobra and Gehrke, "Gossip-based computation of aggregate
/// information", 2003.
///
/// Usable from any thread; it keeps its service alive.
///
/// ```
/// use hexagram_logical::asynchronous::{Service, Window};
/// use hexagram_logical::testing::spawn;
/// use hexagram_logical::{Buffer, TransportKind};
///
/// // A ring, on which everyone hands half of what it has to the next.
/// let means = spawn(TransportKind::Thread, 4, |comm| {
///     let (rank, n) = (comm.rank(), comm.size());
///     let service = comm.block_on(Service::start(&comm))?;
///     let mine = Buffer::from_slice(&[rank as f32])?;
///     let previous = (rank + n - 1) % n;
///     let window = comm.block_on(Window::create(&comm, &service, &mine, &[previous], None))?;
///     for _ in 0..60 {
///         window.accumulate(0.5, &[((rank + 1) % n, 0.5)]).blocking()?;
///         // Nobody has to keep step, but how near 60 turns come to the mean then depends on who was how fast.
///         comm.blocking().barrier()?;
///         window.blocking().collect()?;
///     }
///     let mut mean = Buffer::from_slice(&[0f32])?;
///     window.blocking().estimate(&mut mean)?;
///     let mean = mean.host::<f32>()?[0];
///     service.blocking().close()?;
///     Ok(mean)
/// });
/// assert!(means.unwrap().iter().all(|mean| (mean - 1.5).abs() < 1e-2));
/// ```
pub struct Window {
    service: Service,
    target: Arc<WindowTarget>,
    /// Number of the handler in the service.
    number: u32,
    /// Out-neighbours, in order.
    destinations: Vec<usize>,
    /// Link to each out-neighbour. The holder of this lock may change x.
    send_links: TaskLock<BTreeMap<usize, SendLink>>,
}

impl Window {
    /// Creates a window of all ranks. A collective call: all ranks make the same calls on a service in the same
    /// order. `value` and `encoding` must match on all ranks; each rank passes its in-neighbours, which may put into
    /// its part, as `sources`.
    ///
    /// With an encoding, values are sent encoded. In addition to x and y, each pair of ranks stores: without
    /// feedback, no memory; with error feedback, S at the sender of puts and accumulates, and S at that of gets; with
    /// difference feedback, the same on both sides.
    ///
    /// Bytes: n − 1 messages of one byte.
    ///
    /// # Errors
    /// [`Error::Mismatch`] on both sides if ranks differ in element type, length or encoding; [`Error::Usage`] for
    /// integers, and for invalid in-neighbours and feedback.
    pub fn create<'a>(
        comm: &'a Communicator,
        service: &'a Service,
        value: &'a Buffer,
        sources: &'a [usize],
        encoding: Option<Encoding>,
    ) -> Primitive<'a, Self> {
        Box::pin(async move {
            check(comm, service, value, encoding.as_ref())?;
            let mut wanted = vec![0u8; comm.size()];
            for source in sources {
                comm.check_rank(*source)?;
                if *source == comm.rank() || std::mem::replace(&mut wanted[*source], 1) == 1 {
                    let what = format!("rank {source} cannot be an in-neighbour of rank {}", comm.rank());
                    return Err(Error::usage(what, "name each of the other ranks at most once"));
                }
            }
            let me = ServiceMember::of(comm, comm.rank());
            let target = Arc::new(WindowTarget::new(me, value, sources, encoding)?);
            // Registered before any other rank can send a request.
            let number = service.register(Arc::<WindowTarget>::clone(&target))?;
            let wanting = tell_everyone(comm, target.fingerprint, &wanted).await?;
            let destinations: Vec<usize> = (0..comm.size()).filter(|rank| wanting[*rank] != 0).collect();
            let send_links = destinations.iter().map(|to| (*to, target.encoding.send_link(PUT))).collect();
            let send_links = TaskLock::new(send_links);
            Ok(Window { service: service.clone(), target, number, destinations, send_links })
        })
    }

    /// Returns the ranks that this rank may put to: those with this rank as an in-neighbour.
    pub fn destinations(&self) -> Vec<usize> {
        self.destinations.clone()
    }

    /// Puts x into the buffers of `to`, and then scales it. On each rank i of `to`, with its weight w: y ← w x and q
    /// ← w p. On this rank: x ← `self_weight` x and p ← `self_weight` p. See [`Window`] for bytes, memory,
    /// determinism.
    ///
    /// Returns once x may be changed again; awaiting the result waits until the values have arrived. The call itself
    /// encodes or copies x, and scales it, on this thread; it waits while other threads access the memory of this
    /// window.
    ///
    /// # Errors
    /// [`Error::Usage`] for ranks that are not out-neighbours and weights that are not finite, and
    /// [`Error::NotFinite`] if the codec refuses x. In these cases no message is sent. If x can be encoded for only
    /// some of several receivers, because of their feedback memory, the service ends. The [`Pending`] fails if a rank
    /// has failed.
    pub fn put(&self, self_weight: f64, to: &[(usize, f64)]) -> Pending<()> {
        self.write(PUT, self_weight, to).unwrap_or_else(|error| self.service.refused(error))
    }

    /// Adds x to the buffers of `to`, and then scales it: as [`Window::put`], with y ← y + w x and q ← q + w p. If
    /// the weights and `self_weight` add up to 1, Σ x + Σ y over all ranks is preserved.
    ///
    /// # Errors
    /// As [`Window::put`].
    pub fn accumulate(&self, self_weight: f64, to: &[(usize, f64)]) -> Pending<()> {
        self.write(ACCUMULATE, self_weight, to).unwrap_or_else(|error| self.service.refused(error))
    }

    fn write(&self, verb: u16, self_weight: f64, to: &[(usize, f64)]) -> Result<Pending<()>> {
        check_weight(self_weight)?;
        check_peers(to, |rank| self.destinations.contains(&rank), "out-neighbour")?;
        let mut send_links = self.send_links.lock();
        let target = &self.target;
        let number = self.number;
        let mass = target.mass();
        let mut asks: Vec<(usize, OutgoingRequest)> = Vec::with_capacity(to.len());
        for (rank, weight) in to {
            let shared = asks.first().filter(|_| !target.encoding.remembers());
            let payload = match (shared.and_then(|(_, ask)| ask.payload.clone()), send_links.get_mut(rank)) {
                (Some(payload), _) => payload,
                (None, Some(link)) => {
                    let said = target.encoding.encode(link, &target.me.peer, *rank, &target.value);
                    said.inspect_err(|error| self.left_unsaid(&asks, error))?
                }
                (None, None) => continue,
            };
            let arguments = [weight.to_bits(), mass.to_bits(), 0];
            let fingerprint = target.fingerprint;
            let payload = Some(payload);
            asks.push((
                *rank,
                OutgoingRequest { handler: number, verb, fingerprint, arguments, payload, into: None },
            ));
        }
        if self_weight != 1.0 {
            let _state = target.state.lock();
            target.value.write_all()?.scale(self_weight)?;
            target.set_mass(self_weight * mass);
        }
        // Still holding send_links, so that messages are sent in the order of encoding.
        Ok(self.service.submit(move |dispatcher| async move { dispatcher.request_all(asks).await.map(drop) }))
    }

    /// Ends the service if the memory already contains messages that will not be sent.
    fn left_unsaid(&self, asks: &[(usize, OutgoingRequest)], error: &Error) {
        if !asks.is_empty() && self.target.encoding.remembers() {
            let error = error.clone();
            drop(self.service.submit(move |dispatcher| async move { Err::<(), _>(dispatcher.fail(error)) }));
        }
    }

    /// Fetches the values of `from`: for each rank j with its weight w, yⱼ ← w xⱼ and qⱼ ← w pⱼ. See [`Window`] for
    /// bytes, memory, determinism.
    ///
    /// # Errors
    /// [`Error::Usage`] for ranks that are not in-neighbours and weights that are not finite. The [`Pending`] fails
    /// if a rank has failed, or its codec refuses its value.
    pub fn get(&self, from: &[(usize, f64)]) -> Pending<()> {
        self.fetch(from).unwrap_or_else(|error| self.service.refused(error))
    }

    fn fetch(&self, from: &[(usize, f64)]) -> Result<Pending<()>> {
        let target = Arc::clone(&self.target);
        check_peers(from, |rank| target.is_source(rank), "in-neighbour")?;
        let mut asks = Vec::with_capacity(from.len());
        for (rank, _) in from {
            let fingerprint = target.fingerprint;
            let into = Some(target.encoding.room()?);
            let ask = OutgoingRequest {
                handler: self.number,
                verb: GET,
                fingerprint,
                arguments: [0; 3],
                payload: None,
                into,
            };
            asks.push((*rank, ask));
        }
        let from = from.to_vec();
        Ok(self.service.submit(move |dispatcher| async move {
            let answers = dispatcher.request_all(asks).await?;
            let stored = from.iter().zip(answers).try_for_each(|((rank, weight), answer)| {
                let mass = f64::from_bits(answer.arguments[0]);
                let payload = answer.payload.as_ref().map(|landed| (&landed.buffer, landed.bytes));
                payload.map_or(Ok(()), |(buffer, bytes)| {
                    target.fetched(&dispatcher.member(*rank), *weight, mass, buffer, bytes)
                })
            });
            stored.map_err(|error| dispatcher.fail(error))
        }))
    }

    /// Combines the arrived values: x ← `self_weight` x + Σ w yⱼ and p ← `self_weight` p + Σ w qⱼ, over the ranks j
    /// of `weights`, in that order. With `reset`, their y and q are 0 afterwards. Sends no messages.
    ///
    /// Puts and gets of other ranks wait during the call, and the call waits while the service serves one.
    ///
    /// # Errors
    /// [`Error::Usage`] for ranks that are not in-neighbours, and weights that are not finite.
    pub fn update<'a>(&'a self, self_weight: f64, weights: &'a [(usize, f64)], reset: bool) -> Primitive<'a> {
        Box::pin(async move {
            check_weight(self_weight)?;
            check_peers(weights, |rank| self.target.is_source(rank), "in-neighbour")?;
            let (_links, mut state) = self.alone().await;
            scale(self_weight, &self.target.value)?;
            let mut mass = self_weight * self.target.mass();
            for (rank, weight) in weights {
                if let Some(neighbour) = state.neighbours.get_mut(rank) {
                    self.target.value.write_all()?.add_scaled(*weight, &neighbour.value.read_all()?)?;
                    mass += weight * neighbour.mass;
                    if reset {
                        neighbour.clear()?;
                    }
                }
            }
            self.target.set_mass(mass);
            Ok(())
        })
    }

    /// Adds all accumulated values: [`Window::update`] with weights of 1 and a reset.
    ///
    /// # Errors
    /// None, except for bugs.
    pub fn collect<'a>(&'a self) -> Primitive<'a> {
        Box::pin(async move {
            let weights: Vec<_> = self.target.sources().map(|rank| (rank, 1.0)).collect();
            self.update(1.0, &weights, true).await
        })
    }

    /// Returns how often the buffer of an in-neighbour has been written, by either side; [`None`] for other ranks.
    pub fn version(&self, of: usize) -> Option<u64> {
        self.target.version(of)
    }

    /// Returns the push-sum scalar p.
    pub fn mass(&self) -> f64 {
        self.target.mass()
    }

    /// Copies the value of this rank: `into ← x`.
    ///
    /// # Errors
    /// [`Error::Usage`] if `into` has a different type or length.
    pub fn load<'a>(&'a self, into: &'a mut Buffer) -> Primitive<'a> {
        Box::pin(async move {
            let _state = self.target.state.enter().await;
            into.write_all()?.copy_from(&self.target.value.read_all()?)
        })
    }

    /// Computes the push-sum estimate of the mean: `into ← x ÷ p`.
    ///
    /// # Errors
    /// [`Error::Usage`] if p is 0, because all of it was sent away; as [`Window::load`].
    pub fn estimate<'a>(&'a self, into: &'a mut Buffer) -> Primitive<'a> {
        Box::pin(async move {
            let mass = {
                let _state = self.target.state.enter().await;
                let mass = self.target.mass();
                if mass == 0.0 {
                    let what = "the push-sum scalar of the window is 0, so that it has no estimate";
                    return Err(Error::usage(what, "keep a share in each put, or call `collect` first"));
                }
                into.write_all()?.copy_from(&self.target.value.read_all()?)?;
                mass
            };
            scale(1.0 / mass, into)
        })
    }

    /// Copies the buffer of an in-neighbour: `into ← y`.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is not an in-neighbour, or `into` has a different type or length.
    pub fn load_neighbour<'a>(&'a self, of: usize, into: &'a mut Buffer) -> Primitive<'a> {
        Box::pin(async move {
            check_peers(&[(of, 1.0)], |rank| self.target.is_source(rank), "in-neighbour")?;
            let state = self.target.state.enter().await;
            let Some(neighbour) = state.neighbours.get(&of) else { return Ok(()) };
            into.write_all()?.copy_from(&neighbour.value.read_all()?)
        })
    }

    /// Replaces the value of this rank: `x ← from`; p is unchanged.
    ///
    /// # Errors
    /// [`Error::Usage`] if `from` has a different type or length.
    pub fn store<'a>(&'a self, from: &'a Buffer) -> Primitive<'a> {
        Box::pin(async move {
            let _alone = self.alone().await;
            self.target.value.write_all()?.copy_from(&from.read_all()?)
        })
    }

    /// Adds to the value of this rank: `x ← x + weight × from`.
    ///
    /// # Errors
    /// [`Error::Usage`] if the weight is not finite; as [`Window::store`].
    pub fn add<'a>(&'a self, weight: f64, from: &'a Buffer) -> Primitive<'a> {
        Box::pin(async move {
            check_weight(weight)?;
            let _alone = self.alone().await;
            self.target.value.write_all()?.add_scaled(weight, &from.read_all()?)
        })
    }

    /// Returns copies of the whole state of this rank, by name: x with p, each y with q and its version, and the
    /// feedback memory for each neighbour. For a checkpoint: wait for all results and a barrier first, and save on
    /// all ranks.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out.
    pub fn save<'a>(&'a self) -> Primitive<'a, Vec<(String, State)>> {
        Box::pin(async move {
            let (send_links, state) = self.alone().await;
            let mut saved = SavedStates::default();
            self.target.save(&state, &mut saved)?;
            for (rank, state) in send_links.iter().filter_map(|(rank, link)| Some((rank, link.state()?))) {
                saved.add(PUT_TO, *rank, state)?;
            }
            Ok(saved.into_states())
        })
    }

    /// Restores the state of [`Window::save`] in a window that was created with the same arguments. Call it on all
    /// ranks, before the first message.
    ///
    /// # Errors
    /// [`Error::Usage`] if the state does not match the neighbours, encoding, type or length. The window is then
    /// unusable.
    pub async fn restore(&self, states: impl IntoIterator<Item = (String, State)>) -> Result<()> {
        let (mut send_links, mut target_state) = self.alone().await;
        for (name, state) in states {
            match parse(&name).ok_or_else(|| unknown(&name))? {
                (PUT_TO, rank) if self.target.encoding.encodes() => {
                    send_links.get_mut(&rank).ok_or_else(|| unknown(&name))?.restore(state);
                }
                (what, rank) => self.target.restore(&mut target_state, what, rank, state)?,
            }
        }
        Ok(())
    }

    /// Waits until neither another thread of the program nor the service accesses the window.
    async fn alone(&self) -> (SharedGuard<'_, BTreeMap<usize, SendLink>>, SharedGuard<'_, WindowState>) {
        poll_fn(|context| {
            let Poll::Ready(links) = self.send_links.poll_enter(context) else { return Poll::Pending };
            self.target.state.poll_enter(context).map(|state| (links, state))
        })
        .await
    }
}

fn check_weight(weight: f64) -> Result<()> {
    if weight.is_finite() {
        return Ok(());
    }
    Err(Error::usage(format!("{weight} is not a valid weight of a window"), "use a finite number"))
}

fn check_peers(peers: &[(usize, f64)], known: impl Fn(usize) -> bool, what: &str) -> Result<()> {
    for (at, (rank, weight)) in peers.iter().enumerate() {
        check_weight(*weight)?;
        if !known(*rank) || peers[..at].iter().any(|(other, _)| other == rank) {
            let what = format!("rank {rank} is not an {what} of this window, or is listed twice");
            return Err(Error::usage(
                what,
                "list neighbours of this rank in the graph of the window, each at most once",
            ));
        }
    }
    Ok(())
}
