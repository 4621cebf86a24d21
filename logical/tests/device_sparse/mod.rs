//! Codecs that round at random, keep some elements or all, or combine several codecs. On the device under test they
//! give the host's bytes and bits, refuse the same elements, and refuse damaged messages.

mod device;
mod numbers;
mod per_tensor;
mod qsgd;
mod random_k;
mod top_k;

use hexagram_logical::codec::{Codec, CodecError, NotFinite};
use numbers::{Kind, numbers};

const POLICIES: [NotFinite; 3] = [NotFinite::Refuse, NotFinite::Propagate, NotFinite::Saturate];

/// Weights with which messages are decoded; `None` overwrites.
const WEIGHTS: [Option<f32>; 4] = [None, Some(1.0), Some(-0.375), Some(0.0)];

/// Comparisons of the device with the host, each with other numbers than the one before.
struct Comparisons {
    turn: usize,
    weights: &'static [Option<f32>],
}

impl Default for Comparisons {
    fn default() -> Self {
        Comparisons { turn: 0, weights: &WEIGHTS }
    }
}

impl Comparisons {
    /// Compares device and host on numbers of this many kinds, and on their messages.
    #[track_caller]
    fn compare(&mut self, codec: &dyn Codec, len: usize, kinds: usize) {
        for _ in 0..kinds {
            let weight = self.weights[self.turn % self.weights.len()];
            let x = numbers(Kind::ALL[self.turn % Kind::ALL.len()], len);
            compare_with(codec, &x, self.turn, weight);
            self.turn += 1;
        }
    }
}

/// Compares the device's and the host's results for some numbers and their message, with the weight of this turn.
#[track_caller]
fn compare(codec: &dyn Codec, x: &[f32], turn: usize) {
    compare_with(codec, x, turn, WEIGHTS[turn % WEIGHTS.len()]);
}

/// Does the same with this weight. The message lies anywhere in its memory.
#[track_caller]
fn compare_with(codec: &dyn Codec, x: &[f32], turn: usize, weight: Option<f32>) {
    let seed = turn as u64;
    let before = turn % 5;
    let Some(device) = device::encode(codec, x, before, seed) else { return };
    let mut message = vec![0; codec.encoded_len(x.len())];
    let host = codec.encode(x, &mut message, seed);
    let name = format!("{} of {} elements, turn {turn}", codec.name(), x.len());
    let message = match (host, device) {
        (Err(want), Err(got)) => return assert_eq!(format!("{want:?}"), format!("{got:?}"), "{name}"),
        (Ok(size), Ok(got)) => {
            assert_eq!(first_other(&message[..size], &got), None, "{name}: the message");
            message
        }
        (host, device) => panic!("{name}: host {host:?}, device {:?}", device.map(|message| message.len())),
    };
    let to = numbers([Kind::Plain, Kind::Mixed, Kind::Both][turn % 3], x.len());
    let mut want = to.clone();
    match weight {
        Some(weight) => codec.decode_add(&message, weight, &mut want).unwrap(),
        None => codec.decode(&message, &mut want).unwrap(),
    }
    let got = device::decode(codec, &message, before, weight, &to).unwrap().unwrap();
    let bits = |run: &[f32]| run.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(first_other(&bits(&want), &bits(&got)), None, "{name}: decoded with {weight:?}");
}

/// The first place where two runs differ, with both values.
fn first_other<T: Copy + PartialEq>(want: &[T], got: &[T]) -> Option<(usize, T, T)> {
    assert_eq!(want.len(), got.len());
    let mut both = want.iter().zip(got).enumerate();
    both.find(|(_, (want, got))| want != got).map(|(place, (want, got))| (place, *want, *got))
}

/// Checks that the device finds a message damaged, as the host does.
#[track_caller]
fn damaged(codec: &dyn Codec, message: &[u8], len: usize, what: &str) {
    for weight in [None, Some(0.5)] {
        let mut to = vec![0.0; len];
        let host = match weight {
            Some(weight) => codec.decode_add(message, weight, &mut to),
            None => codec.decode(message, &mut to),
        };
        assert!(matches!(host, Err(CodecError::Damaged { .. })), "{what}: the host says {host:?}");
        let Some(device) = device::decode(codec, message, 1, weight, &to) else { return };
        assert!(
            matches!(device, Err(CodecError::Damaged { .. })),
            "{what}: the device decodes with {weight:?}"
        );
    }
}
