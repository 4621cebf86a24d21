//! Fingerprints of operations: 16 bytes in the header of every message that identify the operation of its sender.
//!
//! The receiver compares it with its own. Ranks that differ in operation, element type, count, reduction or root
//! therefore get an error from the first message, without further messages.

use crate::memory::dtype::{DType, ReduceOp};
use crate::memory::hash::short_of_bytes;
use std::fmt;
use std::num::NonZeroU16;

/// Length of a fingerprint on the wire, in bytes.
pub const FINGERPRINT_BYTES: usize = 16;

/// Name of an operation, as the error messages print it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is the primitive of that name")]
pub enum OperationKind {
    SendRecv = 0,
    Barrier = 1,
    Broadcast = 2,
    Reduce = 3,
    Gather = 4,
    Scatter = 5,
    AllGather = 6,
    ReduceScatter = 7,
    AllReduce = 8,
    AllToAll = 9,
    Gossip = 10,
    PairExchange = 11,
    Window = 12,
    Server = 13,
    Clock = 14,
    SparseAllReduce = 15,
    MajorityVote = 16,
    PushSum = 17,
    Attach = 18,
    AllGatherV = 19,
    ReduceScatterV = 20,
    Message = 21,
    Group = 22,
}

impl OperationKind {
    const ALL: [(OperationKind, &'static str); 23] = [
        (OperationKind::SendRecv, "send/recv"),
        (OperationKind::Barrier, "barrier"),
        (OperationKind::Broadcast, "broadcast"),
        (OperationKind::Reduce, "reduce"),
        (OperationKind::Gather, "gather"),
        (OperationKind::Scatter, "scatter"),
        (OperationKind::AllGather, "all_gather"),
        (OperationKind::ReduceScatter, "reduce_scatter"),
        (OperationKind::AllReduce, "all_reduce"),
        (OperationKind::AllToAll, "all_to_all"),
        (OperationKind::Gossip, "gossip"),
        (OperationKind::PairExchange, "pair_exchange"),
        (OperationKind::Window, "window"),
        (OperationKind::Server, "server"),
        (OperationKind::Clock, "clock"),
        (OperationKind::SparseAllReduce, "all_reduce_sparse"),
        (OperationKind::MajorityVote, "majority_vote"),
        (OperationKind::PushSum, "push_sum"),
        (OperationKind::Attach, "attach"),
        (OperationKind::AllGatherV, "all_gather_v"),
        (OperationKind::ReduceScatterV, "reduce_scatter_v"),
        (OperationKind::Message, "message"),
        (OperationKind::Group, "group"),
    ];
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(kind, _)| kind == self).map_or("unknown", |(_, name)| name);
        f.write_str(name)
    }
}

/// Properties of an operation on which all its ranks must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Kind of the operation.
    pub operation: OperationKind,
    /// Element type.
    pub dtype: DType,
    /// Reduction, for the operations that reduce.
    pub reduce: Option<ReduceOp>,
    /// Root of the operation in the communicator, if it has one; for a gossip or a push-sum, the digest of its graph;
    /// for blocks of different lengths, that of their counts.
    pub root: Option<u32>,
    /// Learning rate of its step, if ranks compare it; for operations without a root.
    pub rate: Option<Rate>,
    /// True if it works on registered memory, as it then must on all ranks.
    pub registered: bool,
    /// Encoding of the elements; `None` if they travel as they are.
    pub codec: Option<CodecDigest>,
    /// Number of elements, below 2^48: of the whole buffer, or of the one message if counts may differ by pair.
    pub count: u64,
}

/// Learning rate as ranks compare it: rounded to f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate(u32);

impl Rate {
    /// Returns a learning rate as ranks compare it.
    pub fn of(rate: f64) -> Self {
        Rate((rate as f32).to_bits())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "learning rate {}", f32::from_bits(self.0))
    }
}

/// Sixteen bits of a codec's name and parameters: enough for ranks to notice that they encode differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodecDigest(NonZeroU16);

impl CodecDigest {
    /// Returns the digest of a codec's full name.
    pub fn of(name: &str) -> Self {
        let hash = short_of_bytes(name.bytes());
        CodecDigest(NonZeroU16::new((hash ^ (hash >> 16)) as u16).unwrap_or(NonZeroU16::MAX))
    }
}

impl fmt::Display for CodecDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "codec #{:04x}", self.0)
    }
}

const NONE_U8: u8 = u8::MAX;
const NONE_U32: u32 = u32::MAX;
/// Flag next to that of registered memory: the root field contains a learning rate.
const HAS_RATE: u8 = 2;
/// Largest count: no memory holds more.
const MOST: u64 = (1 << 48) - 1;

impl Fingerprint {
    /// Creates a fingerprint without reduction and root.
    #[inline]
    pub fn new(operation: OperationKind, dtype: DType, count: usize) -> Self {
        let count = (count as u64).min(MOST);
        Fingerprint {
            operation,
            dtype,
            reduce: None,
            root: None,
            rate: None,
            registered: false,
            codec: None,
            count,
        }
    }

