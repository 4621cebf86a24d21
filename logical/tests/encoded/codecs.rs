//! Codecs that show a primitive's use of a codec: with sizes that only the sender knows, with draws, with rounds.

use hexagram_logical::codec::{Codec, CodecError, LinearCodec, Noise, Properties, Round};

const UNKNOWN: Properties =
    Properties { unbiased: false, contraction: None, linear: false, noise: Noise::Relative };

/// The `0` elements of largest magnitude, the first ones among equals, as index and value.
#[derive(Debug)]
pub(crate) struct Largest(pub(crate) usize);

impl Codec for Largest {
    fn name(&self) -> String {
        format!("largest {}", self.0)
    }

    fn properties(&self) -> Properties {
        UNKNOWN
    }

    fn encoded_len(&self, len: usize) -> usize {
        8 * self.0.min(len)
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        if let Some(index) = from.iter().position(|x| x.is_nan()) {
            return Err(CodecError::NotFinite { index, value: from[index] });
        }
        let mut order: Vec<usize> = (0..from.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(from[*at].abs().to_bits()));
        // Zeros take no bytes, so sizes differ.
        let kept: Vec<usize> = order.into_iter().take(self.0).filter(|at| from[*at] != 0.0).collect();
        for (at, code) in kept.iter().zip(to.chunks_exact_mut(8)) {
            code[..4].copy_from_slice(&(*at as u32).to_le_bytes());
            code[4..].copy_from_slice(&from[*at].to_le_bytes());
        }
        Ok(8 * kept.len())
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        for code in from.chunks_exact(8) {
            let (at, value) = code.split_at(4);
            let at = u32::from_le_bytes(at.try_into().unwrap()) as usize;
            let value = f32::from_le_bytes(value.try_into().unwrap());
            let x = to.get_mut(at).ok_or_else(|| CodecError::damaged(format!("there is no element {at}")))?;
            *x += weight * value;
        }
        Ok(())
    }
}

/// Rounds to a multiple of 1/8, up or down by chance.
#[derive(Debug)]
pub(crate) struct Dithered;

impl Codec for Dithered {
    fn name(&self) -> String {
        "dithered".to_owned()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: true, noise: Noise::Absolute, ..UNKNOWN }
    }

    fn encoded_len(&self, len: usize) -> usize {
        2 * len
    }

    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
        let mut word = seed | 1;
        for (x, code) in from.iter().zip(to.chunks_exact_mut(2)) {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let draw = (word >> 40) as f32 / (1 << 24) as f32;
            code.copy_from_slice(&((x * 8.0 + draw).floor() as i16).to_le_bytes());
        }
        Ok(2 * from.len())
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        for (x, code) in to.iter_mut().zip(from.chunks_exact(2)) {
            *x += weight * f32::from(i16::from_le_bytes([code[0], code[1]])) / 8.0;
        }
        Ok(())
    }
}

/// Claims to keep signs, and writes undecodable bytes.
#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) here: bool,
}

impl Codec for Faulty {
    fn name(&self) -> String {
        "faulty".to_owned()
    }

    fn properties(&self) -> Properties {
        UNKNOWN
    }

    fn encoded_len(&self, len: usize) -> usize {
        len
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        to[..from.len()].fill(self.here.into());
        Ok(from.len())
    }

    fn decode_add(&self, from: &[u8], _: f32, _: &mut [f32]) -> Result<(), CodecError> {
        if from.contains(&1) && !self.here {
            return Err(CodecError::damaged("a byte is 1"));
        }
        Ok(())
    }
}

/// Is wrong about its messages' sizes.
#[derive(Debug)]
pub(crate) struct Liar {
    pub(crate) promised: usize,
    pub(crate) returned: usize,
}

impl Codec for Liar {
    fn name(&self) -> String {
        "liar".to_owned()
    }

    fn properties(&self) -> Properties {
        UNKNOWN
    }

    fn encoded_len(&self, _: usize) -> usize {
        self.promised
    }

    fn encode(&self, _: &[f32], _: &mut [u8], _: u64) -> Result<usize, CodecError> {
        Ok(self.returned)
    }

    fn decode_add(&self, _: &[u8], _: f32, _: &mut [f32]) -> Result<(), CodecError> {
        Ok(())
    }
}

/// Every second element, the odd ones in odd operations; the first round sums all elements, and the sum is kept.
#[derive(Debug)]
pub(crate) struct Half;

impl LinearCodec for Half {
    fn name(&self) -> String {
        "every second".to_owned()
    }

    fn rounds(&self) -> usize {
        2
    }

    fn message_len(&self, round: usize, len: usize) -> usize {
        if round == 0 { 1 } else { len.div_ceil(2) }
    }

    fn memory_len(&self, _: usize) -> usize {
        2
    }

    fn encode(&self, round: Round<'_>, memory: &mut [f32], to: &mut [f32]) -> Result<(), CodecError> {
        if let Some(index) = round.from.iter().position(|x| x.is_nan()) {
            return Err(CodecError::NotFinite { index, value: round.from[index] });
        }
        if round.number == 0 {
            to[0] = round.from.iter().sum();
            return Ok(());
        }
        memory[1] += round.reduced[0];
        to.fill(0.0);
        let chosen = round.from.iter().skip(memory[0] as usize % 2).step_by(2);
        to.iter_mut().zip(chosen).for_each(|(to, x)| *to = *x);
        Ok(())
    }

    fn decode(&self, reduced: &[f32], memory: &mut [f32], to: &mut [f32], _: u64) -> Result<(), CodecError> {
        to.fill(0.0);
        let chosen = to.iter_mut().skip(memory[0] as usize % 2).step_by(2);
        chosen.zip(reduced).for_each(|(x, reduced)| *x = *reduced);
        memory[0] += 1.0;
        Ok(())
    }
}
