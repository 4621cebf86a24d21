//! Gossip at low precision: the guarantees of each feedback, by theory and experiment, and its bytes, state and
//! errors. The tests share this file.

mod consensus;
mod failures;
mod lossy;
mod state;

use crate::matrix;
use hexagram_logical::codec::Codec;
use hexagram_logical::decentralized::{Difference, GossipOptions};
use hexagram_logical::encoding::{Encoding, Feedback};
use lossy::draw;
use std::sync::Arc;

const RANKS: [usize; 4] = [2, 3, 4, 8];
const DCD: GossipOptions = GossipOptions { consensus: 1.0, difference: Difference::AfterMixing };

fn choco(consensus: f64) -> GossipOptions {
    GossipOptions { consensus, ..GossipOptions::default() }
}

fn encoding(codec: impl Codec + 'static, feedback: Feedback) -> Encoding {
    Encoding::new(Arc::new(codec)).with_feedback(feedback).with_seed(11)
}

/// Numbers as if drawn from a normal distribution.
fn numbers(rank: usize, len: usize) -> Vec<f32> {
    let uniform = |at: usize, which: usize| draw(rank as u64 * 1000 + 17, 12 * at + which);
    (0..len).map(|at| ((0..12).map(|which| uniform(at, which)).sum::<f64>() - 6.0) as f32).collect()
}

/// A named part of the state.
fn remembered(encoding: &Encoding, name: &str) -> Vec<f32> {
    let (_, buffer) = encoding.state().entries().find(|(entry, _)| *entry == name).unwrap();
    buffer.host::<f32>().unwrap().to_vec()
}
