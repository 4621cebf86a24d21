//! Numbers whose bits show the order of their combination: zeros of both signs, NaNs of several payloads, infinities,
//! denormals, sums that round. They give the same bits on every rank and over every transport, for every element type
//! and reduction, by every algorithm. Minimum and maximum follow IEEE 754-2019.

use half::{bf16, f16};
use hexagram_logical::decentralized::Topology;
use hexagram_logical::testing::{self, cases, spawn, spawn_hosts};
use hexagram_logical::{Bool, Buffer, Communicator, Element, ReduceOp, Result, TransportKind};
use hexagram_physical::testing::skipped_under_mpi;
use std::hash::{DefaultHasher, Hasher};

const RANKS: [usize; 3] = [2, 3, 8];
/// Bytes of a contribution: on a board, by exchange, by halving and doubling, around the ring.
const BYTES: [usize; 4] = [1 << 10, 6 << 10, 40 << 10, (256 << 10) + 64];

/// An element type, and bits of it that are odd.
trait Odd: Element {
    const ZEROS: &[u64];
    /// Infinities, denormals, the largest; integers at which sums wrap.
    const EXTREMES: &[u64];
    const NANS: &[u64];
    /// The result for every NaN.
    const ONE_NAN: u64;
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn plain(at: usize) -> Self;
    fn no_number(self) -> bool;
    /// By which minima and maxima compare: ascending, −0 before +0.
    fn order(self) -> i128;
    /// The value that a reduction stores for this one.
    fn stored(self) -> Self {
        self
    }
}

/// The order of floats that are no NaN, by their bits.
fn float_order(bits: u64, width: u32) -> i128 {
    let size = i128::from(bits & ((1 << (width - 1)) - 1));
    if bits >> (width - 1) == 1 { -1 - size } else { size }
}

macro_rules! floats {
    ($($t:ty, $bits:ty, $fraction:literal, $plain:expr;)*) => {$(
        impl Odd for $t {
            const ZEROS: &[u64] = &[0, Self::SIGN];
            const EXTREMES: &[u64] = &[
                Self::INFINITY_BITS, Self::SIGN | Self::INFINITY_BITS, 1, Self::SIGN | 1, (1 << $fraction) - 1,
                Self::INFINITY_BITS - 1, Self::SIGN | (Self::INFINITY_BITS - 1), 0, Self::SIGN,
            ];
            // Quiet and signalling, of both signs.
            const NANS: &[u64] = &[
                Self::ONE_NAN, Self::SIGN | Self::ONE_NAN, Self::ONE_NAN | 5, Self::SIGN | Self::ONE_NAN | 3,
                Self::INFINITY_BITS | 1, Self::SIGN | Self::INFINITY_BITS | 2,
            ];
            const ONE_NAN: u64 = Self::INFINITY_BITS | 1 << ($fraction - 1);
            fn of(bits: u64) -> Self { <$t>::from_bits(bits as $bits) }
            fn bits(self) -> u64 { self.to_bits().into() }
            fn no_number(self) -> bool { self.is_nan() }
            fn plain(at: usize) -> Self { $plain(1.0 / (1 + at % 1009) as f64) }
            fn order(self) -> i128 { float_order(self.bits(), <$bits>::BITS) }
        }
        impl FloatBits for $t {
            const SIGN: u64 = 1 << (<$bits>::BITS - 1);
            const INFINITY_BITS: u64 = Self::SIGN - (1 << $fraction);
        }
    )*};
}

trait FloatBits {
    const SIGN: u64;
    const INFINITY_BITS: u64;
}

floats! {
    f16, u16, 10, f16::from_f64;
    bf16, u16, 7, bf16::from_f64;
    f32, u32, 23, |x| x as f32;
    f64, u64, 52, |x| x;
}

