//! Streaming DiLoCo: DiLoCo one fragment of the parameters after another; each is averaged while the ranks continue.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     every step, with this rank's own gradient
//! for each fragment p of P, every H steps, p · H/P steps before the first:
//!     Δᵢ ← θ − xᵢ                            of the elements of the fragment
//!     Δ ← (1/n) Σᵢ Δᵢ                        all-reduce in the background, during the next τ steps
//!     after those: v ← μ v + Δ;  θ ← θ − η (Δ + μ v);  xᵢ ← α xᵢ + (1 − α) θ
//! ```
//!
//! P = 1, τ = 0, α = 0 is DiLoCo. A rank waits only if an all-reduce takes longer than τ steps, or another rank is τ
//! steps behind. A settle keeps a change that has arrived for the step in which it is due, so it does not affect later
//! steps. Fragments are runs of equal length in the order of the bucket; in the source a fragment is every P-th layer,
//! with the same effect on peak traffic.
//!
//! State: θ, v and Δ, 3 S, S being the size of the parameters. Bytes sent per rank and step: 2(n−1)/n · S / H, or (n−1)
//! · S / H if n · S ≤ P · 64 KiB, and (n−1) P / H to agree on it (without hierarchy), spread over P messages of S/P.
//! With Δᵢ in 8 bits it is S/4 · (1 + 1/64) instead of S. With Δᵢ in 4 bits, as in the source, every rank sends all
//! others its message, and all add them up in f32: (n−1) · S/8 · (1 + 1/64) / H, fewer bytes than with 8 bits for n
//! < 4. Both are exact for fragments of whole blocks of 512 a rank, and f32 only; otherwise f32 and f64.
//!
//! In hierarchical communication only leaders encode (the sums of their hosts), and only they send to all others.
//!
//! Without feedback, as in the source, 4 bits ([`E3M0`]) change a round by at most a third of its Δᵢ, and typically by
//! a fifth. The source does not specify the encoding of the sum on the way back; encoding it again would double the
//! error.
//!
//! Defaults: η = 0.4, μ = 0.9 and α = 0.5 as in the source; H = 16 as in [`diloco`](crate::diloco); P = 4, τ = 2, and Δ
//! in full precision. Source: Douillard et al., "Streaming DiLoCo with overlapping communication: towards a distributed
//! free lunch", 2025 (2501.18512), with Δ in 4 bits.

use crate::diloco::{Global, Outer};
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Ranks, Trigram, check_f32};
use hexagram_logical::asynchronous::{Background, Pending};
use hexagram_logical::codec::{Codec, E3M0, MinMax8};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::{Options, one_of, part};
use hexagram_logical::{Buffer, Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// DiLoCo in fragments, overlapped with the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamingDiLoCo {
    /// Number H of local steps of a round. Default: 16.
    pub period: u64,
    /// Number P of fragments. Default: 4.
    pub fragments: u64,
    /// Number τ of steps from the start of an all-reduce to the use of its result, below H. Default: 2.
    pub delay: u64,
    /// Share α of its own parameters that a rank keeps, in [0, 1]. Default: 0.5.
    pub own: f64,
    /// Outer optimizer, which steps with the mean change. Default: η = 0.4, μ = 0.9.
    pub outer: Outer,
    /// Precision of the changes sent. Default: [`Precision::Full`].
    pub precision: Precision,
}

/// Precision of the changes sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// The precision of the parameters.
    #[default]
    Full,
    /// 8 bits between the smallest and the largest of 512 values.
    Bits8,
    /// 4 bits: a floating-point number without mantissa, relative to the largest of 512 values: [`E3M0`], encoded once.
    Bits4,
}

impl Default for StreamingDiLoCo {
    fn default() -> Self {
        let outer = Outer { learning_rate: 0.4, momentum: 0.9 };
        StreamingDiLoCo { period: 16, fragments: 4, delay: 2, own: 0.5, outer, precision: Precision::Full }
    }
}

