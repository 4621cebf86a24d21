//! Small messages between processes: length-prefixed, of bounded length, and decoded without trust in the sender. Use
//! it for rare messages; tensors use the frames of the transports.
//!
//! ```text
//! message = length:u32 field*          (length of the fields, at most CAP; little-endian)
//! field   = u32 | u16 | byte × 16 | byte × 32 | text | blob
//! text    = length:u16 utf-8
//! blob    = length:u32 byte*            (at most as many as its reader accepts)
//! ```

use std::io::{self, Read, Write};

/// Longest message, in bytes: enough for the peer table of the largest job.
const CAP: usize = 16 << 20;
/// Length of the prefix that states a message's length, in bytes.
pub(crate) const LENGTH: usize = 4;
/// Longest text, in bytes. Longer ones are cut.
const TEXT_CAP: usize = 1000;

/// Message to be sent, built field by field.
#[derive(Default)]
pub(crate) struct MessageWriter(Vec<u8>);

impl MessageWriter {
    /// Appends a number as `u32`. Larger ones become `u32::MAX`.
    pub(crate) fn number(mut self, value: usize) -> Self {
        self.0.extend_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
        self
    }

    /// Appends bytes, without their length.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends bytes with their length.
    pub(crate) fn blob(self, bytes: &[u8]) -> Self {
        self.number(bytes.len()).bytes(bytes)
    }

    /// Appends a text, cut after [`TEXT_CAP`] bytes at the end of a character.
    pub(crate) fn text(mut self, text: &str) -> Self {
        let mut end = text.len().min(TEXT_CAP);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.extend_from_slice(&(end as u16).to_le_bytes());
        self.0.extend_from_slice(&text.as_bytes()[..end]);
        self
    }

    /// Writes the message with its length.
    pub(crate) fn send(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.whole())
    }

    /// Returns the message with its length in front.
    pub(crate) fn whole(&self) -> Vec<u8> {
        [&(self.0.len() as u32).to_le_bytes(), self.0.as_slice()].concat()
    }
}

/// Received message, decoded field by field.
pub(crate) struct MessageReader {
    /// Fields of the message.
    bytes: Vec<u8>,
    /// Offset of the next field.
    at: usize,
}

impl MessageReader {
    /// Reads a whole message from a blocking stream.
    ///
    /// # Errors
    /// `InvalidData` for a length above [`CAP`]; `UnexpectedEof` if the stream ends before.
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

    /// Decodes a length, and refuses one above `cap`.
    pub(crate) fn length(bytes: &[u8], cap: usize) -> io::Result<usize> {
        let length = u32::from_le_bytes(bytes.try_into().map_err(|_| malformed())?) as usize;
        if length > cap { Err(malformed()) } else { Ok(length) }
    }

    /// Creates a message from its fields, without the length.
    pub(crate) fn from(bytes: Vec<u8>) -> Self {
        MessageReader { bytes, at: 0 }
    }

    /// Removes the first message from the bytes read so far. Returns `None` if it is not complete.
    ///
    /// # Errors
    /// `InvalidData` if it is longer than `cap`.
    pub(crate) fn split(from: &mut Vec<u8>, cap: usize) -> io::Result<Option<Self>> {
        let Some((length, rest)) = from.split_at_checked(LENGTH) else { return Ok(None) };
        let length = Self::length(length, cap)?;
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let message = Self::from(bytes.to_vec());
        from.drain(..LENGTH + length);
        Ok(Some(message))
    }

    /// Takes the next `len` bytes.
    fn take(&mut self, len: usize) -> io::Result<&[u8]> {
        let taken = self.bytes.get(self.at..self.at.saturating_add(len)).ok_or_else(malformed)?;
        self.at += len;
        Ok(taken)
    }

    /// Decodes a `u32`.
    pub(crate) fn number(&mut self) -> io::Result<usize> {
        Ok(u32::from_le_bytes(self.bytes()?) as usize)
    }

    /// Takes the next `N` bytes.
    pub(crate) fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| malformed())
    }

    /// Takes bytes that have their length in front, at most `cap` of them.
    pub(crate) fn blob(&mut self, cap: usize) -> io::Result<&[u8]> {
        let length = self.number()?;
        if length > cap { Err(malformed()) } else { self.take(length) }
    }

    /// Decodes a text.
    pub(crate) fn text(&mut self) -> io::Result<String> {
        let length = u16::from_le_bytes(self.bytes()?) as usize;
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| malformed())
    }
}

/// Creates the error for bytes that break the protocol.
pub(crate) fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the other side does not speak the hexagram protocol")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_round_trip() {
        let mut wire = Vec::new();
        MessageWriter::default().number(7).text("żółw").blob(b"any").bytes(&[9; 16]).send(&mut wire).unwrap();
        let mut message = MessageReader::receive(&mut &wire[..]).unwrap();
        assert_eq!(message.number().unwrap(), 7);
        assert_eq!(message.text().unwrap(), "żółw");
        assert_eq!(message.blob(3).unwrap(), b"any");
        assert_eq!(message.bytes::<16>().unwrap(), [9; 16]);
        assert!(message.number().is_err());
    }

    #[test]
    fn messages_are_split_wherever_reads_end() {
        let wire = [7usize, 8].map(|number| MessageWriter::default().number(number).whole()).concat();
        let mut read = Vec::new();
        let mut numbers = Vec::new();
        for byte in wire {
            read.push(byte);
            while let Some(mut message) = MessageReader::split(&mut read, 4).unwrap() {
                numbers.push(message.number().unwrap());
            }
        }
        assert_eq!((numbers, read.len()), (vec![7, 8], 0));
        assert!(MessageReader::split(&mut 5u32.to_le_bytes().to_vec(), 4).is_err());
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let mut wire = Vec::new();
        MessageWriter::default().text(&"ż".repeat(5000)).send(&mut wire).unwrap();
        assert_eq!(MessageReader::receive(&mut &wire[..]).unwrap().text().unwrap(), "ż".repeat(TEXT_CAP / 2));
    }

    #[test]
    fn hostile_lengths_allocate_nothing() {
        assert!(MessageReader::receive(&mut &u32::MAX.to_le_bytes()[..]).is_err());
        let truncated = [100u32.to_le_bytes().as_slice(), b"short"].concat();
        assert!(MessageReader::receive(&mut &truncated[..]).is_err());
        let text_beyond_end = [2u32.to_le_bytes().as_slice(), &[255, 255]].concat();
        assert!(MessageReader::receive(&mut &text_beyond_end[..]).unwrap().text().is_err());
        let long = MessageWriter::default().blob(&[0; 9]).whole();
        assert!(MessageReader::receive(&mut &long[..]).unwrap().blob(8).is_err());
        let blob_beyond_end = MessageWriter::default().number(9).whole();
        assert!(MessageReader::receive(&mut &blob_beyond_end[..]).unwrap().blob(9).is_err());
    }
}
