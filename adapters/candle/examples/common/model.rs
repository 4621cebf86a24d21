//! Models for `--model`, and their common parts.

use super::data::ImageDataset;
use super::net::SmallNet;
use super::resnet::{ResNet, ResNetOptions};
use candle_core::{D, DType, Device, IndexOp, Result, Tensor};
use candle_nn::{ModuleT, VarBuilder, VarMap};
use clap::ValueEnum;
use hexagram::Error;
use hexagram::sampler::Mersenne;
use std::fmt;

/// Model to train.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelKind {
    /// Two convolutions and two linear layers: see `net.rs`.
    Small,
    /// ResNet with one bottleneck block in each stage, 8 million parameters.
    Resnet14,
    /// ResNet-50, 24 million parameters.
    Resnet50,
}

/// Model that marks the beginning of each of its parts in the forward pass, where a training waits for parameters that
/// the last step has left in progress.
pub(crate) trait PartwiseModel: ModuleT {
    /// Returns the result of [`ModuleT::forward_t`], and calls `before` before each part, with the name of the builder
    /// of its parameters.
    ///
    /// # Errors
    /// The errors of `before` and candle.
    fn forward_parts(
        &self,
        images: &Tensor,
        train: bool,
        before: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Tensor>;
}

impl ModelKind {
    /// Builds the model for images of channels × rows × columns, with parameters from `vb`.
    ///
    /// # Errors
    /// The errors of `vb`.
    pub(crate) fn build(self, vb: VarBuilder<'_>, shape: [usize; 3]) -> Result<Box<dyn PartwiseModel>> {
        let blocks = match self {
            ModelKind::Small => return Ok(Box::new(SmallNet::new(vb, shape)?)),
            ModelKind::Resnet14 => ResNet::OF_14,
            ModelKind::Resnet50 => ResNet::OF_50,
        };
        Ok(Box::new(ResNet::new(vb, ResNetOptions::small(blocks, shape[0]))?))
    }

    /// Refuses batches that are too small for the normalization of the model.
    ///
    /// # Errors
    /// One line with the problem.
    pub(crate) fn check_batch(self, batch: usize) -> hexagram::Result<()> {
        if self == ModelKind::Small || batch > 1 {
            return Ok(());
        }
        let what = format!("--batch {batch} has no variance, which --model {self} normalizes by");
        Err(Error::usage(what, "use a batch of 2 or more"))
    }

    /// Returns the training images as the model receives them: nets with millions of parameters get colour images
    /// [shifted and mirrored](super::data::augmented), against overfitting.
    pub(crate) fn shown(self, images: &ImageDataset, shape: [usize; 3]) -> ImageDataset {
        match (self, shape) {
            (ModelKind::Small, _) | (_, [1, ..]) => images.clone(),
            _ => super::data::augmented(images),
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelKind::Small => "small",
            ModelKind::Resnet14 => "resnet14",
            ModelKind::Resnet50 => "resnet50",
        })
    }
}

/// Creates a `VarMap` with the parameters of a model, drawn from `seed`: weights of layers uniform within ±√(6/fan-in)
/// (He et al. 2015), their biases within ±1/√fan-in. Normalizations start with their initial values, 1 and 0.
///
/// The CPU random generator of candle cannot be seeded.
///
/// # Errors
/// The errors of candle.
pub(crate) fn seeded<M>(
    seed: u64,
    (dtype, device): (DType, &Device),
    model: impl FnOnce(VarBuilder<'static>) -> Result<M>,
) -> Result<VarMap> {
    let varmap = VarMap::new();
    model(VarBuilder::from_varmap(&varmap, dtype, device))?;
    let mut generator = Mersenne::new(seed);
    let data = varmap.data().lock().map_err(|_| candle_core::Error::msg("the VarMap is poisoned"))?;
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    for name in names {
        let var = &data[name];
        // A bias has the fan-in of its weight.
        let Some(weight) = data.get(&name.replace("bias", "weight")).filter(|weight| weight.rank() > 1)
        else {
            continue;
        };
        let fan_in = weight.i(0)?.elem_count() as f64;
        let bound = if name.ends_with("bias") { 1.0 / fan_in.sqrt() } else { (6.0 / fan_in).sqrt() };
        let mut draw = || (f64::from(generator.next_u32()) / f64::from(u32::MAX) * 2.0 - 1.0) * bound;
        let values: Vec<f64> = (0..var.elem_count()).map(|_| draw()).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?)?;
    }
    drop(data);
    Ok(varmap)
}

/// Returns the number of images that are classified correctly.
///
/// # Errors
/// The errors of candle.
pub(crate) fn correct(model: &dyn ModuleT, images: &Tensor, labels: &Tensor) -> Result<u32> {
    let found = model.forward_t(images, false)?.argmax(D::Minus1)?;
    found.eq(labels)?.to_dtype(DType::U32)?.sum_all()?.to_scalar()
}
