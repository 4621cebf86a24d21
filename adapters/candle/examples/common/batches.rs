//! Batches of images, loaded ahead of the training, in pinned memory if the device copies from it.

use super::data::ImageDataset;
use hexagram::sampler::loader::{Array, Collate, DataLoader, LoaderOptions, Memory};
use hexagram::{Pinned, Queue, Upload, Uploaded};
use hexagram_lab::run::RunError;
use std::sync::Arc;

/// Batch to train on.
pub(crate) struct ImageBatch {
    images: Array<f32>,
    labels: Array<u32>,
}

impl Upload for ImageBatch {
    type Uploaded = (Uploaded, Array<u32>);

    /// Begins to copy the images. Labels are few, and integers, so candle copies them.
    fn upload(self, queue: &Queue) -> hexagram::Result<Self::Uploaded> {
        Ok((self.images.upload(queue)?, self.labels))
    }
}

/// Returns a loader for this rank's share of the images, in memory from which `copies` copies.
///
/// # Errors
/// As [`DataLoader::with_collate`].
pub(crate) fn share(
    train: ImageDataset,
    options: LoaderOptions,
    copies: &Queue,
) -> Result<DataLoader<ImageBatch>, RunError> {
    let pinned = || -> Arc<dyn Memory> { Arc::new(Pinned::new(copies)) };
    let options = LoaderOptions {
        persistent_workers: options.workers > 0,
        memory: (!copies.is_host()).then(pinned),
        ..options
    };
    Ok(DataLoader::with_collate(train, options, |samples, pool| {
        let (images, labels) = Collate::collate(samples, pool)?;
        Ok(ImageBatch { images, labels })
    })?)
}
