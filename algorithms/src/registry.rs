//! The algorithms by name, with their options.
//!
//! ```
//! use hexagram::algorithms::registry;
//!
//! let algorithm = registry::named("bytegrad")?;
//! assert!(!algorithm.trigram().full_precision);
//! assert!(registry::all().len() > 20);
//!
//! let algorithm = registry::named("choco-sgd(codec=top-k(5%), graph=torus, consensus=10%)")?;
//! assert_eq!(algorithm.to_string(), "choco-sgd(codec=top-k(5%), graph=torus, consensus=0.1)");
//! # Ok::<(), hexagram::logical::Error>(())
//! ```

use crate::ad_psgd::AdPsgd;
use crate::async_model_average::AsyncModelAverage;
use crate::bytegrad::ByteGrad;
use crate::choco_sgd::ChocoSgd;
use crate::compressed_allreduce::CompressedAllReduce;
use crate::d_psgd::DPsgd;
use crate::decentralized::Decentralized;
use crate::deepsqueeze::DeepSqueeze;
use crate::demo::DeMo;
use crate::dgc::Dgc;
use crate::diloco::DiLoCo;
use crate::dion::Dion;
use crate::easgd::Easgd;
use crate::ef21::Ef21;
use crate::exact_diffusion::ExactDiffusion;
use crate::extra::Extra;
use crate::gossip_pga::GossipPga;
use crate::gradient_all_reduce::GradientAllReduce;
use crate::gradient_tracking::GradientTracking;
use crate::local_sgd::LocalSgd;
use crate::loco::LoCo;
use crate::low_precision_decentralized::LowPrecisionDecentralized;
use crate::noloco::NoLoCo;
use crate::plugin::AnyAlgorithm;
use crate::qadam::QAdam;
use crate::qg_dsgdm::QgDsgdm;
use crate::relaysgd::RelaySgd;
use crate::sgp::Sgp;
use crate::signsgd_vote::SignSgdVote;
use crate::slowmo::SlowMo;
use crate::sparse_loco::SparseLoCo;
use crate::ssp::Ssp;
use crate::streaming_diloco::StreamingDiLoCo;
use crate::zero_one_adam::ZeroOneAdam;
use hexagram_logical::codec::{self, Codec};
use hexagram_logical::decentralized::{self, Schedule};
use hexagram_logical::options_text::{
    Catalogue, Catalogues, FieldHelp, NamedOptions, Options, OptionsText, no_such,
};
use hexagram_logical::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// Algorithms by name, each with its defaults; and the codecs and graphs for their options.
///
/// ```
/// use hexagram::algorithms::{Registry, slowmo::SlowMo};
///
/// let registry = Registry::built_in().with(SlowMo { period: 48, ..SlowMo::default() });
/// let algorithm = registry.named("slowmo(slow_momentum=0.6)")?;
/// let full = format!("{algorithm:#}");
/// assert_eq!(full, "slowmo(period=48, slow_rate=1, slow_momentum=0.6, codec=exact, feedback=none, base=none)");
///
/// let error = registry.named("slowmow").unwrap_err();
/// assert_eq!(error.to_string(), "unknown algorithm `slowmow`; did you mean slowmo?");
/// # Ok::<(), hexagram::logical::Error>(())
/// ```
#[derive(Clone)]
pub struct Registry {
    prototypes: Vec<AnyAlgorithm>,
    known: Catalogues,
}

impl Registry {
    /// Creates a registry of the built-in algorithms, codecs and graphs: first the algorithms of Bagua, then later
    /// ones.
    pub fn built_in() -> Self {
        let prototypes = [of_bagua(), of_papers(), asynchronous_low_precision()].concat();
        Registry { prototypes, known: Catalogues::default() }
    }

    /// Adds an algorithm under its name, with these options as its defaults. Replaces an existing one with this name.
    #[must_use]
    pub fn with(mut self, prototype: impl Into<AnyAlgorithm>) -> Self {
        let prototype = prototype.into();
        match self.prototypes.iter_mut().find(|known| known.name() == prototype.name()) {
            Some(known) => *known = prototype,
            None => self.prototypes.push(prototype),
        }
        self
    }

