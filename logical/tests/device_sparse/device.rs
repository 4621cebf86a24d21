//! Encoding and decoding on the device under test.

use hexagram_logical::codec::{Codec, CodecError};
use hexagram_logical::testing::{buffer, queue};
use hexagram_physical::device::program::Program;

/// Bytes around a message.
const AROUND: u8 = 0xa5;

/// Encodes numbers behind `before` others to a message behind as many bytes. `None` if there is no device.
pub(super) fn encode(
    codec: &dyn Codec,
    x: &[f32],
    before: usize,
    seed: u64,
) -> Option<Result<Vec<u8>, CodecError>> {
    if !has_device(codec, || codec.encode_program(x.len(), 0)) {
        return None;
    }
    let from = buffer(&[&vec![f32::NAN; before], x, &[f32::INFINITY]].concat());
    let size = codec.encoded_len(x.len());
    let to = buffer(&vec![AROUND; before + size + 5]);
    let place = before..before + size;
    let numbers = from.read(before..before + x.len()).unwrap();
    let encoded = to.write(place.clone()).unwrap().encode(codec, &numbers, seed).unwrap();
    if let Some(refusal) = to.queue().refusal().unwrap().or(encoded.err()) {
        return Some(Err(counted_behind(before, refusal)));
    }
    let all = to.host::<u8>().unwrap();
    let around = [&all[..place.start], &all[place.end..]].concat();
    assert!(around.iter().all(|byte| *byte == AROUND), "{} wrote beside its message", codec.name());
    Some(Ok(all[place].to_vec()))
}

/// Decodes a message behind `before` bytes to numbers behind as many others, with a weight, or over them without. `None`
/// if there is no device.
pub(super) fn decode(
    codec: &dyn Codec,
    message: &[u8],
    before: usize,
    weight: Option<f32>,
    to: &[f32],
) -> Option<Result<Vec<f32>, CodecError>> {
    if !has_device(codec, || codec.decode_program(to.len(), weight)) {
        return None;
    }
    let from = buffer(&[&vec![AROUND; before], message, &[AROUND]].concat());
    let numbers = buffer(&[&vec![7.0; before], to, &[7.0; 3]].concat());
    let place = before..before + to.len();
    let message = from.read(before..before + message.len()).unwrap();
    let decoded = numbers.write(place.clone()).unwrap().decode(codec, &message, weight).unwrap();
    if let Some(refusal) = numbers.queue().refusal().unwrap().or(decoded.err()) {
        return Some(Err(refusal));
    }
    let all = numbers.host::<f32>().unwrap();
    let around = [&all[..place.start], &all[place.end..]].concat();
    assert!(around.iter().all(|x| *x == 7.0), "{} wrote beside its numbers", codec.name());
    Some(Ok(all[place].to_vec()))
}

/// True if there is a device to test. A GPU needs a program.
fn has_device(codec: &dyn Codec, program: impl Fn() -> Option<Program>) -> bool {
    let queue = queue();
    if queue.is_host() {
        println!("skipped: no CUDA device");
    }
    let is_gpu = queue.name().starts_with("cuda");
    assert!(!is_gpu || program().is_some(), "{} has no program", codec.name());
    !queue.is_host()
}

/// Returns a refusal with elements counted from the first of a run behind `before` others.
fn counted_behind(before: usize, refusal: CodecError) -> CodecError {
    match refusal {
        CodecError::NotFinite { index, value } => CodecError::NotFinite { index: index - before, value },
        damaged => damaged,
    }
}