/// State of one bucket: its fragments.
pub struct Stream {
    background: Background,
    fragments: Vec<Fragment>,
}

struct Fragment {
    /// Range of the fragment in the bucket.
    elements: Range<usize>,
    global: Global,
    /// Number of steps after which the change in progress is due; 0 without one.
    due: u64,
    /// Change; `None` while it is in progress.
    change: Option<FragmentChange>,
    under_way: Option<Pending<Option<FragmentChange>>>,
}

/// Change Δᵢ of a fragment, and then the mean Δ.
struct FragmentChange {
    values: Buffer,
    encoding: Option<Encoding>,
}

impl Algorithm for StreamingDiLoCo {
    type State = Stream;

    fn about(&self) -> About {
        About::new(
            "streaming-diloco",
            Trigram {
                centralized: true,
                synchronous: true,
                full_precision: self.precision == Precision::Full,
            },
        )
        .source("Douillard et al., Streaming DiLoCo with overlapping communication, 2025")
        // Replicas are not equal at any step unless α is 0.
        .keeps_replicas_identical(false)
        // θ.
        .remembers_parameters(true)
        .period(self.period)
        .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("period", &mut self.period, 1.., "H, local steps of a round")?;
        options.field("fragments", &mut self.fragments, 1.., "P, fragments of the model")?;
        options.field("delay", &mut self.delay, .., "τ, steps from sending a change to its use")?;
        options.require(self.delay < self.period, "delay", &self.delay, "fewer steps than the period has")?;
        options.field("own", &mut self.own, 0.0..=1.0, "α, share of its own parameters that a rank keeps")?;
        options.field("outer", &mut self.outer, part(), "optimizer that steps with the mean change")?;
        let precisions = [("full", Precision::Full), ("8bit", Precision::Bits8), ("4bit", Precision::Bits4)];
        options.field("precision", &mut self.precision, one_of(&precisions), "precision of the changes sent")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Stream> {
        self.check(bucket)?;
        let fragments = (0..self.fragments).map(|at| self.fragment(context, bucket, at));
        let fragments = fragments.collect::<Result<_>>()?;
        Ok(Stream { background: Background::start(context.comm()).await?, fragments })
    }

    async fn after_step(&self, context: &Context, stream: &mut Stream, bucket: &mut Bucket) -> Result<()> {
        let Stream { background, fragments } = stream;
        let steps = context.step() + 1;
        for (at, fragment) in fragments.iter_mut().enumerate() {
            if fragment.due == steps {
                fragment.take_in(self, context, &bucket.parameters).await?;
            }
            if (steps + self.offset(at as u64)).is_multiple_of(self.period) {
                fragment.send(self.precision, context, background, &bucket.parameters)?;
                fragment.due = steps + self.delay;
                if self.delay == 0 {
                    fragment.take_in(self, context, &bucket.parameters).await?;
                }
            }
        }
        Ok(())
    }

    async fn settle(&self, _: &Context, stream: &mut Stream, _: &mut Bucket) -> Result<()> {
        for fragment in &mut stream.fragments {
            fragment.land().await?;
        }
        Ok(())
    }

    fn checkpoint(&self, stream: &mut Stream, fields: &mut Fields) -> Result<()> {
        let fragments = stream.fragments.iter_mut().enumerate();
        for (at, fragment) in fragments {
            let of_it = |fields: &mut Fields| fragment.checkpoint(fields);
            fields.shared(|fields| fields.within(&format!("fragment-{at}"), of_it))?;
        }
        Ok(())
    }
}

impl StreamingDiLoCo {
    fn check(&self, bucket: &Bucket) -> Result<()> {
        if self.precision == Precision::Full { Ok(()) } else { check_f32(bucket) }
    }

    /// Returns the offset in the round at which a fragment starts.
    fn offset(&self, fragment: u64) -> u64 {
        fragment * self.period / self.fragments
    }

