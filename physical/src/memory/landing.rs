//! Landing: how arriving bytes enter a view, in pieces of any size, stored or reduced in place.
//!
//! A piece may end in the middle of an element; the odd bytes wait for the next piece.

use crate::device;
use crate::memory::WriteView;
use crate::transport::message::ReceiveMode;

/// Largest element, in bytes.
pub(crate) const WIDEST: usize = 8;

pub(crate) struct Landing {
    view: WriteView,
    land: ReceiveMode,
    filled: usize,
    odd: [u8; WIDEST],
    odd_len: usize,
}

impl Landing {
    pub(crate) fn new(view: WriteView, land: ReceiveMode) -> Self {
        Landing { view, land, filled: 0, odd: [0; WIDEST], odd_len: 0 }
    }

    /// Returns the size of the largest message that fits, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.view.byte_len()
    }

    /// Returns true if the receive expects a message of this size.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        match self.land {
            ReceiveMode::AtMost => bytes <= self.capacity() as u64,
            ReceiveMode::Copy | ReceiveMode::Reduce(_) => bytes == self.capacity() as u64,
        }
    }

    /// Returns the number of bytes that have landed.
    pub(crate) fn landed(&self) -> usize {
        self.filled
    }

    /// Returns the number of bytes of an incomplete element: the offset for the next bytes in an aligned buffer.
    pub(crate) fn odd(&self) -> usize {
        self.odd_len
    }

    /// Returns the view that the message goes to.
    #[cfg(feature = "mpi")]
    pub(crate) fn view(&self) -> &WriteView {
        &self.view
    }

    /// Returns the place where a transport may store the next bytes directly; the transport then reports them with
    /// [`Landing::stored`].
    pub(crate) fn direct(&mut self) -> Option<&mut [u8]> {
        match self.land {
            ReceiveMode::Copy | ReceiveMode::AtMost => Some(&mut self.view.bytes_mut()[self.filled..]),
            ReceiveMode::Reduce(..) => None,
        }
    }

    /// Charges the landing time of a message that has a size only.
    #[cfg(feature = "sim")]
    pub(crate) fn charge(&self, bytes: usize) {
        if matches!(self.land, ReceiveMode::Reduce(_)) {
            crate::runtime::charge(|| crate::runtime::Work::Reduce { bytes });
        }
    }

    pub(crate) fn stored(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// Lands the next `bytes`, which must not exceed the missing ones.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        let ReceiveMode::Reduce(op) = self.land else {
            self.view.bytes_mut()[self.filled..][..bytes.len()].copy_from_slice(bytes);
            self.filled += bytes.len();
            return;
        };
        let dtype = self.view.dtype();
        let size = dtype.size();
        if self.odd_len > 0 {
            let take = (size - self.odd_len).min(bytes.len());
            self.odd[self.odd_len..][..take].copy_from_slice(&bytes[..take]);
            self.odd_len += take;
            bytes = &bytes[take..];
            if self.odd_len < size {
                return;
            }
            device::land(op, dtype, &self.odd[..size], &mut self.view.bytes_mut()[self.filled..][..size]);
            self.filled += size;
        }
        let (whole, odd) = bytes.split_at(bytes.len() / size * size);
        device::land(op, dtype, whole, &mut self.view.bytes_mut()[self.filled..][..whole.len()]);
        self.filled += whole.len();
        self.odd[..odd.len()].copy_from_slice(odd);
        self.odd_len = odd.len();
    }
}

#[cfg(test)]
mod tests {
    use super::super::dtype::{DType, ReduceOp};
    use super::*;
    use crate::memory::Buffer;

    #[test]
    fn pieces_of_any_size_make_the_same_sum() {
        let message: Vec<f64> = (0..100).map(|i| f64::from(i) / 7.0).collect();
        let bytes: &[u8] = bytemuck::cast_slice(&message);
        for piece in [1, 3, 7, 8, 9, 64, 800] {
            let buffer = Buffer::from_slice(&vec![1.0f64; 100]).unwrap();
            let view = buffer.write(0..100).unwrap();
            let mut landing = Landing::new(view, ReceiveMode::Reduce(ReduceOp::Sum));
            assert!(landing.direct().is_none());
            bytes.chunks(piece).for_each(|piece| landing.push(piece));
            drop(landing);
            let want: Vec<f64> = message.iter().map(|x| x + 1.0).collect();
            assert_eq!(*buffer.host::<f64>().unwrap(), want, "pieces of {piece} bytes");
        }
    }

    #[test]
    fn only_some_messages_may_be_shorter_than_their_view() {
        let buffer = Buffer::zeroed(DType::U8, 4).unwrap();
        let landing = |land| Landing::new(buffer.write(0..4).unwrap(), land);
        let fitting = |landing: Landing| [0, 3, 4, 5].map(|bytes| landing.fits(bytes));
        assert_eq!(fitting(landing(ReceiveMode::Copy)), [false, false, true, false]);
        assert_eq!(fitting(landing(ReceiveMode::AtMost)), [true, true, true, false]);
        let mut short = landing(ReceiveMode::AtMost);
        short.push(&[7, 8]);
        assert_eq!(short.landed(), 2);
        drop(short);
        assert_eq!(*buffer.host::<u8>().unwrap(), [7, 8, 0, 0]);
    }

    #[test]
    fn copies_may_be_stored_directly() {
        let buffer = Buffer::zeroed(DType::U8, 4).unwrap();
        let mut landing = Landing::new(buffer.write(0..4).unwrap(), ReceiveMode::Copy);
        landing.push(&[1]);
        landing.direct().unwrap()[..2].copy_from_slice(&[2, 3]);
        landing.stored(2);
        landing.push(&[4]);
        drop(landing);
        assert_eq!(*buffer.host::<u8>().unwrap(), [1, 2, 3, 4]);
    }
}
