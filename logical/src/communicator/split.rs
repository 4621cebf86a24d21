//! Splits: groups of some ranks of another group.

use super::group::{Group, KINDS};
use crate::{Buffer, Communicator, DType, Error, Primitive, ReduceOp, Result};

/// Contribution of one rank to a split, as three numbers.
struct SplitRequest {
    color: Option<u32>,
    key: i64,
    /// First number that none of its groups has.
    free: u32,
}

impl SplitRequest {
    const NUMBERS: usize = 3;

    fn to_numbers(&self) -> [i64; Self::NUMBERS] {
        [self.color.map_or(-1, i64::from), self.key, i64::from(self.free)]
    }

    fn from_numbers(numbers: &[i64]) -> Self {
        let color = u32::try_from(numbers[0]).ok();
        SplitRequest { color, key: numbers[1], free: u32::try_from(numbers[2]).unwrap_or(u32::MAX) }
    }
}

/// Returns the first unused number after `count` groups from `first` on.
///
/// # Errors
/// [`Error::Usage`] if the numbers are exhausted.
pub(crate) fn after(first: u32, count: usize) -> Result<u32> {
    let free = u32::try_from(count).ok().and_then(|count| first.checked_add(count));
    let free = free.filter(|free| *free <= u32::MAX / KINDS);
    free.ok_or_else(|| Error::usage("too many groups were created", "create fewer groups, and reuse them"))
}

impl Communicator {
    /// Divides the group by `color`: every rank gets the group of the ranks with the same color, ordered by `key`,
    /// and by rank if keys are equal. A rank without color is in none.
    ///
    /// Operations of the new groups are independent of each other and of this group, and use the same connections. A
    /// failure in one ends all of them.
    ///
    /// A collective call. One all-gather of 24 bytes per rank.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`]; [`Error::Usage`] after 2³⁰ groups, and while another group is being created
    /// on this rank.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{TransportKind};
    /// # spawn(TransportKind::Thread, 4, |comm| {
    /// // Even and odd ranks, each group numbered in the order of ranks here.
    /// let color = comm.rank() as u32 % 2;
    /// let half = comm.block_on(comm.split(Some(color), 0))?;
    /// assert_eq!(half.map(|half| half.rank()), Some(comm.rank() / 2));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn split<'a>(&'a self, color: Option<u32>, key: i64) -> Primitive<'a, Option<Communicator>> {
        Box::pin(async move {
            let _turn = self.turn_to_group()?;
            let mine = SplitRequest { color, key, free: self.free_group() };
            let mine = Buffer::from_slice(&mine.to_numbers())?;
            let mut all = Buffer::zeroed(DType::I64, self.size() * SplitRequest::NUMBERS)?;
            self.all_gather(&mine, &mut all).await?;
            let wishes: Vec<SplitRequest> = all
                .host::<i64>()?
                .chunks_exact(SplitRequest::NUMBERS)
                .map(SplitRequest::from_numbers)
                .collect();
            let mut colors: Vec<u32> = wishes.iter().filter_map(|wish| wish.color).collect();
            colors.sort_unstable();
            colors.dedup();
            let first = wishes.iter().map(|wish| wish.free).max().unwrap_or(u32::MAX);
            self.take_groups(after(first, colors.len())?);
            let Some(color) = color else { return Ok(None) };
            let mut ranks: Vec<usize> =
                (0..self.size()).filter(|rank| wishes[*rank].color == Some(color)).collect();
            ranks.sort_by_key(|rank| wishes[*rank].key);
            let Ok(index) = colors.binary_search(&color) else { return Ok(None) };
            Ok(self.numbered_group(first + index as u32, &ranks))
        })
    }

    /// Reserves numbers for `count` groups, which no group of any rank here has, and returns the first. A collective
    /// call with the same count: one all-reduce of 8 bytes.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    pub(crate) async fn take_numbers(&self, count: usize) -> Result<u32> {
        let _turn = self.turn_to_group()?;
        let mut free = Buffer::from_slice(&[i64::from(self.free_group())])?;
        self.all_reduce(&mut free, ReduceOp::Max).await?;
        let first = u32::try_from(free.host::<i64>()?[0]).unwrap_or(u32::MAX);
        self.take_groups(after(first, count)?);
        Ok(first)
    }

    /// Returns the group of these ranks, if this rank is one of them.
    pub(crate) fn numbered_group(&self, number: u32, ranks: &[usize]) -> Option<Communicator> {
        let rank = ranks.iter().position(|rank| *rank == self.rank())?;
        let members = ranks.iter().map(|rank| self.world_rank(*rank)).collect();
        Some(self.with_group(Group::new(number, rank, members)))
    }

    /// Fails unless these are different ranks of the group.
    pub(crate) fn check_members(&self, ranks: &[usize]) -> Result<()> {
        for (at, rank) in ranks.iter().enumerate() {
            self.check_rank(*rank)?;
            if ranks[..at].contains(rank) {
                return Err(Error::usage(format!("rank {rank} is listed twice"), "list each rank once"));
            }
        }
        Ok(())
    }

    /// Creates the group of some ranks of this one, in the given order; `None` on the others. A collective call with
    /// the same list.
    ///
    /// # Errors
    /// [`Error::Usage`] if a rank is listed twice or does not exist, or, on a rank of the new group, if the lists of
    /// other ranks differ; as [`Communicator::split`].
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{TransportKind};
    /// # spawn(TransportKind::Thread, 4, |comm| {
    /// let pair = comm.block_on(comm.subgroup(&[3, 1]))?;
    /// assert_eq!(pair.map(|pair| pair.rank()), [None, Some(1), None, Some(0)][comm.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn subgroup<'a>(&'a self, ranks: &'a [usize]) -> Primitive<'a, Option<Communicator>> {
        Box::pin(async move {
            self.check_members(ranks)?;
            let place = ranks.iter().position(|rank| *rank == self.rank());
            let group = self.split(place.map(|_| 0), place.unwrap_or(0) as i64).await?;
            let wanted = || ranks.iter().map(|rank| self.world_rank(*rank));
            match &group {
                Some(group) if !wanted().eq(group.world_ranks().iter().copied()) => {
                    let error = Error::usage(
                        format!("this rank requests the group {ranks:?}, and others a different one"),
                        "pass the same list on all ranks",
                    );
                    self.give_up(&error);
                    Err(error)
                }
                _ => Ok(group),
            }
        })
    }
}
