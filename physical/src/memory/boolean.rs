//! Booleans as elements.

use bytemuck::{Pod, Zeroable};
use std::fmt;

/// Boolean of one byte, as in frameworks: 0 is false, every other byte is true.
///
/// `bool` itself cannot be an element, because most byte values are invalid for it. Bytes other than 0 and 1 come
/// only from memory that other code has written. Messages carry them unchanged; a reduction treats each as true, and
/// stores 0 or 1.
///
/// ```
/// use hexagram_physical::{Bool, Buffer};
///
/// let flags = Buffer::from_slice(&[true, false].map(Bool::from))?;
/// assert!(flags.host::<Bool>()?[0].get());
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Clone, Copy, Default, Eq)]
#[repr(transparent)]
pub struct Bool(u8);

// SAFETY: it is a byte, for which zero is valid.
unsafe impl Zeroable for Bool {}
// SAFETY: it is a byte, for which every value is valid.
unsafe impl Pod for Bool {}

impl Bool {
    /// Returns the value.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Bool(value.into())
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_but_zero_is_true() {
        let odd: Bool = bytemuck::cast(0x55u8);
        assert_eq!([odd, Bool::from(true), Bool::from(false)].map(Bool::get), [true, true, false]);
        assert_eq!(odd, Bool::from(true));
        assert_ne!(odd, Bool::default());
        assert_eq!(format!("{odd:?}"), "true");
    }
}
