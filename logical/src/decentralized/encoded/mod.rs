//! Gossip at low precision: messages are encoded, and feedback makes ranks agree nevertheless.
//!
//! C is the codec, x the numbers of a rank, W the mixing matrix, γ the consensus step. Sums run over the neighbours
//! and the rank itself. x̂ⱼ is the estimate of rank j that its neighbours have decoded so far, and Σⱼ wᵢⱼ x̂ⱼ is
//! stored as one sum, for any number of neighbours.
//!
//! ```text
//! none            qᵢ = C(xᵢ)                                               xᵢ ← xᵢ + γ (Σⱼ wᵢⱼ qⱼ − qᵢ)
//! error           qᵢ = C(xᵢ + eᵢ);    eᵢ ← xᵢ + eᵢ − qᵢ                    xᵢ ← xᵢ + γ (Σⱼ wᵢⱼ qⱼ − qᵢ)    DeepSqueeze
//! difference      qᵢ = C(xᵢ − x̂ᵢ);    x̂ⱼ ← x̂ⱼ + qⱼ                         xᵢ ← xᵢ + γ (Σⱼ wᵢⱼ x̂ⱼ − x̂ᵢ)   CHOCO
//!   after mixing  qᵢ = C(xᵢ + γ (Σⱼ wᵢⱼ x̂ⱼ − x̂ᵢ) − x̂ᵢ);  x̂ⱼ ← x̂ⱼ + qⱼ     xᵢ ← x̂ᵢ                         DCD
//! extrapolation   yᵢ = xᵢ + γ (Σⱼ wᵢⱼ x̂ⱼ − x′ᵢ);  qᵢ = C(x′ᵢ + t/2 (yᵢ − x′ᵢ));
//!                 x̂ⱼ ← (1 − 2/t) x̂ⱼ + 2/t qⱼ                               x′ᵢ ← xᵢ ← yᵢ                   ECD
//! ```
//!
//! (t counts operations from 1; x′ is x after the previous operation, so that x − x′ is the update since.)
//!
//! | | distance from the mean | requires | stores | state |
//! |---|---|---|---|---|
//! | none | the codec error, always | – | – | 0 |
//! | error | about γ times the codec error | a small γ | e, as `error` | S |
//! | CHOCO | 0 | a contraction, and a γ for it | x̂ᵢ, as `own`; Σⱼ wᵢⱼ x̂ⱼ, as `neighbours`; `graph` | 2 S + 8 |
//! | DCD | 0 | an unbiased or fine codec: coarse ones diverge | as CHOCO | 2 S + 8 |
//! | ECD | 0 | [absolute noise](crate::codec::Noise::Absolute) | x′, as `own`; Σⱼ wᵢⱼ x̂ⱼ, as `neighbours`; `graph` | 2 S + 8 |
//!
//! `graph` is the digest of the matrix of the sum.
//!
//! Sources: Koloskova, Stich and Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed
//! communication", 2019 (CHOCO); Tang, Gan, Zhang, Zhang and Liu, "Communication compression for decentralized
//! training", 2018 (DCD, ECD); Tang et al., "DeepSqueeze: decentralization meets error-compensated compression", 2019.

mod rules;

use super::gossip::{Stochastic, fingerprint};
use super::mixing::Mixing;
use super::neighbours::Neighbours;
use super::schedule::Schedule;
use crate::centralized::{free_to_read, free_to_write};
use crate::encoding::{Encoding, Feedback, FeedbackLink, LinkNames};
use crate::{Buffer, Communicator, DType, Error, Primitive, Result};
use rules::{Copies, GossipRound, sum};

/// Options of gossip at low precision, equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GossipOptions {
    /// Consensus step γ, above 0 and at most 1: the share of the way to the mean of the neighbours. A coarse codec
    /// needs a small one: CHOCO was tuned to .34 for 4-bit QSGD and .04 for top-k of 1 % on a ring of 9.
    pub consensus: f64,
    /// Numbers whose differences [`Feedback::Difference`] sends.
    pub difference: Difference,
}

impl Default for GossipOptions {
    /// Returns γ = 1 and CHOCO.
    fn default() -> Self {
        GossipOptions { consensus: 1.0, difference: Difference::default() }
    }
}

/// Numbers whose differences [`Feedback::Difference`] sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Difference {
    /// Numbers before mixing: CHOCO. Ranks mix the decoded estimates, and keep the codec error.
    #[default]
    BeforeMixing,
    /// Numbers after mixing: DCD. Each rank continues with its decoded estimate.
    AfterMixing,
}