macro_rules! integers {
    ($($t:ty),*) => {$(impl Odd for $t {
        const ZEROS: &[u64] = &[0];
        const EXTREMES: &[u64] = &[<$t>::MAX as u64, <$t>::MIN as u64, 1];
        const NANS: &[u64] = &[3];
        const ONE_NAN: u64 = u64::MAX;
        fn of(bits: u64) -> Self { bits as $t }
        fn bits(self) -> u64 { self as u64 }
        fn no_number(self) -> bool { false }
        fn plain(at: usize) -> Self { at as $t }
        fn order(self) -> i128 { self as i128 }
    })*};
}
integers!(u8, i8, i16, i32, i64);

impl Odd for Bool {
    const ZEROS: &[u64] = &[0];
    /// Bytes that something else has written.
    const EXTREMES: &[u64] = &[1, 2, 0x55, 0x80, 0xff];
    const NANS: &[u64] = &[1];
    const ONE_NAN: u64 = u64::MAX;
    fn of(bits: u64) -> Self {
        bytemuck::cast(bits as u8)
    }
    fn bits(self) -> u64 {
        bytemuck::cast::<Self, u8>(self).into()
    }
    fn no_number(self) -> bool {
        false
    }
    fn plain(at: usize) -> Self {
        Bool::from(at.is_multiple_of(2))
    }
    fn order(self) -> i128 {
        self.get().into()
    }
    fn stored(self) -> Self {
        Bool::from(self.get())
    }
}

/// Contributions repeat after this many elements, which is not at the edge of a chunk.
const PERIOD: usize = 1021;

/// A rank's contribution at a place: everything, zeros, anything but NaN, or plain numbers.
fn value<T: Odd>(rank: usize, at: usize) -> T {
    let group = at / 4;
    let draw = (group * 31 + rank * 7919 + (group >> rank)) * 13;
    let pick = |from: &[u64]| T::of(from[draw % from.len()]);
    match at % 4 {
        0 if draw.is_multiple_of(3) => pick(T::NANS),
        0 | 2 => pick(T::EXTREMES),
        1 => pick(T::ZEROS),
        _ => T::plain(draw),
    }
}

fn fill<T: Odd>(buffer: &mut Buffer, rank: usize) {
    let period: Vec<T> = (0..PERIOD).map(|at| value(rank, at)).collect();
    for part in buffer.host_mut::<T>().unwrap().chunks_mut(PERIOD) {
        part.copy_from_slice(&period[..part.len()]);
    }
}

/// The result of a minimum, a maximum or a bitwise reduction at a place; `None` for sums and products of numbers.
fn by_definition<T: Odd>(op: ReduceOp, ranks: usize, at: usize) -> Option<T> {
    let all = || (0..ranks).map(|rank| value::<T>(rank, at));
    match op {
        _ if all().any(Odd::no_number) => Some(T::of(T::ONE_NAN)),
        ReduceOp::Min => all().min_by_key(|x| x.order()).map(Odd::stored),
        ReduceOp::Max => all().max_by_key(|x| x.order()).map(Odd::stored),
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => {
            let bits = all().map(|x| x.stored().bits());
            bits.reduce(|x, y| match op {
                ReduceOp::BitAnd => x & y,
                ReduceOp::BitOr => x | y,
                _ => x ^ y,
            })
            .map(T::of)
        }
        _ => None,
    }
}

/// Checks the known properties of a result, with `first` as the index of its first place, and condenses its bits.
fn condensed<T: Odd>(buffer: &Buffer, op: ReduceOp, ranks: usize, first: usize, what: &str) -> u64 {
    let want: Vec<_> = (0..PERIOD).map(|at| by_definition::<T>(op, ranks, at)).collect();
    let numbers = buffer.host::<T>().unwrap();
    for (at, x) in numbers.iter().enumerate() {
        let bits = x.bits();
        let want = want[(first + at) % PERIOD];
        assert!(!x.no_number() || bits == T::of(T::ONE_NAN).bits(), "{what}: NaN {bits:x} at {at}");
        assert!(want.is_none_or(|want| want.bits() == bits), "{what}: {bits:x} at {at}, not {want:?}");
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(bytemuck::cast_slice(&numbers));
    hasher.finish()
}

fn ops<T: Odd>() -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(|op| op.check(T::DTYPE).is_ok())
}

