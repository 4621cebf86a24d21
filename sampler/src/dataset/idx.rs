//! MNIST and similar data sets (Fashion-MNIST, KMNIST, EMNIST) in IDX files.
//!
//! ```text
//! IDX := 0 0 type dimensions, sizes: dimensions × u32 big-endian, then the elements, row-major
//! type: 8 unsigned byte (the only one here)
//! ```
//! Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits".

use super::{Cause, Dataset, DatasetError, Fetch, Rows};
use crate::file;
use crate::loader::{Array, MAX_DIMENSIONS, Shape};
use std::path::{Path, PathBuf};

const UNSIGNED_BYTE: u8 = 8;
/// Maximum size of a file, in bytes, which is kept in memory. MNIST8M has 6.3 GB.
const LONGEST: u64 = 16 << 30;

/// Images of 28 × 28 bytes with labels: samples are `(image, label)`.
#[derive(Clone)]
pub struct Mnist {
    images: Rows<u8>,
    labels: Array<u8>,
}

impl Mnist {
    /// Reads `train-images-idx3-ubyte` and `train-labels-idx1-ubyte` of a folder, or the `t10k-` pair if `train` is
    /// false. The second dash may be a dot; compressed files must be decompressed first.
    ///
    /// # Errors
    ///
    /// [`DatasetError`] if a file is missing or has a different format, or the numbers of labels and images differ.
    pub fn open(folder: impl AsRef<Path>, train: bool) -> Result<Self, DatasetError> {
        let part = if train { "train" } else { "t10k" };
        let path = |what: &str, dimensions: usize| {
            let dotted = folder.as_ref().join(format!("{part}-{what}.idx{dimensions}-ubyte"));
            let dashed = folder.as_ref().join(format!("{part}-{what}-idx{dimensions}-ubyte"));
            if dotted.exists() { dotted } else { dashed }
        };
        Self::pair(&path("images", 3), &path("labels", 1))
    }

    /// Reads a file of images and one of labels.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn pair(images: &Path, labels: &Path) -> Result<Self, DatasetError> {
        let pictures = read_idx(images)?;
        let names = read_idx(labels)?;
        if pictures.shape().len() < 2 || names.shape().len() != 1 {
            let what = format!("shapes {} and {} are not images and labels", pictures.shape(), names.shape());
            return Err(DatasetError::format(
                images,
                what,
                "pass the file of images first, then that of labels",
            ));
        }
        if pictures.shape()[0] != names.shape()[0] {
            let what =
                format!("{} images, but {} labels in {}", pictures.shape()[0], names.len(), labels.display());
            return Err(DatasetError::format(images, what, "use files of the same data set"));
        }
        Ok(Mnist { images: Rows::new(pictures), labels: names })
    }

    /// Returns the label of each image.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Returns the shape of each image: rows, columns.
    pub fn shape(&self) -> &Shape {
        self.images.shape()
    }
}

impl Dataset for Mnist {
    type Sample = (Array<u8>, u8);

    fn len(&self) -> usize {
        self.images.len()
    }

    fn get(&self, index: usize, _: &Fetch<'_>) -> Result<Self::Sample, Cause> {
        Ok((self.images.row(index)?, self.labels[index]))
    }
}

/// Reads an IDX file of unsigned bytes.
///
/// # Errors
///
/// [`DatasetError`] if the file cannot be read, is not an IDX file, or has more than 16 GiB.
pub fn read_idx(path: impl AsRef<Path>) -> Result<Array<u8>, DatasetError> {
    let path = path.as_ref();
    let bytes =
        file::read(path, LONGEST).map_err(|cause| match compressed(path).filter(|other| other.exists()) {
            Some(other) => {
                DatasetError::format(&other, "the file is compressed", "decompress it with gunzip")
            }
            None => DatasetError::read(path, cause),
        })?;
    parse(bytes)
        .map_err(|what| DatasetError::format(path, what, "download the file again, and decompress it"))
}

fn compressed(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    Some(path.with_file_name(format!("{name}.gz")))
}

fn parse(mut bytes: Vec<u8>) -> Result<Array<u8>, String> {
    let (kind, dimensions) = match bytes[..] {
        [0, 0, kind, dimensions, ..] => (kind, usize::from(dimensions)),
        _ => return Err("not an IDX file: it does not begin with two zeros".into()),
    };
    if kind != UNSIGNED_BYTE || !(1..MAX_DIMENSIONS).contains(&dimensions) {
        return Err(format!("elements of type {kind} in {dimensions} dimensions, not unsigned bytes (8)"));
    }
    let start = 4 + 4 * dimensions;
    let header = bytes.get(4..start).ok_or("the file ends in its header")?;
    let size = |word: &[u8]| word.iter().fold(0, |size, byte| size << 8 | usize::from(*byte));
    let sizes: Vec<usize> = header.chunks_exact(4).map(size).collect();
    bytes.drain(..start);
    let shape = Shape::of(&sizes).unwrap_or_default();
    Array::new(shape, bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_row_by_row() {
        let array = parse(vec![0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(array, Array::new([2, 3], vec![1, 2, 3, 4, 5, 6]).unwrap());
    }

    #[test]
    fn other_files_are_refused() {
        let refused = |bytes: &[u8], what: &str| {
            let error = parse(bytes.to_vec()).unwrap_err();
            assert!(error.contains(what), "{error}");
        };
        refused(b"", "not an IDX file");
        refused(b"\x1f\x8b\x08\x00", "not an IDX file");
        refused(&[0, 0, 13, 1, 0, 0, 0, 0], "type 13");
        refused(&[0, 0, 8, 0], "0 dimensions");
        refused(&[0, 0, 8, 200], "200 dimensions");
        refused(&[0, 0, 8, 2, 0, 0, 0, 2], "ends in its header");
        refused(&[0, 0, 8, 1, 0, 0, 0, 2, 7], "has 2 elements, not 1");
        refused(&[0, 0, 8, 1, 0, 0, 0, 2, 7, 7, 7], "has 2 elements, not 3");
        refused(&[&[0, 0, 8, 3][..], &[0; 11]].concat(), "ends in its header");
        refused(&[&[0, 0, 8, 7][..], &[255; 28]].concat(), "not 0");
    }
}
