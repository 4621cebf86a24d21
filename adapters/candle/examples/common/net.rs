//! A small convolutional net for small images, an ordinary candle program that does not depend on ranks.

use super::model::PartwiseModel;
use candle_core::{Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, Linear, Module, VarBuilder, conv2d, linear};
use hexagram_lab::task::CLASSES;

/// Two convolutions with pooling, two linear layers: about 15 000 parameters for images of 8 × 8.
pub(crate) struct SmallNet {
    convolutions: [Conv2d; 2],
    hidden: Linear,
    out: Linear,
}

impl SmallNet {
    /// Builds the net for images of channels × rows × columns, with parameters from `vb`.
    ///
    /// # Errors
    /// The errors of `vb`.
    pub(crate) fn new(vb: VarBuilder<'_>, [channels, rows, columns]: [usize; 3]) -> Result<Self> {
        let config = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
        Ok(SmallNet {
            convolutions: [
                conv2d(channels, 16, 3, config, vb.pp("conv1"))?,
                conv2d(16, 32, 3, config, vb.pp("conv2"))?,
            ],
            hidden: linear(32 * (rows / 4) * (columns / 4), 64, vb.pp("hidden"))?,
            out: linear(64, CLASSES, vb.pp("out"))?,
        })
    }
}

impl Module for SmallNet {
    /// Returns the logits (batch × classes) of images (batch × channels × rows × columns).
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        self.forward_parts(images, true, &mut |_| Ok(()))
    }
}

impl PartwiseModel for SmallNet {
    fn forward_parts(
        &self,
        images: &Tensor,
        _: bool,
        before: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Tensor> {
        let mut x = images.clone();
        for (name, convolution) in ["conv1", "conv2"].into_iter().zip(&self.convolutions) {
            before(name)?;
            x = convolution.forward(&x)?.relu()?.max_pool2d(2)?;
        }
        before("hidden")?;
        let x = self.hidden.forward(&x.flatten_from(1)?)?.relu()?;
        before("out")?;
        self.out.forward(&x)
    }
}
