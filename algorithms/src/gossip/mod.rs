//! Mixing of replicas with those of their neighbours: the graph, the codec, and the step towards the mean of the
//! neighbours.
//!
//! ```text
//! codec none      xᵢ ← Σⱼ wᵢⱼ xⱼ
//! codec C         qᵢ ← C(xᵢ − x̂ᵢ);   x̂ⱼ ← x̂ⱼ + qⱼ of all neighbours;   xᵢ ← xᵢ + γ (Σⱼ wᵢⱼ x̂ⱼ − x̂ᵢ)      CHOCO
//! ```
//!
//! Both forms preserve the mean over ranks. With a codec, W is static, elements are f32, and C must be a contraction;
//! the part that it drops remains in xᵢ − x̂ᵢ and is sent later. State: x̂ᵢ and Σⱼ wᵢⱼ x̂ⱼ, 2 S. Bytes sent: deg
//! messages.
//!
//! # The consensus step γ
//! A codec that leaves an error ‖e′‖ ≤ ρ ‖e‖ of a difference e allows for every
//!
//! ```text
//! γ < (1 − ρ) / (1 + ρ) · μ,        μ = 1 / (1 − min wᵢᵢ):  1.5 on a ring with weights 1/3, at least 1
//! ```
//!
//! whatever the number of ranks and the spectral gap of the graph. *Auto* uses that bound, at most 1, with the ρ of the
//! codec, which it measures at the start: on differences to which normal numbers are added in every round, until the
//! error has settled, as in a training with noise. So top-k of 1 % gets .023 on a ring, of 10 % .20, the sign .37, QSGD
//! with 15 levels in buckets of 200 .67, eight bits 1. Gossip of 16 ranks on a ring is fastest at 1 to 2 times that,
//! with which ‖X − X̄‖² shrinks by a factor of .979 per round with top-k of 10 %, .997 with 1 %, .973 with the sign; at
//! 3 times that top-k of 10 % and QSGD diverge. A codec whose error is as large as its input, such as QSGD of few
//! levels, is refused.
//!
//! Proof: with L = I − W, x⁺ = x − γ L x̂ and x̂ = x − e′, so that e⁺ = e′ + (x⁺ − x) and x⁺ − x = −γ L (x − e′). From
//! e′ to e⁺ that is the linear map z⁻¹ (1 + (z − 1) γL / (z − 1 + γL)). W = w + (1 − w) V with w = min wᵢᵢ and ‖V‖ ≤ 1,
//! so that Re (1/λ) ≥ μ/2 in all of L, and Re (1/(z − 1)) = −1/2 on |z| = 1; hence |(z − 1) γλ / (z − 1 + γλ)| ≤ 2γ /
//! (μ − γ), and the gain of the map is at most (μ + γ) / (μ − γ). If ρ times that is below 1, the loop is stable (small
//! gain theorem), whatever the codec. The published proof has γ of the order of (1 − ρ²) times the square of the
//! spectral gap: 3·10⁻⁵ for top-k of 10 % on a ring of 16.
//!
//! Source: Koloskova, Stich and Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed
//! communication", ICML 2019.

mod contraction;

use crate::plugin::{Combine, Context, Fields};
use hexagram_logical::codec::{Codec, any_codec};
use hexagram_logical::decentralized::{Difference, GossipOptions, Mixing, Schedule, any_graph};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::{GreaterThan, Options, Or, above, or};
use hexagram_logical::{Buffer, DType, Error, Result};
use std::sync::Arc;

/// Options of a mixing with neighbours.
///
/// ```
/// use hexagram::algorithms::gossip::Gossip;
/// use hexagram::algorithms::gradient_tracking::GradientTracking;
/// use hexagram::logical::codec::Sign;
/// use hexagram::logical::decentralized::Topology;
/// use std::sync::Arc;
///
/// // One bit per number, over a torus; the step γ is measured.
/// let gossip = Gossip { codec: Some(Arc::new(Sign::default())), ..Gossip::over(Topology::Torus(None)) };
/// let algorithm = GradientTracking { gossip };
/// # let _ = algorithm;
/// ```
#[derive(Debug, Clone)]
pub struct Gossip {
    /// Graph, with its mixing weights; static if there is a codec.
    pub graph: Arc<dyn Schedule>,
    /// Codec of the differences; `None` for full precision.
    pub codec: Option<Arc<dyn Codec>>,
    /// Step γ towards the mean of the neighbours with a codec, above 0 and at most 1; `None` to measure it (auto).
    pub consensus: Option<f64>,
}

/// State of a mixing of one buffer; by default, in full precision.
#[derive(Default)]
pub struct GossipState(Option<Estimates>);

/// Estimates x̂ of the ranks, with the step that suits the codec.
struct Estimates {
    encoding: Encoding,
    consensus: f64,
}

impl Gossip {
    /// Creates the options of full precision over a graph, which may be behind a pointer.
    ///
    /// ```
    /// use hexagram::algorithms::gossip::Gossip;
    /// use hexagram::logical::decentralized::{Schedule, Topology};
    /// use std::sync::Arc;
    ///
    /// let graph: Arc<dyn Schedule> = Arc::new(Topology::Ring);
    /// assert_eq!(format!("{:?}", Gossip::over(graph).graph), format!("{:?}", Topology::Ring));
    /// ```
    pub fn over(graph: impl Schedule + 'static) -> Self {
        Gossip { graph: Arc::new(graph), codec: None, consensus: None }
    }

