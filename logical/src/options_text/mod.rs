//! Spellings: the text form of a codec, a graph or an algorithm with its options, as users type it and programs print
//! it.
//!
//! ```text
//! spelling = word, or word(argument, …)        top-k      top-k(5%)      choco-sgd(codec=top-k(5%), graph=torus)
//! argument = option=spelling                   the first one may be without `option=`, and is then the first option's
//! word     = letters, digits and signs but ( ) , = and spaces: a name, a number such as 0.1 or 5%, none, auto, true
//! ```
//!
//! | | is |
//! |---|---|
//! | [`OptionsText`] | a parsed text: it is parsed by [`FromStr`](std::str::FromStr), and printed by [`Display`](std::fmt::Display) |
//! | [`Options`] | a visitor that lists each option once, and reads, prints, checks and describes them |
//! | [`Values`] | the valid values of an option: a range of numbers, one of several words, a codec, a graph |
//! | [`Catalogue`] | the codecs, graphs or algorithms that are known by name; it can be extended |
//!
//! ```
//! use hexagram_logical::options_text::{Catalogues, Options, OptionsText, above};
//! use hexagram_logical::Result;
//!
//! #[derive(Clone)]
//! struct Pull {
//!     period: u64,
//!     strength: f64,
//! }
//!
//! impl Pull {
//!     fn options(&mut self, options: &mut Options) -> Result<()> {
//!         options.field("period", &mut self.period, 1.., "steps from one pull to the next")?;
//!         options.field("strength", &mut self.strength, above(0.0).up_to(1.0), "share of the way to the mean")
//!     }
//! }
//!
//! let mut pull = Pull { period: 4, strength: 0.5 };
//! let text: OptionsText = "pull(strength=25%)".parse()?;
//! Options::read(&text, &Catalogues::default(), |options| pull.options(options))?;
//! assert_eq!((pull.period, pull.strength), (4, 0.25));
//!
//! pull.strength = 2.0;
//! let error = Options::check("pull", |options| pull.options(options)).unwrap_err();
//! assert_eq!(error.to_string(), "strength of pull is 2; choose a number, above 0, 1 at most");
//! # Ok::<(), hexagram_logical::Error>(())
//! ```

mod catalogue;
mod grammar;
mod nearest;
mod number;
mod options;
#[cfg(test)]
mod tests;
mod tree;
mod values;

pub use catalogue::{Catalogue, Catalogues, Listed, listed};
pub use nearest::{nearest, no_such};
pub use number::Number;
pub(crate) use number::percents;
pub use options::{FieldHelp, Options};
pub use tree::{Argument, OptionsText};
pub use values::{GreaterThan, NamedOptions, OneOf, Or, Part, Truth, Values, above, one_of, or, part, truth};
