//! Contributions: messages in which a rank that begins an operation sends the address of its contribution to the others.
//!
//! ```text
//! rank → rank 0   notice                    address:u64 number:u64 offset:u64 bytes:u64 handle:64
//! rank 0 → rank   all notices, by rank      then order:u64, the number of the operation among all of the world
//! ```

/// Bytes of the handle by which another process opens memory.
pub(super) const HANDLE: usize = 64;

/// Bytes of an encoded notice.
pub(super) const NOTICE: usize = 4 * 8 + HANDLE;

/// Bytes of an operation's number in the order of all.
pub(super) const ORDER: usize = 8;

/// Place of a rank's contribution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Contribution {
    /// Address in the rank's own process.
    pub(super) address: u64,
    /// Number of the memory among all that the process has registered.
    pub(super) number: u64,
    /// Byte of the memory at which the contribution begins.
    pub(super) offset: u64,
    /// Size of the memory.
    pub(super) bytes: u64,
    /// Handle by which other processes open the memory.
    pub(super) handle: [u8; HANDLE],
}

impl Default for Contribution {
    fn default() -> Self {
        Contribution { address: 0, number: 0, offset: 0, bytes: 0, handle: [0; HANDLE] }
    }
}

impl Contribution {
    /// Numbers of an encoded notice.
    pub(super) const NUMBERS: usize = NOTICE / 8;

    /// Encodes the notice as numbers.
    pub(super) fn to_numbers(&self) -> [u64; Self::NUMBERS] {
        let bytes = self.to_bytes();
        std::array::from_fn(|at| read_number(&bytes[8 * at..]))
    }

    /// Decodes a notice from numbers.
    pub(super) fn from_numbers(numbers: &[u64; Self::NUMBERS]) -> Self {
        let mut bytes = [0; NOTICE];
        let all = numbers.iter().flat_map(|number| number.to_le_bytes());
        bytes.iter_mut().zip(all).for_each(|(to, byte)| *to = byte);
        Self::from_bytes(&bytes)
    }

    /// Encodes the notice.
    pub(super) fn to_bytes(&self) -> [u8; NOTICE] {
        let mut bytes = [0; NOTICE];
        let numbers = [self.address, self.number, self.offset, self.bytes];
        for (to, number) in bytes.chunks_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes[4 * 8..].copy_from_slice(&self.handle);
        bytes
    }

    /// Decodes a notice.
    pub(super) fn from_bytes(bytes: &[u8; NOTICE]) -> Self {
        let number = |at: usize| read_number(&bytes[8 * at..]);
        let mut handle = [0; HANDLE];
        handle.copy_from_slice(&bytes[4 * 8..]);
        Contribution { address: number(0), number: number(1), offset: number(2), bytes: number(3), handle }
    }
}

/// Reads a number from the first 8 bytes.
pub(super) fn read_number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let notice =
            Contribution { address: 1 << 40, number: 3, offset: 256, bytes: u64::MAX, handle: [9; HANDLE] };
        assert_eq!(Contribution::from_bytes(&notice.to_bytes()), notice);
        assert_eq!(Contribution::from_numbers(&notice.to_numbers()), notice);
    }
}
