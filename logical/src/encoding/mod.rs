//! Encodings: a codec, its feedback, and the memory of both for one bucket.
//!
//! Low-precision primitives take `&mut Encoding`. Create one for every bucket, on every rank, with equal codec,
//! feedback and seed. Keep it from step to step, and save it with a checkpoint: its [`State`] holds the whole memory
//! of an encoding.
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

pub use feedback::{AnyFeedback, Feedback};
pub(crate) use link::{Coding, FeedbackLink, LinkNames};
pub(crate) use message::MessageSender;
pub use state::State;

use crate::codec::LinearCodec;
use hexagram_physical::codec::Codec;
pub use hexagram_physical::device::kernels::draw::mix;
use hexagram_physical::fingerprint::CodecDigest;
pub use hexagram_physical::native::chunk;
use hexagram_physical::{Error, Result};
use std::sync::Arc;

/// Codec with a feedback and the memory of both, for one bucket on one rank.
#[derive(Debug)]
pub struct Encoding<C: ?Sized = dyn Codec> {
    codec: Arc<C>,
    /// Name of the codec.
    name: String,
    feedback: Feedback,
    seed: u64,
    state: State,
}

impl Encoding {
    /// Creates an encoding without feedback, with seed 0.
    pub fn new(codec: Arc<dyn Codec>) -> Self {
        let name = codec.name();
        Encoding { codec, name, feedback: Feedback::None, seed: 0, state: State::default() }
    }
}

impl Encoding<dyn LinearCodec> {
    /// Creates an encoding whose messages are reduced without decoding, without feedback, with seed 0.
    pub fn linear(codec: Arc<dyn LinearCodec>) -> Self {
        let name = codec.name();
        Encoding { codec, name, feedback: Feedback::None, seed: 0, state: State::default() }
    }
}

impl<C: ?Sized> Encoding<C> {
    /// Sets the treatment of the codec error.
    #[must_use]
    pub fn with_feedback(self, feedback: Feedback) -> Self {
        Encoding { feedback, ..self }
    }

    /// Sets the seed of the draws of a stochastic codec.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Encoding { seed, ..self }
    }

    /// Returns the codec.
    pub fn codec(&self) -> &Arc<C> {
        &self.codec
    }

    /// Returns the treatment of the codec error.
    pub fn feedback(&self) -> Feedback {
        self.feedback
    }

    /// Returns the seed of the draws of a stochastic codec.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the memory of codec and feedback.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the memory of codec and feedback, for restoring it.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// Returns the digest that ranks compare: the codec with its parameters, the feedback, and the seed.
    pub fn digest(&self) -> CodecDigest {
        self.digest_with("")
    }

    /// Returns the digest including the options on which all ranks of an operation must agree.
    pub(crate) fn digest_with(&self, options: &str) -> CodecDigest {
        let name = format!("{} with {}, seed {}{options}", self.name, self.feedback, self.seed);
        CodecDigest::of(&name)
    }

    /// Returns the seed of one message: `what` identifies it within the operation (rank, chunk, segment, …).
    pub fn draw(&self, what: &[u64]) -> u64 {
        let all = [self.seed, self.state.operations()];
        all.iter().chain(what).fold(0, |hash, word| mix(hash ^ word))
    }

    /// Fails unless the feedback is among those that an operation supports.
    /// # Errors
    /// [`Error::Usage`] otherwise.
    pub fn expect_feedback(&self, operation: &str, known: &[Feedback]) -> Result<()> {
        self.feedback.check()?;
        if self.feedback.is_among(known) {
            return Ok(());
        }
        let what = format!("{operation} knows no {}", self.feedback);
        let known: Vec<String> = known.iter().map(Feedback::to_string).collect();
        Err(Error::usage(what, format!("use {}", known.join(", or "))))
    }
}
