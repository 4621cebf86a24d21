//! Complexities of samples, such as tokens or milliseconds.
//!
//! The file has one number per line and one line per sample, in the order of the data set.

use crate::error::{SamplerError, check_entries};
use crate::file;
use std::fmt::Display;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Number of samples that a thread claims at a time.
const BLOCK: usize = 64;
/// Maximum size of a file of complexities, in bytes: enough for hundreds of millions of samples.
const LONGEST: u64 = 4 << 30;
/// Number of characters of an invalid line in an error.
const SHOWN: usize = 40;

/// The complexity of every sample of a data set: finite numbers that are not negative, whole or fractional. Cheap to
/// clone.
///
/// Whole numbers are exact up to 2^53.
#[derive(Debug, Clone, PartialEq)]
pub struct Complexities {
    values: Arc<[f64]>,
}

impl Complexities {
    /// Creates complexities from their values.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] if `values` is empty, or a value is negative, infinite or NaN.
    pub fn new(values: Vec<f64>) -> Result<Self, SamplerError> {
        if values.is_empty() {
            return Err(SamplerError::NoSamples);
        }
        check_entries("complexities", &values, false)?;
        // Adding 0 turns -0 into 0, whose bits sort correctly.
        Ok(Complexities { values: values.into_iter().map(|value| value + 0.0).collect() })
    }

    /// Evaluates `complexity` once for each of `len` samples, on all cores.
    ///
    /// # Errors
    ///
    /// [`SamplerError::Unknown`] with the error of the function, for the first sample that fails; those of
    /// [`new`](Self::new).
    pub fn evaluate<E: Display>(
        len: usize,
        complexity: impl Fn(usize) -> Result<f64, E> + Sync,
    ) -> Result<Self, SamplerError> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let work = || {
            let mut done = Vec::new();
            while !failed.load(Ordering::Relaxed) {
                let begin = next.fetch_add(BLOCK, Ordering::Relaxed);
                if begin >= len {
                    break;
                }
                let block = begin..len.min(begin + BLOCK);
                let values = block.map(|sample| {
                    complexity(sample)
                        .map_err(|cause| SamplerError::Unknown { sample, cause: cause.to_string() })
                });
                let values: Result<Vec<f64>, _> = values.collect();
                failed.fetch_or(values.is_err(), Ordering::Relaxed);
                done.push((begin, values?));
            }
            Ok(done)
        };
        let blocks: Result<Vec<_>, SamplerError> = thread::scope(|scope| {
            // If no further threads can be started, the existing ones, at least this one, do the work.
            let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
            let threads: Vec<_> = (1..cores.min(len.div_ceil(BLOCK))).map_while(start).collect();
            let own = work();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            std::iter::once(own).chain(threads.into_iter().map(join)).collect()
        });
        let mut blocks = blocks?.concat();
        blocks.sort_unstable_by_key(|block| block.0);
        Complexities::new(blocks.into_iter().flat_map(|block| block.1).collect())
    }

    /// Reads the complexities from a file.
    ///
    /// # Errors
    ///
    /// [`SamplerError::File`] if the file is empty or longer than 4 GiB, is not a regular file (a pipe, for example),
    /// cannot be read, or has a line that is not a finite number of at least 0.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, SamplerError> {
        let path = path.as_ref();
        let bytes = file::read(path, LONGEST).map_err(|cause| file_error(path, cause))?;
        let text = String::from_utf8(bytes).map_err(|_| file_error(path, "it is not UTF-8 text"))?;
        let lines = text.trim_end().lines().zip(1..);
        let number = |(line, at): (&str, usize)| {
            number(line).map_err(|what| file_error(path, format!("line {at} is {what}")))
        };
        let values = lines.map(number).collect::<Result<Vec<f64>, _>>()?;
        if values.is_empty() {
            return Err(file_error(path, "it is empty"));
        }
        Complexities::new(values)
    }

    /// Writes the complexities to a file atomically: the file is complete, or unchanged. A link stays, and its target
    /// is replaced; a device or a pipe is written to.
    ///
    /// # Errors
    ///
    /// [`SamplerError::File`] if the file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), SamplerError> {
        let path = path.as_ref();
        let written = match fs::metadata(path) {
            Ok(there) if !there.is_file() && !there.is_dir() => {
                File::options().write(true).open(path).and_then(|file| self.write_lines(file)).map(drop)
            }
            _ => self.replace(&path.canonicalize().unwrap_or_else(|_| path.to_owned())),
        };
        written.map_err(|cause| file_error(path, cause))
    }

    fn replace(&self, path: &Path) -> io::Result<()> {
        // The temporary file is next to the target, and has a unique name, since several ranks may write the same
        // file. The name is unpredictable, since other users may be able to create links in that folder.
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".{:016x}.part", RandomState::new().hash_one(std::process::id())));
        let file = File::create_new(&aside).and_then(|file| self.write_lines(file));
        let written = file.and_then(|file| file.sync_all()).and_then(|()| fs::rename(&aside, path));
        // The error of the write takes precedence.
        written.inspect_err(|_| drop(fs::remove_file(&aside)))
    }

    fn write_lines(&self, file: File) -> io::Result<File> {
        let mut file = BufWriter::new(file);
        for value in &*self.values {
            writeln!(file, "{value}")?;
        }
        file.into_inner().map_err(io::IntoInnerError::into_error)
    }

    /// Returns the complexities in a file. If the file does not exist, evaluates and writes them.
    ///
    /// # Errors
    ///
    /// [`SamplerError::WrongCount`] if the file belongs to a data set of a different length; those of
    /// [`read`](Self::read), [`evaluate`](Self::evaluate) and [`write`](Self::write).
    pub fn cached<E: Display>(
        path: impl AsRef<Path>,
        len: usize,
        complexity: impl Fn(usize) -> Result<f64, E> + Sync,
    ) -> Result<Self, SamplerError> {
        let path = path.as_ref();
        if !path.exists() {
            let evaluated = Complexities::evaluate(len, complexity)?;
            evaluated.write(path)?;
            return Ok(evaluated);
        }
        let read = Complexities::read(path)?;
        read.check_len(len)?;
        Ok(read)
    }

    /// Checks that there are `len` complexities.
    ///
    /// # Errors
    ///
    /// [`SamplerError::WrongCount`] otherwise.
    pub fn check_len(&self, len: usize) -> Result<(), SamplerError> {
        let given = self.len();
        match given == len {
            true => Ok(()),
            false => {
                Err(SamplerError::WrongCount { option: "complexities", given, expected: len, each: "sample" })
            }
        }
    }

    /// Returns the number of samples, at least one.
    #[allow(clippy::len_without_is_empty, reason = "they are never empty")]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the complexity of each sample.
    pub fn as_slice(&self) -> &[f64] {
        &self.values
    }

    /// Returns the difference between the most and the least complex sample.
    pub(crate) fn spread(&self) -> f64 {
        let highest = self.values.iter().copied().fold(0.0, f64::max);
        highest - self.values.iter().copied().fold(highest, f64::min)
    }
}

/// Returns the complexity in a line, or a description of the line.
fn number(line: &str) -> Result<f64, String> {
    let shown = || line.trim().chars().take(SHOWN).collect::<String>();
    match line.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        Ok(_) => Err(format!("{} instead of a finite number of at least 0", shown())),
        Err(_) => Err(format!("not a number: {:?}", shown())),
    }
}

fn file_error(path: &Path, cause: impl Display) -> SamplerError {
    SamplerError::File { path: path.to_owned(), cause: cause.to_string() }
}
