//! Statements that describe a cluster, on a line each: words in order, and options as in `latency=10us`.

use crate::error::{Error, Result};

/// Words of a statement that have not been read.
pub(crate) struct StatementWords<'a>(Vec<&'a str>);

impl<'a> StatementWords<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        StatementWords(text.split_whitespace().collect())
    }

    /// Takes the next word; returns `None` if it is an option, or at the end.
    pub(crate) fn next(&mut self) -> Option<&'a str> {
        self.0.first().filter(|word| !word.contains('='))?;
        Some(self.0.remove(0))
    }

    /// Takes the next word, even if it looks like an option.
    pub(crate) fn last(&mut self) -> Option<&'a str> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// Takes the next word, which is a number.
    pub(crate) fn number(&mut self) -> Option<usize> {
        self.next()?.parse().ok()
    }

    /// Takes an option in any place, or its default; returns `None` if its value is malformed.
    pub(crate) fn option<T>(
        &mut self,
        name: &str,
        default: T,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let value = |word: &&'a str| word.strip_prefix(name)?.strip_prefix('=');
        let Some(at) = self.0.iter().position(|word| value(word).is_some()) else { return Some(default) };
        read(value(&self.0.remove(at))?)
    }

    /// Returns true if all have been taken.
    pub(crate) fn are_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// Fails if an earlier line contains the same statement.
pub(crate) fn check_first(line: &str, earlier: Option<usize>) -> Result<()> {
    let Some(earlier) = earlier else { return Ok(()) };
    let what = format!("`{line}` repeats line {earlier}");
    Err(Error::usage(what, "remove one of the two"))
}
