//! Lines of text, each a sample.

use super::map::Map;
use super::{Cause, Dataset, DatasetError, Fetch};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The lines of a mapped UTF-8 file, without their ends (`\n` or `\r\n`). The index of lines takes 8 bytes per line;
/// the text stays in the file.
#[derive(Clone)]
pub struct Lines {
    path: PathBuf,
    map: Arc<Map>,
    /// Start of each line, and the end of the last one.
    starts: Arc<[usize]>,
}

impl Lines {
    /// Maps a file and indexes its lines. Do not truncate the file while it is mapped: Linux would end the process
    /// with SIGBUS.
    ///
    /// # Errors
    ///
    /// [`DatasetError::Read`] if the file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DatasetError> {
        let path = path.as_ref();
        let map = Map::open(path)?;
        let bytes = map.bytes();
        let after = |(at, byte): (usize, &u8)| (*byte == b'\n').then_some(at + 1);
        let mut starts = vec![0];
        starts.extend(bytes.iter().enumerate().filter_map(after));
        if starts.last() != Some(&bytes.len()) {
            starts.push(bytes.len());
        }
        Ok(Lines { path: path.into(), map: Arc::new(map), starts: starts.into() })
    }

    /// Returns the length of each line in bytes, without its end, as a cost to balance ranks by.
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.starts.len() - 1).map(|index| self.range(index).len())
    }

    fn range(&self, index: usize) -> Range<usize> {
        let start = self.starts[index];
        let end = self.starts[index + 1];
        let line = &self.map.bytes()[start..end];
        let line = line.strip_suffix(b"\n").map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line));
        start..start + line.len()
    }
}

impl Dataset for Lines {
    type Sample = String;

    fn len(&self) -> usize {
        self.starts.len() - 1
    }

    fn get(&self, index: usize, _: &Fetch<'_>) -> Result<String, Cause> {
        let index = DatasetError::in_range(index, self.len())?;
        let line = &self.map.bytes()[self.range(index)];
        match String::from_utf8(line.to_vec()) {
            Ok(line) => Ok(line),
            Err(error) => Err(DatasetError::Format {
                path: self.path.clone(),
                place: format!(":{}", index + 1),
                what: format!("the line is not UTF-8: {error}"),
                remedy: "convert the file with iconv, or remove the line",
            }
            .into()),
        }
    }
}
