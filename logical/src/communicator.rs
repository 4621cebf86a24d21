//! The communicator: one thread's membership in a group of ranks. Every primitive is a method of it.

use crate::asynchronous::Activity;
use crate::blocking::Blocking;
use crate::centralized::HostGroups;
use crate::group::Group;
use hexagram_physical::fingerprint::Rate;
use hexagram_physical::operation::Poison;
use hexagram_physical::transport::{Bell, Transport};
use hexagram_physical::{Buffer, DType, Error, Queue, Result, TransportKind, World, drive};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

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
    /// Deadline of its operations, in place of the world's.
    deadline: Option<Duration>,
    /// Learning rate that ranks compare with each operation.
    rate: Option<Rate>,
}

/// State that all groups over one endpoint share.
struct EndpointShare {
    world: World,
    endpoint: Rc<dyn Transport>,
    poison: Poison,
    activity: Arc<Activity>,
    /// First number that no group has, as far as this rank knows.
    free_group: Cell<u32>,
    /// True while a group is being made, which takes the next number.
    is_grouping: Rc<Cell<bool>>,
    /// Source of queues of the device under test, if that is not the host.
    queues_under_test: Cell<Option<fn() -> Queue>>,
    /// True if it goes from thread to thread.
    moves: Cell<bool>,
}

/// State that all lanes of one communicator share.
struct GroupShare {
    line: Rc<EndpointShare>,
    group: Group,
    lanes: RefCell<HashMap<usize, Rc<Cell<u64>>>>,
    /// Messages to each rank so far.
    sent: Counters,
    /// Messages from each rank so far.
    received: Counters,
    /// Groups made with each rank so far.
    grouped: Counters,
    /// Groups of its hosts and of their leaders that it keeps, once they were asked for.
    hosts: OnceCell<HostGroups>,
}

/// Counters of something for each rank. Most groups never need them.
#[derive(Default)]
struct Counters(OnceCell<Box<[Cell<u64>]>>);

impl Counters {
    fn of(&self, rank: usize, size: usize) -> &Cell<u64> {
        &self.0.get_or_init(|| (0..size).map(|_| Cell::new(0)).collect())[rank]
    }
}

/// Turn of a rank to make a group.
pub(crate) struct GroupingTurn(Rc<Cell<bool>>);

impl Drop for GroupingTurn {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Communicator {
    /// Opens a communicator of all ranks of `world`, over a channel that the other ranks open too.
    ///
    /// # Errors
    /// As [`World::open`].
    pub fn open(world: &World, channel: u16) -> Result<Self> {
        let endpoint = world.open(channel)?;
        let group = Group::world(endpoint.rank(), endpoint.size());
        Ok(Self::on_endpoint(world.clone(), endpoint, group, Arc::default()))
    }

    /// Creates the first communicator of an endpoint.
    pub(crate) fn on_endpoint(
        world: World,
        endpoint: Rc<dyn Transport>,
        group: Group,
        activity: Arc<Activity>,
    ) -> Self {
        let line = EndpointShare {
            world,
            endpoint,
            poison: Poison::default(),
            activity,
            free_group: Cell::new(Group::FIRST_FREE),
            is_grouping: Rc::default(),
            queues_under_test: Cell::new(None),
            moves: Cell::new(false),
        };
        Self::over(Rc::new(line), group)
    }

    fn over(line: Rc<EndpointShare>, group: Group) -> Self {
        let lanes = RefCell::default();
        let [sent, received, grouped] = Default::default();
        let hosts = OnceCell::new();
        Self::on_lane(&Rc::new(GroupShare { line, group, lanes, sent, received, grouped, hosts }), 0)
    }

    /// Returns the number of groups and lanes that hold the endpoint.
    #[cfg(test)]
    pub(crate) fn holders(&self) -> usize {
        Rc::strong_count(&self.shared)
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

    /// Begins to make a group, which ends as the value is dropped.
    ///
    /// # Errors
    /// [`Error::Usage`] while another one is being made: both could get the same number.
    pub(crate) fn turn_to_group(&self) -> Result<GroupingTurn> {
        let is_grouping = Rc::clone(&self.shared.line.is_grouping);
        if is_grouping.replace(true) {
            return Err(Error::usage(
                "another group is being made on this rank",
                "make groups one after another, in the same order on all ranks that they share",
            ));
        }
        Ok(GroupingTurn(is_grouping))
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
        Communicator { shared: Rc::clone(shared), lane, sequence, deadline: None, rate: None }
    }

    /// Notes that it goes from thread to thread, as those of an executor do, so that nothing of it may be bound to one.
    #[cfg(feature = "executor")]
    pub(crate) fn set_movable(&self, moves: bool) {
        self.shared.line.moves.set(moves);
    }

    /// Returns the same group on another lane, whose operations may overlap with those of this one.
    ///
    /// Asking for a lane twice gives the same lane: its operations are counted on.
    pub fn lane(&self, lane: usize) -> Self {
        Communicator { deadline: self.deadline, rate: self.rate, ..Self::on_lane(&self.shared, lane) }
    }

    /// Returns the same communicator with a deadline of its own: the longest time in which no byte of one of *its*
    /// operations moves before that fails, in place of [`World::deadline`]. Both count the same operations.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::TransportKind;
    /// # use std::time::Duration;
    /// # spawn(TransportKind::Thread, 2, |comm| {
    /// comm.with_deadline(Duration::from_secs(5)).blocking().barrier()?;
    /// assert_eq!(comm.deadline(), Duration::from_secs(300));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Communicator { deadline: Some(deadline), ..self.clone() }
    }

