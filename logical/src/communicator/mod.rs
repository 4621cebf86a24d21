//! The communicator: the membership of one thread in a group of ranks. Every primitive is a method of it.
//!
//! | file | content |
//! |---|---|
//! | `split.rs`, `members.rs`, `channel.rs` | communicators of fewer ranks, and of other threads |
//! | `group.rs` | some ranks of the world, with new numbers and separate messages |
//! | `call.rs`, `part.rs` | one operation: its number, its messages, and parts of buffers |
//! | `point_to_point.rs` | a message between two ranks |
//! | `blocking.rs` | every primitive for plain slices |

mod blocking;
mod call;
mod channel;
mod group;
mod members;
mod part;
mod point_to_point;
mod split;

pub use blocking::Blocking;
pub use call::Call;
pub use channel::Channel;
pub use part::Part;

use crate::asynchronous::Activity;
use group::Group;
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
/// Operations run one after another on each *lane*; operations on different lanes may overlap. All ranks must call
/// the same operations in the same order on each lane; otherwise both sides get [`Error::Mismatch`]. After any failed
/// operation the communicator is poisoned and refuses further ones.
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
    /// Deadline of its operations, instead of that of the world.
    deadline: Option<Duration>,
    /// Learning rate that ranks compare in each operation.
    rate: Option<Rate>,
}

/// State shared by all groups of one endpoint.
struct EndpointShare {
    world: World,
    endpoint: Rc<dyn Transport>,
    poison: Poison,
    activity: Arc<Activity>,
    /// Lowest group number that is unused, as far as this rank knows.
    free_group: Cell<u32>,
    /// True while a group is being created, which takes the next number.
    is_grouping: Rc<Cell<bool>>,
    /// Source of queues of the device under test, if that is not the host.
    queues_under_test: Cell<Option<fn() -> Queue>>,
    /// True if the communicator moves between threads.
    moves: Cell<bool>,
}

/// State shared by all lanes of one communicator.
struct GroupShare {
    line: Rc<EndpointShare>,
    group: Group,
    lanes: RefCell<HashMap<usize, Rc<Cell<u64>>>>,
    /// Number of messages to each rank.
    sent: Counters,
    /// Number of messages from each rank.
    received: Counters,
    /// Number of groups created with each rank.
    grouped: Counters,
    /// Cached groups of its hosts and of their leaders.
    hosts: OnceCell<HostGroups>,
}

/// The groups of the hosts of a group, and of their leaders.
pub(crate) struct HostGroups {
    pub(crate) host: Communicator,
    /// Only on leaders.
    pub(crate) leaders: Option<Communicator>,
    pub(crate) hosts: Rc<[Vec<usize>]>,
    pub(crate) mine: usize,
}

/// Counters, one for each rank. Most groups never need them.
#[derive(Default)]
struct Counters(OnceCell<Box<[Cell<u64>]>>);

impl Counters {
    fn of(&self, rank: usize, size: usize) -> &Cell<u64> {
        &self.0.get_or_init(|| (0..size).map(|_| Cell::new(0)).collect())[rank]
    }
}

/// Turn of a rank to create a group.
pub(crate) struct GroupingTurn(Rc<Cell<bool>>);

impl Drop for GroupingTurn {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Communicator {
    /// Opens a communicator of all ranks of `world`, over a channel that the other ranks must open, too.
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

    /// Returns a communicator of a different group over the same endpoint.
    pub(crate) fn with_group(&self, group: Group) -> Self {
        Self::over(Rc::clone(&self.shared.line), group)
    }

    /// Makes blocking calls keep elements on a device other than the host, for tests.
    pub(crate) fn test_on(&self, queues: fn() -> Queue) {
        self.shared.line.queues_under_test.set(Some(queues));
    }

    /// Returns the queue on which a blocking call keeps its elements, if it is not that of the host.
    pub(crate) fn queue_under_test(&self) -> Option<Queue> {
        self.shared.line.queues_under_test.get().map(|queues| queues())
    }

    /// Begins to create a group, until the value is dropped.
    ///
    /// # Errors
    /// [`Error::Usage`] while another group is being created, which could get the same number.
    pub(crate) fn turn_to_group(&self) -> Result<GroupingTurn> {
        let is_grouping = Rc::clone(&self.shared.line.is_grouping);
        if is_grouping.replace(true) {
            return Err(Error::usage(
                "another group is being created on this rank",
                "create groups one after another, in the same order on all common ranks",
            ));
        }
        Ok(GroupingTurn(is_grouping))
    }

    pub(crate) fn free_group(&self) -> u32 {
        self.shared.line.free_group.get()
    }

    /// Records that all groups below `free` exist.
    pub(crate) fn take_groups(&self, free: u32) {
        self.shared.line.free_group.set(free);
    }

    fn on_lane(shared: &Rc<GroupShare>, lane: usize) -> Self {
        let sequence = Rc::clone(shared.lanes.borrow_mut().entry(lane).or_default());
        Communicator { shared: Rc::clone(shared), lane, sequence, deadline: None, rate: None }
    }

    /// Records that the communicator moves between threads, as in an executor, so that its parts must not be bound to
    /// one.
    #[cfg(feature = "executor")]
    pub(crate) fn set_movable(&self, moves: bool) {
        self.shared.line.moves.set(moves);
    }

