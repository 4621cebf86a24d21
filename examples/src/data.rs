//! Images to learn from, and to judge the result by: the digits compiled in, a file of such digits, or a folder
//! with MNIST or CIFAR-10. Open this file to train on images of your own.

use crate::Failure;
use crate::digits::Digits;
use hexagram::logical::hash;
use hexagram::sampler::dataset::{Cause, Cifar10, Dataset, DatasetError, Fetch, Items, Mnist, Rows, Zip};
use hexagram::sampler::loader::{Array, DataLoader, LoaderOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Images of channels × rows × columns, from 0.0 to 1.0, and what they show, from 0 to 9.
pub type Images = Arc<dyn Dataset<Sample = (Array<f32>, u32)>>;

/// Images to learn from, and images that are never trained on.
#[derive(Clone)]
pub struct Data {
    /// Images to learn from.
    pub train: Images,
    /// Images to judge the result by.
    pub held_out: Images,
    /// Channels, rows and columns.
    pub shape: [usize; 3],
}

impl Data {
    /// Returns the images compiled into the program, of which every fifth is held out.
    ///
    /// # Errors
    ///
    /// As [`Digits::embedded`].
    pub fn embedded() -> Result<Self, Failure> {
        Self::digits(&Digits::embedded()?)
    }

    /// Reads a file of digits, of which every fifth is held out, or a folder with MNIST (IDX files, decompressed) or
    /// CIFAR-10 (binary version), whose test part is held out. The folder may be the one that torchvision made.
    ///
    /// # Errors
    ///
    /// One line that names the file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        if !path.is_dir() {
            return Self::digits(&Digits::read(path)?);
        }
        let within = |folders: &[&str], file: &str| -> Option<PathBuf> {
            folders.iter().map(|folder| path.join(folder)).find(|folder| folder.join(file).exists())
        };
        if let Some(folder) = within(&["", "cifar-10-batches-bin"], "data_batch_1.bin") {
            let part = |train| Ok::<Images, Failure>(Arc::new(Cifar10::open(&folder, train)?.map(scaled)));
            return Ok(Data { train: part(true)?, held_out: part(false)?, shape: [3, 32, 32] });
        }
        let folder = within(&["MNIST/raw"], "").unwrap_or_else(|| path.to_owned());
        let or = |error: DatasetError| {
            format!("{error}; or name a folder with CIFAR-10, which has data_batch_1.bin")
        };
        let train = Mnist::open(&folder, true).map_err(or)?;
        let held_out = Mnist::open(&folder, false).map_err(or)?;
        let [rows, columns] = train.shape()[..] else {
            return Err("MNIST images have rows and columns".into());
        };
        if train.shape() != held_out.shape() || rows < 4 || columns < 4 {
            let what =
                format!("images of {} to learn from and of {} to judge by", train.shape(), held_out.shape());
            return Err(
                format!("{}: {what}; take both parts from the same data set", folder.display()).into()
            );
        }
        let train = Arc::new(train.map(scaled));
        let held_out = Arc::new(held_out.map(scaled));
        Ok(Data { train, held_out, shape: [1, rows, columns] })
    }

    fn digits(digits: &Digits) -> Result<Self, Failure> {
        let split = digits.split();
        let images = |part: &Digits| -> Result<Images, Failure> {
            let pixels = Array::new([part.len(), 1, Digits::SIDE, Digits::SIDE], part.pixels().to_vec())?;
            let labels = part.labels().iter().map(|label| u32::from(*label)).collect();
            Ok(Arc::new(Zip::new(Rows::new(pixels), Items(labels))?))
        };
        let shape = [1, Digits::SIDE, Digits::SIDE];
        Ok(Data { train: images(&split.train)?, held_out: images(&split.held_out)?, shape })
    }
}

/// Returns a number that differs, most likely, as soon as anything in the images does.
///
/// # Errors
/// What keeps an image from being read.
pub fn digest(images: &Images) -> Result<u64, Failure> {
    let singly = LoaderOptions { batch_size: None, ..LoaderOptions::default() };
    let mixed = |hash: u64, word: u32| hash::step(hash, u64::from(word)).rotate_left(29);
    let mut hash = hash::START;
    for sample in DataLoader::unbatched(images.clone(), singly)?.iter() {
        let (pixels, label) = sample?;
        hash = pixels.iter().fold(mixed(hash, label), |hash, pixel| mixed(hash, pixel.to_bits()));
    }
    Ok(hash)
}

