//! Records that a training saves, as names and values: tensors with shapes, and facts as text. Also the directories for
//! them, and the agreement of ranks that all have succeeded.
//!
//! The engine and [`checkpoint`](crate::checkpoint) both use this module, which depends on neither.

mod agree;
mod claims;

pub(crate) use agree::{all_or_none, announced, beginning, gather_lists, gather_texts};
pub(crate) use claims::Claims;

use crate::host_copy::on_host;
use hexagram_logical::{Buffer, DType, Element, Error, Result, hash};
use std::collections::BTreeMap;

/// Named tensors and facts of one rank.
///
/// ```
/// use hexagram::algorithms::checkpoint::Record;
///
/// let mut record = Record::default();
/// record.put("running-mean", &[0.5f32, 1.5])?;
/// record.put("loader", b"any bytes")?;
/// record.note("epoch", 3);
/// assert_eq!(record.get::<f32>("running-mean")?, [0.5, 1.5]);
/// assert_eq!(record.noted::<u64>("epoch")?, 3);
/// # Ok::<(), hexagram::logical::Error>(())
/// ```
#[derive(Default)]
pub struct Record {
    pub(crate) tensors: BTreeMap<String, Saved>,
    pub(crate) facts: BTreeMap<String, String>,
}

/// One tensor of a [`Record`].
pub struct Saved {
    /// Sizes of the tensor, outermost first.
    pub shape: Vec<usize>,
    /// Elements, row by row.
    pub values: Buffer,
}

impl Record {
    /// Adds a vector of numbers or bytes.
    ///
    /// # Errors
    /// As [`Buffer::from_slice`].
    pub fn put<T: Element>(&mut self, name: &str, values: &[T]) -> Result<()> {
        self.put_tensor(name, &[values.len()], Buffer::from_slice(values)?)
    }

    /// Adds a tensor.
    ///
    /// # Errors
    /// [`Error::Usage`] if the number of its elements does not match its shape.
    pub fn put_tensor(&mut self, name: &str, shape: &[usize], values: Buffer) -> Result<()> {
        if shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size)) != Some(values.len()) {
            let what = format!("`{name}` of shape {shape:?} was given {} elements", values.len());
            return Err(Error::usage(what, "pass the number of elements of the shape"));
        }
        self.tensors.insert(name.to_owned(), Saved { shape: shape.to_vec(), values });
        Ok(())
    }

    /// Adds a fact: a number or a short text.
    pub fn note(&mut self, name: &str, fact: impl ToString) {
        self.facts.insert(name.to_owned(), fact.to_string());
    }

    /// Returns the elements of a tensor.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown name, or elements of another type.
    pub fn get<T: Element>(&self, name: &str) -> Result<Vec<T>> {
        Ok(self.tensor(name)?.values.host::<T>()?.to_vec())
    }

    /// Returns a tensor.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown name.
    pub fn tensor(&self, name: &str) -> Result<&Saved> {
        self.tensors.get(name).ok_or_else(|| lacks(name))
    }

    /// Returns a fact by name.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown name, or a fact that cannot be parsed.
    pub fn noted<T: std::str::FromStr>(&self, name: &str) -> Result<T> {
        let text = self.facts.get(name).ok_or_else(|| lacks(name))?;
        let unreadable =
            || Error::usage(format!("the checkpoint says `{}` of `{name}`", beginning(text, 100)), REMEDY);
        text.parse().map_err(|_| unreadable())
    }

    /// Returns true if there is a fact of this name.
    pub fn notes(&self, name: &str) -> bool {
        self.facts.contains_key(name)
    }

    /// Returns the tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Saved)> {
        self.tensors.iter().map(|(name, saved)| (name.as_str(), saved))
    }

    /// Returns the facts, by name.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.facts.iter().map(|(name, fact)| (name.as_str(), fact.as_str()))
    }

    /// Returns a copy, in host memory.
    pub(crate) fn copied(&self) -> Result<Record> {
        let copy = |(name, Saved { shape, values }): (&String, &Saved)| {
            let values = on_host(&values.read_all()?)?;
            Ok((name.clone(), Saved { shape: shape.clone(), values }))
        };
        let tensors = self.tensors.iter().map(copy).collect::<Result<_>>()?;
        Ok(Record { tensors, facts: self.facts.clone() })
    }

    /// Adds the contents of another record, below a name: `part/name`.
    pub(crate) fn absorb(&mut self, part: &str, other: Record) {
        let below = |name: String| format!("{part}/{name}");
        self.tensors.extend(other.tensors.into_iter().map(|(name, saved)| (below(name), saved)));
        self.facts.extend(other.facts.into_iter().map(|(name, fact)| (below(name), fact)));
    }

    /// Removes and returns the contents below a name.
    pub(crate) fn detach(&mut self, part: &str) -> Record {
        let prefix = format!("{part}/");
        Record { tensors: below(&mut self.tensors, &prefix), facts: below(&mut self.facts, &prefix) }
    }

    /// Returns a hash that changes, most likely, when anything in the record changes.
    ///
    /// # Errors
    /// [`Error::Busy`] if a tensor is being written.
    pub fn checksum(&self) -> Result<u64> {
        let mut hash = hash::START;
        for (name, fact) in &self.facts {
            hash = mixed(mixed(hash, name.as_bytes()), fact.as_bytes());
        }
        for (name, Saved { shape, values }) in &self.tensors {
            let described = format!("{name} {} {shape:?}", values.dtype());
            hash = mixed(mixed(hash, described.as_bytes()), &values.read_all()?.bytes_on_host()?);
        }
        Ok(hash)
    }
}

/// Returns element type and shape, for messages.
pub(crate) fn described(dtype: DType, shape: &[usize]) -> String {
    format!("{dtype} {shape:?}")
}

/// Continues a hash with words of eight bytes, with one multiplication per word.
fn mixed(hash: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(hash ^ bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash::step(hash, u64::from_le_bytes(word)).rotate_left(29)
    })
}

fn below<T>(all: &mut BTreeMap<String, T>, prefix: &str) -> BTreeMap<String, T> {
    let (of_it, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        std::mem::take(all).into_iter().partition(|(name, _)| name.starts_with(prefix));
    *all = others;
    of_it.into_iter().map(|(name, value)| (name[prefix.len()..].to_owned(), value)).collect()
}

const REMEDY: &str = "load it with the program, model, options and number of ranks that it was saved with";

pub(crate) fn does_not_fit(what: impl std::fmt::Display) -> Error {
    Error::usage(format!("the checkpoint {what}"), REMEDY)
}

fn lacks(name: &str) -> Error {
    does_not_fit(format!("has no `{name}`"))
}
