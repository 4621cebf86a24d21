//! The communicator: one thread's membership in a group of ranks. Every primitive is a method of it.

use crate::asynchronous::Activity;
use crate::blocking::Blocking;
use crate::call::Call;
use crate::group::{Group, Kind};
use hexagram_physical::fingerprint::Fingerprint;
use hexagram_physical::native::AtOnce;
use hexagram_physical::operation::{Poison, Terms};
use hexagram_physical::tag::Tag;
use hexagram_physical::transport::{Bell, Label, Transport};
use hexagram_physical::{Buffer, DType, Error, Queue, Result, World, drive};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Size in bytes above which no backend carries a collective out at once.
const AT_ONCE: usize = 4096;

/// Membership of one thread in a group of ranks. It stays on the thread that opened it.
///
/// Operations run one after another on each *lane*; operations on different lanes may be in flight together. All ranks
/// must call the same operations in the same order on each lane; where they do not, both sides get
/// [`Error::Mismatch`]. After any failed operation the communicator is poisoned and refuses further ones.
///
/// ```
/// use hexagram_logical::testing::spawn;
/// use hexagram_logical::{Buffer, ReduceOp, TransportKind};
///
/// let means = spawn(TransportKind::Thread, 2, |comm| {
///     let mut gradient = Buffer::from_slice(&[comm.rank() as f32, 4.0])?;
///     comm.block_on(comm.all_reduce(&mut gradient, ReduceOp::Mean))?;
///     Ok(gradient.host::<f32>()?.to_vec())
/// });
/// assert_eq!(means.unwrap(), [[0.5, 4.0]; 2]);
/// ```
#[derive(Clone)]
pub struct Communicator {
    shared: Rc<GroupShare>,
    lane: usize,
    /// Number of collectives begun on this lane.
    sequence: Rc<Cell<u64>>,
}

/// State that all groups over one endpoint share.
struct EndpointShare {
    world: World,
    endpoint: Rc<dyn Transport>,
    poison: Poison,
    activity: Arc<Activity>,
    /// First number that no group has, as far as this rank knows.
    free_group: Cell<u32>,
    /// Source of queues of the device under test, if that is not the host.
    queues_under_test: Cell<Option<fn() -> Queue>>,
}

/// State that all lanes of one communicator share.
struct GroupShare {
    line: Rc<EndpointShare>,
    group: Group,
    lanes: RefCell<HashMap<usize, Rc<Cell<u64>>>>,
    /// Number of messages to each rank so far.
    sent: Vec<Cell<u64>>,
    /// Number of messages from each rank so far.
    received: Vec<Cell<u64>>,
}

impl Communicator {
    /// Opens a communicator of all ranks of `world`, over a channel that the other ranks open too.
    ///
    /// # Errors
    /// As [`World::open`].
    pub fn open(world: &World, channel: u16) -> Result<Self> {
        Self::open_beside(world, channel, Arc::default())
    }

    /// Opens a communicator for a thread beside that of another one, with whose `activity` it is reported.
    pub(crate) fn open_beside(world: &World, channel: u16, activity: Arc<Activity>) -> Result<Self> {
        let endpoint = world.open(channel)?;
        let group = Group::world(endpoint.rank(), endpoint.size());
        let poison = Poison::default();
        let free_group = Cell::new(1);
        let queues_under_test = Cell::new(None);
        let line =
            EndpointShare { world: world.clone(), endpoint, poison, activity, free_group, queues_under_test };
        Ok(Self::over(Rc::new(line), group))
    }

    fn over(line: Rc<EndpointShare>, group: Group) -> Self {
        let counters = || (0..group.size()).map(|_| Cell::new(0)).collect();
        let sent = counters();
        let received = counters();
        Self::on_lane(&Rc::new(GroupShare { line, group, lanes: RefCell::default(), sent, received }), 0)
    }

    /// Returns a communicator of another group over the same endpoint.
    pub(crate) fn with_group(&self, group: Group) -> Self {
        Self::over(Rc::clone(&self.shared.line), group)
    }

    /// Lets blocking calls keep elements on a device other than the host, as tests do.
    pub(crate) fn test_on(&self, queues: fn() -> Queue) {
        self.shared.line.queues_under_test.set(Some(queues));
    }

    /// Returns the queue on which a blocking call keeps its elements, if that is not the host's.
    pub(crate) fn queue_under_test(&self) -> Option<Queue> {
        self.shared.line.queues_under_test.get().map(|queues| queues())
    }

    pub(crate) fn free_group(&self) -> u32 {
        self.shared.line.free_group.get()
    }

    /// Notes that all groups below `free` exist.
    pub(crate) fn take_groups(&self, free: u32) {
        self.shared.line.free_group.set(free);
    }

    fn on_lane(shared: &Rc<GroupShare>, lane: usize) -> Self {
        let sequence = Rc::clone(shared.lanes.borrow_mut().entry(lane).or_default());
        Communicator { shared: Rc::clone(shared), lane, sequence }
    }

    /// Returns the same group on another lane, whose operations may overlap with those of this one.
    ///
    /// Asking for a lane twice gives the same lane: its operations are counted on.
    pub fn lane(&self, lane: usize) -> Self {
        Self::on_lane(&self.shared, lane)
    }

    /// Returns this rank in the group.
    pub fn rank(&self) -> usize {
        self.shared.group.rank()
    }

    /// Returns the number of ranks in the group.
    pub fn size(&self) -> usize {
        self.shared.group.size()
    }

    /// Returns the rank in the world of each rank of the group.
    pub fn world_ranks(&self) -> &[usize] {
        self.shared.group.members()
    }

    pub(crate) fn world_rank(&self, rank: usize) -> usize {
        self.shared.group.members()[rank]
    }

