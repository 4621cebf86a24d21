//! Makes batches of samples.
//!
//! | sample | batch |
//! |---|---|
//! | number | [`Array`] of shape `[batch]` |
//! | [`Array`] of shape `[…]` | [`Array`] of shape `[batch, …]`, if all shapes are equal |
//! | `String`, `&str`, `bool`, `char` | `Vec` of them |
//! | tuple | tuple of batches |
//! | `Vec`, all of one length | `Vec` of batches, one per place |
//! | `HashMap`, `BTreeMap`, all with the same keys | the same map, of batches |
//!
//! As in PyTorch's `default_collate`. For a struct, implement [`Collate`], or pass a function to the loader.

use super::array::{Array, Shape};
use super::pool::{Element, Pool};
use super::prefetch;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, Hash};

/// Sample type that the loader can collate itself.
pub trait Collate: Sized {
    /// Type of the batch.
    type Batch;

    /// Makes a batch of samples, in their order. Memory for arrays comes from `pool`.
    ///
    /// # Errors
    ///
    /// [`CollateError`] if the samples do not fit together.
    fn collate(samples: Vec<Self>, pool: &Pool) -> Result<Self::Batch, CollateError>;
}

/// A sample that does not match the first of its batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollateError {
    /// Place of the sample in the batch, from 0.
    pub place: usize,
    /// Part of the sample, in Rust syntax: `.0["image"]`; empty for the whole sample.
    pub part: String,
    /// Difference from the other samples.
    pub misfit: Box<Misfit>,
}

impl fmt::Display for CollateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CollateError { place, part, misfit } = self;
        write!(
            f,
            "the sample at place {place} of the batch {misfit}{}; {}",
            whereabouts(part),
            misfit.remedy()
        )
    }
}

impl std::error::Error for CollateError {}

/// Difference between two samples of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants explain the fields")]
pub enum Misfit {
    /// Arrays that cannot be stacked.
    Shape { found: Shape, first: Shape },
    /// Sequences that cannot be transposed.
    Length { found: usize, first: usize },
    /// A map that lacks a key of the first, or has an additional one.
    Key { key: String, missing: bool },
    /// Arrays with too many dimensions to add the batch dimension.
    Dimensions { found: Shape },
}

impl Misfit {
    fn remedy(&self) -> &'static str {
        match self {
            Misfit::Dimensions { .. } => "flatten the samples",
            _ => "make the samples alike, or use a collate function that pads them",
        }
    }

    fn at(self, place: usize) -> CollateError {
        CollateError { place, part: String::new(), misfit: Box::new(self) }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::Shape { found, first } => {
                write!(f, "has shape {found}, but the first sample has {first}")
            }
            Misfit::Length { found, first } => {
                write!(f, "has length {found}, but the first sample has {first}")
            }
            Misfit::Key { key, missing: true } => write!(f, "lacks the key {key} of the first sample"),
            Misfit::Key { key, missing: false } => write!(f, "has the additional key {key}"),
            Misfit::Dimensions { found } => write!(f, "has shape {found}, too many dimensions to stack"),
        }
    }
}

fn whereabouts(part: &str) -> String {
    if part.is_empty() { String::new() } else { format!(" (in its part {part})") }
}

impl CollateError {
    fn within(mut self, outer: impl fmt::Display) -> Self {
        self.part.insert_str(0, &outer.to_string());
        self
    }
}

impl<T: Element> Collate for Array<T> {
    type Batch = Array<T>;

    fn collate(samples: Vec<Self>, pool: &Pool) -> Result<Array<T>, CollateError> {
        let first = samples.first().map(|sample| *sample.shape()).unwrap_or_default();
        let shape = first.stacked(samples.len()).ok_or_else(|| Misfit::Dimensions { found: first }.at(0))?;
        let mut stacked = pool.take(shape.elements());
        let size = first.elements();
        for (place, sample) in samples.iter().enumerate() {
            if *sample.shape() != first {
                return Err(Misfit::Shape { found: *sample.shape(), first }.at(place));
            }
            if let Some(next) = samples.get(place + 1) {
                prefetch::soon(next);
            }
            stacked[place * size..][..size].copy_from_slice(sample);
        }
        Ok(Array::filling(shape, stacked))
    }
}

macro_rules! numbers {
    ($($number:ty)*) => { $(
        impl Collate for $number {
            type Batch = Array<$number>;

            fn collate(samples: Vec<Self>, pool: &Pool) -> Result<Self::Batch, CollateError> {
                let mut batch = pool.take(samples.len());
                batch.copy_from_slice(&samples);
                Ok(Array::filling([samples.len()].into(), batch))
            }
        }
    )* };
}
numbers!(u8 i8 u16 i16 u32 i32 u64 i64 u128 i128 usize isize f32 f64);