    /// Returns the bytes that go over the wire.
    #[inline]
    pub fn to_bytes(self) -> [u8; FINGERPRINT_BYTES] {
        let mut bytes = [0; FINGERPRINT_BYTES];
        bytes[0] = self.operation as u8;
        bytes[1] = self.dtype as u8;
        bytes[2] = self.reduce.map_or(NONE_U8, |op| op as u8);
        let rate = self.rate.filter(|_| self.root.is_none());
        bytes[3] = u8::from(self.registered) | if rate.is_some() { HAS_RATE } else { 0 };
        let word = rate.map_or(self.root.unwrap_or(NONE_U32), |rate| rate.0);
        bytes[4..8].copy_from_slice(&word.to_le_bytes());
        let codec = self.codec.map_or(0, |codec| codec.0.get());
        bytes[8..16].copy_from_slice(&(self.count & MOST | u64::from(codec) << 48).to_le_bytes());
        bytes
    }

    /// Reads the bytes from the wire; returns `None` if they contain a value that this version does not support.
    pub fn from_bytes(bytes: &[u8; FINGERPRINT_BYTES]) -> Option<Self> {
        let [operation, dtype, reduce, flags, r0, r1, r2, r3, tail @ ..] = *bytes;
        let tail = u64::from_le_bytes(tail);
        let word = u32::from_le_bytes([r0, r1, r2, r3]);
        let has_rate = flags & HAS_RATE != 0;
        Some(Fingerprint {
            operation: OperationKind::ALL.iter().find(|(kind, _)| *kind as u8 == operation)?.0,
            dtype: DType::from_code(dtype)?,
            reduce: if reduce == NONE_U8 { None } else { Some(ReduceOp::from_code(reduce)?) },
            root: (!has_rate && word != NONE_U32).then_some(word),
            rate: has_rate.then_some(Rate(word)),
            registered: flags & !HAS_RATE != 0,
            codec: NonZeroU16::new((tail >> 48) as u16).map(CodecDigest),
            count: tail & MOST,
        })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} × {}", self.operation, self.count, self.dtype)?;
        if let Some(op) = self.reduce {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.root {
            match self.operation {
                OperationKind::Gossip | OperationKind::PushSum => write!(f, ", graph #{root:08x}")?,
                OperationKind::AllGatherV | OperationKind::ReduceScatterV => {
                    write!(f, ", counts #{root:08x}")?;
                }
                _ => write!(f, ", root {root}")?,
            }
        }
        if let Some(rate) = self.rate {
            write!(f, ", {rate}")?;
        }
        if self.registered {
            f.write_str(", registered")?;
        }
        if let Some(codec) = self.codec {
            write!(f, ", {codec}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let plain = Fingerprint::new(OperationKind::AllToAll, DType::BF16, usize::MAX);
        let codec = Some(CodecDigest::of("sign"));
        let full =
            Fingerprint { reduce: Some(ReduceOp::Product), root: Some(7), registered: true, codec, ..plain };
        let rated = Fingerprint { root: None, rate: Some(Rate::of(0.1)), ..full };
        for fingerprint in [plain, full, rated, Fingerprint { rate: Some(Rate::of(-f64::NAN)), ..plain }] {
            assert_eq!(Fingerprint::from_bytes(&fingerprint.to_bytes()), Some(fingerprint));
        }
    }

    #[test]
    fn every_operation_has_a_name_and_a_code() {
        for (kind, _) in OperationKind::ALL {
            let fingerprint = Fingerprint::new(kind, DType::F32, 1);
            assert_eq!(Fingerprint::from_bytes(&fingerprint.to_bytes()), Some(fingerprint));
            assert_ne!(kind.to_string(), "unknown");
        }
    }

    #[test]
    fn unknown_codes_are_refused() {
        assert_eq!(Fingerprint::from_bytes(&[200; FINGERPRINT_BYTES]), None);
    }

    /// A measurement: `cargo test --release -p hexagram-physical --lib -- --ignored --nocapture what_a_check_costs`.
    #[test]
    #[ignore = "prints a time, proves nothing"]
    fn what_a_check_costs() {
        use std::hint::black_box;
        const TIMES: u32 = 10_000_000;
        let mine =
            Fingerprint { root: Some(3), ..Fingerprint::new(OperationKind::Broadcast, DType::F32, 1000) };
        let started = std::time::Instant::now();
        let mut equal = 0;
        for _ in 0..TIMES {
            let sent = black_box(&mine).to_bytes();
            equal += u32::from(Fingerprint::from_bytes(black_box(&sent)) == Some(*black_box(&mine)));
        }
        assert_eq!(equal, TIMES);
        println!("encoding, decoding and comparing a fingerprint: {:.1?}", started.elapsed() / TIMES);
    }

    #[test]
    fn reads_like_a_call() {
        let fingerprint = Fingerprint {
            reduce: Some(ReduceOp::Mean),
            ..Fingerprint::new(OperationKind::AllReduce, DType::F32, 12)
        };
        assert_eq!(fingerprint.to_string(), "all_reduce(12 × f32, mean)");
        let rated = Fingerprint { rate: Some(Rate::of(0.1)), ..fingerprint };
        assert_eq!(rated.to_string(), "all_reduce(12 × f32, mean, learning rate 0.1)");
        let gossip = Fingerprint::new(OperationKind::Gossip, DType::F32, 12);
        let gossip = Fingerprint { root: Some(0xbee), ..gossip };
        assert_eq!(gossip.to_string(), "gossip(12 × f32, graph #00000bee)");
        let blocks = Fingerprint { operation: OperationKind::AllGatherV, ..gossip };
        assert_eq!(blocks.to_string(), "all_gather_v(12 × f32, counts #00000bee)");
    }
}
