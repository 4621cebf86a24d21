//! The valid values of an option: ranges of numbers, words, and types with options of their own.

use super::catalogue::Catalogues;
use super::nearest::nearest;
use super::number::Number;
use super::options::Options;
use super::tree::OptionsText;
use crate::Result;
use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// Valid values of an option of type `T`, and their text form. Implement it for types of your own.
///
/// | | for |
/// |---|---|
/// | `1..`, `0.0..1.0`, `..`, [`above`]`(0.0).up_to(1.0)` | numbers in a range; floats may be typed as percents, and are finite |
/// | [`truth`]`()` | `true` or `false` |
/// | [`one_of`]`(&[("word", value), …])` | one of several words |
/// | [`or`]`("none", values)` | an `Option`: a word for `None`, or one of the values |
/// | [`part`]`()` | a struct with options of its own ([`NamedOptions`]) |
/// | [`any_codec`](crate::codec::any_codec)`()`, [`any_graph`](crate::decentralized::any_graph)`()` | an `Arc<dyn Codec>`, an `Arc<dyn Schedule>` |
pub trait Values<T> {
    /// Returns the value of a spelling, based on the current value `now`, if any; `None` if it is not a value.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) for an error inside the value.
    fn read(&self, spelling: &OptionsText, now: Option<&T>, known: &Catalogues) -> Result<Option<T>>;

    /// Returns the spelling of a value.
    fn write(&self, value: &T) -> OptionsText;

    /// Returns true if the value is valid.
    ///
    /// # Errors
    /// As [`Values::read`].
    fn accepts(&self, value: &T) -> Result<bool>;

    /// Returns a description of the valid values.
    fn describe(&self, known: &Catalogues) -> String;
}

macro_rules! ranges {
    ($($Range:ty),*) => {$(
        impl<T: Number> Values<T> for $Range {
            fn read(&self, spelling: &OptionsText, _: Option<&T>, _: &Catalogues) -> Result<Option<T>> {
                let number = if spelling.arguments.is_empty() { T::from_word(&spelling.word) } else { None };
                Ok(number.filter(|number| self.contains(number)))
            }

            fn write(&self, value: &T) -> OptionsText {
                OptionsText::of(value.to_text())
            }

            fn accepts(&self, value: &T) -> Result<bool> {
                Ok(value.is_finite() && self.contains(value))
            }

            fn describe(&self, _: &Catalogues) -> String {
                words::<T>(self.start_bound(), self.end_bound())
            }
        }
    )*};
}
ranges!(
    Range<T>,
    RangeInclusive<T>,
    RangeFrom<T>,
    RangeTo<T>,
    RangeToInclusive<T>,
    RangeFull,
    GreaterThan<T>
);

/// Returns a range as text.
fn words<T: Number>(low: Bound<&T>, high: Bound<&T>) -> String {
    let low = match low {
        Bound::Included(low) => format!(", {} or more", low.to_text()),
        Bound::Excluded(low) => format!(", above {}", low.to_text()),
        Bound::Unbounded => T::LEAST.to_owned(),
    };
    let high = match high {
        Bound::Included(high) => format!(", {} at most", high.to_text()),
        Bound::Excluded(high) => format!(", below {}", high.to_text()),
        Bound::Unbounded => String::new(),
    };
    format!("{}{low}{high}", T::KIND)
}

/// Range of the numbers above a bound.
#[derive(Debug, Clone, Copy)]
pub struct GreaterThan<T> {
    low: T,
    high: Bound<T>,
}

/// Returns the range of the numbers above `low`, exclusive.
pub fn above<T: Number>(low: T) -> GreaterThan<T> {
    GreaterThan { low, high: Bound::Unbounded }
}

impl<T> GreaterThan<T> {
    /// Ends the range with `high`, inclusive.
    #[must_use]
    pub fn up_to(self, high: T) -> Self {
        GreaterThan { high: Bound::Included(high), ..self }
    }

    /// Ends the range before `high`, exclusive.
    #[must_use]
    pub fn below(self, high: T) -> Self {
        GreaterThan { high: Bound::Excluded(high), ..self }
    }
}

impl<T> RangeBounds<T> for GreaterThan<T> {
    fn start_bound(&self) -> Bound<&T> {
        Bound::Excluded(&self.low)
    }

    fn end_bound(&self) -> Bound<&T> {
        self.high.as_ref()
    }
}

/// Values of a switch.
#[derive(Debug, Clone, Copy)]
pub struct Truth;

/// Returns the values `true` and `false`.
pub fn truth() -> Truth {
    Truth
}

impl Values<bool> for Truth {
    fn read(&self, spelling: &OptionsText, now: Option<&bool>, known: &Catalogues) -> Result<Option<bool>> {
        one_of(&[("true", true), ("false", false)]).read(spelling, now, known)
    }

    fn write(&self, value: &bool) -> OptionsText {
        OptionsText::of(value.to_string())
    }

    fn accepts(&self, _: &bool) -> Result<bool> {
        Ok(true)
    }

    fn describe(&self, _: &Catalogues) -> String {
        "true or false".to_owned()
    }
}

