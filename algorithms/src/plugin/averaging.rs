//! Means over all ranks, in full precision or with a codec, and the feedback of the codec error.
//!
//! | codec | primitive | feedback |
//! |---|---|---|
//! | none | all-reduce | – |
//! | a dense one: 16, 8, 4 bits, signs | scatter-gather of encoded chunks | none, error, two-level, difference |
//! | a sparse one: top-k, random-k | all-gather, tensor by tensor | none, error, difference |
//! | one whose messages add up | all-reduce of them | none, error |
//! | factors of low rank | all-reduce of them | none, error |
//!
//! With error feedback, the error may decay.
//!
//! Combinations that are known to fail are refused:
//!
//! - Without feedback, biased codecs that may lose half of their input: top-k moves away from the minimum by 1 + 11γ/6 a step
//!   on example 1 of Beznosikov et al. (2020), and signs stay on a line through the start (Karimireddy et al., 2019, their
//!   counter-example 2).
//! - Error feedback with unbounded unbiased codecs: their error can exceed the input, and accumulates.

use super::{Bucket, Context, Fields, check_f32};
use hexagram_logical::codec::{self, Codec, LinearCodec, Properties, any_codec};
use hexagram_logical::encoding::{AnyFeedback, Encoding, Feedback};
use hexagram_logical::options_text::{Catalogues, Options, OptionsText, Values};
use hexagram_logical::{Buffer, Error, Result};
use std::sync::Arc;

/// Method of computing the mean of a buffer over all ranks.
///
/// ```
/// use hexagram::logical::codec::{Keep, TopK};
/// use hexagram::logical::encoding::Feedback;
/// use hexagram::algorithms::{Averaging, MeanCodec};
/// use std::sync::Arc;
///
/// let largest = MeanCodec::Encoded(Arc::new(TopK::new(Keep::Ratio(0.01))?));
/// Averaging { codec: largest.clone(), feedback: Feedback::Error }.check()?;
/// // Top-k alone may not converge.
/// Averaging { codec: largest, feedback: Feedback::None }.check().unwrap_err();
/// # Ok::<(), hexagram::logical::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Averaging {
    /// Encoding of the numbers. Default: exact.
    pub codec: MeanCodec,
    /// Treatment of the codec error. Default: none.
    pub feedback: Feedback,
}

/// Encoding of the numbers of a mean.
#[derive(Debug, Clone, Default)]
pub enum MeanCodec {
    /// Full precision.
    #[default]
    Exact,
    /// Messages of a codec; for a sparse one, one message per tensor.
    Encoded(Arc<dyn Codec>),
    /// Messages that are reduced in encoded form.
    Reduced(Arc<dyn LinearCodec>),
    /// Factors of every matrix, as in [`codec::PowerSgd`]; all other tensors in full precision.
    LowRank {
        /// Rank of the factors, at least 1.
        rank: usize,
        /// A matrix is compressed only if it is this many times larger than its factors; at least 1.
        saving: f64,
    },
}

impl Averaging {
    /// Creates the mean with a codec and a feedback.
    pub fn encoded(codec: impl Codec + 'static, feedback: Feedback) -> Self {
        Averaging { codec: MeanCodec::Encoded(Arc::new(codec)), feedback }
    }

