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
    /// Treatment of the following parts when a different number of ranks loads them.
    rule: Regroup,
    direction: SaveOrLoad,
}

/// Treatment of a part of the state when a different number of ranks loads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Regroup {
    /// Its initial value.
    Anew,
    /// The value of any rank, as all ranks have the same.
    Shared,
    /// The mean over all ranks that have saved it.
    Averaged,
    /// The own chunk of a buffer of which each rank has saved a chunk.
    Chunked,
}

impl Regroup {
    /// Returns the name of the fact in a checkpoint that lists the parts under this rule.
    pub(crate) fn fact(self) -> Option<&'static str> {
        match self {
            Regroup::Anew => None,
            Regroup::Shared => Some("shared"),
            Regroup::Averaged => Some("averaged"),
            Regroup::Chunked => Some("chunked"),
        }
    }
}

/// A part to save.
pub(crate) struct Field {
    pub(crate) values: Buffer,
    pub(crate) rule: Regroup,
}

enum SaveOrLoad {
    Saving(BTreeMap<String, Field>),
    Loading {
        saved: BTreeMap<String, Buffer>,
        /// True if parts without a saved value keep their initial value.
        is_partial: bool,
    },
}

impl Fields {
    fn new(direction: SaveOrLoad) -> Self {
        Fields { prefix: String::new(), rule: Regroup::Anew, direction }
    }

    /// Creates fields that save parts.
    pub fn saving() -> Self {
        Fields::new(SaveOrLoad::Saving(BTreeMap::new()))
    }

    /// Creates fields that load these parts.
    pub fn loading(saved: BTreeMap<String, Buffer>) -> Self {
        Fields::new(SaveOrLoad::Loading { saved, is_partial: false })
    }

    /// Creates fields that load these parts, and leave others at their initial value.
    pub(crate) fn loading_some(saved: BTreeMap<String, Buffer>) -> Self {
        Fields::new(SaveOrLoad::Loading { saved, is_partial: true })
    }

    /// Returns the saved parts.
    ///
    /// # Errors
    /// [`Error::Usage`] if a part to load was not declared: it belongs to another algorithm.
    pub fn finish(self) -> Result<BTreeMap<String, Buffer>> {
        let values = |(name, field): (String, Field)| (name, field.values);
        Ok(self.finish_with_rules()?.into_iter().map(values).collect())
    }

    /// Returns the saved parts with their rules.
    ///
    /// # Errors
    /// As [`Fields::finish`].
    pub(crate) fn finish_with_rules(self) -> Result<BTreeMap<String, Field>> {
        match self.direction {
            SaveOrLoad::Saving(saved) => Ok(saved),
            SaveOrLoad::Loading { saved, .. } => match saved.keys().next() {
                None => Ok(BTreeMap::new()),
                Some(name) => {
                    Err(does_not_fit(format!("has `{name}`, which this algorithm does not declare")))
                }
            },
        }
    }

    /// Declares parts that are equal on all ranks, such as an outer momentum: a different number of ranks that loads
    /// the checkpoint continues with them. Other parts begin anew then.
    ///
    /// # Errors
    /// The errors of `parts`.
    pub fn shared(&mut self, parts: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.with_rule(Regroup::Shared, parts)
    }

    /// Declares parts of which the algorithm uses the mean over ranks, such as an error feedback: a different number of
    /// ranks that loads the checkpoint continues with the mean, on each rank. So the mean stays, and with it the change
    /// of the parameters that is still to come. Counts must be equal on all ranks. Chunks that the owners of an
    /// [`Encoding`] remember are cut anew.
    ///
    /// # Errors
    /// The errors of `parts`.
    pub fn averaged(&mut self, parts: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.with_rule(Regroup::Averaged, parts)
    }

    /// Returns true if a part keeps its initial value.
    fn leaves(&self, name: &str) -> bool {
        match &self.direction {
            SaveOrLoad::Saving(_) => false,
            SaveOrLoad::Loading { saved, is_partial } => *is_partial && !saved.contains_key(name),
        }
    }

    fn with_rule(&mut self, rule: Regroup, parts: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let before = std::mem::replace(&mut self.rule, rule);
        let outcome = parts(self);
        self.rule = before;
        outcome
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
        if self.leaves(&name) {
            return Ok(());
        }
        match &mut self.direction {
            SaveOrLoad::Saving(saved) => {
                let values = on_host(&buffer.read_all()?)?;
                saved.insert(name, Field { values, rule: self.rule });
            }
            SaveOrLoad::Loading { saved, .. } => {
                let Some(from) = saved.remove(&name) else {
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
        let rule = if self.rule == Regroup::Averaged { Regroup::Shared } else { self.rule };
        self.with_rule(rule, |fields| fields.buffer(name, &mut buffer))?;
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
            if fields.leaves(&format!("{}operations", fields.prefix)) {
                return Ok(());
            }
            let mut operations = memory.operations();
            fields.count("operations", &mut operations)?;
            let prefix = fields.prefix.clone();
            match &mut fields.direction {
                SaveOrLoad::Saving(saved) => {
                    for (entry, buffer) in memory.entries() {
                        let rule = match fields.rule {
                            Regroup::Averaged if memory.is_chunk(entry) => Regroup::Chunked,
                            Regroup::Averaged if !buffer.dtype().is_float() => Regroup::Shared,
                            rule => rule,
                        };
                        let values = on_host(&buffer.read_all()?)?;
                        saved.insert(format!("{prefix}{entry}"), Field { values, rule });
                    }
                }
                SaveOrLoad::Loading { saved, .. } => {
                    let (of_it, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
                        std::mem::take(saved).into_iter().partition(|(name, _)| name.starts_with(&prefix));
                    *saved = others;
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