    /// Returns the world that the group is part of.
    pub fn world(&self) -> &World {
        &self.shared.line.world
    }

    /// Returns the record of the background threads and services that were started on this communicator, on any of its
    /// lanes and groups.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.shared.line.activity
    }

    /// Sets the operation deadline: the longest time in which no byte of an operation moves before it fails (300 s at
    /// first). It holds for all of this rank's communicators, those of engines included, from their next operation on.
    pub fn set_deadline(&self, deadline: Duration) {
        self.world().set_deadline(deadline);
    }

    /// Returns the bell that other threads can ring to end this thread's wait.
    pub fn bell(&self) -> Arc<dyn Bell> {
        self.endpoint().bell()
    }

    /// Returns the endpoint underneath, for those who drive several operations by themselves.
    pub fn endpoint(&self) -> &dyn Transport {
        &*self.shared.line.endpoint
    }

    /// Runs a future of this communicator to its end, on this thread.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        drive::block_on(self.endpoint(), future)
    }

    /// Returns the same primitives on plain slices, blocking.
    pub fn blocking(&self) -> Blocking<'_> {
        Blocking::new(self)
    }

    /// Ends the work of all ranks: every operation here fails from now on, and the other ranks are told that it was
    /// because of `error`.
    pub fn give_up(&self, error: &Error) {
        self.shared.line.poison.spread(self.endpoint().health(), error);
    }

    /// Runs the next collective of this lane. For authors of primitives; see [`Call`].
    ///
    /// From here on the other ranks count on this one: an error of `body` poisons the communicator and is told to them.
    /// Check arguments before.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failure; the error of `body`.
    pub async fn operate(
        &self,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        self.numbered(Kind::Collective, &self.sequence, fingerprint, body).await
    }

    /// Carries out the next collective of this lane at once, in place, if it is small and the backend can; `None` if it has
    /// yet to be run by [`Communicator::operate`] as usual, under the same fingerprint and on the same elements.
    pub(crate) fn at_once(&self, fingerprint: Fingerprint, elements: &mut [u8]) -> Option<Result<()>> {
        if elements.len() > AT_ONCE || !self.shared.group.is_world() {
            return None;
        }
        let EndpointShare { endpoint, poison, .. } = &*self.shared.line;
        let native = endpoint.native()?;
        let label = match self.label(Kind::Collective, fingerprint, self.sequence.get()) {
            Ok(label) => label,
            Err(error) => return Some(Err(error)),
        };
        if let Err(error) = poison.check(endpoint.health(), &label) {
            return Some(Err(error));
        }
        let AtOnce::Done(outcome) = native.at_once(&label, elements) else { return None };
        self.sequence.set(self.sequence.get() + 1);
        Some(outcome.inspect_err(|error| self.give_up(error)))
    }

    /// Runs the next send to a rank.
    pub(crate) async fn operate_send(
        &self,
        to: usize,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        self.check_rank(to)?;
        self.numbered(Kind::Message, &self.shared.sent[to], fingerprint, body).await
    }

    /// Runs the next receive from a rank.
    pub(crate) async fn operate_recv(
        &self,
        from: usize,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        self.check_rank(from)?;
        self.numbered(Kind::Message, &self.shared.received[from], fingerprint, body).await
    }

    async fn numbered(
        &self,
        kind: Kind,
        counter: &Cell<u64>,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        let call = self.call(kind, fingerprint, counter.get())?;
        counter.set(counter.get() + 1);
        body(&call).await.inspect_err(|error| self.give_up(error))
    }

    fn call(&self, kind: Kind, fingerprint: Fingerprint, sequence: u64) -> Result<Call<'_>> {
        self.begin(self.label(kind, fingerprint, sequence)?)
    }

    fn label(&self, kind: Kind, fingerprint: Fingerprint, sequence: u64) -> Result<Label> {
        // Messages between two ranks are not on a lane: their order is that of all messages of the pair.
        let lane = if kind == Kind::Message { 0 } else { self.lane };
        let communicator = self.shared.group.communicator(kind);
        Ok(Label { tag: Tag::new(communicator, lane, sequence, 0)?, fingerprint })
    }

    /// Starts an operation under a label that is not of this communicator's own counting.
    pub(crate) fn begin(&self, label: Label) -> Result<Call<'_>> {
        let GroupShare { line, group, .. } = &*self.shared;
        let EndpointShare { world, endpoint, poison, .. } = &**line;
        poison.check(endpoint.health(), &label)?;
        let terms = Terms { transport: &**endpoint, poison, deadline: world.deadline() };
        Ok(Call::new(terms, group, label))
    }

    pub(crate) fn check_rank(&self, rank: usize) -> Result<()> {
        self.shared.group.check(rank)
    }

    /// Returns a zeroed buffer in memory that the other ranks of this host can read directly, so that collectives on
    /// it need no staging copies; an ordinary buffer where the transport has no such memory, and in a group that was
    /// split off.
    ///
    /// All ranks call this in the same order with the same arguments, and pass such a buffer to an operation either all
    /// or none.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out, [`Error::Setup`] if another rank does not do the same before the deadline.
    pub fn registered(&self, dtype: DType, len: usize) -> Result<Buffer> {
        self.registered_on(&Queue::host(), dtype, len)
    }

    /// Returns such a buffer for what `queue` writes. Ranks may have theirs on different devices: if any has it on another
    /// than the host, all get ordinary memory of theirs.
    ///
    /// # Errors
    /// As [`Communicator::registered`].
    pub fn registered_on(&self, queue: &Queue, dtype: DType, len: usize) -> Result<Buffer> {
        if !self.shared.group.is_world() {
            return Buffer::zeroed_on(queue, dtype, len);
        }
        self.endpoint().register(queue, dtype, len, self.world().deadline())
    }
}
