//! Gossip at low precision: what is sent is encoded, and a feedback sees to it that ranks agree nevertheless.
//!
//! C is the codec, x what a rank has, W the mixing matrix, γ the consensus step. Sums run over neighbours and oneself;
//! x̂ⱼ is what everyone has decoded of rank j so far, and Σⱼ wᵢⱼ x̂ⱼ is kept as one sum, however many neighbours there
//! are.
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
//! (t counts operations from 1; x′ is x as the last operation left it, so that x − x′ is the update since.)
//!
//! | | stays away from the mean | asks for | remembers | state |
//! |---|---|---|---|---|
//! | none | by the codec's error, always | – | nothing | 0 |
//! | error | by about γ times the codec's error | a small γ | e, as `error` | S |
//! | CHOCO | not | a contraction, γ to suit it | x̂ᵢ, as `own`; Σⱼ wᵢⱼ x̂ⱼ, as `neighbours`; `graph` | 2 S + 8 |
//! | DCD | not | unbiased or fine: coarse codecs diverge | as CHOCO | 2 S + 8 |
//! | ECD | not | [absolute noise](crate::codec::Noise::Absolute) | x′, as `own`; Σⱼ wᵢⱼ x̂ⱼ, as `neighbours`; `graph` | 2 S + 8 |
//!
//! `graph` is the digest of the matrix that the sum belongs to.
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
    /// Consensus step γ, above 0 and at most 1: the part of the way to the neighbours' mean. A coarse codec needs a
    /// small one: CHOCO was tuned to .34 for 4-bit QSGD and .04 for top-k of 1 % on a ring of 9.
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
    /// Numbers before mixing: CHOCO. Ranks mix what all have decoded, and keep what the codec lost.
    #[default]
    BeforeMixing,
    /// Numbers after mixing: DCD. Each rank goes on with what all have decoded.
    AfterMixing,
}

impl Communicator {
    /// Averages with neighbours once by encoded messages; formulas and conditions are those of the tables in
    /// [`decentralized::encoded`](crate::decentralized::encoded).
    ///
    /// | feedback | | mean over ranks |
    /// |---|---|---|
    /// | [`Feedback::None`] | stalls at the codec's error | kept |
    /// | [`Feedback::Error`] | DeepSqueeze | kept |
    /// | [`Feedback::Difference`] | CHOCO, or DCD with [`Difference::AfterMixing`] | kept by CHOCO; by DCD if C is unbiased, on average |
    /// | [`Feedback::Extrapolation`] | ECD | as DCD |
    ///
    /// The state that this needs begins with zeros: in DCD and ECD the whole first `buffer` counts as an update to
    /// ranks that agreed on zero. [`Communicator::gossip_synchronize`] makes it begin where the ranks are. What is
    /// remembered of neighbours belongs to one matrix: with difference and extrapolation the schedule must be static,
    /// and after a change of the graph state is synchronized.
    ///
    /// One step; one message for all destinations. Bytes sent per rank: that message, at most
    /// [`Codec::encoded_len`](crate::codec::Codec::encoded_len), to every destination. Memory: state, as the table
    /// says; for the time of the operation a message for every source and one's own, and S. Determinism: messages are
    /// decoded in the order of ranks, one's own with the others, so that x̂ᵢ has the same bits for its rank as for its
    /// neighbours' sums; those round by themselves, and after some hundred steps are off by some 10⁻⁷ of the largest x.
    ///
    /// # Errors
    /// [`Error::Usage`] unless the buffer is of f32, γ in (0, 1], and the matrix doubly stochastic and that of the
    /// state; [`Error::NotFinite`] if the codec refuses what it is given; [`Error::Mismatch`] if ranks differ in codec,
    /// feedback, seed, options, or matrix; as [`Communicator::gossip`]. State is not valid after an error in the
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

    /// Runs [`Communicator::gossip_encoded`] with a matrix that was checked.
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
        let rule = Rule::of(encoding, mixing, options, buffer)?;
        let codec = encoding.digest_with(&format!(", {options:?}"));
        self.operate(fingerprint(mixing, buffer, Some(codec)), async |call| {
            let consensus = options.consensus;
            let round = GossipRound { comm: self, call, mixing, x: buffer, encoding, consensus };
            match &rule {
                Rule::None => round.without_feedback().await,
                Rule::Error(link) => round.with_error(link).await,
                Rule::Before(copies) => round.difference_before(copies).await,
                Rule::After(copies) => round.difference_after(copies).await,
                Rule::Extrapolation(copies) => round.extrapolate(copies).await,
            }
        })
        .await?;
        if let Rule::Before(copies) | Rule::After(copies) | Rule::Extrapolation(copies) = &rule {
            copies.belong_to(mixing)?;
        }
        encoding.state_mut().advance();
        Ok(())
    }

    /// Lets the state of [`Communicator::gossip_encoded`] begin where the ranks are: `x̂ᵢ ← xᵢ` and `Σⱼ wᵢⱼ x̂ⱼ`
    /// exactly, whatever `encoding` remembers. For the beginning, if ranks do not begin with zeros, and for a change of
    /// the graph; `buffer` is what the last operation left there, without updates since.
    ///
    /// One [`Communicator::gossip`] at full precision, with its bytes, memory and determinism.
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

    /// Runs [`Communicator::gossip_synchronize`] with a matrix that was checked.
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

/// Fails unless `buffer` is of f32.
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
        let what = format!("{} is not a consensus step", self.consensus);
        Err(Error::usage(what, "use one above 0 and at most 1"))
    }
}

/// Name of a rank's memory of what its messages lost; differences have copies.
const NAMES: LinkNames = LinkNames { error: "error", difference: "own" };

/// Rule of a round, with its memory.
enum Rule {
    None,
    Error(FeedbackLink),
    Before(Copies),
    After(Copies),
    Extrapolation(Copies),
}

impl Rule {
    fn of(encoding: &mut Encoding, mixing: &Mixing, options: GossipOptions, x: &Buffer) -> Result<Self> {
        let known = [Feedback::None, Feedback::Error, Feedback::Difference, Feedback::Extrapolation];
        encoding.expect_feedback("gossip", &known)?;
        let feedback = encoding.feedback();
        match feedback {
            Feedback::Difference | Feedback::Extrapolation => {
                let copies = Copies::of(encoding, x)?;
                copies.check(mixing)?;
                Ok(match (feedback, options.difference) {
                    (Feedback::Extrapolation, _) => Rule::Extrapolation(copies),
                    (_, Difference::BeforeMixing) => Rule::Before(copies),
                    (_, Difference::AfterMixing) => Rule::After(copies),
                })
            }
            Feedback::None => Ok(Rule::None),
            _ => Ok(Rule::Error(FeedbackLink::of(encoding, NAMES, x, x.len())?)),
        }
    }
}
