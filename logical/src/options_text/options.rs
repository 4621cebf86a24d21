//! The visitor of options. Each option is listed once, and the [`Options`] read, print, check or describe it, so that
//! these always agree.

use super::catalogue::Catalogues;
use super::nearest::no_such;
use super::tree::{Argument, OptionsText, excerpt};
use super::values::Values;
use crate::{Error, Result};
use std::fmt::Debug;

/// Visitor that gets the options of a codec, a graph or an algorithm, one per line; see the example of [the
/// module](super).
///
/// The caller chooses the action: [`read`](Options::read) sets the options from a text, [`write`](Options::write)
/// prints them, [`check`](Options::check) fails if one is out of range, [`describe`](Options::describe) lists them.
pub struct Options {
    /// Name of the owner of the options.
    owner: String,
    known: Catalogues,
    direction: OptionsMode,
    /// Names of the options so far.
    fields: Vec<&'static str>,
}

enum OptionsMode {
    /// Sets options from these arguments, and removes those it has used.
    Reading(Vec<Argument>),
    /// Collects the options as arguments.
    Writing(Vec<Argument>),
    Checking,
    /// Collects the descriptions of the options.
    Describing(Vec<FieldHelp>),
}

/// Description of one option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldHelp {
    /// Name of the option.
    pub name: &'static str,
    /// Current value, in its text form.
    pub value: String,
    /// Valid values.
    pub range: String,
    /// Meaning.
    pub about: &'static str,
}

impl Options {
    /// Sets the options that `visit` lists from the arguments of a spelling.
    ///
    /// # Errors
    /// [`Error::Usage`] with option, value and range for an invalid value, or with the nearest names for an unknown
    /// option.
    pub fn read(
        spelling: &OptionsText,
        known: &Catalogues,
        visit: impl FnOnce(&mut Options) -> Result<()>,
    ) -> Result<()> {
        let direction = OptionsMode::Reading(spelling.arguments.clone());
        let mut options = Options::new(&spelling.word, known, direction);
        visit(&mut options)?;
        options.expect_none_left()
    }

    /// Returns the spelling with this name and all options that `visit` lists.
    pub fn write(name: &str, visit: impl FnOnce(&mut Options) -> Result<()>) -> OptionsText {
        let mut options = Options::new(name, &Catalogues::empty(), OptionsMode::Writing(Vec::new()));
        // A visit that ends early has listed a part of the options.
        let _ = visit(&mut options);
        let arguments = match options.direction {
            OptionsMode::Writing(arguments) => arguments,
            _ => Vec::new(),
        };
        OptionsText { word: name.to_owned(), arguments }
    }

    /// Checks the options that `visit` lists, whose owner has this name.
    ///
    /// # Errors
    /// [`Error::Usage`] with option, value and range, for the first option out of range.
    pub fn check(name: &str, visit: impl FnOnce(&mut Options) -> Result<()>) -> Result<()> {
        visit(&mut Options::new(name, &Catalogues::empty(), OptionsMode::Checking))
    }

    /// Returns descriptions of the options that `visit` lists, with their current values.
    pub fn describe(
        name: &str,
        known: &Catalogues,
        visit: impl FnOnce(&mut Options) -> Result<()>,
    ) -> Vec<FieldHelp> {
        let mut options = Options::new(name, known, OptionsMode::Describing(Vec::new()));
        // As above.
        let _ = visit(&mut options);
        match options.direction {
            OptionsMode::Describing(fields) => fields,
            _ => Vec::new(),
        }
    }

    fn new(owner: &str, known: &Catalogues, direction: OptionsMode) -> Self {
        Options { owner: owner.to_owned(), known: known.clone(), direction, fields: Vec::new() }
    }

    /// Lists an option, its valid values (a range such as `1..`, or see [`Values`]), and a short description.
    ///
    /// # Errors
    /// [`Error::Usage`] with option, value and range, if the current value or the new one is invalid.
    pub fn field<T>(
        &mut self,
        name: &'static str,
        value: &mut T,
        values: impl Values<T>,
        about: &'static str,
    ) -> Result<()> {
        self.visit((name, Some(name)), &mut Field { value, values: &values }, about)
    }

    /// Lists the main option, whose name is omitted, as in `top-k(5%)`, and which is always printed. It comes first.
    ///
    /// # Errors
    /// As [`Options::field`].
    pub fn positional<T>(
        &mut self,
        name: &'static str,
        value: &mut T,
        values: impl Values<T>,
        about: &'static str,
    ) -> Result<()> {
        self.visit((name, None), &mut Field { value, values: &values }, about)
    }

    /// Fails unless `holds`, a condition on an option and the options before it; `want` describes a valid choice, as
    /// in `fewer steps than the period`.
    ///
    /// # Errors
    /// [`Error::Usage`] with option, value and range.
    pub fn require(&self, holds: bool, name: &str, value: &dyn Debug, want: &str) -> Result<()> {
        match self.direction {
            OptionsMode::Reading(_) | OptionsMode::Checking if !holds => {
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
            OptionsMode::Reading(arguments) => {
                if let Some(given) = take(arguments, name, first, &self.owner)? {
                    self.set(name, &given, field)?;
                }
                // The previous value may be out of range, too.
                self.checked(name, field)
            }
            OptionsMode::Checking => self.checked(name, field),
            OptionsMode::Writing(arguments) => {
                arguments.push(Argument { field: written.map(str::to_owned), value: field.write() });
                Ok(())
            }
            OptionsMode::Describing(fields) => {
                let range = field.describe(&self.known);
                fields.push(FieldHelp { name, value: field.write().to_string(), range, about });
                Ok(())
            }
        }
    }

    fn set(&self, name: &str, given: &OptionsText, field: &mut dyn AnyField) -> Result<()> {
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

    /// Adds the name of the option to an error inside a value.
    fn within(&self, name: &str, value: &OptionsText, inner: Error) -> Error {
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

    /// Fails if an argument matches no option.
    fn expect_none_left(&self) -> Result<()> {
        let OptionsMode::Reading(left) = &self.direction else { return Ok(()) };
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

/// [`Field`] of any type, so that the visitor is compiled once.
trait AnyField {
    /// Sets the value of a spelling; false if it is not a value.
    fn read(&mut self, spelling: &OptionsText, known: &Catalogues) -> Result<bool>;
    fn write(&self) -> OptionsText;
    fn holds(&self) -> Result<bool>;
    fn describe(&self, known: &Catalogues) -> String;
}

impl<T> AnyField for Field<'_, T> {
    fn read(&mut self, spelling: &OptionsText, known: &Catalogues) -> Result<bool> {
        let read = self.values.read(spelling, Some(self.value), known)?;
        let is_one = read.is_some();
        read.into_iter().for_each(|read| *self.value = read);
        Ok(is_one)
    }

    fn write(&self) -> OptionsText {
        self.values.write(self.value)
    }

    fn holds(&self) -> Result<bool> {
        self.values.accepts(self.value)
    }

    fn describe(&self, known: &Catalogues) -> String {
        self.values.describe(known)
    }
}

/// Removes the value of an option from the arguments: the argument with its name, where `-` and `_` are equal, or the
/// first argument if that has no name.
fn take(arguments: &mut Vec<Argument>, name: &str, first: bool, owner: &str) -> Result<Option<OptionsText>> {
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
