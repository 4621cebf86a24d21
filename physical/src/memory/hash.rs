//! Fowler–Noll–Vo hashes, which detect damage in frames and records, and differences between ranks. They are equal on
//! every rank and in every build, and are not proof of origin.

/// Hash of the empty input, from which all others begin.
pub const START: u64 = 0xcbf2_9ce4_8422_2325;

/// Mixes one word into a hash (FNV-1a, 64 bits). Hashes of whole words lose the information in their highest bits
/// unless they are rotated or folded between the steps; hashes of bytes do not.
#[inline]
pub const fn step(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3)
}

/// Returns the FNV-1a hash of bytes, continued from a previous hash or from [`START`].
///
/// ```
/// use hexagram_physical::hash::{START, of_bytes};
///
/// assert_eq!(of_bytes(START, *b"foobar"), 0x8594_4171_f739_67e8);
/// ```
#[inline]
pub fn of_bytes(hash: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(hash, |hash, byte| step(hash, u64::from(byte)))
}

/// Returns the FNV-1a hash of bytes in 32 bits, for places that have no room for 64.
///
/// ```
/// assert_eq!(hexagram_physical::hash::short_of_bytes(*b"foobar"), 0xbf9c_f968);
/// ```
pub fn short_of_bytes(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let step = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    bytes.into_iter().fold(0x811c_9dc5, step)
}