    /// Declares the options.
    ///
    /// # Errors
    /// As [`Options`], for values out of range.
    pub fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("graph", &mut self.graph, any_graph(), "ranks to mix with, and weights")?;
        codec_fields(&mut self.codec, &mut self.consensus, options)
    }

    /// Creates the state for a buffer: estimates start at the present value of `x`, by one gossip in full precision.
    /// `part` distinguishes several buffers of one bucket, which need different random numbers.
    ///
    /// # Errors
    /// [`Error::Usage`] for a γ out of range; with a codec also for elements other than f32, for a graph that changes,
    /// and if auto finds no γ; as [`Context::gossip_synchronize`].
    pub async fn state(&self, context: &Context, x: &Buffer, part: u64) -> Result<GossipState> {
        let Some(codec) = &self.codec else { return Ok(GossipState(None)) };
        let consensus = self.check(context, codec, x)?;
        let seed = context.bucket() as u64 | part << 32;
        let mut encoding = context.encoding(Arc::clone(codec), Feedback::Difference).with_seed(seed);
        context.gossip_synchronize(x, &*self.graph, &mut encoding).await?;
        Ok(GossipState(Some(Estimates { encoding, consensus })))
    }

    /// Returns γ, if these options are valid.
    fn check(&self, context: &Context, codec: &Arc<dyn Codec>, x: &Buffer) -> Result<f64> {
        if x.dtype() != DType::F32 {
            let what = format!("parameters of {} cannot be encoded", x.dtype());
            return Err(Error::usage(what, "train in f32, or without a codec"));
        }
        check_static(context, &*self.graph)?;
        match self.consensus {
            Some(consensus) => Ok(consensus),
            None => contraction::safe_step(&**codec, x.len(), room(&context.mixing(&*self.graph, 0)?)),
        }
    }

    /// Mixes `x` with the buffers of the neighbours in this round. The metric `consensus` is a γ that auto has found.
    ///
    /// # Errors
    /// As [`Context::gossip`] and [`Context::gossip_encoded`].
    pub async fn mix(
        &self,
        context: &Context,
        state: &mut GossipState,
        x: &mut Buffer,
        round: u64,
    ) -> Result<()> {
        let Some(Estimates { encoding, consensus }) = &mut state.0 else {
            return context.gossip(x, &*self.graph, round).await;
        };
        if self.consensus.is_none() {
            context.metric("consensus", Combine::Max, *consensus)?;
        }
        let choco = GossipOptions { consensus: *consensus, difference: Difference::BeforeMixing };
        context.gossip_encoded(x, &*self.graph, round, encoding, choco).await
    }
}

impl GossipState {
    /// Declares the state for a checkpoint.
    ///
    /// # Errors
    /// As [`Fields::buffer`].
    pub fn checkpoint(&mut self, name: &str, fields: &mut Fields) -> Result<()> {
        match &mut self.0 {
            Some(estimates) => fields.encoding(name, &mut estimates.encoding),
            None => Ok(()),
        }
    }
}

/// Declares the codec of the differences, and γ, among the options of an algorithm.
pub(crate) fn codec_fields(
    codec: &mut Option<Arc<dyn Codec>>,
    step: &mut Option<f64>,
    options: &mut Options,
) -> Result<()> {
    options.field("codec", codec, or("none", any_codec()), "of differences; none for full precision")?;
    let about = "γ, step towards the mean of the neighbours with a codec";
    options.field("consensus", step, consensus(), about)
}

/// Returns the values of γ: a step, or `auto` to measure it.
pub(crate) fn consensus() -> Or<GreaterThan<f64>> {
    or("auto", above(0.0).up_to(1.0))
}

/// Fails if neighbours change from step to step, since estimates of neighbours are built from their earlier messages.
///
/// # Errors
/// [`Error::Usage`] with suitable graphs; as [`Schedule::mixing`].
pub(crate) fn check_static(context: &Context, graph: &dyn Schedule) -> Result<()> {
    if graph.is_static(context.members())? {
        return Ok(());
    }
    let what = format!(
        "the graph {} changes from step to step, and a codec needs estimates of the same neighbours",
        graph.spelling()
    );
    let remedy =
        "set graph=ring, graph=torus or graph=exponential; or use deepsqueeze, which needs no estimates";
    Err(Error::usage(what, remedy))
}

/// Fails unless the graph has one symmetric matrix, which corrections of earlier mixing require.
///
/// # Errors
/// [`Error::Usage`] with suitable graphs; as [`Schedule::mixing`].
pub(crate) fn check_symmetric(context: &Context, graph: &dyn Schedule) -> Result<()> {
    let members = context.members();
    if graph.is_static(members)? && graph.mixing(members, 0)?.is_symmetric() {
        return Ok(());
    }
    let what = format!(
        "the graph {} is not the same symmetric matrix at every step, as the correction requires",
        graph.spelling()
    );
    let remedy =
        "set graph=ring, torus, hypercube, star or complete; or use gradient-tracking, with any graph";
    Err(Error::usage(what, remedy))
}

/// Returns μ = 1 / (1 − min wᵢᵢ).
fn room(mixing: &Mixing) -> f64 {
    let own = (0..mixing.size()).map(|rank| mixing.weight(rank, rank)).fold(1.0, f64::min);
    1.0 / (1.0 - own)
}
