//! Codecs of blocks on the device under test: messages and decoded numbers have the host's bits, at any offset, and
//! the device refuses the same elements as the host.

use hexagram_logical::Buffer;
use hexagram_logical::codec::{Codec, CodecError, Exact, NotFinite, Sign, named, names};
use hexagram_logical::testing::{buffer, lengths, queue};
use std::sync::Arc;

const POLICIES: [NotFinite; 3] = [NotFinite::Refuse, NotFinite::Propagate, NotFinite::Saturate];
const LENGTHS: [usize; 12] = [0, 1, 2, 7, 63, 64, 65, 66, 2047, 2048, 2049, 10_007];
/// Sizes of blocks: smaller than the unit of a GPU's work, equal, and larger; the last is a whole run.
const SIZES: [usize; 9] = [1, 2, 7, 31, 64, 2047, 2048, 2049, 5000];
const WEIGHTS: [Option<f32>; 4] = [None, Some(1.0), Some(0.3), Some(-2.0)];
/// Bytes around a message.
const AROUND: u8 = 0xa5;

/// Every codec of the catalogue that encodes in blocks, with these sizes and this policy, and those without headers.
fn codecs(policy: NotFinite) -> Vec<Arc<dyn Codec>> {
    let option = format!("not_finite={policy:?}").to_lowercase();
    let sizes = lengths(&SIZES).into_iter().map(|size| size.to_string()).chain(["whole".to_owned()]);
    let sizes: Vec<_> = sizes.collect();
    let in_blocks = |name: &'static str| {
        // A codec without the option `block` refuses it.
        let form = |size| named(&format!("{name}(block={size}, {option})")).ok();
        sizes.iter().filter_map(form).collect::<Vec<_>>()
    };
    let mut all: Vec<Arc<dyn Codec>> = names().into_iter().flat_map(in_blocks).collect();
    assert!(all.len() >= 5 * lengths(&SIZES).len(), "{} codecs in blocks", all.len());
    all.extend(["f16", "bf16"].map(|name| named(&format!("{name}({option})")).unwrap()));
    if policy == NotFinite::Refuse {
        all.push(Arc::new(Exact));
    }
    all
}

/// True if there is a device to test, which then has programs for five codecs in blocks and those without headers.
fn is_there_a_device() -> bool {
    let device = queue();
    if device.is_host() {
        println!("skipped: no CUDA device");
    }
    let has_programs = |codec: &Arc<dyn Codec>| {
        [codec.encode_program(9, 0), codec.decode_program(9, None), codec.decode_program(9, Some(0.5))]
            .iter()
            .all(Option::is_some)
    };
    let count = codecs(NotFinite::Refuse).iter().filter(|codec| has_programs(codec)).count();
    let least = 5 * (lengths(&SIZES).len() + 1) + 3;
    assert!(!device.name().starts_with("cuda") || count >= least, "{count} of {least} codecs have programs");
    !device.is_host()
}

/// Draws of a generator.
struct Draw(u64);

