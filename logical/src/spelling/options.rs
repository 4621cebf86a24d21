//! The visitor of options: each is named once, and what is done with it is the [`Options`]' business. So what is read,
//! printed, checked and described cannot differ.

use super::catalogue::Catalogues;
use super::nearest::no_such;
use super::tree::{Argument, Spelling, excerpt};
use super::values::Values;
use crate::{Error, Result};
use std::fmt::Debug;

/// Visitor to whom an author names the options of a codec, a graph or an algorithm, one a line; see the example of
/// [the module](super).
///
/// What calls it decides what happens to them: [`read`](Options::read) sets them from a text, [`write`](Options::write)
/// prints them, [`check`](Options::check) fails if one is out of its range, [`describe`](Options::describe) lists them.
pub struct Options {
    /// Name of what has the options.
    owner: String,
    known: Catalogues,
    direction: Direction,
    /// Names of the options so far.
    fields: Vec<&'static str>,
}

enum Direction {
    /// Sets options from these arguments; those of options so far are taken out.
    Reading(Vec<Argument>),
    /// Adds the options' arguments.
    Writing(Vec<Argument>),
    Checking,
    /// Adds the options' descriptions.
    Describing(Vec<FieldHelp>),
}

/// Description of one option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldHelp {
    /// Name of the option.
    pub name: &'static str,
    /// Value that it has, as it is typed.
    pub value: String,
    /// Values that it may have.
    pub range: String,
    /// Meaning.
    pub about: &'static str,
}

impl Options {
    /// Sets the options that `visit` names from the arguments of a spelling.
    ///
    /// # Errors
    /// [`Error::Usage`] that names option, value and range, for values that an option cannot have; with the nearest
    /// names, for options that there are not.
    pub fn read(
        spelling: &Spelling,
        known: &Catalogues,
        visit: impl FnOnce(&mut Options) -> Result<()>,
    ) -> Result<()> {
        let direction = Direction::Reading(spelling.arguments.clone());
        let mut options = Options::new(&spelling.word, known, direction);
        visit(&mut options)?;
        options.expect_none_left()
    }

    /// Returns the spelling of what has this name and the options that `visit` names: with all of them.
    pub fn write(name: &str, visit: impl FnOnce(&mut Options) -> Result<()>) -> Spelling {
        let mut options = Options::new(name, &Catalogues::empty(), Direction::Writing(Vec::new()));
        // A visit that ends early has named what it could.
        let _ = visit(&mut options);
        let arguments = match options.direction {
            Direction::Writing(arguments) => arguments,
            _ => Vec::new(),
        };
        Spelling { word: name.to_owned(), arguments }
    }

    /// Checks the options that `visit` names, of what has this name.
    ///
    /// # Errors
    /// [`Error::Usage`] that names option, value and range of the first that is out of its range.
    pub fn check(name: &str, visit: impl FnOnce(&mut Options) -> Result<()>) -> Result<()> {
        visit(&mut Options::new(name, &Catalogues::empty(), Direction::Checking))
    }

    /// Returns descriptions of the options that `visit` names, with the values that they have.
    pub fn describe(
        name: &str,
        known: &Catalogues,
        visit: impl FnOnce(&mut Options) -> Result<()>,
    ) -> Vec<FieldHelp> {
        let mut options = Options::new(name, known, Direction::Describing(Vec::new()));
        // As above.
        let _ = visit(&mut options);
        match options.direction {
            Direction::Describing(fields) => fields,
            _ => Vec::new(),
        }
    }

    fn new(owner: &str, known: &Catalogues, direction: Direction) -> Self {
        Options { owner: owner.to_owned(), known: known.clone(), direction, fields: Vec::new() }
    }

    /// Names an option, the values that it may have (a range such as `1..`, or see [`Values`]), and in a few words what
    /// it is.
    ///
    /// # Errors
    /// [`Error::Usage`] that names option, value and range, if it has another value, or is to get one.
    pub fn field<T>(
        &mut self,
        name: &'static str,
        value: &mut T,
        values: impl Values<T>,
        about: &'static str,
    ) -> Result<()> {
        self.visit((name, Some(name)), &mut Field { value, values: &values }, about)
    }

    /// Names the option that is written without its name, as in `top-k(5%)`, and always. It is the first.
    ///
    /// # Errors
    /// As [`Options::field`].
    pub fn main<T>(
        &mut self,
        name: &'static str,
        value: &mut T,
        values: impl Values<T>,
        about: &'static str,
    ) -> Result<()> {
        self.visit((name, None), &mut Field { value, values: &values }, about)
    }

    /// Fails unless an option `holds` beside the others, which are named before; `want` says what to choose, as in
    /// `fewer steps than the period`.
    ///
    /// # Errors
    /// [`Error::Usage`] that names option, value and range.
    pub fn insist(&self, holds: bool, name: &str, value: &dyn Debug, want: &str) -> Result<()> {
        match self.direction {
            Direction::Reading(_) | Direction::Checking if !holds => {
                Err(self.refuse(name, &format!("{value:?}"), want))
            }
            _ => Ok(()),
        }
    }

