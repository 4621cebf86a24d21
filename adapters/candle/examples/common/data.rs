//! Images for training and for evaluation: the built-in digits, a file of such digits, or a folder with MNIST or
//! CIFAR-10.

use candle_core::{Device, Tensor};
use hexagram::logical::hash;
use hexagram::sampler::dataset::{Cause, Cifar10, Dataset, DatasetError, Fetch, Items, Mnist, Rows, Zip};
use hexagram::sampler::loader::{Array, DataLoader, LoaderOptions, Pool};
use hexagram_lab::run::RunError;
use hexagram_lab::task::{CLASSES, Images as Digits, SIDE};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Images of channels × rows × columns, from 0.0 to 1.0, and their labels, from 0 to 9.
pub(crate) type ImageDataset = Arc<dyn Dataset<Sample = (Array<f32>, u32)>>;

/// Training images, and held-out images that are never used for training.
#[derive(Clone)]
pub(crate) struct TrainingData {
    /// Training images.
    pub(crate) train: ImageDataset,
    /// Held-out images.
    pub(crate) held_out: ImageDataset,
    /// Channels, rows and columns.
    pub(crate) shape: [usize; 3],
}

impl TrainingData {
    /// Returns the images compiled into the program; every fifth is held out.
    ///
    /// # Errors
    ///
    /// As [`Digits::embedded`].
    pub(crate) fn embedded() -> Result<Self, RunError> {
        Self::digits(&Digits::embedded()?)
    }

    /// Reads a file of digits, of which every fifth is held out, or a folder with MNIST (IDX files, decompressed) or
    /// CIFAR-10 (binary version), whose test part is held out. The folder may be one created by torchvision.
    ///
    /// # Errors
    ///
    /// One line that names the file and its problem.
    pub(crate) fn read(path: &Path) -> Result<Self, RunError> {
        if !path.is_dir() {
            return Self::digits(&Digits::read(path)?);
        }
        let within = |folders: &[&str], file: &str| -> Option<PathBuf> {
            folders.iter().map(|folder| path.join(folder)).find(|folder| folder.join(file).exists())
        };
        if let Some(folder) = within(&["", "cifar-10-batches-bin"], "data_batch_1.bin") {
            let part =
                |train| Ok::<ImageDataset, RunError>(Arc::new(Cifar10::open(&folder, train)?.map(scaled)));
            return Ok(TrainingData { train: part(true)?, held_out: part(false)?, shape: [3, 32, 32] });
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
        [&train, &held_out].into_iter().try_for_each(|part| check_labels(part, &folder))?;
        let train = Arc::new(train.map(scaled));
        let held_out = Arc::new(held_out.map(scaled));
        Ok(TrainingData { train, held_out, shape: [1, rows, columns] })
    }

    fn digits(digits: &Digits) -> Result<Self, RunError> {
        let [train, held_out] = digits.split();
        let images = |part: &Digits| -> Result<ImageDataset, RunError> {
            let pixels = Array::new([part.len(), 1, SIDE, SIDE], part.pixels().to_vec())?;
            let labels = part.labels().iter().map(|label| *label as u32).collect();
            Ok(Arc::new(Zip::new(Rows::new(pixels), Items(labels))?))
        };
        let shape = [1, SIDE, SIDE];
        Ok(TrainingData { train: images(&train)?, held_out: images(&held_out)?, shape })
    }
}

/// Refuses labels for which the nets here have no output.
///
/// # Errors
/// One line with the first image that has such a label.
fn check_labels(images: &Mnist, folder: &Path) -> Result<(), RunError> {
    let Some((at, label)) =
        images.labels().iter().enumerate().find(|(_, label)| usize::from(**label) >= CLASSES)
    else {
        return Ok(());
    };
    let remedy = "fetch the file again, or take a data set with ten classes";
    Err(format!("{}: image {at} has the label {label}, not one from 0 to 9; {remedy}", folder.display())
        .into())
}

/// Returns a hash that changes, most likely, when anything in the images changes.
///
/// # Errors
/// The error of an image that cannot be read.
pub(crate) fn digest(images: &ImageDataset) -> Result<u64, RunError> {
    let singly = LoaderOptions { batch_size: None, ..LoaderOptions::default() };
    let mixed = |hash: u64, word: u32| hash::step(hash, u64::from(word)).rotate_left(29);
    let mut hash = hash::START;
    for sample in DataLoader::unbatched(images.clone(), singly)?.iter() {
        let (pixels, label) = sample?;
        hash = pixels.iter().fold(mixed(hash, label), |hash, pixel| mixed(hash, pixel.to_bits()));
    }
    Ok(hash)
}

/// Returns an image of bytes as numbers from 0 to 1, with a dimension for its channels.
fn scaled((image, label): (Array<u8>, u8), fetch: &Fetch<'_>) -> Result<(Array<f32>, u32), Cause> {
    let numbers = image.map(fetch.pool(), |pixel| f32::from(pixel) / 255.0);
    let numbers = match numbers.shape()[..] {
        [rows, columns] => numbers.reshaped([1, rows, columns])?,
        _ => numbers,
    };
    Ok((numbers, label.into()))
}

/// Returns the images in the format of nets for ImageNet: three channels of `side` × `side` pixels, from −1 to 1.
pub(crate) fn enlarged(images: &ImageDataset, side: usize) -> ImageDataset {
    let enlarge = move |(image, label): (Array<f32>, u32), fetch: &Fetch<'_>| {
        let shape = [&[1], &image.shape()[..]].concat();
        let enlarged =
            Tensor::from_slice(&image, shape, &Device::Cpu)?.upsample_bilinear2d(side, side, false)?;
        let coloured = if enlarged.dim(1)? == 1 { enlarged.repeat((1, 3, 1, 1))? } else { enlarged };
        let mut elements = fetch.pool().take(coloured.elem_count());
        elements.copy_from_slice(&coloured.affine(2.0, -1.0)?.flatten_all()?.to_vec1::<f32>()?);
        Ok::<_, Cause>((Array::pooled([3, side, side], elements)?, label))
    };
    Arc::new(images.clone().map(enlarge))
}