impl Draw {
    fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// In [−1, 1).
    fn plain(&mut self) -> f32 {
        (self.word() >> 29) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// Kinds of numbers to encode: plain, of every exponent, close to each other, tiny, huge, zeros of both signs, the
/// largest, powers of two and the middles between them, with one bad number, with many, and with some NaN.
const KINDS: u64 = 11;

fn numbers(len: usize, kind: u64) -> Vec<f32> {
    let mut draw = Draw(0x9e37_79b9 + 77 * kind + len as u64);
    let odd = [
        0x7fc0_0000,
        0xffc0_1234,
        0x7f80_0001,
        0x7f80_0000,
        0xff80_0000,
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x477f_efff,
        0x477f_f000,
        0x477f_e001,
        0x7f7f_7fff,
        0x7f7f_8000,
        0x3f80_8000,
        0xbf81_8000,
    ];
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][draw.word() as usize % 3];
    let at = draw.word() as usize % len.max(1);
    let number = |index: usize| {
        let x = draw.plain();
        match kind {
            0 => x,
            1 => f32::from_bits((draw.word() as u32 & 0x3fff_ffff) | (x.to_bits() & 1 << 31)),
            2 => 1000.0 + 0.0005 * x,
            3 => x * 1e-42,
            4 => x * f32::MAX,
            5 => 0.0f32.copysign(x),
            6 => f32::MAX.copysign(x),
            7 if index == at => bad,
            8 if draw.word().is_multiple_of(3) => f32::from_bits(odd[draw.word() as usize % odd.len()]),
            9 => {
                (-(draw.word() as i32 % 10) as f32).exp2().copysign(x) * [1.0, 1.5][draw.word() as usize % 2]
            }
            10 if draw.word().is_multiple_of(5) => f32::NAN,
            _ => x,
        }
    };
    (0..len).map(number).collect()
}

/// Returns bytes between others.
fn surrounded(bytes: impl IntoIterator<Item = u8>, before: usize) -> Vec<u8> {
    let around = std::iter::repeat_n(AROUND, before);
    around.chain(bytes).chain([AROUND; 9]).collect()
}

/// Encodes on the device, behind `before` other bytes; the numbers are behind as many others.
fn encoded(codec: &dyn Codec, x: &[f32], before: usize) -> Result<Vec<u8>, CodecError> {
    let from = buffer(&[&vec![f32::NAN; before], x].concat());
    let size = codec.encoded_len(x.len());
    let message: Buffer = buffer(&surrounded(vec![7; size], before));
    let place = before..before + size;
    let from = from.read(before..before + x.len()).unwrap();
    let written = message.write(place.clone()).unwrap().encode(codec, &from, 5).unwrap()?;
    assert_eq!(written, size);
    if let Some(refusal) = message.queue().refusal().unwrap() {
        return Err(refusal);
    }
    let bytes = message.host::<u8>().unwrap().to_vec();
    assert_eq!(
        bytes,
        surrounded(bytes[place.clone()].to_vec(), before),
        "{} wrote beside its message",
        codec.name()
    );
    Ok(bytes[place].to_vec())
}

/// Decodes a message on the device, behind `before` other bytes, to numbers behind as many others.
fn decoded(
    codec: &dyn Codec,
    message: &[u8],
    weight: Option<f32>,
    to: &[f32],
    before: usize,
) -> Result<Vec<f32>, String> {
    let from = buffer(&surrounded(message.to_vec(), before));
    let from = from.read(before..before + message.len()).unwrap();
    let sums = buffer(&[&vec![0.25; before], to, &[0.25]].concat());
    let mut place = sums.write(before..before + to.len()).unwrap();
    place.decode(codec, &from, weight).unwrap().map_err(|damage| damage.to_string())?;
    drop(place);
    sums.queue().check().map_err(|failure| failure.to_string())?;
    let all = sums.host::<f32>().unwrap().to_vec();
    let outside = all.iter().enumerate().filter(|(at, _)| !(before..before + to.len()).contains(at));
    assert!(outside.into_iter().all(|(_, x)| *x == 0.25), "{} wrote beside its numbers", codec.name());
    Ok(all[before..before + to.len()].to_vec())
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Fails at the first place where both differ.
#[track_caller]
fn assert_same<T: PartialEq + std::fmt::Debug>(got: &[T], want: &[T], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let other = got.iter().zip(want).position(|(got, want)| got != want);
    assert_eq!(other.map(|at| (at, &got[at], &want[at])), None, "{what}: place, there, on the host");
}

/// Compares a message, or a refusal, with the host's, and returns the host's message.
fn check_encoding(codec: &dyn Codec, x: &[f32], before: usize, what: &str) -> Option<Vec<u8>> {
    let mut want = vec![0; codec.encoded_len(x.len())];
    let outcome = codec.encode(x, &mut want, 5);
    match (outcome, encoded(codec, x, before)) {
        (Ok(_), Ok(got)) => {
            assert_same(&got, &want, what);
            Some(want)
        }
        (
            Err(CodecError::NotFinite { index, value }),
            Err(CodecError::NotFinite { index: there, value: seen }),
        ) => {
            assert_eq!((there, seen.to_bits()), (before + index, value.to_bits()), "{what}");
            None
        }
        (host, there) => panic!("{what}: {there:?}, where the host has {host:?}"),
    }
}

/// Compares a decoded message with the host's result.
fn check_decoding(codec: &dyn Codec, message: &[u8], len: usize, before: usize, what: &str) {
    for weight in WEIGHTS {
        let mut want = numbers(len, 8);
        let got = decoded(codec, message, weight, &want, before).unwrap();
        match weight {
            Some(weight) => codec.decode_add(message, weight, &mut want).unwrap(),
            None => codec.decode(message, &mut want).unwrap(),
        }
        assert_same(&bits(&got), &bits(&want), &format!("{what}, decoded with weight {weight:?}"));
    }
}

#[test]
fn messages_have_the_bits_of_the_host_and_decode_to_them() {
    if !is_there_a_device() {
        return;
    }
    let codecs: Vec<Arc<dyn Codec>> = POLICIES.into_iter().flat_map(codecs).collect();
    let lengths = lengths(&LENGTHS);
    let cases = codecs.iter().flat_map(|codec| lengths.iter().map(move |len| (codec, *len)));
    for (number, (codec, len)) in cases.enumerate() {
        let turn = number + number / lengths.len();
        let kind = turn as u64 % KINDS;
        let before = number % 5;
        let what = format!("{}, {len} numbers of kind {kind} behind {before}", codec.name());
        let message = check_encoding(&**codec, &numbers(len, kind), before, &what);
        if let Some(message) = message.filter(|_| turn.is_multiple_of(4)) {
            check_decoding(&**codec, &message, len, before, &what);
        }
    }
}

#[test]
fn sums_of_many_pieces_are_added_in_the_order_of_the_host() {
    if !is_there_a_device() {
        return;
    }
    let half = f32::from_bits((127 - 29) << 23);
    // Whether half of the last place is lost depends on the first sum.
    for halves in [[1, 3], [1, 2], [32, 64], [33, 97], [64, 96], [1, 65]] {
        let mut x = vec![0.0; 128 * 2048];
        x[0] = 16_777_216.0;
        x[1] = 1.0;
        halves.iter().for_each(|piece| x[piece * 2048] = half);
        check_encoding(&Sign::whole(), &x, 1, &format!("halves in {halves:?}"));
    }
}

#[test]
fn any_bytes_decode_to_the_bits_of_the_host() {
    if !is_there_a_device() {
        return;
    }
    let mut draw = Draw(5);
    for codec in codecs(NotFinite::Refuse) {
        for len in lengths(&[1, 66, 2049, 10_007]) {
            let message: Vec<u8> = (0..codec.encoded_len(len)).map(|_| draw.word() as u8).collect();
            let before = draw.word() as usize % 4;
            let what = format!("{}, {len} random numbers", codec.name());
            check_decoding(&*codec, &message, len, before, &what);
        }
    }
}

#[test]
fn messages_of_another_size_are_refused() {
    if !is_there_a_device() {
        return;
    }
    for codec in codecs(NotFinite::Refuse) {
        let size = codec.encoded_len(50);
        for len in [0, size - 1, size + 1] {
            let damage = decoded(&*codec, &vec![0; len], Some(0.5), &[0.0; 50], 1).unwrap_err();
            assert!(damage.contains("cannot be decoded"), "{}, {len} bytes: {damage}", codec.name());
        }
    }
}
