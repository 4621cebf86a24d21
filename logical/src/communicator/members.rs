//! Groups that only their members create. Use it if other ranks do not take part, as in PyTorch; a split needs all
//! ranks, but no list of members.
//!
//! The members agree on an unused group number, through the lowest of them. Each sends it its first unused number,
//! and a digest of its list; the lowest sends the maximum back to all. Two messages of 16 bytes for each other
//! member.

use super::split::after;
use crate::{Buffer, Call, Communicator, DType, Error, Primitive, ReceiveMode, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::hash;

/// Numbers in a message: the group number, and the digest of the list of members.
const NUMBERS: usize = 2;

impl Communicator {
    /// Creates the group of some ranks of this one, in the given order. Exactly these ranks call it, with the same
    /// list.
    ///
    /// Groups that share two or more ranks must be created in the same order on these, like collectives. The group is
    /// equivalent to one of [`Communicator::split`], and may share ranks with such groups.
    ///
    /// # Errors
    /// [`Error::Usage`] if a rank is listed twice or does not exist, if this rank is not in the list, or while
    /// another group is being created on this rank. If the lists of members differ, [`Error::Usage`] or
    /// [`Error::Mismatch`] on the lowest rank, and [`Error::PeerFailed`] on the others. [`Error::Deadline`] if a
    /// member does not call it.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::TransportKind;
    /// # spawn(TransportKind::Thread, 4, |comm| {
    /// // Ranks 0 and 2 know nothing of it.
    /// if [1, 3].contains(&comm.rank()) {
    ///     let pair = comm.block_on(comm.group_of(&[3, 1]))?;
    ///     assert_eq!(pair.rank(), usize::from(comm.rank() == 1));
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn group_of<'a>(&'a self, ranks: &'a [usize]) -> Primitive<'a, Communicator> {
        Box::pin(async move {
            self.check_members(ranks)?;
            let stranger = || {
                let what = format!("rank {} is not in the group {ranks:?}", self.rank());
                Error::usage(what, "call group_of only on its members, or subgroup on all ranks")
            };
            if !ranks.contains(&self.rank()) {
                return Err(stranger());
            }
            let _turn = self.turn_to_group()?;
            let number = self.agree_on_number(ranks).await.inspect_err(|error| self.give_up(error))?;
            self.take_groups(after(number, 1)?);
            self.numbered_group(number, ranks).ok_or_else(stranger)
        })
    }

    /// Returns a group number that is unused on all members.
    async fn agree_on_number(&self, ranks: &[usize]) -> Result<u32> {
        let lowest = ranks.iter().copied().min().unwrap_or_default();
        let mine = [i64::from(self.free_group()), self.digest(ranks)];
        let [number, _] = match self.rank() == lowest {
            true => self.gather_numbers(ranks, mine).await?,
            false => self.ask_for_number(lowest, ranks, mine).await?,
        };
        u32::try_from(number).map_err(|_| Error::usage("too many groups were created", "create fewer groups"))
    }

    /// Collects the numbers of the other members, and sends them the outcome.
    async fn gather_numbers(&self, ranks: &[usize], mine: [i64; NUMBERS]) -> Result<[i64; NUMBERS]> {
        let others: Vec<usize> = ranks.iter().copied().filter(|rank| *rank != self.rank()).collect();
        let calls: Vec<Call<'_>> =
            others.iter().map(|other| self.grouping(*other, ranks)).collect::<Result<_>>()?;
        let wishes = Buffer::zeroed(DType::I64, others.len() * NUMBERS)?;
        // Posts all receives before the first wait.
        let mut receives = Vec::new();
        for (at, (other, call)) in others.iter().zip(&calls).enumerate() {
            let place = at * NUMBERS..(at + 1) * NUMBERS;
            receives.push(call.recv(*other, 0, &wishes, place, ReceiveMode::Copy)?);
        }
        for receive in receives {
            receive.await?;
        }
        let mut outcome = mine;
        for (other, wish) in others.iter().zip(wishes.host::<i64>()?.chunks_exact(NUMBERS)) {
            self.check_list(ranks, *other, wish[1])?;
            outcome[0] = outcome[0].max(wish[0]);
        }
        let answer = Buffer::from_slice(&outcome)?;
        let mut sends = Vec::new();
        for (other, call) in others.iter().zip(&calls) {
            sends.push(call.send(*other, 1, &answer, 0..NUMBERS)?);
        }
        for send in sends {
            send.await?;
        }
        Ok(outcome)
    }

    /// Sends the number of this rank to the lowest member, and returns its answer.
    async fn ask_for_number(
        &self,
        lowest: usize,
        ranks: &[usize],
        mine: [i64; NUMBERS],
    ) -> Result<[i64; NUMBERS]> {
        let call = self.grouping(lowest, ranks)?;
        let wish = Buffer::from_slice(&mine)?;
        let answer = Buffer::zeroed(DType::I64, NUMBERS)?;
        let send = call.send(lowest, 0, &wish, 0..NUMBERS)?;
        call.recv(lowest, 1, &answer, 0..NUMBERS, ReceiveMode::Copy)?.await?;
        send.await?;
        let answer = answer.host::<i64>()?;
        Ok([answer[0], answer[1]])
    }

    /// Begins the next exchange with a rank about a new group that contains both.
    fn grouping(&self, with: usize, ranks: &[usize]) -> Result<Call<'_>> {
        self.begin_grouping(with, Fingerprint::new(OperationKind::Group, DType::I64, ranks.len()))
    }

    /// Returns a digest of a list of ranks, the same in every group that contains them.
    fn digest(&self, ranks: &[usize]) -> i64 {
        let words = ranks.iter().map(|rank| self.world_rank(*rank) as u64);
        words.fold(hash::START, |hash, word| hash::of_bytes(hash, word.to_le_bytes())) as i64
    }

    fn check_list(&self, ranks: &[usize], other: usize, digest: i64) -> Result<()> {
        if digest == self.digest(ranks) {
            return Ok(());
        }
        let what = format!(
            "rank {} creates the group {ranks:?}, and rank {other} a group of different ranks",
            self.rank()
        );
        Err(Error::usage(what, "pass the same list on all its members, in the same order"))
    }
}