/// Maximum shift of [`augmented`], in pixels.
const SHIFT: u64 = 4;

/// Returns the images, each shifted by up to four pixels in both directions, with black outside, and every second one
/// mirrored: with new random numbers in each epoch, by the worker that loads the image.
pub(crate) fn augmented(images: &ImageDataset) -> ImageDataset {
    let augment =
        |(image, label): (Array<f32>, u32), fetch: &Fetch<'_>| -> Result<(Array<f32>, u32), Cause> {
            let mut generator = fetch.generator();
            let [down, right] = [(); 2].map(|()| generator.below(2 * SHIFT + 1));
            let moved = moved(&image, [down, right], generator.below(2) == 1, fetch.pool())?;
            Ok((moved, label))
        };
    Arc::new(images.clone().map(augment))
}

/// Returns an image whose row r is row r + `down` − 4 of the given one, and the same for columns; then mirrored, if
/// `is_mirrored`.
fn moved(image: &Array<f32>, by: [u64; 2], is_mirrored: bool, pool: &Pool) -> Result<Array<f32>, Cause> {
    let [channels, rows, columns] = image.shape()[..] else {
        return Err("an image has channels, rows and columns".into());
    };
    let from = |to: usize, by: u64, end: usize| {
        (to as u64 + by).checked_sub(SHIFT).map(|at| at as usize).filter(|at| *at < end)
    };
    let mut elements = pool.take(image.len());
    for (at, element) in elements.iter_mut().enumerate() {
        let column = if is_mirrored { columns - 1 - at % columns } else { at % columns };
        let row = from(at / columns % rows, by[0], rows);
        let found = row.zip(from(column, by[1], columns));
        let channel = at / (rows * columns) * rows * columns;
        *element = found.map_or(0.0, |(row, column)| image[channel + row * columns + column]);
    }
    Ok(Array::pooled([channels, rows, columns], elements)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram::sampler::loader::WorkerInfo;
    use std::fs;

    fn first(images: &ImageDataset) -> (Array<f32>, u32) {
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
        TrainingData::read(path).err().unwrap().to_string()
    }

    #[test]
    fn any_change_changes_the_digest() {
        let images = |pixels: [f32; 2], labels: [u32; 2]| -> ImageDataset {
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
    fn images_are_shifted_and_mirrored_and_the_rest_is_black() {
        let image = Array::new([2, 2, 3], (1..=12).map(|pixel| pixel as f32).collect()).unwrap();
        let of = |by, is_mirrored| moved(&image, by, is_mirrored, &Pool::new()).unwrap().to_vec();
        assert_eq!(of([4, 4], false), image.to_vec());
        assert_eq!(of([4, 4], true), [3.0, 2.0, 1.0, 6.0, 5.0, 4.0, 9.0, 8.0, 7.0, 12.0, 11.0, 10.0]);
        assert_eq!(of([5, 4], false), [4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 10.0, 11.0, 12.0, 0.0, 0.0, 0.0]);
        assert_eq!(of([4, 3], false), [0.0, 1.0, 2.0, 0.0, 4.0, 5.0, 0.0, 7.0, 8.0, 0.0, 10.0, 11.0]);
        assert_eq!(of([8, 0], false), [0.0; 12]);
    }

    #[test]
    fn an_enlarged_image_has_three_channels_around_zero() {
        let gray = Array::new([1, 2, 2], vec![0.0, 1.0, 0.5, 0.5]).unwrap();
        let images: ImageDataset = Arc::new(Items(vec![(gray, 3)]));
        let (image, label) = first(&enlarged(&images, 4));
        assert_eq!((image.shape().to_vec(), label), (vec![3, 4, 4], 3));
        // Like PyTorch's interpolate in the mode bilinear: weights of 3/4 and 1/4 between the centres of pixels.
        assert_eq!(image[..8], [-1.0, -0.5, 0.5, 1.0, -0.75, -0.375, 0.375, 0.75]);
        assert_eq!(image[..16], image[16..32]);
        assert_eq!(image[..16], image[32..]);
    }

    #[test]
    fn an_augmented_image_depends_on_its_epoch_and_index_alone() {
        let row = |index: usize| Array::new([1, 8, 8], (0..64).map(|at| (at * index) as f32).collect());
        let all = (1..9).map(|index| (row(index).unwrap(), 7)).collect();
        let images: ImageDataset = Arc::new(Items(all));
        let augmented = augmented(&images);
        let get = |id: usize, epoch: u64, index: usize| {
            let worker = WorkerInfo { id, workers: 3, epoch, base_seed: 5 };
            augmented.get(index, &Fetch::new(&worker, &Pool::new(), index)).unwrap()
        };
        assert_eq!(get(0, 1, 2), get(2, 1, 2));
        assert!((0..8).any(|index| get(0, 1, index) != get(0, 2, index)));
        assert!((0..8).all(|index| get(0, 1, index).1 == 7));
    }

    #[test]
    fn digits_are_split() {
        let data = TrainingData::embedded().unwrap();
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
            let data = TrainingData::read(path).unwrap();
            assert_eq!((data.train.len(), data.held_out.len(), data.shape), (1, 1, [1, 28, 28]));
            let (pixels, label) = first(&data.train);
            assert_eq!((pixels, label), (Array::new([1, 28, 28], vec![0.2; 784]).unwrap(), 7));
        }
        fs::write(raw.join("t10k-labels-idx1-ubyte"), [0, 0, 8, 1, 0, 0, 0, 1, 255]).unwrap();
        assert!(refused(&folder).contains("image 0 has the label 255"), "{}", refused(&folder));
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
            let data = TrainingData::read(path).unwrap();
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
