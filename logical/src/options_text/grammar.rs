//! The parser of spellings. The grammar is in [the module](super); for every text, the result is a tree or an error
//! in one line.

use super::tree::{Argument, OptionsText, excerpt};
use crate::{Error, Result};
use std::str::FromStr;

/// Length of the longest text, in bytes.
pub(super) const LONGEST: usize = 4096;
/// Maximum depth of nested parentheses.
pub(super) const DEEPEST: usize = 16;

impl FromStr for OptionsText {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.len() > LONGEST {
            return Err(wrong(text, &format!("has {} bytes", text.len()), &format!("use {LONGEST} at most")));
        }
        let mut parser = Parser { text, at: 0 };
        let spelling = parser.spelling(0)?;
        match parser.peek() {
            None => Ok(spelling),
            Some(_) => Err(parser.unexpected("nothing more, or `(`")),
        }
    }
}

/// Position in a text that is being parsed.
struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    /// Parses `word` or `word(argument, …)`, inside `depth` parentheses.
    fn spelling(&mut self, depth: usize) -> Result<OptionsText> {
        let word = self.word()?;
        self.arguments(word, depth)
    }

    /// Parses the text after a word: nothing, or its arguments.
    fn arguments(&mut self, word: String, depth: usize) -> Result<OptionsText> {
        let mut arguments: Vec<Argument> = Vec::new();
        if !self.eat('(') {
            return Ok(OptionsText { word, arguments });
        }
        if depth == DEEPEST {
            let what = format!("has more than {DEEPEST} nested parentheses");
            return Err(wrong(self.text, &what, "nest fewer"));
        }
        if self.eat(')') {
            return Ok(OptionsText { word, arguments });
        }
        loop {
            let argument = self.argument(arguments.is_empty(), depth + 1)?;
            arguments.push(argument);
            if self.eat(')') {
                return Ok(OptionsText { word, arguments });
            }
            if !self.eat(',') {
                return Err(self.unexpected("`,` or `)`"));
            }
        }
    }

    /// Parses `option=spelling`; the first argument may be a spelling alone.
    fn argument(&mut self, first: bool, depth: usize) -> Result<Argument> {
        let word = self.word()?;
        if self.eat('=') {
            return Ok(Argument { field: Some(word), value: self.spelling(depth)? });
        }
        if !first {
            return Err(self.unexpected("`=` and a value (only the first may omit the name of the option)"));
        }
        Ok(Argument { field: None, value: self.arguments(word, depth)? })
    }

    /// Parses a word.
    fn word(&mut self) -> Result<String> {
        self.skip_spaces();
        let rest = &self.text[self.at..];
        let end = rest.find(|char: char| !belongs(char)).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.unexpected("a name or a value"));
        }
        self.at += end;
        Ok(rest[..end].to_owned())
    }

    /// Consumes a character, if it is next.
    fn eat(&mut self, char: char) -> bool {
        let next = self.peek() == Some(char);
        self.at += if next { char.len_utf8() } else { 0 };
        next
    }

    /// Returns the next character that is not a space.
    fn peek(&mut self) -> Option<char> {
        self.skip_spaces();
        self.text[self.at..].chars().next()
    }

    fn skip_spaces(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Creates the error for an unexpected text.
    fn unexpected(&mut self, wanted: &str) -> Error {
        let found = self.peek().map_or_else(|| "ends".to_owned(), |char| format!("has {char:?}"));
        let place = self.text[..self.at].chars().count() + 1;
        let what = format!("{found} at character {place}");
        wrong(
            self.text,
            &what,
            &format!("write {wanted} there, as in choco-sgd(codec=top-k(5%), graph=torus)"),
        )
    }
}

/// Returns true for the characters of a word.
fn belongs(char: char) -> bool {
    !matches!(char, '(' | ')' | ',' | '=') && !char.is_whitespace() && !char.is_control()
}

fn wrong(text: &str, what: &str, remedy: &str) -> Error {
    Error::usage(format!("`{}` {what}", excerpt(text)), remedy)
}