/// The results of every collective that reduces, for one element type; the last of each tuple is the same on all
/// ranks.
fn reductions<T: Odd>(comm: &Communicator, registered: bool, all: &mut Vec<(String, u64)>) -> Result<()> {
    let rank = comm.rank();
    let ranks = comm.size();
    let make =
        |len| if registered { comm.registered(T::DTYPE, len) } else { Ok(testing::zeroed(T::DTYPE, len)) };
    for bytes in BYTES {
        let len = bytes / T::DTYPE.size() + 3;
        let mut buffer = make(len)?;
        let mut part = make(len / ranks)?;
        let whole = testing::zeroed(T::DTYPE, len / ranks * ranks);
        let mut whole = if registered { make(whole.len())? } else { whole };
        for op in ops::<T>() {
            let what = |call: &str| format!("{call} of {len} {}, {op}", T::DTYPE);
            fill::<T>(&mut buffer, rank);
            comm.block_on(comm.all_reduce(&mut buffer, op))?;
            all.push((what("all-reduce"), condensed::<T>(&buffer, op, ranks, 0, &what("all-reduce"))));
            if bytes != BYTES[0] && bytes != BYTES[3] {
                continue;
            }
            fill::<T>(&mut whole, rank);
            comm.block_on(comm.reduce_scatter(&whole, &mut part, op))?;
            let first = rank * part.len();
            let block = condensed::<T>(&part, op, ranks, first, &what("reduce-scatter"));
            all.push((format!("block {rank} of {}", what("reduce-scatter")), block));
        }
    }
    Ok(())
}

fn every_type(comm: &Communicator, registered: bool) -> Result<Vec<(String, u64)>> {
    let mut all = Vec::new();
    reductions::<u8>(comm, registered, &mut all)?;
    reductions::<i8>(comm, registered, &mut all)?;
    reductions::<i16>(comm, registered, &mut all)?;
    reductions::<i32>(comm, registered, &mut all)?;
    reductions::<i64>(comm, registered, &mut all)?;
    reductions::<f16>(comm, registered, &mut all)?;
    reductions::<bf16>(comm, registered, &mut all)?;
    reductions::<f32>(comm, registered, &mut all)?;
    reductions::<f64>(comm, registered, &mut all)?;
    reductions::<Bool>(comm, registered, &mut all)?;
    Ok(all)
}

/// Where two lists of results differ.
fn difference(one: &[(String, u64)], other: &[(String, u64)]) -> Option<String> {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).find(|(one, other)| one != other).map(|(one, _)| one.0.clone())
}

#[test]
fn every_transport_gives_the_same_bits() {
    if skipped_under_mpi("MPI combines in an order of its own") {
        return;
    }
    for n in RANKS {
        let want = spawn(TransportKind::Thread, n, |comm| every_type(&comm, false)).unwrap();
        let reduced = |all: &[(String, u64)]| {
            all.iter().filter(|(what, _)| what.starts_with("all-reduce")).cloned().collect::<Vec<_>>()
        };
        want.iter().for_each(|all| assert_eq!(difference(&reduced(all), &reduced(&want[0])), None));
        let check = |got: Vec<Vec<(String, u64)>>, how: &str| {
            for (rank, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_eq!(difference(got, want), None, "{how} × {n}, rank {rank}");
            }
        };
        for registered in [false, true] {
            let how = if registered { "shm, registered" } else { "shm" };
            check(spawn(TransportKind::Shm, n, |comm| every_type(&comm, registered)).unwrap(), how);
        }
        check(spawn(TransportKind::Tcp, n, |comm| every_type(&comm, false)).unwrap(), "tcp");
        let hosts: Vec<usize> = (0..n).map(|rank| rank % 2).collect();
        check(spawn_hosts(&hosts, |comm| every_type(&comm, false)).unwrap(), "two hosts");
    }
}