/// Values with a word each.
#[derive(Debug, Clone, Copy)]
pub struct OneOf<'a, T>(&'a [(&'a str, T)]);

/// Returns the values of a list, each with its word.
pub fn one_of<'a, T>(words: &'a [(&'a str, T)]) -> OneOf<'a, T> {
    OneOf(words)
}

impl<T: Clone + PartialEq> Values<T> for OneOf<'_, T> {
    fn read(&self, spelling: &OptionsText, _: Option<&T>, _: &Catalogues) -> Result<Option<T>> {
        let found = self.0.iter().find(|(word, _)| *word == spelling.word && spelling.arguments.is_empty());
        Ok(found.map(|(_, value)| value.clone()))
    }

    fn write(&self, value: &T) -> OptionsText {
        let found = self.0.iter().find(|(_, listed)| listed == value);
        OptionsText::of(found.map_or("?", |(word, _)| word))
    }

    fn accepts(&self, value: &T) -> Result<bool> {
        Ok(self.0.iter().any(|(_, listed)| listed == value))
    }

    fn describe(&self, _: &Catalogues) -> String {
        let words: Vec<&str> = self.0.iter().map(|(word, _)| *word).collect();
        words.join(" or ")
    }
}

/// Values of an `Option`.
#[derive(Debug, Clone, Copy)]
pub struct Or<V> {
    word: &'static str,
    values: V,
}

/// Returns the values of an `Option`: `word` for `None`, and `values` for the others.
pub fn or<V>(word: &'static str, values: V) -> Or<V> {
    Or { word, values }
}

impl<T, V: Values<T>> Values<Option<T>> for Or<V> {
    fn read(
        &self,
        spelling: &OptionsText,
        now: Option<&Option<T>>,
        known: &Catalogues,
    ) -> Result<Option<Option<T>>> {
        if spelling.word == self.word && spelling.arguments.is_empty() {
            return Ok(Some(None));
        }
        match self.values.read(spelling, now.and_then(Option::as_ref), known) {
            // A misspelt word is not parsed as an unknown name.
            Err(_) if spelling.arguments.is_empty() && !nearest(&spelling.word, [self.word]).is_empty() => {
                Ok(None)
            }
            read => Ok(read?.map(Some)),
        }
    }

    fn write(&self, value: &Option<T>) -> OptionsText {
        value.as_ref().map_or_else(|| OptionsText::of(self.word), |value| self.values.write(value))
    }

    fn accepts(&self, value: &Option<T>) -> Result<bool> {
        value.as_ref().map_or(Ok(true), |value| self.values.accepts(value))
    }

    fn describe(&self, known: &Catalogues) -> String {
        format!("{}, or {}", self.word, self.values.describe(known))
    }
}

/// Type with a name and options of its own: a codec, a graph, a part of the options of an algorithm.
pub trait NamedOptions: Clone {
    /// Returns the name that users type, in kebab case.
    fn keyword(&self) -> &'static str;

    /// Lists the options. By default, there are none.
    ///
    /// # Errors
    /// Those of [`Options`] for values out of range.
    fn options(&mut self, options: &mut Options) -> Result<()> {
        let _ = options;
        Ok(())
    }

    /// Returns the spelling with all options.
    fn full(&self) -> OptionsText {
        let mut own = self.clone();
        Options::write(self.keyword(), |options| own.options(options))
    }

    /// Returns the spelling without the options that are equal in `default`.
    fn short(&self, default: &Self) -> OptionsText {
        self.full().without(&default.full())
    }

    /// Checks the options.
    ///
    /// # Errors
    /// As [`Options::check`].
    fn check(&self) -> Result<()> {
        let mut own = self.clone();
        Options::check(self.keyword(), |options| own.options(options))
    }

    /// Returns the value, for constructors, if its options are in range.
    ///
    /// # Errors
    /// As [`NamedOptions::check`].
    fn checked(self) -> Result<Self> {
        self.check().map(|()| self)
    }

    /// Returns a copy with the options of a spelling.
    ///
    /// # Errors
    /// As [`Options::read`].
    fn with(&self, spelling: &OptionsText, known: &Catalogues) -> Result<Self> {
        let mut own = self.clone();
        Options::read(spelling, known, |options| own.options(options))?;
        Ok(own)
    }
}

/// Values of a struct with its own options.
#[derive(Debug, Clone, Copy)]
pub struct Part;

/// Returns the values of a struct with its own options and the same name; omitted options stay unchanged.
///
/// ```
/// use hexagram_logical::Result;
/// use hexagram_logical::options_text::{Catalogues, NamedOptions, Options, Values, part};
///
/// #[derive(Debug, Clone, PartialEq)]
/// struct Outer {
///     momentum: f64,
/// }
///
/// impl NamedOptions for Outer {
///     fn keyword(&self) -> &'static str {
///         "nesterov"
///     }
///
///     fn options(&mut self, options: &mut Options) -> Result<()> {
///         options.field("momentum", &mut self.momentum, 0.0..1.0, "momentum coefficient")
///     }
/// }
///
/// let text = "diloco(outer=nesterov(momentum=0.5))".parse()?;
/// let mut outer = Outer { momentum: 0.9 };
/// Options::read(&text, &Catalogues::default(), |options| {
///     options.field("outer", &mut outer, part(), "optimizer that steps with the mean change")
/// })?;
/// assert_eq!(outer, Outer { momentum: 0.5 });
/// # Ok::<(), hexagram_logical::Error>(())
/// ```
pub fn part() -> Part {
    Part
}

impl<T: NamedOptions> Values<T> for Part {
    fn read(&self, spelling: &OptionsText, now: Option<&T>, known: &Catalogues) -> Result<Option<T>> {
        match now {
            Some(now) if spelling.word == now.keyword() => now.with(spelling, known).map(Some),
            Some(now) => Err(super::no_such("part", &spelling.word, [now.keyword()])),
            None => Ok(None),
        }
    }

    fn write(&self, value: &T) -> OptionsText {
        value.full()
    }

    fn accepts(&self, value: &T) -> Result<bool> {
        value.check().map(|()| true)
    }

    fn describe(&self, _: &Catalogues) -> String {
        "the same name with different options".to_owned()
    }
}
