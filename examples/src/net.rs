//! A small convolutional net for small images, written as any candle program would: nothing here knows of ranks.

use candle_core::{D, DType, Device, IndexOp, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, Linear, Module, VarBuilder, VarMap, conv2d, linear};
use hexagram::sampler::Mersenne;

use crate::digits::CLASSES;

/// Two convolutions with pooling, two linear layers: about 15 000 parameters for images of 8 × 8.
pub struct Net {
    convolutions: [Conv2d; 2],
    hidden: Linear,
    out: Linear,
}

impl Net {
    /// Builds the net for images of channels × rows × columns, taking its parameters from `vb`.
    ///
    /// # Errors
    /// What `vb` returns.
    pub fn new(vb: VarBuilder<'_>, [channels, rows, columns]: [usize; 3]) -> Result<Self> {
        let config = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
        Ok(Net {
            convolutions: [
                conv2d(channels, 16, 3, config, vb.pp("conv1"))?,
                conv2d(16, 32, 3, config, vb.pp("conv2"))?,
            ],
            hidden: linear(32 * (rows / 4) * (columns / 4), 64, vb.pp("hidden"))?,
            out: linear(64, CLASSES, vb.pp("out"))?,
        })
    }
}

impl Module for Net {
    /// Returns the logits (batch × classes) of images (batch × channels × rows × columns).
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let mut x = images.clone();
        for convolution in &self.convolutions {
            x = convolution.forward(&x)?.relu()?.max_pool2d(2)?;
        }
        self.out.forward(&self.hidden.forward(&x.flatten_from(1)?)?.relu()?)
    }
}

/// Creates a `VarMap` with the net's parameters, drawn from `seed`: weights uniform within ±√(6/fan-in) (He et al.
/// 2015), biases within ±1/√fan-in.
///
/// candle's own generator for the CPU cannot be seeded.
///
/// # Errors
/// What candle returns.
pub fn seeded(seed: u64, dtype: DType, shape: [usize; 3]) -> Result<VarMap> {
    let varmap = VarMap::new();
    Net::new(VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu), shape)?;
    let mut generator = Mersenne::new(seed);
    let data = varmap.data().lock().map_err(|_| candle_core::Error::msg("the VarMap is poisoned"))?;
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    for name in names {
        let var = &data[name];
        // A bias has the fan-in of its weight.
        let weight = &data[&name.replace("bias", "weight")];
        let fan_in = weight.i(0)?.elem_count() as f64;
        let bound = if name.ends_with("bias") { 1.0 / fan_in.sqrt() } else { (6.0 / fan_in).sqrt() };
        let mut draw = || (f64::from(generator.next_u32()) / f64::from(u32::MAX) * 2.0 - 1.0) * bound;
        let values: Vec<f64> = (0..var.elem_count()).map(|_| draw()).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?.to_dtype(dtype)?)?;
    }
    drop(data);
    Ok(varmap)
}

/// Returns the number of images that are recognized.
///
/// # Errors
/// What candle returns.
pub fn correct(net: &Net, images: &Tensor, labels: &Tensor) -> Result<u32> {
    let found = net.forward(images)?.argmax(D::Minus1)?;
    found.eq(labels)?.to_dtype(DType::U32)?.sum_all()?.to_scalar()
}