/// Fails unless a number is the same on all ranks.
fn assert_same(comm: &Communicator, bits: u64, what: &str) -> Result<()> {
    let mut low = [bits as i64];
    let mut high = [bits as i64];
    comm.blocking().all_reduce(&mut low, ReduceOp::Min)?;
    comm.blocking().all_reduce(&mut high, ReduceOp::Max)?;
    assert_eq!(low, high, "ranks differ in {what}");
    Ok(())
}

fn reduces<T: Odd>(comm: &Communicator) -> Result<()> {
    let rank = comm.rank();
    let ranks = comm.size();
    let hierarchy = comm.block_on(comm.hierarchy())?;
    let mut buffer = testing::zeroed(T::DTYPE, 2 * PERIOD + 1);
    let mut all = DefaultHasher::new();
    for op in ops::<T>() {
        fill::<T>(&mut buffer, rank);
        comm.block_on(comm.all_reduce(&mut buffer, op))?;
        all.write_u64(condensed::<T>(&buffer, op, ranks, 0, "all-reduce"));
        fill::<T>(&mut buffer, rank);
        comm.block_on(hierarchy.all_reduce(&mut buffer, op))?;
        all.write_u64(condensed::<T>(&buffer, op, ranks, 0, "all-reduce by hosts"));
        fill::<T>(&mut buffer, rank);
        comm.block_on(comm.reduce(&mut buffer, op, ranks - 1))?;
        if rank == ranks - 1 {
            condensed::<T>(&buffer, op, ranks, 0, "reduce");
        }
    }
    assert_same(comm, all.finish(), &format!("reductions of {}", T::DTYPE))
}

fn reduces_every_type(comm: &Communicator) -> Result<()> {
    reduces::<u8>(comm)?;
    reduces::<i8>(comm)?;
    reduces::<i16>(comm)?;
    reduces::<i32>(comm)?;
    reduces::<i64>(comm)?;
    reduces::<f16>(comm)?;
    reduces::<bf16>(comm)?;
    reduces::<f32>(comm)?;
    reduces::<f64>(comm)?;
    reduces::<Bool>(comm)
}

#[test]
fn every_rank_gets_the_same_bits_and_one_nan() {
    for (transport, ranks) in cases(&RANKS) {
        spawn(transport, ranks, |comm| reduces_every_type(&comm)).unwrap();
    }
}

#[test]
fn hosts_of_several_ranks_get_the_same_bits_and_one_nan() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    for hosts in [&[0, 0, 1, 1][..], &[0, 1, 0, 2, 1, 0, 2, 0]] {
        spawn_hosts(hosts, |comm| reduces_every_type(&comm)).unwrap();
    }
}

/// Averages with neighbours: no NaN but the one, and the same over all transports.
fn gossips<T: Odd>(comm: &Communicator, all: &mut Vec<u64>) -> Result<()> {
    let mut buffer = testing::zeroed(T::DTYPE, 1003);
    fill::<T>(&mut buffer, comm.rank());
    for step in 0..3 {
        comm.block_on(comm.gossip(&mut buffer, &Topology::Exponential, step))?;
        for x in &*buffer.host::<T>()? {
            assert!(!x.no_number() || x.bits() == T::of(T::ONE_NAN).bits(), "{:x}", x.bits());
            all.push(x.bits());
        }
    }
    Ok(())
}

#[test]
fn gossip_gives_the_same_bits_and_one_nan() {
    if skipped_under_mpi("it compares other transports") {
        return;
    }
    for n in RANKS {
        let run = |transport| {
            spawn(transport, n, |comm| {
                let mut all = Vec::new();
                gossips::<f16>(&comm, &mut all)?;
                gossips::<bf16>(&comm, &mut all)?;
                gossips::<f32>(&comm, &mut all)?;
                gossips::<f64>(&comm, &mut all)?;
                Ok(all)
            })
            .unwrap()
        };
        let want = run(TransportKind::Thread);
        for transport in [TransportKind::Shm, TransportKind::Tcp] {
            assert!(run(transport) == want, "{transport} × {n}");
        }
    }
}
