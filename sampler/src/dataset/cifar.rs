//! CIFAR-10, binary version.
//!
//! ```text
//! file := 10 000 × record;  record := label: u8 (0..10), pixels: 3 channels × 32 rows × 32 columns × u8
//! ```
//! Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

use super::map::Map;
use super::{Cause, Dataset, DatasetError, Fetch, Rows};
use crate::loader::Array;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CLASSES: u8 = 10;
const PIXELS: usize = 3 * 32 * 32;
const RECORD: usize = 1 + PIXELS;

/// Colour images of 3 × 32 × 32 bytes with labels: samples are `(image, label)`.
#[derive(Clone)]
pub struct Cifar10 {
    files: Vec<File>,
}

#[derive(Clone)]
struct File {
    path: PathBuf,
    images: Rows<u8>,
    labels: Rows<u8>,
}

impl Cifar10 {
    /// Maps `data_batch_1.bin` to `data_batch_5.bin` of a folder, or `test_batch.bin` if `train` is false. Do not
    /// truncate the files while they are mapped: Linux would end the process with SIGBUS.
    ///
    /// # Errors
    ///
    /// [`DatasetError`] if a file is missing, or its size is not a multiple of the record size.
    pub fn open(folder: impl AsRef<Path>, train: bool) -> Result<Self, DatasetError> {
        let parts = if train {
            "12345".chars().map(|part| format!("data_batch_{part}.bin")).collect()
        } else {
            vec!["test_batch.bin".to_owned()]
        };
        Self::files(parts.into_iter().map(|part| folder.as_ref().join(part)))
    }

    /// Maps several files; their samples are numbered consecutively.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn files(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self, DatasetError> {
        let files = paths.into_iter().map(File::open).collect::<Result<_, _>>()?;
        Ok(Cifar10 { files })
    }
}

impl File {
    fn open(path: PathBuf) -> Result<Self, DatasetError> {
        let map = Map::open(&path)?;
        let size = map.bytes().len();
        if size == 0 || !size.is_multiple_of(RECORD) {
            let what = format!(
                "{size} bytes are not a multiple of the record size {RECORD}, a label and 3 × 32 × 32 pixels"
            );
            return Err(DatasetError::format(&path, what, "download the binary version of CIFAR-10 again"));
        }
        let store: Arc<Map> = Arc::new(map);
        let len = size / RECORD;
        let labels = Rows::part(store.clone(), 0, RECORD, [].into(), len);
        let images = Rows::part(store, 1, RECORD, [3, 32, 32].into(), len);
        Ok(File { path, images, labels })
    }

    fn get(&self, index: usize) -> Result<(Array<u8>, u8), Cause> {
        let label = self.labels.row(index)?.first().copied().unwrap_or(CLASSES);
        if label >= CLASSES {
            let what = format!("record {index} has the label {label} instead of 0 to 9");
            return Err(DatasetError::format(
                &self.path,
                what,
                "download the binary version of CIFAR-10 again",
            )
            .into());
        }
        Ok((self.images.row(index)?, label))
    }
}

impl Dataset for Cifar10 {
    type Sample = (Array<u8>, u8);

    fn len(&self) -> usize {
        self.files.iter().map(|file| file.images.len()).sum()
    }

    fn get(&self, index: usize, _: &Fetch<'_>) -> Result<Self::Sample, Cause> {
        let mut left = index;
        for file in &self.files {
            match left.checked_sub(file.images.len()) {
                Some(rest) => left = rest,
                None => return file.get(left),
            }
        }
        Err(DatasetError::OutOfRange { index, len: self.len() }.into())
    }
}
