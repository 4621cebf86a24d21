//! Residual nets with bottleneck blocks, including ResNet-50, an ordinary candle program that does not depend on ranks.
//!
//! Source: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition" (CVPR 2016), with the stride in the 3
//! × 3 convolution and the parameter names of torchvision.

use super::model::PartwiseModel;
use candle_core::{D, Result, Tensor};
use candle_nn::{
    BatchNorm, Conv2d, Conv2dConfig, Linear, Module, ModuleT, VarBuilder, batch_norm, conv2d_no_bias, linear,
};
use hexagram_lab::task::CLASSES;

/// Channels of the first convolution, and of the narrow part of the blocks in the first stage.
const WIDTH: usize = 64;
/// Ratio of the channels of a block to those of its narrow part.
const EXPANSION: usize = 4;
/// Number that batch normalization adds to a variance.
const EPSILON: f64 = 1e-5;

/// First layers of a net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stem {
    /// A convolution of 3 × 3, for images as small as those of CIFAR-10.
    Small,
    /// A convolution of 7 × 7 and a pooling, both of stride 2, for images as large as those of ImageNet.
    ImageNet,
}

/// Options of a net.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResNetOptions {
    /// Blocks of each stage.
    pub(crate) blocks: [usize; 4],
    /// Channels of an image.
    pub(crate) channels: usize,
    pub(crate) classes: usize,
    pub(crate) stem: Stem,
}

impl ResNetOptions {
    /// Returns the options for the small images of these data sets.
    pub(crate) fn small(blocks: [usize; 4], channels: usize) -> Self {
        ResNetOptions { blocks, channels, classes: CLASSES, stem: Stem::Small }
    }

    /// Returns the options of `resnet50` in torchvision.
    pub(crate) fn resnet50() -> Self {
        ResNetOptions { blocks: ResNet::OF_50, channels: 3, classes: 1000, stem: Stem::ImageNet }
    }
}

/// Four stages of bottleneck blocks between a convolution and a linear layer.
pub(crate) struct ResNet {
    first: Unit,
    stem: Stem,
    /// Blocks, each with the name of its builder.
    blocks: Vec<(String, Block)>,
    out: Linear,
}

impl ResNet {
    /// Blocks of the stages of ResNet-14, the smallest that has every kind of block.
    pub(crate) const OF_14: [usize; 4] = [1, 1, 1, 1];
    /// Blocks of the stages of ResNet-50.
    pub(crate) const OF_50: [usize; 4] = [3, 4, 6, 3];

    /// Builds the net.
    ///
    /// # Errors
    /// The errors of `vb`.
    pub(crate) fn new(vb: VarBuilder<'_>, options: ResNetOptions) -> Result<Self> {
        let ResNetOptions { blocks, channels, classes, stem } = options;
        let [size, stride] = if stem == Stem::Small { [3, 1] } else { [7, 2] };
        let first = Unit::new([vb.pp("conv1"), vb.pp("bn1")], [channels, WIDTH], size, stride)?;
        let mut from = WIDTH;
        let mut all = Vec::new();
        for (stage, count) in blocks.into_iter().enumerate() {
            for number in 0..count {
                let stride = if stage > 0 && number == 0 { 2 } else { 1 };
                let name = format!("layer{}.{number}", stage + 1);
                let block = Block::new(&vb.pp(&name), from, WIDTH << stage, stride)?;
                all.push((name, block));
                from = EXPANSION * (WIDTH << stage);
            }
        }
        Ok(ResNet { first, stem, blocks: all, out: linear(from, classes, vb.pp("fc"))? })
    }
}

impl ModuleT for ResNet {
    /// Returns the logits (batch × classes) of images (batch × channels × rows × columns).
    fn forward_t(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_parts(images, train, &mut |_| Ok(()))
    }
}