    /// Adds a codec, with these options as its defaults. Replaces an existing one with this name. Its [`Codec::name`]
    /// must be its spelling, as returned by [`NamedOptions::short`].
    #[must_use]
    pub fn with_codec<C: Codec + NamedOptions + 'static>(
        mut self,
        prototype: C,
        about: &'static str,
    ) -> Self {
        let codecs = self.known.of().cloned().unwrap_or_else(codec::catalogue);
        self.known =
            self.known.with(codecs.with(prototype, about, |codec| Arc::new(codec) as Arc<dyn Codec>));
        self
    }

    /// Adds a graph or schedule, with these options as its defaults. Replaces an existing one with this name. Its
    /// [`Schedule::spelling`] must be [`NamedOptions::full`].
    #[must_use]
    pub fn with_graph<S: Schedule + NamedOptions + 'static>(
        mut self,
        prototype: S,
        about: &'static str,
    ) -> Self {
        let graphs = self.known.of().cloned().unwrap_or_else(decentralized::catalogue);
        self.known =
            self.known.with(graphs.with(prototype, about, |graph| Arc::new(graph) as Arc<dyn Schedule>));
        self
    }

    /// Returns every algorithm, with its defaults.
    pub fn all(&self) -> &[AnyAlgorithm] {
        &self.prototypes
    }

    /// Returns the algorithm with a spelling: a name, or `choco-sgd(codec=top-k(5%), graph=torus)`.
    ///
    /// # Errors
    /// [`Error::Usage`] of one line: for an unknown name with the nearest names, and for an option out of range with
    /// its name, value and range.
    pub fn named(&self, text: &str) -> Result<AnyAlgorithm> {
        let spelling: OptionsText = text.parse()?;
        self.prototype(spelling.name())?.with_known(&spelling, &self.catalogues())
    }

    /// Returns the spelling of an algorithm without the options that have their defaults.
    pub fn short(&self, algorithm: &AnyAlgorithm) -> OptionsText {
        let full = algorithm.spelling();
        let prototype = self.prototypes.iter().find(|known| known.name() == algorithm.name());
        prototype.map_or(full.clone(), |prototype| full.without(&prototype.spelling()))
    }

    /// Returns the help for an algorithm, a codec or a graph: its options with their defaults, ranges and meanings.
    ///
    /// # Errors
    /// [`Error::Usage`] with the nearest names.
    pub fn help(&self, name: &str) -> Result<Help> {
        if let Some(codecs) = self.known.of::<Arc<dyn Codec>>()
            && let Ok(fields) = codecs.help(name, &self.known)
        {
            return Ok(Help { name: name.to_owned(), kind: "codec".to_owned(), source: "", fields });
        }
        if let Some(graphs) = self.known.of::<Arc<dyn Schedule>>()
            && let Ok(fields) = graphs.help(name, &self.known)
        {
            return Ok(Help { name: name.to_owned(), kind: "graph".to_owned(), source: "", fields });
        }
        let found = self.prototypes.iter().find(|known| known.name() == name);
        let algorithm = found.ok_or_else(|| self.no_help(name))?;
        let kind = format!("{} {}", algorithm.trigram().symbol(), algorithm.trigram());
        let mut own = algorithm.clone();
        let fields = Options::describe(name, &self.known, |options| own.options(options));
        Ok(Help { name: name.to_owned(), kind, source: algorithm.source(), fields })
    }

    /// Creates the error of help for an unknown name.
    fn no_help(&self, name: &str) -> Error {
        let codecs = self.known.of::<Arc<dyn Codec>>().into_iter().flat_map(Catalogue::names);
        let graphs = self.known.of::<Arc<dyn Schedule>>().into_iter().flat_map(Catalogue::names);
        let others = codecs.chain(graphs).map(|(name, _)| name);
        let names = self.prototypes.iter().map(AnyAlgorithm::name).chain(others);
        no_such("algorithm, codec or graph", name, names)
    }

    /// Returns the catalogues for parsing options: codecs, graphs, and the algorithms themselves, for those that
    /// contain one.
    fn catalogues(&self) -> Catalogues {
        let algorithms = self.prototypes.iter().fold(Catalogue::new("algorithm"), |listed, prototype| {
            listed.with(prototype.clone(), prototype.source(), |algorithm: AnyAlgorithm| algorithm)
        });
        self.known.clone().with(algorithms)
    }

    fn prototype(&self, name: &str) -> Result<&AnyAlgorithm> {
        let found = self.prototypes.iter().find(|known| known.name() == name);
        found.ok_or_else(|| no_such("algorithm", name, self.prototypes.iter().map(AnyAlgorithm::name)))
    }
}

/// Returns the algorithms of Bagua.
fn of_bagua() -> Vec<AnyAlgorithm> {
    vec![
        GradientAllReduce.into(),
        ByteGrad::default().into(),
        QAdam::default().into(),
        QAdam::eight_bits().into(),
        Decentralized::default().into(),
        LowPrecisionDecentralized::default().into(),
        AsyncModelAverage::default().into(),
    ]
}

