//! Encodings: a codec, what becomes of its error, and what both remember of one bucket.
//!
//! Low-precision primitives take `&mut Encoding`. Make one for every bucket, on every rank, with equal codec, feedback and
//! seed; keep it from step to step, and save it with a checkpoint: its [`State`] holds everything that an encoding
//! remembers.
//!
//! ```
//! use hexagram_logical::codec::Half;
//! use hexagram_logical::encoding::{Encoding, Feedback};
//! use std::sync::Arc;
//!
//! let encoding = Encoding::new(Arc::new(Half::F16)).with_feedback(Feedback::Error).with_seed(7);
//! assert!(encoding.state().entries().next().is_none(), "nothing is remembered before the first step");
//! ```

mod feedback;
mod link;
mod message;
mod state;

pub use feedback::Feedback;
pub(crate) use link::{Coding, FeedbackLink, LinkNames};
pub(crate) use message::MessageSender;
pub use state::State;

use crate::codec::LinearCodec;
use hexagram_physical::codec::Codec;
pub use hexagram_physical::device::kernels::draw::mix;
use hexagram_physical::fingerprint::CodecDigest;
use hexagram_physical::{Error, Result};
use std::sync::Arc;

/// A codec, a feedback and their memory, for one bucket on one rank.
#[derive(Debug)]
pub struct Encoding<C: ?Sized = dyn Codec> {
    codec: Arc<C>,
    /// The codec's.
    name: String,
    feedback: Feedback,
    seed: u64,
    state: State,
}

impl Encoding {
    /// An encoding without feedback, with seed 0.
    pub fn new(codec: Arc<dyn Codec>) -> Self {
        let name = codec.name();
        Encoding { codec, name, feedback: Feedback::None, seed: 0, state: State::default() }
    }
}

impl Encoding<dyn LinearCodec> {
    /// An encoding that is reduced while it is encoded; without feedback, with seed 0.
    pub fn linear(codec: Arc<dyn LinearCodec>) -> Self {
        let name = codec.name();
        Encoding { codec, name, feedback: Feedback::None, seed: 0, state: State::default() }
    }
}

impl<C: ?Sized> Encoding<C> {
    /// What becomes of the codec's error.
    #[must_use]
    pub fn with_feedback(self, feedback: Feedback) -> Self {
        Encoding { feedback, ..self }
    }

    /// Where the draws of a stochastic codec come from.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Encoding { seed, ..self }
    }

    /// The codec.
    pub fn codec(&self) -> &Arc<C> {
        &self.codec
    }

    /// What becomes of the codec's error.
    pub fn feedback(&self) -> Feedback {
        self.feedback
    }

    /// Where the draws of a stochastic codec come from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What is remembered.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What is remembered, to be restored.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// What ranks compare: the codec with its parameters, the feedback, and the seed.
    pub fn digest(&self) -> CodecDigest {
        self.digest_with("")
    }

    /// The same, with what else an operation needs all ranks to agree on.
    pub(crate) fn digest_with(&self, options: &str) -> CodecDigest {
        let name = format!("{} with {}, seed {}{options}", self.name, self.feedback, self.seed);
        CodecDigest::of(&name)
    }

    /// A seed for one message: `what` names it within the operation (rank, chunk, segment, …).
    pub fn draw(&self, what: &[u64]) -> u64 {
        let all = [self.seed, self.state.operations()];
        all.iter().chain(what).fold(0, |hash, word| mix(hash ^ word))
    }

    /// Fails unless `feedback` is among those that an operation knows what to do with.
    /// # Errors
    /// [`Error::Usage`] otherwise.
    pub fn expect_feedback(&self, operation: &str, known: &[Feedback]) -> Result<()> {
        if known.contains(&self.feedback) {
            return Ok(());
        }
        let what = format!("{operation} knows no {}", self.feedback);
        let known: Vec<String> = known.iter().map(Feedback::to_string).collect();
        Err(Error::usage(what, format!("use {}", known.join(", or "))))
    }
}
