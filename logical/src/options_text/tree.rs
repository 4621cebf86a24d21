//! The tree of a spelling, such as `choco-sgd(codec=top-k(5%))`.

use std::fmt;

/// Name or number with its arguments, as users type it.
///
/// ```
/// use hexagram_logical::options_text::OptionsText;
///
/// let text: OptionsText = "choco-sgd( codec = top-k(5%), graph=torus )".parse()?;
/// assert_eq!(text.name(), "choco-sgd");
/// assert_eq!(text.arguments()[0].field(), Some("codec"));
/// assert_eq!(text.to_string(), "choco-sgd(codec=top-k(5%), graph=torus)");
/// # Ok::<(), hexagram_logical::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionsText {
    pub(super) word: String,
    pub(super) arguments: Vec<Argument>,
}

/// Value in the parentheses of a spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    pub(super) field: Option<String>,
    pub(super) value: OptionsText,
}

impl OptionsText {
    /// Creates the spelling of a word without arguments. A text that is not a word, such as the `Debug` output of a
    /// user codec, is printed unchanged and cannot be parsed.
    pub fn of(word: impl Into<String>) -> Self {
        OptionsText { word: word.into(), arguments: Vec::new() }
    }

    /// Returns the spelling in a text, or, if it cannot be parsed, the whole text as a word.
    pub fn of_text(text: &str) -> Self {
        text.parse().unwrap_or_else(|_| OptionsText::of(text))
    }

    /// Returns the name or number before the parentheses.
    pub fn name(&self) -> &str {
        &self.word
    }

    /// Returns the arguments, in their order.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Returns this spelling without the named arguments that are equal in `other`: the difference from its defaults.
    #[must_use]
    pub fn without(mut self, other: &OptionsText) -> Self {
        self.arguments.retain(|argument| argument.field.is_none() || !other.arguments.contains(argument));
        self
    }

    /// Returns the start of the text, for an error in one line.
    pub(super) fn excerpt(&self) -> String {
        excerpt(&self.to_string())
    }
}

impl Argument {
    /// Returns the name of the option; `None` if it is omitted.
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// Returns the value.
    pub fn value(&self) -> &OptionsText {
        &self.value
    }
}

/// Returns the start of a text, for an error in one line.
pub(super) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 60;
    let plain = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    let mut start: String = plain.take(LONGEST).collect();
    if text.chars().nth(LONGEST).is_some() {
        start.push('…');
    }
    start
}

impl fmt::Display for OptionsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.word)?;
        for (number, argument) in self.arguments.iter().enumerate() {
            write!(f, "{}{argument}", if number == 0 { "(" } else { ", " })?;
        }
        f.write_str(if self.arguments.is_empty() { "" } else { ")" })
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}={}", self.value),
            None => self.value.fmt(f),
        }
    }
}
