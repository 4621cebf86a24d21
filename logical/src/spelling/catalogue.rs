//! Catalogues: what is known by name, such as the codecs, and can be added to.

use super::nearest::no_such;
use super::options::{FieldHelp, Options};
use super::tree::Spelling;
use super::values::{Spelled, Values};
use crate::Result;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Things of type `T` by the names that users type, with their defaults.
///
/// ```
/// use hexagram_logical::codec;
///
/// let codec = codec::catalogue().named("top-k(5%)")?;
/// assert_eq!(codec.name(), "top-k(5%)");
/// # Ok::<(), hexagram_logical::Error>(())
/// ```
#[derive(Clone)]
pub struct Catalogue<T> {
    /// Name of one of the things, such as `codec`.
    what: &'static str,
    entries: Vec<Entry<T>>,
}

/// Function that makes a thing of its spelling.
type Read<T> = Arc<dyn Fn(&Spelling, &Catalogues) -> Result<T> + Send + Sync>;

/// Function that describes a thing's options.
type Describe = Arc<dyn Fn(&Catalogues) -> Vec<FieldHelp> + Send + Sync>;

#[derive(Clone)]
struct Entry<T> {
    name: &'static str,
    about: &'static str,
    read: Read<T>,
    help: Describe,
}

impl<T: 'static> Catalogue<T> {
    /// Creates a catalogue without entries; `what` is the name of one of its things, as in `there is no codec`.
    pub fn new(what: &'static str) -> Self {
        Catalogue { what, entries: Vec::new() }
    }

    /// Adds a thing under its name: with these options as defaults, instead of what had this name.
    #[must_use]
    pub fn with<S: Spelled + Send + Sync + 'static>(
        mut self,
        prototype: S,
        about: &'static str,
        make: fn(S) -> T,
    ) -> Self {
        let name = prototype.word();
        let described = prototype.clone();
        let help = move |known: &Catalogues| {
            let mut own = described.clone();
            Options::describe(name, known, |options| own.options(options))
        };
        let read = move |text: &Spelling, known: &Catalogues| prototype.with(text, known).map(make);
        self.entries.retain(|entry| entry.name != name);
        self.entries.push(Entry { name, about, read: Arc::new(read), help: Arc::new(help) });
        self
    }

    /// Returns all names, with what they are of in a few words.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.entries.iter().map(|entry| (entry.name, entry.about))
    }

    /// Returns what a text spells, whose options may be of the built-in codecs and graphs.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) of one line, with the nearest names where there is no such one.
    pub fn named(&self, text: &str) -> Result<T> {
        self.read(&text.parse()?, &Catalogues::default())
    }

    /// Returns what a spelling means.
    ///
    /// # Errors
    /// As [`Catalogue::named`].
    pub fn read(&self, spelling: &Spelling, known: &Catalogues) -> Result<T> {
        (self.entry(spelling.word())?.read)(spelling, known)
    }

    /// Returns the descriptions of the options of a name.
    ///
    /// # Errors
    /// As [`Catalogue::named`].
    pub fn help(&self, name: &str, known: &Catalogues) -> Result<Vec<FieldHelp>> {
        Ok((self.entry(name)?.help)(known))
    }

    fn entry(&self, name: &str) -> Result<&Entry<T>> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| no_such(self.what, name, self.entries.iter().map(|entry| entry.name)))
    }
}

/// Catalogues that options are read with, one for each type of thing. By default those of the built-in codecs and
/// graphs.
#[derive(Clone)]
pub struct Catalogues {
    by_type: BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl Catalogues {
    /// Creates a collection of no catalogues.
    pub(crate) fn empty() -> Self {
        Catalogues { by_type: BTreeMap::new() }
    }

    /// Adds a catalogue, instead of the one of the same type.
    #[must_use]
    pub fn with<T: 'static>(mut self, catalogue: Catalogue<T>) -> Self {
        self.by_type.insert(TypeId::of::<T>(), Arc::new(catalogue));
        self
    }

    /// Returns the catalogue of the things of type `T`.
    pub fn of<T: 'static>(&self) -> Option<&Catalogue<T>> {
        self.by_type.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

/// Values that are in a catalogue.
#[derive(Debug, Clone, Copy)]
pub struct Listed<T> {
    write: fn(&T) -> Spelling,
    check: fn(&T) -> Result<()>,
}

impl<T> Listed<T> {
    /// Sets the check of a value that was not typed, but built.
    #[must_use]
    pub fn with_check(self, check: fn(&T) -> Result<()>) -> Self {
        Listed { check, ..self }
    }
}

/// Returns the values that are in the catalogue of type `T`; `write` spells one.
pub fn listed<T: 'static>(write: fn(&T) -> Spelling) -> Listed<T> {
    Listed { write, check: |_| Ok(()) }
}

impl<T: 'static> Values<T> for Listed<T> {
    fn read(&self, spelling: &Spelling, _: Option<&T>, known: &Catalogues) -> Result<Option<T>> {
        known.of::<T>().map(|catalogue| catalogue.read(spelling, known)).transpose()
    }

    fn write(&self, value: &T) -> Spelling {
        (self.write)(value)
    }

    fn holds(&self, value: &T) -> Result<bool> {
        (self.check)(value).map(|()| true)
    }

    fn describe(&self, known: &Catalogues) -> String {
        let Some(catalogue) = known.of::<T>() else { return "what is in a catalogue".to_owned() };
        let names: Vec<&str> = catalogue.entries.iter().map(|entry| entry.name).collect();
        format!("a {}: {}", catalogue.what, names.join(", "))
    }
}
