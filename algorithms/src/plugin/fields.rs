//! Fields of the state of an algorithm in a checkpoint: one list of names, for saving and for loading.
//!
//! An algorithm declares each part of its state once; [`Fields`] copies it out or in. So the two directions cannot
//! differ.

use crate::host_copy::on_host;
use hexagram_logical::encoding::{Encoding, State};
use hexagram_logical::{Buffer, Error, Result};
use std::collections::BTreeMap;

/// Parts of a state, by name, to save or to load.
pub struct Fields {
    /// Prefix of the names that follow.
    prefix: String,
    direction: SaveOrLoad,
}

enum SaveOrLoad {
    Saving(BTreeMap<String, Buffer>),
    Loading(BTreeMap<String, Buffer>),
}

impl Fields {
    /// Creates fields that save parts.
    pub fn saving() -> Self {
        Fields { prefix: String::new(), direction: SaveOrLoad::Saving(BTreeMap::new()) }
    }

    /// Creates fields that load these parts.
    pub fn loading(saved: BTreeMap<String, Buffer>) -> Self {
        Fields { prefix: String::new(), direction: SaveOrLoad::Loading(saved) }
    }

    /// Returns the saved parts.
    ///
    /// # Errors
    /// [`Error::Usage`] if a part to load was not declared: it belongs to another algorithm.
    pub fn finish(self) -> Result<BTreeMap<String, Buffer>> {
        match self.direction {
            SaveOrLoad::Saving(saved) => Ok(saved),
            SaveOrLoad::Loading(rest) => match rest.keys().next() {
                None => Ok(rest),
                Some(name) => {
                    Err(does_not_fit(format!("has `{name}`, which this algorithm does not declare")))
                }
            },
        }
    }

    /// Declares parts inside another part: `part.name`.
    ///
    /// # Errors
    /// The errors of `parts`.
    pub fn within(&mut self, part: &str, parts: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let before = self.prefix.clone();
        self.prefix = format!("{before}{part}.");
        let outcome = parts(self);
        self.prefix = before;
        outcome
    }

    /// Declares a buffer, whose length and type do not change.
    ///
    /// # Errors
    /// [`Error::Usage`] if a checkpoint lacks it, or has a different length or type.
    pub fn buffer(&mut self, name: &str, buffer: &mut Buffer) -> Result<()> {
        let name = format!("{}{name}", self.prefix);
        match &mut self.direction {
            SaveOrLoad::Saving(saved) => drop(saved.insert(name, on_host(&buffer.read_all()?)?)),
            SaveOrLoad::Loading(rest) => {
                let Some(from) = rest.remove(&name) else {
                    return Err(does_not_fit(format!("has no `{name}`")));
                };
                if (from.dtype(), from.len()) != (buffer.dtype(), buffer.len()) {
                    let say = |buffer: &Buffer| format!("{} × {}", buffer.len(), buffer.dtype());
                    return Err(does_not_fit(format!("has {} as `{name}`, not {}", say(&from), say(buffer))));
                }
                buffer.write_all()?.copy_from(&from.read_all()?)?;
            }
        }
        Ok(())
    }

    /// Declares a count.
    ///
    /// # Errors
    /// As [`Fields::buffer`].
    pub fn count(&mut self, name: &str, count: &mut u64) -> Result<()> {
        let mut buffer = Buffer::from_slice(&[*count as i64])?;
        self.buffer(name, &mut buffer)?;
        *count = buffer.host::<i64>()?[0] as u64;
        Ok(())
    }

    /// Declares a number.
    ///
    /// # Errors
    /// As [`Fields::buffer`].
    pub fn number(&mut self, name: &str, number: &mut f64) -> Result<()> {
        let mut buffer = Buffer::from_slice(&[*number])?;
        self.buffer(name, &mut buffer)?;
        *number = buffer.host::<f64>()?[0];
        Ok(())
    }

    /// Declares the state of an encoding.
    ///
    /// # Errors
    /// As [`Fields::buffer`].
    pub fn encoding<C: ?Sized>(&mut self, name: &str, encoding: &mut Encoding<C>) -> Result<()> {
        self.memory(name, encoding.state_mut())
    }

    /// Declares buffers that are created at their first use.
    ///
    /// # Errors
    /// As [`Fields::buffer`].
    pub fn memory(&mut self, name: &str, memory: &mut State) -> Result<()> {
        self.within(name, |fields| {
            let mut operations = memory.operations();
            fields.count("operations", &mut operations)?;
            let prefix = fields.prefix.clone();
            match &mut fields.direction {
                SaveOrLoad::Saving(saved) => {
                    for (entry, buffer) in memory.entries() {
                        saved.insert(format!("{prefix}{entry}"), on_host(&buffer.read_all()?)?);
                    }
                }
                SaveOrLoad::Loading(rest) => {
                    let (of_it, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
                        std::mem::take(rest).into_iter().partition(|(name, _)| name.starts_with(&prefix));
                    *rest = others;
                    let short = |(name, buffer): (String, Buffer)| (name[prefix.len()..].to_owned(), buffer);
                    memory.restore(operations, of_it.into_iter().map(short));
                }
            }
            Ok(())
        })
    }
}

fn does_not_fit(what: String) -> Error {
    let remedy = "load it with the algorithm, options, model and number of ranks that it was saved with";
    Error::usage(format!("the checkpoint {what}"), remedy)
}
