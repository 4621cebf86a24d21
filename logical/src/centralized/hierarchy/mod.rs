//! Hierarchical collectives: within each host, then among the leaders of the hosts, then within the hosts. For
//! clusters whose network is slower than the memory of hosts.
//!
//! The members of the group determine hosts and leaders: ranks of one host are those that may share memory
//! ([`World::hosts`](crate::World::hosts)), and the lowest of them is the leader. Hosts may have different numbers of
//! ranks: sums are divided once, by the number of all ranks, so that means are exact.
//!
//! Below, `m` is the number of hosts, `k` that of ranks on a host, `S` the size of the buffer. The last column is
//! decisive: the bytes that a host sends to others, for any k.
//!
//! | primitive | method | a host sends to others |
//! |---|---|---|
//! | all-reduce | reduce, all-reduce of leaders, broadcast | 2(m−1)/m · S |
//! | all-reduce, encoded | reduce, encoded all-reduce of leaders, broadcast | 2(m−1)/m of the encoded buffer |
//! | reduce | reduce, reduce of leaders, to the root | S, except the host of the root |
//! | broadcast | broadcast on the host of the root, of leaders, on the other hosts | ≤ ⌈log₂ m⌉ · S |
//! | all-gather | gather, broadcast of the blocks of every leader, broadcast | ≤ ⌈log₂ m⌉ · S |
//! | reduce-scatter | reduce, all-reduce of leaders, scatter | 2(m−1)/m · S |
//! | all-reduce, sparse or linear | reduce, the same of leaders, broadcast | the bytes of a rank among m |
//! | majority vote | reduce of signs, vote of leaders for all their ranks, broadcast | (m−1)/m · (⌊log₂ k⌋ + 2) bits per element |
//!
//! Gossip among hosts is in `decentralized`.
//!
//! Determinism: as for the component primitives; results are bit-identical on all ranks.

mod blocks;

use super::chunk::free_to_write;
use super::encoded::{scatter_gather, vote};
use crate::codec::LinearCodec;
use crate::communicator::HostGroups;
use crate::encoding::Encoding;
use crate::{Buffer, Call, Communicator, Error, Primitive, ReceiveMode, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// A group of ranks with the groups of its hosts and of its leaders. See [`Communicator::hierarchy`].
///
/// ```
/// use hexagram_logical::testing::spawn_hosts;
/// use hexagram_logical::{Buffer, ReduceOp};
///
/// // Three ranks, of which the first two are on one host.
/// let sums = spawn_hosts(&[0, 0, 1], |comm| {
///     let mut buffer = Buffer::from_slice(&[comm.rank() as f32])?;
///     comm.block_on(async {
///         let hierarchy = comm.hierarchy().await?;
///         hierarchy.all_reduce(&mut buffer, ReduceOp::Sum).await
///     })?;
///     Ok(buffer.host::<f32>()?[0])
/// });
/// assert_eq!(sums.unwrap(), [3.0; 3]);
/// ```
#[derive(Clone)]
pub struct Hierarchy {
    all: Communicator,
    host: Communicator,
    /// Group of leaders; only on leaders.
    leaders: Option<Communicator>,
    /// Ranks of each host in the whole group, lowest first; hosts in the order of their leaders.
    hosts: Rc<[Vec<usize>]>,
    /// Index of the host of this rank.
    mine: usize,
}

/// Rank of the leader in the group of its host.
const LEADER: usize = 0;

impl Hierarchy {
    /// Returns the same hierarchy for operations of a step with this learning rate, as
    /// [`Communicator::with_learning_rate`].
    pub fn with_learning_rate(&self, rate: Option<f64>) -> Self {
        Hierarchy {
            all: self.all.with_learning_rate(rate),
            host: self.host.with_learning_rate(rate),
            leaders: self.leaders.as_ref().map(|leaders| leaders.with_learning_rate(rate)),
            ..self.clone()
        }
    }
}

impl Communicator {
    /// Divides the group into hosts and their leaders, as separate groups. A collective call: one all-reduce of 8
    /// bytes.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn_hosts;
    /// // Four ranks, of which the first three are on one host.
    /// # spawn_hosts(&[0, 0, 0, 1], |comm| {
    /// let hierarchy = comm.block_on(comm.hierarchy())?;
    /// assert_eq!(hierarchy.host().size(), [3, 3, 3, 1][comm.rank()]);
    /// assert_eq!(hierarchy.leaders().is_some(), comm.rank() == 0 || comm.rank() == 3);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn hierarchy<'a>(&'a self) -> Primitive<'a, Hierarchy> {
        Box::pin(async move {
            let HostGroups { host, leaders, hosts, mine } = self.split_by_host().await?;
            Ok(Hierarchy { all: self.clone(), host, leaders, hosts, mine })
        })
    }

    /// Returns the cached hierarchy of this communicator, on its lane and with its deadline. The first call creates
    /// it, as [`Communicator::hierarchy`]; later ones send no messages.
    ///
    /// A collective call; while the first call runs on one lane, do not call it on another. Operations of the
    /// returned hierarchy belong to one lane, and follow each other: for simultaneous ones, use another lane, or a
    /// separate hierarchy.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    pub fn kept_hierarchy<'a>(&'a self) -> Primitive<'a, Hierarchy> {
        Box::pin(async move {
            let groups = match self.host_groups().get() {
                Some(groups) => groups,
                None => {
                    let made = self.split_by_host().await?;
                    self.host_groups().get_or_init(|| made)
                }
            };
            Ok(Hierarchy {
                all: self.clone(),
                host: self.alike(&groups.host),
                leaders: groups.leaders.as_ref().map(|leaders| self.alike(leaders)),
                hosts: Rc::clone(&groups.hosts),
                mine: groups.mine,
            })
        })
    }

    async fn split_by_host(&self) -> Result<HostGroups> {
        let hosts_of_world = self.world().hosts();
        let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        for (rank, world_rank) in self.world_ranks().iter().enumerate() {
            let place = *seen.entry(hosts_of_world[*world_rank]).or_insert(hosts.len());
            if place == hosts.len() {
                hosts.push(Vec::new());
            }
            hosts[place].push(rank);
        }
        let mine = seen.get(&hosts_of_world[self.world_rank(self.rank())]).copied().unwrap_or_default();
        let first = self.take_numbers(hosts.len() + 1).await?;
        let host = self.numbered_group(first + 1 + mine as u32, &hosts[mine]).ok_or_else(|| {
            Error::usage("a rank has no host", "report this bug: every rank of a world has a host")
        })?;
        let leaders: Vec<usize> = hosts.iter().map(|ranks| ranks[LEADER]).collect();
        let leaders = self.numbered_group(first, &leaders);
        Ok(HostGroups { host, leaders, hosts: hosts.into(), mine })
    }
}

