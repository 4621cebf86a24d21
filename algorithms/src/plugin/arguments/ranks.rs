//! Means over all ranks, flat or hierarchical. The context of a hook has the same methods; use this for averages in the
//! background, with another communicator than that of the hook.

use hexagram_logical::encoding::Encoding;
use hexagram_logical::{Buffer, Communicator, Hierarchy, ReduceOp, Result};

/// All ranks to average over: flat, or within each host first.
///
/// ```
/// use hexagram_algorithms::plugin::Ranks;
/// use hexagram_logical::testing::spawn_hosts;
/// use hexagram_logical::Buffer;
///
/// let means = spawn_hosts(&[0, 0, 1], |comm| {
///     let mut buffer = Buffer::from_slice(&[comm.rank() as f32])?;
///     comm.block_on(async { Ranks::of(&comm, true).await?.mean(&mut buffer).await })?;
///     Ok(buffer.host::<f32>()?[0])
/// });
/// assert_eq!(means.unwrap(), [1.0; 3]);
/// ```
#[derive(Clone)]
pub struct Ranks {
    comm: Communicator,
    /// Hosts and leaders, if communication is hierarchical.
    hierarchy: Option<Hierarchy>,
}

impl Ranks {
    /// Returns the ranks of a communicator; they average within hosts first if `hierarchical`.
    ///
    /// A collective call; the first hierarchical one has the cost of [`Communicator::kept_hierarchy`].
    ///
    /// # Errors
    /// As [`Communicator::kept_hierarchy`].
    pub async fn of(comm: &Communicator, hierarchical: bool) -> Result<Self> {
        let hierarchy = if hierarchical { Some(comm.kept_hierarchy().await?) } else { None };
        Ok(Ranks::new(comm, hierarchy.as_ref()))
    }

    /// Returns the ranks of a communicator, with its hierarchy.
    pub(crate) fn new(comm: &Communicator, hierarchy: Option<&Hierarchy>) -> Self {
        Ranks { comm: comm.clone(), hierarchy: hierarchy.cloned() }
    }

    /// Averages over all ranks: `buffer ← mean over ranks`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub async fn mean(&self, buffer: &mut Buffer) -> Result<()> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.all_reduce(buffer, ReduceOp::Mean).await,
            None => self.comm.all_reduce(buffer, ReduceOp::Mean).await,
        }
    }

    /// Averages in low precision; hierarchically, only messages between leaders are encoded.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_encoded`].
    pub async fn mean_encoded(&self, buffer: &mut Buffer, encoding: &mut Encoding) -> Result<()> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.all_reduce_encoded(buffer, ReduceOp::Mean, encoding).await,
            None => self.comm.all_reduce_encoded(buffer, ReduceOp::Mean, encoding).await,
        }
    }

    /// Averages with sparse messages that every rank sends to every other; hierarchically, only leaders send them.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sparse`].
    pub async fn mean_sparse(&self, buffer: &mut Buffer, encoding: &mut Encoding) -> Result<()> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.all_reduce_sparse(buffer, ReduceOp::Mean, encoding).await,
            None => self.comm.all_reduce_sparse(buffer, ReduceOp::Mean, encoding).await,
        }
    }
}