macro_rules! as_they_are {
    ($($kind:ty)*) => { $(
        impl Collate for $kind {
            type Batch = Vec<$kind>;

            fn collate(samples: Vec<Self>, _: &Pool) -> Result<Vec<Self>, CollateError> {
                Ok(samples)
            }
        }
    )* };
}
as_they_are!(String &'static str bool char);

macro_rules! tuples {
    ($(($($name:ident $place:tt)*))*) => { $(
        impl<$($name: Collate),*> Collate for ($($name,)*) {
            type Batch = ($($name::Batch,)*);

            fn collate(samples: Vec<Self>, pool: &Pool) -> Result<Self::Batch, CollateError> {
                let mut columns = ($(Vec::<$name>::with_capacity(samples.len()),)*);
                for sample in samples {
                    $(columns.$place.push(sample.$place);)*
                }
                Ok(($($name::collate(columns.$place, pool)
                    .map_err(|error| error.within(concat!(".", stringify!($place))))?,)*))
            }
        }
    )* };
}
tuples!((A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5));

impl<C: Collate> Collate for Vec<C> {
    type Batch = Vec<C::Batch>;

    fn collate(samples: Vec<Self>, pool: &Pool) -> Result<Self::Batch, CollateError> {
        let first = samples.first().map_or(0, Vec::len);
        let count = samples.len();
        let mut columns: Vec<Vec<C>> = (0..first).map(|_| Vec::with_capacity(count)).collect();
        for (place, sample) in samples.into_iter().enumerate() {
            if sample.len() != first {
                return Err(Misfit::Length { found: sample.len(), first }.at(place));
            }
            columns.iter_mut().zip(sample).for_each(|(column, part)| column.push(part));
        }
        let collate = |(at, column)| {
            C::collate(column, pool).map_err(|error: CollateError| error.within(format_args!("[{at}]")))
        };
        columns.into_iter().enumerate().map(collate).collect()
    }
}

impl<K: Ord + Clone + fmt::Debug, C: Collate> Collate for BTreeMap<K, C> {
    type Batch = BTreeMap<K, C::Batch>;

    fn collate(samples: Vec<Self>, pool: &Pool) -> Result<Self::Batch, CollateError> {
        let keys: Vec<K> = samples.first().map(|first| first.keys().cloned().collect()).unwrap_or_default();
        by_key(keys, samples, BTreeMap::remove, |rest| rest.into_keys().next(), pool)
    }
}

impl<K: Hash + Eq + Clone + fmt::Debug, C: Collate, S: BuildHasher + Default> Collate for HashMap<K, C, S> {
    type Batch = HashMap<K, C::Batch, S>;

    fn collate(samples: Vec<Self>, pool: &Pool) -> Result<Self::Batch, CollateError> {
        let keys: Vec<K> = samples.first().map(|first| first.keys().cloned().collect()).unwrap_or_default();
        by_key(keys, samples, HashMap::remove, |rest| rest.into_keys().next(), pool)
    }
}

/// Collates the values of each key; all samples must have the same keys.
fn by_key<M, K: fmt::Debug, C: Collate, B: FromIterator<(K, C::Batch)>>(
    keys: Vec<K>,
    mut samples: Vec<M>,
    remove: impl Fn(&mut M, &K) -> Option<C>,
    any_key: impl Fn(M) -> Option<K>,
    pool: &Pool,
) -> Result<B, CollateError> {
    let misfit = |key: &K, missing, place| Misfit::Key { key: format!("{key:?}"), missing }.at(place);
    let mut columns = Vec::with_capacity(keys.len());
    for key in keys {
        let values = samples
            .iter_mut()
            .enumerate()
            .map(|(place, sample)| remove(sample, &key).ok_or_else(|| misfit(&key, true, place)));
        let column = values.collect::<Result<Vec<C>, _>>()?;
        columns.push((key, column));
    }
    for (place, rest) in samples.into_iter().enumerate() {
        if let Some(key) = any_key(rest) {
            return Err(misfit(&key, false, place));
        }
    }
    let collate = |(key, column): (K, Vec<C>)| match C::collate(column, pool) {
        Ok(batch) => Ok((key, batch)),
        Err(error) => Err(error.within(format_args!("[{key:?}]"))),
    };
    columns.into_iter().map(collate).collect()
}

/// Stacks sequences of different lengths, padded on the right with `fill`.
///
/// Returns an array of shape `[batch, longest]`, and the true lengths, of shape `[batch]`. In a collate function:
/// `|samples, pool| Ok(padded(&samples, 0, pool))`.
pub fn padded<T: Element>(samples: &[impl AsRef<[T]>], fill: T, pool: &Pool) -> (Array<T>, Array<usize>) {
    let mut lengths = pool.take(samples.len());
    lengths.iter_mut().zip(samples).for_each(|(length, sample)| *length = sample.as_ref().len());
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut rows = pool.take(samples.len() * longest);
    for (place, sample) in samples.iter().enumerate() {
        let row = &mut rows[place * longest..][..longest];
        let sample = sample.as_ref();
        row[..sample.len()].copy_from_slice(sample);
        row[sample.len()..].fill(fill);
    }
    let shape = Shape::from([samples.len(), longest]);
    (Array::filling(shape, rows), Array::filling([samples.len()].into(), lengths))
}

#[cfg(test)]
mod tests;