/// Returns the algorithms beyond those of Bagua.
fn of_papers() -> Vec<AnyAlgorithm> {
    vec![
        LocalSgd::default().into(),
        LocalSgd::post(100).into(),
        SlowMo::default().into(),
        DiLoCo::default().into(),
        StreamingDiLoCo::default().into(),
        DiLoCo::muon().into(),
        SparseLoCo::default().into(),
        DPsgd::default().into(),
        GradientTracking::default().into(),
        GossipPga::default().into(),
        NoLoCo::default().into(),
        ExactDiffusion::default().into(),
        Extra::default().into(),
        QgDsgdm::default().into(),
        RelaySgd::default().into(),
        Sgp::default().into(),
        AdPsgd::default().into(),
        ChocoSgd::default().into(),
        DeepSqueeze::default().into(),
        CompressedAllReduce::default().into(),
        LoCo::default().into(),
        CompressedAllReduce::low_rank().into(),
        Dion::default().into(),
        CompressedAllReduce::top_k().into(),
        Dgc::default().into(),
        Ef21::default().into(),
        SignSgdVote::default().into(),
        ZeroOneAdam::default().into(),
        Easgd::default().into(),
        Ssp::default().into(),
        DeMo::default().into(),
    ]
}

/// Returns the asynchronous algorithms with encoded messages.
fn asynchronous_low_precision() -> Vec<AnyAlgorithm> {
    vec![AsyncModelAverage::compressed().into(), Ssp::compressed().into(), AdPsgd::compressed().into()]
}

/// Prints the spelling of the algorithm, without the options that have the defaults of the built-in one with this name;
/// with all options for `{:#}`.
///
/// ```
/// use hexagram::algorithms::registry;
///
/// let algorithm = registry::named("easgd(period=12, beta=0.9)")?;
/// assert_eq!(algorithm.to_string(), "easgd(period=12)");
/// assert_eq!(format!("{algorithm:#}"), "easgd(period=12, beta=0.9, momentum=0, codec=exact, feedback=none)");
/// # Ok::<(), hexagram::logical::Error>(())
/// ```
impl fmt::Display for AnyAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { self.spelling().fmt(f) } else { Registry::built_in().short(self).fmt(f) }
    }
}

/// Help for something that has a name and options. It prints as lines of text.
#[derive(Debug, Clone)]
pub struct Help {
    /// Name, for users.
    pub name: String,
    /// Kind of thing: the trigram of an algorithm, or `codec` or `graph`.
    pub kind: String,
    /// Source; empty if none is known.
    pub source: &'static str,
    /// Options, with their defaults.
    pub fields: Vec<FieldHelp>,
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.kind)?;
        if !self.source.is_empty() {
            write!(f, "\nSource: {}", self.source)?;
        }
        if self.fields.is_empty() {
            return f.write_str("\nIt has no options.");
        }
        let typed = |field: &FieldHelp| format!("{}={}", field.name, field.value);
        let width = self.fields.iter().map(|field| typed(field).chars().count()).max().unwrap_or(0);
        for field in &self.fields {
            write!(f, "\n  {:width$}  {} ({})", typed(field), field.about, field.range)?;
        }
        Ok(())
    }
}

/// Returns every built-in algorithm, with its defaults.
pub fn all() -> Vec<AnyAlgorithm> {
    Registry::built_in().prototypes
}

/// Returns the built-in algorithm with a spelling.
///
/// # Errors
/// As [`Registry::named`].
pub fn named(text: &str) -> Result<AnyAlgorithm> {
    Registry::built_in().named(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_finds_its_algorithm() {
        for algorithm in all() {
            assert_eq!(named(algorithm.name()).unwrap().name(), algorithm.name());
        }
    }

    #[test]
    fn no_name_occurs_twice() {
        let mut names: Vec<String> = all().iter().map(|algorithm| algorithm.name().to_owned()).collect();
        let listed = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), listed, "{names:?}");
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = named("magic").err().unwrap().to_string();
        assert!(error.contains("`magic`") && error.contains("gradient-allreduce"), "{error}");
        let error = named("choco_sgd").err().unwrap().to_string();
        assert_eq!(error, "unknown algorithm `choco_sgd`; did you mean choco-sgd?");
    }

    #[test]
    fn help_on_an_unknown_name_knows_codecs_and_graphs_too() {
        for (name, near) in [("topk", "top-k"), ("torsu", "torus"), ("choco_sgd", "choco-sgd")] {
            let error = Registry::built_in().help(name).err().unwrap().to_string();
            assert!(error.starts_with(&format!("unknown algorithm, codec or graph `{name}`")), "{error}");
            assert!(error.contains(&format!(" {near}?")), "{error}");
        }
    }

    #[test]
    fn help_says_fields_defaults_ranges_and_source() {
        let text = Registry::built_in().help("choco-sgd").unwrap().to_string();
        for words in
            ["Koloskova", "codec=sign ", "a codec: f16, bf16", "graph=ring ", "a number, above 0, 1 at most"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        let text = Registry::built_in().help("top-k").unwrap().to_string();
        assert!(text.contains("keep=1%"), "{text}");
        let text = Registry::built_in().help("gradient-allreduce").unwrap().to_string();
        assert!(text.ends_with("It has no options."), "{text}");
        assert!(Registry::built_in().help("choco").is_err());
    }
}