impl Communicator {
    /// Averages with neighbours once by encoded messages. See
    /// [`decentralized::encoded`](crate::decentralized::encoded) for formulas and conditions.
    ///
    /// | feedback | | mean over ranks |
    /// |---|---|---|
    /// | [`Feedback::None`] | stalls at the codec error | preserved |
    /// | [`Feedback::Error`] | DeepSqueeze | preserved |
    /// | [`Feedback::Difference`] | CHOCO, or DCD with [`Difference::AfterMixing`] | preserved by CHOCO; by DCD on average, if C is unbiased |
    /// | [`Feedback::Extrapolation`] | ECD | as DCD |
    ///
    /// The state begins with zeros: in DCD and ECD the whole first `buffer` counts as an update to ranks that agree
    /// on zero. [`Communicator::gossip_synchronize`] starts it at the current values instead. The memory of
    /// neighbours belongs to one matrix: with difference and extrapolation the schedule must be static, and the state
    /// must be synchronized after a change of the graph.
    ///
    /// One step; one message for all destinations. Bytes sent per rank: that message, at most
    /// [`Codec::encoded_len`](crate::codec::Codec::encoded_len), to every destination. Memory: the state in the
    /// table; during the operation, a message for every source and for this rank, and S. Determinism: messages are
    /// decoded in the order of ranks, including the own one, so that x̂ᵢ has the same bits on its rank and in the
    /// sums of its neighbours. The sums round separately, and deviate by about 10⁻⁷ of the largest x after some
    /// hundred steps.
    ///
    /// # Errors
    /// [`Error::Usage`] unless the buffer holds f32, γ is in (0, 1], and the matrix is doubly stochastic and that of
    /// the state. [`Error::NotFinite`] if the codec refuses a value. [`Error::Mismatch`] if ranks differ in codec,
    /// feedback, seed, options, or matrix; as [`Communicator::gossip`]. The state is invalid after an error in the
    /// operation.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, TransportKind};
    /// # use hexagram_logical::codec::MinMax8;
    /// # use hexagram_logical::decentralized::{GossipOptions, Topology};
    /// # use hexagram_logical::encoding::{Encoding, Feedback};
    /// # use std::sync::Arc;
    /// # spawn(TransportKind::Thread, 4, |comm| {
    /// // CHOCO on a ring, with 8 bits a number.
    /// let mut encoding = Encoding::new(Arc::new(MinMax8::default())).with_feedback(Feedback::Difference);
    /// let mut x = Buffer::from_slice(&[comm.rank() as f32; 100])?;
    /// let options = GossipOptions { consensus: 0.5, ..GossipOptions::default() };
    /// for step in 0..50 {
    ///     comm.block_on(comm.gossip_encoded(&mut x, &Topology::Ring, step, &mut encoding, options))?;
    /// }
    /// assert!((x.host::<f32>()?[0] - 1.5).abs() < 0.01);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn gossip_encoded<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        schedule: &'a dyn Schedule,
        step: u64,
        encoding: &'a mut Encoding,
        options: GossipOptions,
    ) -> Primitive<'a> {
        Box::pin(async move {
            encodable(buffer)?;
            let mixing = self.mixing(schedule, step, Stochastic::Both)?;
            self.gossip_encoded_by(&mixing, buffer, encoding, options).await
        })
    }

    /// Runs [`Communicator::gossip_encoded`] with a checked matrix.
    pub(super) async fn gossip_encoded_by(
        &self,
        mixing: &Mixing,
        buffer: &mut Buffer,
        encoding: &mut Encoding,
        options: GossipOptions,
    ) -> Result<()> {
        encodable(buffer)?;
        free_to_write(buffer)?;
        options.check()?;
        let rule = RoundRule::of(encoding, mixing, options, buffer)?;
        let codec = encoding.digest_with(&format!(", {options:?}"));
        self.operate(fingerprint(mixing, buffer, Some(codec)), async |call| {
            let consensus = options.consensus;
            let round = GossipRound { comm: self, call, mixing, x: buffer, encoding, consensus };
            match &rule {
                RoundRule::None => round.without_feedback().await,
                RoundRule::Error(link) => round.with_error(link).await,
                RoundRule::Before(copies) => round.difference_before(copies).await,
                RoundRule::After(copies) => round.difference_after(copies).await,
                RoundRule::Extrapolation(copies) => round.extrapolate(copies).await,
            }
        })
        .await?;
        if let RoundRule::Before(copies) | RoundRule::After(copies) | RoundRule::Extrapolation(copies) = &rule
        {
            copies.belong_to(mixing)?;
        }
        encoding.state_mut().advance();
        Ok(())
    }

    /// Starts the state of [`Communicator::gossip_encoded`] at the current values: `x̂ᵢ ← xᵢ` and `Σⱼ wᵢⱼ x̂ⱼ`
    /// exactly, for any previous state. Call it at the beginning, if ranks do not begin with zeros, and after a
    /// change of the graph. `buffer` holds the result of the last operation, without later updates.
    ///
    /// Costs one [`Communicator::gossip`] at full precision, with its bytes, memory and determinism.
    ///
    /// # Errors
    /// [`Error::Usage`] if the feedback is neither difference nor extrapolation; as [`Communicator::gossip_encoded`].
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, TransportKind};
    /// # use hexagram_logical::codec::MinMax8;
    /// # use hexagram_logical::decentralized::{GossipOptions, Topology};
    /// # use hexagram_logical::encoding::{Encoding, Feedback};
    /// # use std::sync::Arc;
    /// # spawn(TransportKind::Thread, 4, |comm| {
    /// // Without it the first message would hold numbers near 1000; with it, small differences.
    /// let mut encoding = Encoding::new(Arc::new(MinMax8::default())).with_feedback(Feedback::Difference);
    /// let mut x = Buffer::from_slice(&[1000.0 + comm.rank() as f32; 100])?;
    /// let ring = Topology::Ring;
    /// comm.block_on(comm.gossip_synchronize(&x, &ring, 0, &mut encoding))?;
    /// comm.block_on(comm.gossip_encoded(&mut x, &ring, 0, &mut encoding, GossipOptions::default()))?;
    /// assert!((x.host::<f32>()?[0] - 1001.5).abs() < 1.0);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn gossip_synchronize<'a>(
        &'a self,
        buffer: &'a Buffer,
        schedule: &'a dyn Schedule,
        step: u64,
        encoding: &'a mut Encoding,
    ) -> Primitive<'a> {
        Box::pin(async move {
            encodable(buffer)?;
            let mixing = self.mixing(schedule, step, Stochastic::Both)?;
            self.gossip_synchronize_by(&mixing, buffer, encoding).await
        })
    }

    /// Runs [`Communicator::gossip_synchronize`] with a checked matrix.
    pub(super) async fn gossip_synchronize_by(
        &self,
        mixing: &Mixing,
        buffer: &Buffer,
        encoding: &mut Encoding,
    ) -> Result<()> {
        encodable(buffer)?;
        free_to_read(buffer)?;
        encoding.expect_feedback("gossip_synchronize", &[Feedback::Difference, Feedback::Extrapolation])?;
        let copies = Copies::of(encoding, buffer)?;
        let codec = encoding.digest_with(", synchronized");
        self.operate(fingerprint(mixing, buffer, Some(codec)), async |call| {
            sum(&[(1.0, Some(buffer))], &copies.own)?;
            sum(&[(1.0, Some(buffer))], &copies.neighbours)?;
            Neighbours::of(self, call, mixing).mix(&copies.neighbours).await
        })
        .await?;
        copies.belong_to(mixing)
    }
}

