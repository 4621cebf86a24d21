//! The graphs by the names that users type, such as `torus(rows=2)`.

use super::super::schedule::Schedule;
use super::Topology;
use crate::options_text::{Catalogue, Catalogues, Listed, NamedOptions, Options, OptionsText, listed, or};
use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Every graph, with its defaults, and its description.
const ALL: [(Topology, &str); 13] = [
    (Topology::Ring, "both neighbours"),
    (Topology::Torus(None), "four neighbours on a grid"),
    (Topology::Exponential, "the ranks 1, 2, 4, … before, in one step"),
    (Topology::OnePeerExponential, "one of the ranks 1, 2, 4, … before, in turn"),
    (Topology::XorPairs, "pairs that differ in one bit, which changes by step"),
    (Topology::Hypercube, "all ranks that differ in one bit; needs a power of two"),
    (Topology::Base { peers: 1 }, "few partners per step, and the exact mean after some steps"),
    (Topology::EquiStatic { seed: 0, hops: None }, "ranks at distances that are drawn once"),
    (Topology::EquiOnePeer { seed: 0 }, "the rank at a distance that is drawn at every step"),
    (Topology::Star, "rank 0 with each other rank"),
    (Topology::Complete, "all ranks"),
    (Topology::RandomPairs { seed: 0, pairs: None }, "pairs that are drawn at every step"),
    (Topology::ShiftOne, "pairs across two halves, which change by step; needs an even number of ranks"),
];

impl NamedOptions for Topology {
    fn keyword(&self) -> &'static str {
        match self {
            Topology::Ring => "ring",
            Topology::Torus(_) => "torus",
            Topology::Exponential => "exponential",
            Topology::OnePeerExponential => "one-peer-exponential",
            Topology::XorPairs => "xor-pairs",
            Topology::Hypercube => "hypercube",
            Topology::Base { .. } => "base",
            Topology::EquiStatic { .. } => "equi-static",
            Topology::EquiOnePeer { .. } => "equi-one-peer",
            Topology::Star => "star",
            Topology::Complete => "complete",
            Topology::RandomPairs { .. } => "random-pairs",
            Topology::ShiftOne => "shift-one",
        }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        match self {
            Topology::Torus(rows) => options.field(
                "rows",
                rows,
                or("auto", 1..),
                "rows; auto makes the grid as square as possible",
            ),
            Topology::Base { peers } => {
                options.field("peers", peers, 1.., "largest number of partners per step")
            }
            Topology::EquiStatic { seed, hops } => {
                options.field("seed", seed, .., "seed of the draws")?;
                options.field("hops", hops, or("auto", 1..), "number of distances; auto is log₂ n")
            }
            Topology::EquiOnePeer { seed } => options.field("seed", seed, .., "seed of the draws"),
            Topology::RandomPairs { seed, pairs } => {
                options.field("seed", seed, .., "seed of the draws")?;
                options.field("pairs", pairs, or("all", 1..), "pairs that average per step")
            }
            _ => Ok(()),
        }
    }
}

/// Returns the catalogue of the built-in graphs, with their defaults.
pub fn catalogue() -> Catalogue<Arc<dyn Schedule>> {
    let shared = |graph: Topology| Arc::new(graph) as Arc<dyn Schedule>;
    let empty = Catalogue::new("graph");
    ALL.into_iter().fold(empty, |catalogue, (graph, about)| catalogue.with(graph, about, shared))
}

/// Returns the values of an option that accepts any graph or schedule. User schedules are accepted if they are in the
/// catalogue with which options are read.
pub fn any_graph() -> Listed<Arc<dyn Schedule>> {
    listed(|schedule: &Arc<dyn Schedule>| schedule.spelling()).with_check(|schedule| schedule.check_options())
}

/// Prints the spelling of the graph, without the options that have their defaults.
///
/// ```
/// use hexagram_logical::decentralized::Topology;
///
/// assert_eq!(Topology::Torus(Some(2)).to_string(), "torus(rows=2)");
/// assert_eq!("random-pairs(seed=1)".parse::<Topology>()?, Topology::RandomPairs { seed: 1, pairs: None });
/// # Ok::<(), hexagram_logical::Error>(())
/// ```
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = ALL.iter().find(|(graph, _)| graph.keyword() == self.keyword());
        default.map_or_else(|| self.full(), |(default, _)| self.short(default)).fmt(f)
    }
}

impl FromStr for Topology {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let spelling: OptionsText = text.parse()?;
        let found = ALL.iter().find(|(graph, _)| graph.keyword() == spelling.name());
        match found {
            Some((graph, _)) => graph.with(&spelling, &Catalogues::default()),
            None => Err(crate::options_text::no_such(
                "graph",
                spelling.name(),
                ALL.iter().map(|(graph, _)| graph.keyword()),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_graph_is_what_it_prints() {
        for (graph, _) in ALL {
            assert_eq!(graph.to_string(), graph.keyword());
            assert_eq!(graph.to_string().parse::<Topology>().unwrap(), graph);
            assert_eq!(graph.full().to_string().parse::<Topology>().unwrap(), graph);
        }
        for text in ["torus(rows=2)", "base(peers=3)", "equi-static(seed=4, hops=2)", "random-pairs(pairs=1)"]
        {
            assert_eq!(text.parse::<Topology>().unwrap().to_string(), text);
            let found = catalogue().named(text).unwrap();
            assert_eq!(any_graph_spells(&found), text);
        }
    }

    fn any_graph_spells(schedule: &Arc<dyn Schedule>) -> String {
        crate::options_text::Values::write(&any_graph(), schedule).to_string()
    }

    #[test]
    fn a_wrong_graph_is_refused_in_one_line() {
        for (text, words) in [
            ("rings", "unknown graph `rings`; did you mean ring?"),
            ("torus(rows=0)", "rows of torus is 0; choose auto, or a whole number, 1 or more"),
            ("base(peers=0)", "peers of base is 0; choose a whole number, 1 or more"),
            ("ring(rows=1)", "ring has no options, and `rows=1` is one; write ring alone"),
            ("random-pairs(seed=-1)", "seed of random-pairs is -1; choose a whole number, 0 or more"),
        ] {
            assert_eq!(text.parse::<Topology>().unwrap_err().to_string(), words);
        }
    }

    #[test]
    fn a_schedule_of_a_users_own_prints_what_it_is() {
        let own: Arc<dyn Schedule> = Arc::new(vec![Topology::Ring.mixing(2, 0).unwrap()]);
        assert_eq!(any_graph_spells(&own), format!("{own:?}"));
    }
}