impl PartwiseModel for ResNet {
    fn forward_parts(
        &self,
        images: &Tensor,
        train: bool,
        before: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Tensor> {
        before("conv1")?;
        before("bn1")?;
        let mut x = self.first.forward_t(images, train)?.relu()?;
        if self.stem == Stem::ImageNet {
            x = pooled(&x)?;
        }
        for (name, block) in &self.blocks {
            before(name)?;
            x = block.forward_t(&x, train)?;
        }
        before("fc")?;
        self.out.forward(&x.mean(D::Minus1)?.mean(D::Minus1)?)
    }
}

/// Returns the maximum of each 3 × 3 elements, with stride 2 and one element of padding. `max_pool2d` of candle has no
/// gradient if windows overlap. No element is negative, so zeros can be used as padding.
fn pooled(x: &Tensor) -> Result<Tensor> {
    let along = |x: &Tensor, axis: usize| -> Result<Tensor> {
        let padded = x.pad_with_zeros(axis, 1, 1)?;
        let windows = x.dim(axis)?.div_ceil(2) as u32;
        let taken = |offset: u32| {
            let places: Vec<u32> = (0..windows).map(|window| 2 * window + offset).collect();
            padded.index_select(&Tensor::new(places, x.device())?, axis)
        };
        taken(0)?.maximum(&taken(1)?)?.maximum(&taken(2)?)
    };
    along(&along(x, 2)?, 3)
}

/// A convolution followed by batch normalization.
struct Unit {
    convolution: Conv2d,
    norm: BatchNorm,
}

impl Unit {
    fn new(
        [convolution, norm]: [VarBuilder<'_>; 2],
        [from, to]: [usize; 2],
        size: usize,
        stride: usize,
    ) -> Result<Self> {
        let config = Conv2dConfig { padding: size / 2, stride, ..Conv2dConfig::default() };
        let convolution = conv2d_no_bias(from, to, size, config, convolution)?;
        Ok(Unit { convolution, norm: batch_norm(to, EPSILON, norm)? })
    }
}

impl ModuleT for Unit {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.norm.forward_t(&self.convolution.forward(x)?, train)
    }
}

/// Bottleneck block: fewer channels, a convolution, more channels, plus the input of the block.
struct Block {
    units: [Unit; 3],
    /// Unit that converts the input to the size of the output, if they differ.
    shortcut: Option<Unit>,
}

impl Block {
    fn new(vb: &VarBuilder<'_>, from: usize, narrow: usize, stride: usize) -> Result<Self> {
        let to = EXPANSION * narrow;
        let unit = |number: usize, channels: [usize; 2], size: usize, stride: usize| {
            Unit::new(["conv", "bn"].map(|name| vb.pp(format!("{name}{number}"))), channels, size, stride)
        };
        let shortcut = (stride != 1 || from != to)
            .then(|| Unit::new([0, 1].map(|part| vb.pp("downsample").pp(part)), [from, to], 1, stride));
        Ok(Block {
            units: [
                unit(1, [from, narrow], 1, 1)?,
                unit(2, [narrow, narrow], 3, stride)?,
                unit(3, [narrow, to], 1, 1)?,
            ],
            shortcut: shortcut.transpose()?,
        })
    }
}

impl ModuleT for Block {
    fn forward_t(&self, input: &Tensor, train: bool) -> Result<Tensor> {
        let [fewer, among, more] = &self.units;
        let x = fewer.forward_t(input, train)?.relu()?;
        let x = among.forward_t(&x, train)?.relu()?;
        let x = more.forward_t(&x, train)?;
        match &self.shortcut {
            Some(shortcut) => (x + shortcut.forward_t(input, train)?)?.relu(),
            None => (x + input)?.relu(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};
    use candle_nn::VarMap;

    fn built(blocks: [usize; 4]) -> (VarMap, ResNet) {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let net = ResNet::new(vb, ResNetOptions::small(blocks, 3)).unwrap();
        (varmap, net)
    }

    #[test]
    fn the_large_net_has_the_parameters_of_torchvisions() {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let net = ResNet::new(vb, ResNetOptions::resnet50()).unwrap();
        let data = varmap.data().lock().unwrap();
        let learned = data.iter().filter(|(name, _)| !name.contains("running"));
        assert_eq!(learned.map(|(_, var)| var.elem_count()).sum::<usize>(), 25_557_032);
        assert_eq!(data["conv1.weight"].dims(), [64, 3, 7, 7]);
        assert_eq!(data["fc.weight"].dims(), [1000, 2048]);
        drop(data);
        let image = Tensor::zeros((1, 3, 64, 64), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(net.forward_t(&image, true).unwrap().dims(), [1, 1000]);
    }

    #[test]
    fn windows_of_the_pooling_overlap() {
        let x = Tensor::arange(0.0f32, 20.0, &Device::Cpu).unwrap().reshape((1, 1, 4, 5)).unwrap();
        let x = candle_core::Var::from_tensor(&x).unwrap();
        let found = pooled(&x).unwrap();
        assert_eq!(found.flatten_all().unwrap().to_vec1::<f32>().unwrap(), [6.0, 8.0, 9.0, 16.0, 18.0, 19.0]);
        let gradient = found.sum_all().unwrap().backward().unwrap();
        let gradient = gradient.get(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let chosen: Vec<usize> = (0..20).filter(|at| gradient[*at] == 1.0).collect();
        assert_eq!((chosen, gradient.iter().sum::<f32>()), (vec![6, 8, 9, 16, 18, 19], 6.0));
    }

    #[test]
    fn it_has_the_parameters_of_the_published_net() {
        let (varmap, _) = built(ResNet::OF_50);
        let data = varmap.data().lock().unwrap();
        let learned = data.iter().filter(|(name, _)| !name.contains("running"));
        // `resnet50` of torchvision with 10 classes has 23 528 522; its first convolution has 7 × 7 weights instead of
        // 3 × 3.
        let count: usize = learned.map(|(_, var)| var.elem_count()).sum();
        assert_eq!(count, 23_528_522 - 64 * 3 * (49 - 9));
        assert_eq!(data["layer4.0.downsample.0.weight"].dims(), [2048, 1024, 1, 1]);
        assert_eq!(data.keys().filter(|name| name.ends_with("conv2.weight")).count(), 3 + 4 + 6 + 3);
    }

    #[test]
    fn statistics_are_of_the_batch_in_training_and_remembered_otherwise() {
        let (varmap, net) = built(ResNet::OF_14);
        let images = Tensor::randn(0.0f32, 1.0, (2, 3, 8, 8), &Device::Cpu).unwrap();
        let logits = |train: bool| net.forward_t(&images, train).unwrap().to_vec2::<f32>().unwrap();
        let statistics = || varmap.data().lock().unwrap()["bn1.running_var"].to_vec1::<f32>().unwrap();
        assert_eq!(statistics(), [1.0; WIDTH]);
        assert_ne!(logits(true), logits(false));
        assert_ne!(statistics(), [1.0; WIDTH]);
        let kept = statistics();
        assert_eq!(logits(false), logits(false));
        assert_eq!(statistics(), kept);
        assert_eq!(logits(false)[0].len(), CLASSES);
    }
}
