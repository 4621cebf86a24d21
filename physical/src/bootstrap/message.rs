//! Small messages between processes: length-prefixed, length-capped, read without trusting them.
//!
//! ```text
//! message = length:u32 field*          (length of the fields, at most CAP; little-endian)
//! field   = u32 | u16 | byte × 16 | byte × 32 | text
//! text    = length:u16 utf-8
//! ```

use std::io::{self, Read, Write};

/// Longest message: the roster of as many ranks as a job may have.
const CAP: usize = 16 << 20;
/// Bytes that say how long a message is.
pub(super) const LENGTH: usize = 4;
/// Longest text that is kept; the rest of it is cut.
const TEXT_CAP: usize = 1000;

#[derive(Default)]
pub(crate) struct Outgoing(Vec<u8>);

impl Outgoing {
    pub(crate) fn number(mut self, value: usize) -> Self {
        self.0.extend_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(mut self, text: &str) -> Self {
        let mut end = text.len().min(TEXT_CAP);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.extend_from_slice(&(end as u16).to_le_bytes());
        self.0.extend_from_slice(&text.as_bytes()[..end]);
        self
    }

    pub(crate) fn send(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.whole())
    }

    /// With its length in front.
    pub(crate) fn whole(&self) -> Vec<u8> {
        [&(self.0.len() as u32).to_le_bytes(), self.0.as_slice()].concat()
    }
}

pub(crate) struct Incoming {
    bytes: Vec<u8>,
    at: usize,
}

impl Incoming {
    pub(crate) fn receive(from: &mut impl Read) -> io::Result<Self> {
        let mut length = [0; LENGTH];
        from.read_exact(&mut length)?;
        let length = Self::length(&length, CAP)?;
        let mut bytes = Vec::new();
        from.take(length as u64).read_to_end(&mut bytes)?;
        if bytes.len() < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self::from(bytes))
    }

    /// Decodes a length.
    pub(super) fn length(bytes: &[u8], cap: usize) -> io::Result<usize> {
        let length = u32::from_le_bytes(bytes.try_into().map_err(|_| malformed())?) as usize;
        if length > cap { Err(malformed()) } else { Ok(length) }
    }

    /// The fields of a message that has arrived already.
    pub(super) fn from(bytes: Vec<u8>) -> Self {
        Incoming { bytes, at: 0 }
    }

    /// Takes the first message out of what has been read so far; none if it is not there as a whole. A message longer
    /// than `cap` is refused.
    pub(crate) fn split(from: &mut Vec<u8>, cap: usize) -> io::Result<Option<Self>> {
        let Some((length, rest)) = from.split_at_checked(LENGTH) else { return Ok(None) };
        let length = Self::length(length, cap)?;
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let message = Self::from(bytes.to_vec());
        from.drain(..LENGTH + length);
        Ok(Some(message))
    }

    fn take(&mut self, len: usize) -> io::Result<&[u8]> {
        let taken = self.bytes.get(self.at..self.at.saturating_add(len)).ok_or_else(malformed)?;
        self.at += len;
        Ok(taken)
    }

    pub(crate) fn number(&mut self) -> io::Result<usize> {
        Ok(u32::from_le_bytes(self.bytes()?) as usize)
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| malformed())
    }

    pub(crate) fn text(&mut self) -> io::Result<String> {
        let length = u16::from_le_bytes(self.bytes()?) as usize;
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| malformed())
    }
}

pub(crate) fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the other side does not speak hexagram's language")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_round_trip() {
        let mut wire = Vec::new();
        Outgoing::default().number(7).text("żółw").bytes(&[9; 16]).send(&mut wire).unwrap();
        let mut message = Incoming::receive(&mut &wire[..]).unwrap();
        assert_eq!(message.number().unwrap(), 7);
        assert_eq!(message.text().unwrap(), "żółw");
        assert_eq!(message.bytes::<16>().unwrap(), [9; 16]);
        assert!(message.number().is_err());
    }

    #[test]
    fn messages_are_split_wherever_reads_end() {
        let wire = [7usize, 8].map(|number| Outgoing::default().number(number).whole()).concat();
        let mut read = Vec::new();
        let mut numbers = Vec::new();
        for byte in wire {
            read.push(byte);
            while let Some(mut message) = Incoming::split(&mut read, 4).unwrap() {
                numbers.push(message.number().unwrap());
            }
        }
        assert_eq!((numbers, read.len()), (vec![7, 8], 0));
        assert!(Incoming::split(&mut 5u32.to_le_bytes().to_vec(), 4).is_err());
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let mut wire = Vec::new();
        Outgoing::default().text(&"ż".repeat(5000)).send(&mut wire).unwrap();
        assert_eq!(Incoming::receive(&mut &wire[..]).unwrap().text().unwrap(), "ż".repeat(TEXT_CAP / 2));
    }

    #[test]
    fn hostile_lengths_allocate_nothing() {
        assert!(Incoming::receive(&mut &u32::MAX.to_le_bytes()[..]).is_err());
        let truncated = [100u32.to_le_bytes().as_slice(), b"short"].concat();
        assert!(Incoming::receive(&mut &truncated[..]).is_err());
        let text_beyond_end = [2u32.to_le_bytes().as_slice(), &[255, 255]].concat();
        assert!(Incoming::receive(&mut &text_beyond_end[..]).unwrap().text().is_err());
    }
}