    /// Declares `codec` and `feedback` among the options of an algorithm.
    ///
    /// # Errors
    /// As [`Options`], for values out of range.
    pub fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("codec", &mut self.codec, AnyMeanCodec, "encoding of the numbers")?;
        options.field("feedback", &mut self.feedback, AnyFeedback, "treatment of the codec error")
    }

    /// Returns true if numbers are sent in full precision.
    pub fn is_exact(&self) -> bool {
        matches!(self.codec, MeanCodec::Exact)
    }

    /// Fails unless codec and feedback are compatible.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason.
    pub fn check(&self) -> Result<()> {
        match &self.codec {
            MeanCodec::Exact => self.expect(&[Feedback::None], "numbers as they are", "they lose nothing"),
            MeanCodec::Encoded(codec) => self.check_codec(&**codec),
            MeanCodec::Reduced(codec) => self.check_linear(&codec.name()),
            MeanCodec::LowRank { .. } => self.check_linear("a product of low rank"),
        }
    }

    fn check_linear(&self, codec: &str) -> Result<()> {
        self.expect(&[Feedback::None, Feedback::Error], codec, "no value is encoded twice, or estimated")
    }

    fn check_codec(&self, codec: &dyn Codec) -> Result<()> {
        let name = codec.name();
        let Properties { unbiased, contraction, linear, .. } = codec.properties();
        let close = contraction.is_some_and(|delta| delta >= 0.5);
        if unbiased && contraction.is_none() {
            let why = "its error may be larger than its input, and the errors would add up";
            return self.expect(&[Feedback::None], &name, why);
        }
        if !unbiased && !linear && !close && self.feedback == Feedback::None {
            let what = format!(
                "without feedback, the errors of {name} are never corrected, and training may not converge"
            );
            return Err(Error::usage(what, "choose error or difference feedback"));
        }
        if codec.is_sparse() {
            let known = [Feedback::None, Feedback::Error, Feedback::Difference];
            return self.expect(&known, &name, "it is encoded once, and is not an estimate");
        }
        let known = [Feedback::None, Feedback::Error, Feedback::TwoLevel, Feedback::Difference];
        self.expect(&known, &name, "extrapolation is for neighbours")
    }

    fn expect(&self, known: &[Feedback], codec: &str, why: &str) -> Result<()> {
        self.feedback.check()?;
        if self.feedback.is_among(known) {
            return Ok(());
        }
        let known: Vec<String> = known.iter().map(Feedback::to_string).collect();
        let what = format!("{} is not for {codec}: {why}", self.feedback);
        Err(Error::usage(what, format!("choose {}", known.join(", or "))))
    }

    /// Creates the state for the means of a bucket.
    ///
    /// # Errors
    /// As [`Averaging::check`]; [`Error::Usage`] for an encoded bucket that is not f32.
    pub fn state(&self, context: &Context, bucket: &Bucket) -> Result<Averager> {
        self.check()?;
        if !self.is_exact() {
            check_f32(bucket)?;
        }
        let linear = |codec| Averager::Linear(context.linear_encoding(codec, self.feedback));
        Ok(match &self.codec {
            MeanCodec::Exact => Averager::Exact,
            MeanCodec::Encoded(codec) if codec.is_sparse() => {
                let codec = Arc::new(bucket.per_tensor(codec, |_| true));
                Averager::Sparse(context.encoding(codec, self.feedback))
            }
            MeanCodec::Encoded(codec) => Averager::Dense(context.encoding(Arc::clone(codec), self.feedback)),
            MeanCodec::Reduced(codec) => linear(Arc::clone(codec)),
            MeanCodec::LowRank { rank, saving } => {
                let codec = codec::PowerSgd::new(&bucket.matrices(), *rank)?.with_saving(*saving)?;
                linear(Arc::new(codec))
            }
        })
    }
}

/// Values of a [`MeanCodec`]: `exact`, `low-rank(rank=2, saving=2)`, or a codec.
#[derive(Debug, Clone, Copy)]
struct AnyMeanCodec;

impl AnyMeanCodec {
    const LOW_RANK: &str = "low-rank";
    const EXACT: &str = "exact";

    fn factors(rank: &mut usize, saving: &mut f64, options: &mut Options) -> Result<()> {
        options.field("rank", rank, 1.., "rank of the factors")?;
        options.field("saving", saving, 1.0.., "least ratio of a matrix to its factors")
    }
}

impl Values<MeanCodec> for AnyMeanCodec {
    fn read(
        &self,
        spelling: &OptionsText,
        now: Option<&MeanCodec>,
        known: &Catalogues,
    ) -> Result<Option<MeanCodec>> {
        if spelling.name() == Self::EXACT {
            return Ok(spelling.arguments().is_empty().then_some(MeanCodec::Exact));
        }
        if spelling.name() == Self::LOW_RANK {
            let mut rank = 2;
            let mut saving = 2.0;
            Options::read(spelling, known, |options| Self::factors(&mut rank, &mut saving, options))?;
            return Ok(Some(MeanCodec::LowRank { rank, saving }));
        }
        let now = match now {
            Some(MeanCodec::Encoded(codec)) => Some(codec),
            _ => None,
        };
        Ok(any_codec().read(spelling, now, known)?.map(MeanCodec::Encoded))
    }

