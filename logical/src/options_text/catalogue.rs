//! Catalogues: values that are known by name, such as the codecs, and can be extended.

use super::nearest::no_such;
use super::options::{FieldHelp, Options};
use super::tree::OptionsText;
use super::values::{NamedOptions, Values};
use crate::Result;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values of type `T` by the names that users type, with their defaults.
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
    /// Name of one of the values, such as `codec`.
    what: &'static str,
    entries: Vec<CatalogueEntry<T>>,
}

/// Function that creates a value from its spelling.
type ReadFn<T> = Arc<dyn Fn(&OptionsText, &Catalogues) -> Result<T> + Send + Sync>;

/// Function that describes the options of a value.
type Describe = Arc<dyn Fn(&Catalogues) -> Vec<FieldHelp> + Send + Sync>;

#[derive(Clone)]
struct CatalogueEntry<T> {
    name: &'static str,
    about: &'static str,
    read: ReadFn<T>,
    help: Describe,
}

impl<T: 'static> Catalogue<T> {
    /// Creates an empty catalogue; `what` is the name of one of its values, as in `unknown codec`.
    pub fn new(what: &'static str) -> Self {
        Catalogue { what, entries: Vec::new() }
    }

    /// Adds a value under its name, with these options as defaults. Replaces a value of the same name.
    #[must_use]
    pub fn with<S: NamedOptions + Send + Sync + 'static>(
        mut self,
        prototype: S,
        about: &'static str,
        make: fn(S) -> T,
    ) -> Self {
        let name = prototype.keyword();
        let described = prototype.clone();
        let help = move |known: &Catalogues| {
            let mut own = described.clone();
            Options::describe(name, known, |options| own.options(options))
        };
        let read = move |text: &OptionsText, known: &Catalogues| prototype.with(text, known).map(make);
        self.entries.retain(|entry| entry.name != name);
        self.entries.push(CatalogueEntry { name, about, read: Arc::new(read), help: Arc::new(help) });
        self
    }

    /// Returns all names, with short descriptions.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.entries.iter().map(|entry| (entry.name, entry.about))
    }

    /// Returns the value of a spelling, whose options may contain built-in codecs and graphs.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) in one line; for an unknown name, with the nearest names.
    pub fn named(&self, text: &str) -> Result<T> {
        self.read(&text.parse()?, &Catalogues::default())
    }

    /// Returns the value of a spelling.
    ///
    /// # Errors
    /// As [`Catalogue::named`].
    pub fn read(&self, spelling: &OptionsText, known: &Catalogues) -> Result<T> {
        (self.entry(spelling.name())?.read)(spelling, known)
    }

    /// Returns the descriptions of the options of a name.
    ///
    /// # Errors
    /// As [`Catalogue::named`].
    pub fn help(&self, name: &str, known: &Catalogues) -> Result<Vec<FieldHelp>> {
        Ok((self.entry(name)?.help)(known))
    }

    fn entry(&self, name: &str) -> Result<&CatalogueEntry<T>> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| no_such(self.what, name, self.entries.iter().map(|entry| entry.name)))
    }
}

/// Catalogues with which options are read, one for each type of value. The default has those of the built-in codecs
/// and graphs.
#[derive(Clone)]
pub struct Catalogues {
    by_type: BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl Catalogues {
    /// Creates an empty collection.
    pub(crate) fn empty() -> Self {
        Catalogues { by_type: BTreeMap::new() }
    }

    /// Adds a catalogue, which replaces one of the same type.
    #[must_use]
    pub fn with<T: 'static>(mut self, catalogue: Catalogue<T>) -> Self {
        self.by_type.insert(TypeId::of::<T>(), Arc::new(catalogue));
        self
    }

    /// Returns the catalogue for values of type `T`.
    pub fn of<T: 'static>(&self) -> Option<&Catalogue<T>> {
        self.by_type.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

/// Values of a catalogue.
#[derive(Debug, Clone, Copy)]
pub struct Listed<T> {
    write: fn(&T) -> OptionsText,
    check: fn(&T) -> Result<()>,
}

impl<T> Listed<T> {
    /// Sets the check of a value that was built in code, not parsed.
    #[must_use]
    pub fn with_check(self, check: fn(&T) -> Result<()>) -> Self {
        Listed { check, ..self }
    }
}

/// Returns the values in the catalogue of type `T`; `write` returns the spelling of one.
pub fn listed<T: 'static>(write: fn(&T) -> OptionsText) -> Listed<T> {
    Listed { write, check: |_| Ok(()) }
}

impl<T: 'static> Values<T> for Listed<T> {
    fn read(&self, spelling: &OptionsText, _: Option<&T>, known: &Catalogues) -> Result<Option<T>> {
        known.of::<T>().map(|catalogue| catalogue.read(spelling, known)).transpose()
    }

    fn write(&self, value: &T) -> OptionsText {
        (self.write)(value)
    }

    fn accepts(&self, value: &T) -> Result<bool> {
        (self.check)(value).map(|()| true)
    }

    fn describe(&self, known: &Catalogues) -> String {
        let Some(catalogue) = known.of::<T>() else { return "a name in the catalogue".to_owned() };
        let names: Vec<&str> = catalogue.entries.iter().map(|entry| entry.name).collect();
        format!("a {}: {}", catalogue.what, names.join(", "))
    }
}