    /// Returns the same group on another lane, whose operations may overlap with those of this one.
    ///
    /// A second call with the same number returns the same lane, and continues its count of operations.
    ///
    /// Collectives that [NCCL](TransportKind::Nccl) carries are enqueued in the order of their calls. All ranks call them in
    /// the same order, those of all lanes and groups.
    pub fn lane(&self, lane: usize) -> Self {
        Communicator { deadline: self.deadline, rate: self.rate, ..Self::on_lane(&self.shared, lane) }
    }

    /// Returns the same communicator with a separate deadline, instead of [`World::deadline`]. An operation fails if
    /// none of its bytes move for this time. Both communicators have a common count of operations.
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

    /// Returns the same communicator for operations of a training step with this learning rate. Ranks compare the
    /// rate, and a difference is an [`Error::Mismatch`] with both rates. The comparison uses the messages of
    /// operations without a root, and costs none. Both communicators have a common count of operations.
    pub fn with_learning_rate(&self, rate: Option<f64>) -> Self {
        Communicator { rate: rate.map(Rate::of), ..self.clone() }
    }

    pub(crate) fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Returns the deadline of operations that begin now: that of this communicator, or else that of the world.
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

    /// Returns the activity record of the background threads and services that were started on this communicator, on
    /// any of its lanes and groups.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.shared.line.activity
    }

    /// Sets the operation deadline: an operation fails if none of its bytes move for this time (initially 300 s). It
    /// applies to all communicators of this rank, including those of engines, from their next operation on.
    pub fn set_deadline(&self, deadline: Duration) {
        self.world().set_deadline(deadline);
    }

    /// Returns the bell with which other threads can wake this thread.
    pub fn bell(&self) -> Arc<dyn Bell> {
        self.endpoint().bell()
    }

    /// Returns the underlying endpoint, for driving several operations manually.
    pub fn endpoint(&self) -> &dyn Transport {
        &*self.shared.line.endpoint
    }

    /// Runs a future of this communicator to completion, on this thread.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        drive::block_on(self.endpoint(), future)
    }

    /// Ends the work of all ranks: every operation on this rank fails from now on, and the other ranks are notified
    /// of `error`.
    pub fn give_up(&self, error: &Error) {
        self.shared.line.poison.spread(self.endpoint().health(), error);
    }

    pub(crate) fn group(&self) -> &Group {
        &self.shared.group
    }

    pub(crate) fn lane_number(&self) -> usize {
        self.lane
    }

    /// Returns the counter of collectives on this lane.
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

    /// Returns the counter of groups created with a rank.
    pub(crate) fn groups_with(&self, rank: usize) -> &Cell<u64> {
        self.shared.grouped.of(rank, self.size())
    }

    /// Returns the cache of host groups, which all lanes share.
    pub(crate) fn host_groups(&self) -> &OnceCell<HostGroups> {
        &self.shared.hosts
    }

    /// Returns another group on the lane of this communicator, with its deadline.
    pub(crate) fn alike(&self, group: &Communicator) -> Self {
        Communicator { deadline: self.deadline, ..group.lane(self.lane) }
    }

    /// Returns the first failure on this endpoint, if any.
    pub(crate) fn poison(&self) -> &Poison {
        &self.shared.line.poison
    }

    pub(crate) fn check_rank(&self, rank: usize) -> Result<()> {
        self.shared.group.check(rank)
    }

    /// Negotiates how device memory travels between the ranks of the world. Every rank passes one of its queues; the
    /// host queue is allowed. Returns the path between the devices, or `None` if device memory travels through the
    /// host, as in a group that was split off. The choice is final once any rank has passed a device queue.
    ///
    /// A collective call, also when made indirectly ([`Communicator::registered_on`], an engine). Afterwards, waits
    /// for the queue are limited by the current deadline.
    ///
    /// # Errors
    /// [`Error::Usage`] for a queue of a different device than before, [`Error::Setup`] if `HEXAGRAM_DEVICE_PATH`
    /// names a path that these ranks do not support; errors of the communication.
    pub fn attach(&self, queue: &Queue) -> Result<Option<TransportKind>> {
        queue.set_limit(self.deadline());
        if self.shared.line.moves.get() {
            // Memory that travels through the host needs no decision.
            return Ok(None);
        }
        if !self.shared.group.is_world() {
            return Ok(None);
        }
        self.endpoint().devices().map_or(Ok(None), |devices| devices.attach(queue, self.deadline()))
    }

    /// Returns a zeroed buffer in memory that the other ranks of this host can read directly, so that collectives on
    /// it need no staging copies. The buffer is an ordinary one if the transport has no such memory, and in a group
    /// that was split off.
    ///
    /// A collective call, in the same order and with the same arguments on all ranks. In each operation, either all
    /// ranks pass such a buffer, or none.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out, [`Error::Setup`] if another rank does not make the same call before the
    /// deadline.
    pub fn registered(&self, dtype: DType, len: usize) -> Result<Buffer> {
        self.registered_on(&Queue::host(), dtype, len)
    }

    /// Returns such a buffer for writes by `queue`. Ranks may use different devices: if any queue is not that of the
    /// host, all ranks get ordinary memory of their device.
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