/// Fails unless `buffer` holds f32.
fn encodable(buffer: &Buffer) -> Result<()> {
    if buffer.dtype() == DType::F32 {
        return Ok(());
    }
    let what = format!("codecs encode f32, not {}", buffer.dtype());
    Err(Error::usage(what, "convert to f32 first, or use gossip at full precision"))
}

impl GossipOptions {
    fn check(&self) -> Result<()> {
        if self.consensus > 0.0 && self.consensus <= 1.0 {
            return Ok(());
        }
        let what = format!("{} is not a valid consensus step", self.consensus);
        Err(Error::usage(what, "use a number above 0 and at most 1"))
    }
}

/// Name of the memory of a rank for the errors of its messages; differences have copies.
const NAMES: LinkNames = LinkNames { error: "error", difference: "own" };

/// Rule of a round, with its memory.
enum RoundRule {
    None,
    Error(FeedbackLink),
    Before(Copies),
    After(Copies),
    Extrapolation(Copies),
}

impl RoundRule {
    fn of(encoding: &mut Encoding, mixing: &Mixing, options: GossipOptions, x: &Buffer) -> Result<Self> {
        let known = [Feedback::None, Feedback::Error, Feedback::Difference, Feedback::Extrapolation];
        encoding.expect_feedback("gossip", &known)?;
        let feedback = encoding.feedback();
        match feedback {
            Feedback::Difference | Feedback::Extrapolation => {
                let copies = Copies::of(encoding, x)?;
                copies.check(mixing)?;
                Ok(match (feedback, options.difference) {
                    (Feedback::Extrapolation, _) => RoundRule::Extrapolation(copies),
                    (_, Difference::BeforeMixing) => RoundRule::Before(copies),
                    (_, Difference::AfterMixing) => RoundRule::After(copies),
                })
            }
            Feedback::None => Ok(RoundRule::None),
            _ => Ok(RoundRule::Error(FeedbackLink::of(encoding, NAMES, x, x.len())?)),
        }
    }
}