    /// Returns the same communicator for operations of a training step with this learning rate, which ranks then compare:
    /// those whose rates differ fail with [`Error::Mismatch`], which has both. It rides in the operations' messages and
    /// costs none, and is of those that have no root. Both count the same operations.
    pub fn with_learning_rate(&self, rate: Option<f64>) -> Self {
        Communicator { rate: rate.map(Rate::of), ..self.clone() }
    }

    pub(crate) fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Returns the deadline of operations that begin now: its own if it has one, else the world's.
    pub fn deadline(&self) -> Duration {
        self.deadline.unwrap_or_else(|| self.world().deadline())
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

    pub(crate) fn group(&self) -> &Group {
        &self.shared.group
    }

    pub(crate) fn lane_number(&self) -> usize {
        self.lane
    }

    /// Returns the counter of collectives that were begun on this lane.
    pub(crate) fn collectives(&self) -> &Cell<u64> {
        &self.sequence
    }

    /// Returns the counter of messages to a rank.
    pub(crate) fn sends_to(&self, rank: usize) -> &Cell<u64> {
        self.shared.sent.of(rank, self.size())
    }

    /// Returns the counter of messages from a rank.
    pub(crate) fn receives_from(&self, rank: usize) -> &Cell<u64> {
        self.shared.received.of(rank, self.size())
    }

    /// Returns the counter of groups that were made with a rank.
    pub(crate) fn groups_with(&self, rank: usize) -> &Cell<u64> {
        self.shared.grouped.of(rank, self.size())
    }

    /// Returns the place of the groups of hosts that it keeps, which all lanes share.
    pub(crate) fn host_groups(&self) -> &OnceCell<HostGroups> {
        &self.shared.hosts
    }

    /// Returns another group on this communicator's lane, with its deadline.
    pub(crate) fn alike(&self, group: &Communicator) -> Self {
        Communicator { deadline: self.deadline, ..group.lane(self.lane) }
    }

    /// Returns the first failure on this endpoint, if there was one.
    pub(crate) fn poison(&self) -> &Poison {
        &self.shared.line.poison
    }

    pub(crate) fn check_rank(&self, rank: usize) -> Result<()> {
        self.shared.group.check(rank)
    }

    /// Lets all ranks of the world decide how memory of their devices travels, each of which passes a queue of its own:
    /// that of the host if it has no other. Returns the path on which the devices reach each other; `None` if their
    /// memory goes by way of the host, as in a group that was split off. Decided once any rank has a device.
    ///
    /// All ranks call this, or what calls it ([`Communicator::registered_on`], an engine), at the same point. The program
    /// waits for the queue no longer than the present deadline from then on.
    ///
    /// # Errors
    /// [`Error::Usage`] for a queue of another device than before, [`Error::Setup`] if `HEXAGRAM_DEVICE_PATH` asks for
    /// what these ranks cannot have; errors of the communication.
    pub fn attach(&self, queue: &Queue) -> Result<Option<TransportKind>> {
        queue.set_limit(self.deadline());
        if self.shared.line.moves.get() {
            // What goes by way of the host needs no decision.
            return Ok(None);
        }
        if !self.shared.group.is_world() {
            return Ok(None);
        }
        self.endpoint().attach(queue, self.deadline())
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

    /// Returns such a buffer for what `queue` writes. Ranks may have theirs on different devices: if any has it on
    /// another than the host, all get ordinary memory of theirs.
    ///
    /// # Errors
    /// As [`Communicator::registered`].
    pub fn registered_on(&self, queue: &Queue, dtype: DType, len: usize) -> Result<Buffer> {
        self.attach(queue)?;
        if !self.shared.group.is_world() {
            return Buffer::zeroed_on(queue, dtype, len);
        }
        self.endpoint().register(queue, dtype, len, self.deadline())
    }
}