    fn write(&self, value: &MeanCodec) -> OptionsText {
        match value {
            MeanCodec::Exact => OptionsText::of(Self::EXACT),
            MeanCodec::Encoded(codec) => any_codec().write(codec),
            MeanCodec::Reduced(codec) => OptionsText::of(codec.name()),
            MeanCodec::LowRank { rank, saving } => {
                let mut rank = *rank;
                let mut saving = *saving;
                Options::write(Self::LOW_RANK, |options| Self::factors(&mut rank, &mut saving, options))
            }
        }
    }

    fn accepts(&self, value: &MeanCodec) -> Result<bool> {
        match value {
            MeanCodec::Encoded(codec) => any_codec().accepts(codec),
            MeanCodec::LowRank { rank, saving } => {
                let mut rank = *rank;
                let mut saving = *saving;
                let check = |options: &mut Options| Self::factors(&mut rank, &mut saving, options);
                Options::check(Self::LOW_RANK, check).map(|()| true)
            }
            MeanCodec::Exact | MeanCodec::Reduced(_) => Ok(true),
        }
    }

    fn describe(&self, known: &Catalogues) -> String {
        format!("{}, {}(rank=2, saving=2), or {}", Self::EXACT, Self::LOW_RANK, any_codec().describe(known))
    }
}

/// Means of one bucket, and their state from one to the next.
#[derive(Debug)]
pub enum Averager {
    /// All-reduce in full precision.
    Exact,
    /// Scatter-gather of encoded chunks.
    Dense(Encoding),
    /// All-gather of messages.
    Sparse(Encoding),
    /// All-reduce of messages in encoded form.
    Linear(Encoding<dyn LinearCodec>),
}

impl Averager {
    /// Averages over all ranks: `buffer ← mean over ranks`, hierarchically if the engine options request it.
    ///
    /// # Errors
    /// As [`Context::mean`], [`Context::mean_encoded`], [`Context::mean_sparse`] and [`Context::mean_linear`].
    pub async fn mean(&mut self, context: &Context, buffer: &mut Buffer) -> Result<()> {
        match self {
            Averager::Exact => context.mean(buffer).await,
            Averager::Dense(encoding) => context.mean_encoded(buffer, encoding).await,
            Averager::Sparse(encoding) => context.mean_sparse(buffer, encoding).await,
            Averager::Linear(encoding) => context.mean_linear(buffer, encoding).await,
        }
    }

    /// Averages gradients; the error is stored in units of the step, multiplied by γ, so that it stays valid when γ
    /// changes.
    ///
    /// # Errors
    /// As [`Averager::mean`] and [`Context::as_step`].
    pub async fn mean_of_gradients(&mut self, context: &Context, gradients: &mut Buffer) -> Result<()> {
        match self.feedback().error_kept() {
            Some(_) => {
                context.as_step(gradients, async |step: &mut Buffer| self.mean(context, step).await).await
            }
            None => self.mean(context, gradients).await,
        }
    }

    fn feedback(&self) -> Feedback {
        match self {
            Averager::Exact => Feedback::None,
            Averager::Dense(encoding) | Averager::Sparse(encoding) => encoding.feedback(),
            Averager::Linear(encoding) => encoding.feedback(),
        }
    }

    /// Declares the state, as part `name` of the state of an algorithm: ranks that join or leave do not change its mean.
    ///
    /// # Errors
    /// As [`Fields::buffer`].
    pub fn checkpoint(&mut self, name: &str, fields: &mut Fields) -> Result<()> {
        fields.averaged(|fields| match self {
            Averager::Exact => Ok(()),
            Averager::Dense(encoding) | Averager::Sparse(encoding) => fields.encoding(name, encoding),
            Averager::Linear(encoding) => fields.encoding(name, encoding),
        })
    }
}