/// Returns a picture of bytes as numbers from 0 to 1, with a dimension for its channels.
fn scaled((image, label): (Array<u8>, u8), fetch: &Fetch<'_>) -> Result<(Array<f32>, u32), Cause> {
    let numbers = image.map(fetch.pool(), |pixel| f32::from(pixel) / 255.0);
    let numbers = match numbers.shape()[..] {
        [rows, columns] => numbers.reshaped([1, rows, columns])?,
        _ => numbers,
    };
    Ok((numbers, label.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram::sampler::loader::{Pool, WorkerInfo};
    use std::fs;

    fn first(images: &Images) -> (Array<f32>, u32) {
        let worker = WorkerInfo { id: 0, workers: 1, epoch: 0, base_seed: 0 };
        images.get(0, &Fetch::new(&worker, &Pool::new(), 0)).unwrap()
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("hexagram-data-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("MNIST/raw")).unwrap();
        fs::create_dir_all(folder.join("cifar-10-batches-bin")).unwrap();
        folder
    }

    fn refused(path: &Path) -> String {
        Data::read(path).err().unwrap().to_string()
    }

    #[test]
    fn any_change_changes_the_digest() {
        let images = |pixels: [f32; 2], labels: [u32; 2]| -> Images {
            let pixels = Array::new([2, 1, 1, 1], pixels.to_vec()).unwrap();
            Arc::new(Zip::new(Rows::new(pixels), Items(labels.to_vec())).unwrap())
        };
        let all = [([0.0, 1.0], [3, 4]), ([1.0, 0.0], [3, 4]), ([0.0, 1.0], [4, 3]), ([0.0, 0.9], [3, 4])];
        let mut digests = all.map(|(pixels, labels)| digest(&images(pixels, labels)).unwrap());
        assert_eq!(digests[0], digest(&images([0.0, 1.0], [3, 4])).unwrap());
        digests.sort_unstable();
        assert!(digests.windows(2).all(|pair| pair[0] != pair[1]), "{digests:x?}");
    }

    #[test]
    fn digits_are_split() {
        let data = Data::embedded().unwrap();
        assert_eq!((data.train.len(), data.held_out.len(), data.shape), (1437, 360, [1, 8, 8]));
        assert_eq!(first(&data.held_out).1, 0);
        assert_eq!(first(&data.train).0.shape().to_vec(), [1, 8, 8]);
    }

    #[test]
    fn mnist_is_found_where_torchvision_puts_it() {
        let folder = folder("mnist");
        let raw = folder.join("MNIST/raw");
        let image =
            |rows: u8| [&[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, rows, 0, 0, 0, 28][..], &[51; 784]].concat();
        for part in ["train", "t10k"] {
            fs::write(raw.join(format!("{part}-images-idx3-ubyte")), image(28)).unwrap();
            fs::write(raw.join(format!("{part}-labels-idx1-ubyte")), [0, 0, 8, 1, 0, 0, 0, 1, 7]).unwrap();
        }
        for path in [&folder, &raw] {
            let data = Data::read(path).unwrap();
            assert_eq!((data.train.len(), data.held_out.len(), data.shape), (1, 1, [1, 28, 28]));
            let (pixels, label) = first(&data.train);
            assert_eq!((pixels, label), (Array::new([1, 28, 28], vec![0.2; 784]).unwrap(), 7));
        }
        fs::write(raw.join("t10k-images-idx3-ubyte"), &image(14)[..16 + 14 * 28]).unwrap();
        assert!(refused(&folder).contains("take both parts from the same data set"), "{}", refused(&folder));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn cifar_is_found_where_torchvision_puts_it() {
        let folder = folder("cifar");
        let binary = folder.join("cifar-10-batches-bin");
        for part in
            ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
        {
            fs::write(binary.join(part).with_extension("bin"), [&[3][..], &[255; 3072]].concat()).unwrap();
        }
        for path in [&folder, &binary] {
            let data = Data::read(path).unwrap();
            assert_eq!((data.train.len(), data.held_out.len(), data.shape), (5, 1, [3, 32, 32]));
            assert_eq!(first(&data.train), (Array::new([3, 32, 32], vec![1.0; 3072]).unwrap(), 3));
        }
        fs::remove_file(binary.join("test_batch.bin")).unwrap();
        assert!(refused(&folder).contains("test_batch.bin"), "{}", refused(&folder));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_folder_without_data_is_named() {
        let folder = folder("nothing");
        let error = refused(&folder.join("cifar-10-batches-bin"));
        assert!(error.contains("train-images-idx3-ubyte") && error.contains("data_batch_1.bin"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