impl Hierarchy {
    /// Returns the group of the ranks of this host.
    pub fn host(&self) -> &Communicator {
        &self.host
    }

    /// Returns the group of leaders, one rank of each host; `None` on other ranks.
    pub fn leaders(&self) -> Option<&Communicator> {
        self.leaders.as_ref()
    }

    /// Returns the same ranks on another lane, as [`Communicator::lane`].
    pub fn lane(&self, lane: usize) -> Self {
        Hierarchy {
            all: self.all.lane(lane),
            host: self.host.lane(lane),
            leaders: self.leaders.as_ref().map(|leaders| leaders.lane(lane)),
            hosts: Rc::clone(&self.hosts),
            mine: self.mine,
        }
    }

    /// Returns the same ranks with a separate deadline, as [`Communicator::with_deadline`].
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Hierarchy {
            all: self.all.with_deadline(deadline),
            host: self.host.with_deadline(deadline),
            leaders: self.leaders.as_ref().map(|leaders| leaders.with_deadline(deadline)),
            ..self.clone()
        }
    }

    /// Returns the ranks of each host in the whole group.
    pub fn hosts(&self) -> &[Vec<usize>] {
        &self.hosts
    }

    /// Returns the host of a rank, and the place of the rank on it.
    fn place(&self, rank: usize) -> (usize, usize) {
        let found = self
            .hosts
            .iter()
            .enumerate()
            .find_map(|(host, ranks)| Some((host, ranks.iter().position(|other| *other == rank)?)));
        found.unwrap_or_default()
    }

    /// Reduces a buffer over all ranks, in place, on every rank. Bytes sent: S by every rank except leaders; by a
    /// leader, in addition to the table above, at most ⌈log₂ k⌉ · S. Memory: none.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce<'a>(&'a self, buffer: &'a mut Buffer, op: ReduceOp) -> Primitive<'a> {
        Box::pin(async move {
            op.check(buffer.dtype())?;
            free_to_write(buffer)?;
            let fingerprint = Fingerprint {
                reduce: Some(op),
                ..Fingerprint::new(OperationKind::AllReduce, buffer.dtype(), buffer.len())
            };
            self.reduce_to_leaders(fingerprint, buffer, op).await?;
            if let Some(leaders) = &self.leaders {
                let all_reduce =
                    async |call: &Call<'_>| leaders.reduce_everywhere(call, buffer, summing(op)).await;
                leaders.operate(fingerprint, all_reduce).await?;
                self.all.after_reduce(op, buffer, 0..buffer.len())?;
            }
            self.host.operate(fingerprint, async |call| self.host.spread(call, buffer, LEADER).await).await
        })
    }

    /// Reduces the sums of the hosts by [`Communicator::all_reduce_encoded`]: only messages between hosts are
    /// encoded, and only leaders have memory. Further bytes and memory as [`Hierarchy::all_reduce`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_encoded`].
    pub fn all_reduce_encoded<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        op: ReduceOp,
        encoding: &'a mut Encoding,
    ) -> Primitive<'a> {
        Box::pin(async move {
            scatter_gather::check(buffer, op, encoding)?;
            let fingerprint = scatter_gather::fingerprint(buffer, op, encoding);
            self.reduce_to_leaders(fingerprint, buffer, op).await?;
            let reduced = self.lead(async |leaders| {
                leaders.all_reduce_encoded(buffer, summing(op), encoding).await?;
                self.all.after_reduce(op, buffer, 0..buffer.len())
            });
            reduced.await?;
            if self.leaders.is_none() {
                encoding.state_mut().advance();
            }
            self.host.operate(fingerprint, async |call| self.host.spread(call, buffer, LEADER).await).await
        })
    }

    /// Reduces the sums of the hosts by [`Communicator::all_reduce_sparse`]: only leaders send messages, and only
    /// they have memory.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sparse`].
    pub fn all_reduce_sparse<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        op: ReduceOp,
        encoding: &'a mut Encoding,
    ) -> Primitive<'a> {
        Box::pin(async move {
            let work = async |comm: &Communicator, buffer: &mut Buffer| {
                comm.all_reduce_sparse(buffer, op, encoding).await
            };
            self.among_leaders(buffer, op, work).await
        })
    }

    /// Reduces the sums of the hosts by [`Communicator::all_reduce_linear`]: only messages between hosts are encoded,
    /// and only leaders have memory.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_linear`].
    pub fn all_reduce_linear<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        op: ReduceOp,
        encoding: &'a mut Encoding<dyn LinearCodec>,
    ) -> Primitive<'a> {
        Box::pin(async move {
            let work = async |comm: &Communicator, buffer: &mut Buffer| {
                comm.all_reduce_linear(buffer, op, encoding).await
            };
            self.among_leaders(buffer, op, work).await
        })
    }

    /// Takes a majority vote of all ranks on the sign of every element, with the result of [`Communicator::majority_vote`], bit
    /// for bit. Signs are added within hosts. Leaders send each other the number of their ranks that vote for −, in ⌊log₂ k⌋ +
    /// 1 bits per element, where k is the number of ranks of the largest host, and the result in one bit. Within hosts signs
    /// are f32: further bytes are those of [`Hierarchy::all_reduce`], S by every rank except leaders. Memory: one bit per
    /// element, and on leaders the messages of [`Communicator::majority_vote`].
    ///
    /// # Errors
    /// As [`Communicator::majority_vote`].
    pub fn majority_vote<'a>(&'a self, buffer: &'a mut Buffer) -> Primitive<'a> {
        Box::pin(async move {
            vote::check(buffer)?;
            let fingerprint = vote::fingerprint_of_signs(buffer);
            let climb = async |call: &Call<'_>| {
                vote::take_signs(call, self.host.rank(), buffer)?;
                self.host.climb(call, buffer, ReduceOp::Sum, LEADER).await
            };
            self.host.operate(fingerprint, climb).await?;
            let sizes: Vec<usize> = self.hosts.iter().map(Vec::len).collect();
            self.lead(async |leaders| leaders.majority_of_sums(buffer, &sizes).await).await?;
            self.host.operate(fingerprint, async |call| self.host.spread(call, buffer, LEADER).await).await
        })
    }

    /// Runs `work`, which computes the sum or mean `op`, among the leaders, on buffers whose sum (or mean) over the
    /// leaders is that over all ranks. Then every rank gets the buffer of its leader.
    ///
    /// # Errors
    /// The errors of `work`; as [`Communicator::reduce`] and [`Communicator::broadcast`].
    pub async fn among_leaders(
        &self,
        buffer: &mut Buffer,
        op: ReduceOp,
        work: impl AsyncFnOnce(&Communicator, &mut Buffer) -> Result<()>,
    ) -> Result<()> {
        self.host.reduce(buffer, ReduceOp::Sum, LEADER).await?;
        let led = self.lead(async |leaders| {
            if op == ReduceOp::Mean {
                let factor = leaders.size() as f64 / self.all.size() as f64;
                buffer.write_all()?.scale(factor)?;
            }
            work(leaders, buffer).await
        });
        led.await?;
        self.host.broadcast(buffer, LEADER).await
    }

    /// Runs `work` on the leaders, while the ranks of their hosts wait. These get an error that only a leader can
    /// have immediately, such as memory that does not match, or a schedule without a matrix for the number of hosts.
    pub(crate) async fn lead(&self, work: impl AsyncFnOnce(&Communicator) -> Result<()>) -> Result<()> {
        match &self.leaders {
            Some(leaders) => work(leaders).await.inspect_err(|error| self.all.give_up(error)),
            None => Ok(()),
        }
    }

    /// Reduces a buffer over all ranks to rank `root`; the buffers of other ranks are unchanged. Bytes sent: S by
    /// every rank except the root. Memory: S on leaders.
    ///
    /// # Errors
    /// As [`Communicator::reduce`].
    pub fn reduce<'a>(&'a self, buffer: &'a mut Buffer, op: ReduceOp, root: usize) -> Primitive<'a> {
        Box::pin(async move {
            self.all.check_rank(root)?;
            op.check(buffer.dtype())?;
            free_to_write(buffer)?;
            let whole = || 0..buffer.len();
            let fingerprint = Fingerprint {
                reduce: Some(op),
                root: Some(root as u32),
                ..Fingerprint::new(OperationKind::Reduce, buffer.dtype(), buffer.len())
            };
            let (root_host, root_place) = self.place(root);
            let sum = buffer.copied()?;
            self.reduce_to_leaders(fingerprint, &sum, op).await?;
            if let Some(leaders) = &self.leaders {
                let climb = async |call: &Call<'_>| leaders.climb(call, &sum, summing(op), root_host).await;
                leaders.operate(fingerprint, climb).await?;
            }
            if self.mine != root_host {
                return Ok(());
            }
            if self.leaders.is_some() {
                self.all.after_reduce(op, &sum, whole())?;
            }
            let hand_over = async |call: &Call<'_>| match (self.host.rank(), root_place) {
                (LEADER, LEADER) => buffer.write_all()?.copy_from(&sum.read_all()?),
                (LEADER, place) => call.send(place, 0, &sum, whole())?.await.map(drop),
                (place, root) if place == root => {
                    call.recv(LEADER, 0, buffer, whole(), ReceiveMode::Copy)?.await.map(drop)
                }
                _ => Ok(()),
            };
            self.host.operate(fingerprint, hand_over).await
        })
    }

    /// Copies the buffer of rank `root` to every rank. Memory: none.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn broadcast<'a>(&'a self, buffer: &'a mut Buffer, root: usize) -> Primitive<'a> {
        Box::pin(async move {
            self.all.check_rank(root)?;
            free_to_write(buffer)?;
            let fingerprint = Fingerprint {
                root: Some(root as u32),
                ..Fingerprint::new(OperationKind::Broadcast, buffer.dtype(), buffer.len())
            };
            let (root_host, root_place) = self.place(root);
            let within = async |place| {
                self.host.operate(fingerprint, async |call| self.host.spread(call, buffer, place).await).await
            };
            if self.mine == root_host {
                within(root_place).await?;
            }
            if let Some(leaders) = &self.leaders {
                leaders
                    .operate(fingerprint, async |call| leaders.spread(call, buffer, root_host).await)
                    .await?;
            }
            if self.mine != root_host {
                within(LEADER).await?;
            }
            Ok(())
        })
    }

    /// Reduces the buffers of each host on its leader, without the division of a mean.
    async fn reduce_to_leaders(&self, fingerprint: Fingerprint, sum: &Buffer, op: ReduceOp) -> Result<()> {
        self.all.before_reduce(op, sum, 0..sum.len())?;
        let climb = async |call: &Call<'_>| self.host.climb(call, sum, summing(op), LEADER).await;
        self.host.operate(fingerprint, climb).await
    }
}

/// Returns the reduction before a mean is divided.
fn summing(op: ReduceOp) -> ReduceOp {
    if op == ReduceOp::Mean { ReduceOp::Sum } else { op }
}