    fn fragment(&self, context: &Context, bucket: &Bucket, at: u64) -> Result<Fragment> {
        let bound = |at: u64| (bucket.len() as u128 * u128::from(at) / u128::from(self.fragments)) as usize;
        let elements = bound(at)..bound(at + 1);
        let room = || bucket.parameters.zeroed_same_device(bucket.parameters.dtype(), elements.len());
        let global = Global { parameters: room()?, velocity: room()? };
        global.parameters.write_all()?.copy_from(&bucket.parameters.read(elements.clone())?)?;
        let encoding = self.codec().map(|codec| {
            // Fragments have different random numbers, like buckets.
            let seed = at << 32 | context.bucket() as u64;
            Encoding::new(codec).with_feedback(Feedback::None).with_seed(seed)
        });
        let change = Some(FragmentChange { values: room()?, encoding });
        Ok(Fragment { elements, global, due: 0, change, under_way: None })
    }

    fn codec(&self) -> Option<Arc<dyn Codec>> {
        match self.precision {
            Precision::Full => None,
            Precision::Bits8 => Some(Arc::new(MinMax8::in_blocks(512))),
            Precision::Bits4 => Some(Arc::new(E3M0::default())),
        }
    }
}

impl Fragment {
    /// Starts the average of `Δᵢ ← θ − xᵢ`.
    fn send(
        &mut self,
        precision: Precision,
        context: &Context,
        background: &Background,
        parameters: &Buffer,
    ) -> Result<()> {
        let Some(FragmentChange { mut values, mut encoding }) = self.change.take() else {
            return Err(twice());
        };
        let global = self.global.parameters.read_all()?;
        let x = parameters.read(self.elements.clone())?;
        values.write_all()?.weighted_sum(&[(1.0, Some(&global)), (-1.0, Some(&x))])?;
        let hierarchical = context.is_hierarchical();
        self.under_way = Some(background.call(async move |comm| {
            let ranks = Ranks::of(comm, hierarchical).await?;
            match &mut encoding {
                None => ranks.mean(&mut values).await?,
                // Every rank sums all messages in f32, and the sum is not rounded again.
                Some(encoding) if precision == Precision::Bits4 => {
                    ranks.mean_sparse(&mut values, encoding).await?;
                }
                Some(encoding) => ranks.mean_encoded(&mut values, encoding).await?,
            }
            Ok(FragmentChange { values, encoding })
        }));
        Ok(())
    }

    /// Waits until the change has arrived.
    async fn land(&mut self) -> Result<()> {
        if let Some(under_way) = self.under_way.take() {
            self.change = under_way.await?;
        }
        Ok(())
    }

    /// Makes the outer step, and mixes its result into the replica of this rank.
    async fn take_in(
        &mut self,
        rule: &StreamingDiLoCo,
        context: &Context,
        parameters: &Buffer,
    ) -> Result<()> {
        self.land().await?;
        self.due = 0;
        let Some(FragmentChange { values, .. }) = &self.change else { return Err(twice()) };
        rule.outer.step(context, &self.global, values)?;
        let global = self.global.parameters.read_all()?;
        let terms = [(rule.own, None), (1.0 - rule.own, Some(&global))];
        parameters.write(self.elements.clone())?.weighted_sum(&terms)
    }

    /// Declares the state of the fragment, including a change that has arrived and is not due yet.
    fn checkpoint(&mut self, fields: &mut Fields) -> Result<()> {
        self.global.checkpoint(fields)?;
        fields.count("due", &mut self.due)?;
        let Some(FragmentChange { values, encoding }) = &mut self.change else { return Err(twice()) };
        fields.buffer("change", values)?;
        encoding.as_mut().map_or(Ok(()), |encoding| fields.encoding("encoding", encoding))
    }
}

fn twice() -> Error {
    Error::usage("a fragment is in progress", "report it as a bug: it has to arrive before its next use")
}