    fn visit(
        &mut self,
        (name, written): (&'static str, Option<&'static str>),
        field: &mut dyn AnyField,
        about: &'static str,
    ) -> Result<()> {
        let first = self.fields.is_empty();
        self.fields.push(name);
        match &mut self.direction {
            Direction::Reading(arguments) => {
                if let Some(given) = take(arguments, name, first, &self.owner)? {
                    self.set(name, &given, field)?;
                }
                // A value that was there may be out of its range, too.
                self.checked(name, field)
            }
            Direction::Checking => self.checked(name, field),
            Direction::Writing(arguments) => {
                arguments.push(Argument { field: written.map(str::to_owned), value: field.write() });
                Ok(())
            }
            Direction::Describing(fields) => {
                let range = field.describe(&self.known);
                fields.push(FieldHelp { name, value: field.write().to_string(), range, about });
                Ok(())
            }
        }
    }

    fn set(&self, name: &str, given: &Spelling, field: &mut dyn AnyField) -> Result<()> {
        match field.read(given, &self.known).map_err(|inner| self.within(name, given, inner))? {
            true => Ok(()),
            false => Err(self.refuse(name, &given.excerpt(), &field.describe(&self.known))),
        }
    }

    fn checked(&self, name: &str, field: &dyn AnyField) -> Result<()> {
        match field.holds().map_err(|inner| self.within(name, &field.write(), inner))? {
            true => Ok(()),
            false => Err(self.refuse(name, &field.write().excerpt(), &field.describe(&self.known))),
        }
    }

    /// Says of an error inside of a value which option's it is.
    fn within(&self, name: &str, value: &Spelling, inner: Error) -> Error {
        match inner {
            Error::Usage { what, remedy } => {
                let what = format!("{name} of {} is {}: {what}", excerpt(&self.owner), value.excerpt());
                Error::usage(what, remedy)
            }
            other => other,
        }
    }

    fn refuse(&self, name: &str, value: &str, want: &str) -> Error {
        Error::usage(format!("{name} of {} is {value}", excerpt(&self.owner)), format!("choose {want}"))
    }

    /// Fails if an argument is of no option.
    fn expect_none_left(&self) -> Result<()> {
        let Direction::Reading(left) = &self.direction else { return Ok(()) };
        let Some(argument) = left.first() else { return Ok(()) };
        let owner = excerpt(&self.owner);
        if self.fields.is_empty() {
            let what = format!("{owner} has no options, and `{}` is one", excerpt(&argument.to_string()));
            return Err(Error::usage(what, format!("write {owner} alone")));
        }
        let name = argument.field.as_deref().unwrap_or_default();
        Err(no_such(&format!("option of {owner}"), name, self.fields.iter().copied()))
    }
}

/// An option with its values.
struct Field<'a, T> {
    value: &'a mut T,
    values: &'a dyn Values<T>,
}

/// [`Field`] of any type: the visitor is compiled once.
trait AnyField {
    /// Sets the value that a spelling means; false if it means none.
    fn read(&mut self, spelling: &Spelling, known: &Catalogues) -> Result<bool>;
    fn write(&self) -> Spelling;
    fn holds(&self) -> Result<bool>;
    fn describe(&self, known: &Catalogues) -> String;
}

impl<T> AnyField for Field<'_, T> {
    fn read(&mut self, spelling: &Spelling, known: &Catalogues) -> Result<bool> {
        let read = self.values.read(spelling, Some(self.value), known)?;
        let is_one = read.is_some();
        read.into_iter().for_each(|read| *self.value = read);
        Ok(is_one)
    }

    fn write(&self) -> Spelling {
        self.values.write(self.value)
    }

    fn holds(&self) -> Result<bool> {
        self.values.holds(self.value)
    }

    fn describe(&self, known: &Catalogues) -> String {
        self.values.describe(known)
    }
}

/// Takes an option's value out of the arguments: that of its name, in which `-` and `_` are one, or the first of all if
/// it has no name.
fn take(arguments: &mut Vec<Argument>, name: &str, first: bool, owner: &str) -> Result<Option<Spelling>> {
    let is_meant = |argument: &Argument| match &argument.field {
        Some(field) => field.replace('-', "_") == name.replace('-', "_"),
        None => first,
    };
    let (mut meant, others): (Vec<_>, Vec<_>) = std::mem::take(arguments).into_iter().partition(is_meant);
    *arguments = others;
    match meant.len() {
        0 | 1 => Ok(meant.pop().map(|argument| argument.value)),
        count => {
            let what = format!("{name} of {} is given {count} times", excerpt(owner));
            Err(Error::usage(what, "give it once"))
        }
    }
}
