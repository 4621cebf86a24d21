//! Models to simulate: the sizes of their parameters, and the share of each in the time of a step.

use super::trace;
use crate::program::simulate::file::in_file;
use crate::program::step::profile;
use hexagram::algorithms::Parameter;
use hexagram::logical::options_text::{nearest, no_such};
use hexagram::physical::input;
use hexagram::{DType, Error, Result};
use std::io;
use std::path::Path;
use std::time::Duration;

/// The most bytes of a file with a model.
const LONGEST: u64 = 64 << 20;
/// Elements of one parameter that are probably a typing error.
const MOST: usize = 1 << 36;

/// Number of equal parts of a model with only the number of elements given.
const PARTS: usize = 16;

/// One parameter of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelLayer {
    pub(crate) name: String,
    pub(crate) elements: usize,
    /// Time of its part of the forward pass.
    pub(crate) forward: Duration,
    /// Time of its part of the backward pass.
    pub(crate) backward: Duration,
}

/// A model, in the order of its forward pass.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerModel {
    pub(crate) layers: Vec<ModelLayer>,
}

/// Ratio of the time of a forward pass to that of the backward pass, which multiplies twice as many matrices.
pub(crate) const FORWARD: f64 = 0.5;

/// Models with names, and the time of their passes on a V100; docs/simulation.md gives the sources.
pub(super) const NAMES: [(&str, Duration); 5] = [
    ("vgg16", Duration::from_micros(141_600)),
    ("resnet50", Duration::from_micros(90_000)),
    ("bert-large", Duration::from_micros(520_000)),
    ("gpt2", Duration::from_micros(300_000)),
    ("llama-7b", Duration::from_secs(4)),
];

impl LayerModel {
    /// Returns a model by its name, or reads it from a file, and gives its passes this time in all.
    ///
    /// # Errors
    /// The file, the line and the correct form, in one line.
    pub(super) fn named(text: &str, compute: Option<Duration>) -> Result<Self> {
        let Some((_, usual)) = NAMES.iter().find(|(name, _)| *name == text) else {
            if let Some(elements) = number(text) {
                return Self::of_elements(text, elements, compute);
            }
            let model = Self::read(Path::new(text))?;
            return Ok(match compute {
                Some(time) => model.taking(time),
                None => model,
            });
        };
        let parts = match text {
            "vgg16" => vgg16(),
            "resnet50" => resnet50(),
            "bert-large" => transformer(24, 1024, 4096, 30_522 + 512 + 2),
            "gpt2" => transformer(12, 768, 3072, 50_257 + 1024),
            _ => llama(32, 4096, 11_008, 32_000),
        };
        let layers = parts.into_iter().map(|(name, elements, work)| {
            ModelLayer::new(name, elements, Duration::from_secs_f64(1e3 * work))
        });
        Ok(LayerModel { layers: layers.collect() }.taking(compute.unwrap_or(*usual)))
    }

    /// Returns a model of this many elements in equal parts, whose passes take this time.
    fn of_elements(text: &str, elements: usize, compute: Option<Duration>) -> Result<Self> {
        let Some(time) = compute else {
            let what = format!("--model {text} has no time for the forward and the backward pass");
            return Err(Error::usage(what, "give it with --compute MS"));
        };
        let part = |at: usize| {
            let share = elements / PARTS + usize::from(at < elements % PARTS);
            ModelLayer::new(format!("part{at}"), share, Duration::ZERO)
        };
        Ok(LayerModel { layers: (0..PARTS.min(elements)).map(part).collect() }.taking(time))
    }

    fn read(path: &Path) -> Result<Self> {
        let text = input::read_text(path, LONGEST).map_err(|cause| unreadable(path, cause))?;
        if text.trim_start().starts_with('{') {
            let layers = trace::layers(&text).map_err(|why| {
                let what = format!("{} is not a trace of a run: {why}", path.display());
                Error::usage(what, "use a file written by `train --trace`, with at least two steps")
            })?;
            return Ok(LayerModel { layers });
        }
        let mut layers = Vec::new();
        for (at, line) in input::statements(&text) {
            layers.push(layer(line).ok_or_else(|| {
                let remedy = "write `NAME ELEMENTS BACKWARD_MS`, as in `conv1.weight 1728 0.4`";
                let error = Error::usage(format!("`{line}` is not a parameter"), remedy);
                in_file(path, input::in_line(at, error))
            })?);
        }
        if layers.is_empty() {
            let what = format!("{} has no parameters", path.display());
            return Err(Error::usage(
                what,
                "write `NAME ELEMENTS BACKWARD_MS` for each, in the order of the forward pass",
            ));
        }
        Ok(LayerModel { layers })
    }

    /// Returns the same model with this total time of the passes. Layers keep their shares of it, or get shares by
    /// elements if none has a time.
    pub(super) fn taking(mut self, compute: Duration) -> Self {
        let whole = self.passes().as_secs_f64();
        let elements = self.elements() as f64;
        for layer in &mut self.layers {
            *layer = match whole > 0.0 {
                true => layer.scaled(compute.as_secs_f64() / whole),
                false => {
                    let both = compute.mul_f64(layer.elements as f64 / elements);
                    ModelLayer::new(layer.name.clone(), layer.elements, both.div_f64(1.0 + FORWARD))
                }
            };
        }
        self
    }

    /// Returns the time of a forward and a backward pass.
    pub(super) fn passes(&self) -> Duration {
        self.layers.iter().map(|layer| layer.forward + layer.backward).sum()
    }

    /// Returns the parameters as the engine takes them.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let parameter = |layer: &ModelLayer| Parameter {
            name: layer.name.clone(),
            dtype: DType::F32,
            shape: matrix(layer.elements),
        };
        self.layers.iter().map(parameter).collect()
    }

    /// Returns the number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.layers.iter().map(|layer| layer.elements).sum()
    }
}

impl ModelLayer {
    /// Returns a layer whose forward pass takes its usual share of the backward pass.
    fn new(name: String, elements: usize, backward: Duration) -> Self {
        ModelLayer { name, elements, forward: backward.mul_f64(FORWARD), backward }
    }

    /// Returns the same layer with passes longer by this factor.
    fn scaled(&self, factor: f64) -> Self {
        let forward = self.forward.mul_f64(factor);
        ModelLayer { forward, backward: self.backward.mul_f64(factor), ..self.clone() }
    }
}

/// Returns the shape of a parameter of this many elements. A large one has two dimensions, since some algorithms work
/// on matrices.
pub(crate) fn matrix(elements: usize) -> Vec<usize> {
    let widths = [4096, 1024, 768, 512, 256, 128, 64];
    let width =
        widths.into_iter().find(|width| elements.is_multiple_of(*width) && elements / width >= *width);
    width.map_or_else(|| vec![elements], |width| vec![elements / width, width])
}

/// Returns the error of an unreadable file; the text may be the misspelt name of a model.
fn unreadable(path: &Path, cause: io::Error) -> Error {
    let names = NAMES.map(|(name, _)| name);
    let word = path.to_string_lossy();
    if cause.kind() == io::ErrorKind::NotFound && !nearest(&word, names).is_empty() {
        return no_such("model or file", &word, names);
    }
    let names = names.join(", ");
    let remedy =
        format!("name one of {names}, or a file with a line `NAME ELEMENTS BACKWARD_MS` for each parameter");
    Error::system(format!("read the model {}", path.display()), cause, remedy)
}

/// Decodes a number of elements, such as `25M` or `1.3B`.
fn number(text: &str) -> Option<usize> {
    let unit = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let factor = match &text[unit..] {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "B" | "G" => 1e9,
        _ => return None,
    };
    let elements = text[..unit].parse::<f64>().ok()? * factor;
    (1.0..=MOST as f64).contains(&elements).then_some(elements as usize)
}

/// Decodes a line: of three words, or of four as in a profile of `step`.
fn layer(line: &str) -> Option<ModelLayer> {
    if line.split_whitespace().count() == 4 {
        let layer = profile::layer(line).ok()?;
        let elements = layer.shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        return Some(ModelLayer {
            name: layer.name,
            elements,
            forward: layer.forward,
            backward: layer.backward,
        });
    }
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    let elements = words.next()?.parse().ok().filter(|elements| (1..=MOST).contains(elements))?;
    let millis: f64 = words.next()?.parse().ok().filter(|millis: &f64| (0.0..1e9).contains(millis))?;
    words.next().is_none().then(|| ModelLayer::new(name, elements, Duration::from_secs_f64(millis / 1e3)))
}

/// Parameter with its number of elements, and work in arbitrary units.
type LayerParameter = (String, usize, f64);

/// Returns a layer's weights and biases; its work counts each weight once per use.
fn weights_and_biases(name: &str, weights: usize, biases: usize, uses: usize) -> [LayerParameter; 2] {
    let part =
        |kind: &str, elements: usize| (format!("{name}.{kind}"), elements, (elements * uses) as f64 * 1e-12);
    [part("weight", weights), part("bias", biases)]
}

/// Returns VGG of 16 layers, on images of 224 × 224: Simonyan and Zisserman, "Very deep convolutional networks", configuration
/// D.
fn vgg16() -> Vec<LayerParameter> {
    let mut parts = Vec::new();
    let mut size = 224usize;
    let mut channels = 3;
    for (block, (count, width)) in [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)].into_iter().enumerate() {
        for at in 0..count {
            let name = format!("conv{}_{}", block + 1, at + 1);
            parts.extend(weights_and_biases(&name, 9 * channels * width, width, size * size));
            channels = width;
        }
        size /= 2;
    }
    for (at, (from, to)) in [(25_088, 4096), (4096, 4096), (4096, 1000)].into_iter().enumerate() {
        parts.extend(weights_and_biases(&format!("fc{}", at + 1), from * to, to, 1));
    }
    parts
}

/// Returns the residual network of 50 layers, on images of 224 × 224: He et al., "Deep residual learning".
fn resnet50() -> Vec<LayerParameter> {
    let mut parts = Vec::new();
    let mut convolution = |name: String, taps: usize, from: usize, to: usize, size: usize| {
        let uses = size * size;
        parts.push((format!("{name}.weight"), taps * from * to, (taps * from * to * uses) as f64 * 1e-12));
        parts.push((format!("{name}.norm.weight"), to, (to * uses) as f64 * 1e-12));
        parts.push((format!("{name}.norm.bias"), to, (to * uses) as f64 * 1e-12));
    };
    convolution("stem".into(), 49, 3, 64, 112);
    let mut from = 64;
    for (stage, (blocks, width)) in [(3, 64), (4, 128), (6, 256), (3, 512)].into_iter().enumerate() {
        let size = 56 >> stage;
        for block in 0..blocks {
            let name = |part: &str| format!("layer{}.{block}.{part}", stage + 1);
            convolution(name("conv1"), 1, from, width, size);
            convolution(name("conv2"), 9, width, width, size);
            convolution(name("conv3"), 1, width, 4 * width, size);
            if block == 0 {
                convolution(name("downsample"), 1, from, 4 * width, size);
            }
            from = 4 * width;
        }
    }
    parts.extend(weights_and_biases("fc", 2048 * 1000, 1000, 1));
    parts
}

/// Returns a transformer like BERT and GPT-2: attention with biases, two linear layers, two norms.
fn transformer(layers: usize, width: usize, inner: usize, embedded: usize) -> Vec<LayerParameter> {
    // Embeddings are looked up: hardly any work.
    let mut parts: Vec<LayerParameter> = vec![("embeddings".into(), embedded * width, 1e-9)];
    for layer in 0..layers {
        let mut linear = |name: &str, from: usize, to: usize| {
            parts.extend(weights_and_biases(&format!("layer{layer}.{name}"), from * to, to, 1));
        };
        ["query", "key", "value", "output"].into_iter().for_each(|name| linear(name, width, width));
        linear("norm1", 1, width);
        linear("intermediate", width, inner);
        linear("reduced", inner, width);
        linear("norm2", 1, width);
    }
    parts
}

/// Returns a transformer without biases, with three matrices in the feed-forward part and an untied output: Touvron
/// et al., "LLaMA".
fn llama(layers: usize, width: usize, inner: usize, words: usize) -> Vec<LayerParameter> {
    let weight = |name: String, elements: usize| (name, elements, elements as f64 * 1e-12);
    let mut parts: Vec<LayerParameter> = vec![("embeddings".into(), words * width, 1e-9)];
    for layer in 0..layers {
        for name in ["query", "key", "value", "output"] {
            parts.push(weight(format!("layer{layer}.{name}"), width * width));
        }
        for name in ["gate", "up", "down"] {
            parts.push(weight(format!("layer{layer}.{name}"), width * inner));
        }
        parts.push(weight(format!("layer{layer}.norm1"), width));
        parts.push(weight(format!("layer{layer}.norm2"), width));
    }
    parts.push(weight("norm".into(), width));
    parts.push(weight("output".into(), words * width));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_as_many_parameters_as_published() {
        let millions = |name| (LayerModel::named(name, None).unwrap().elements() as f64 / 1e5).round() / 10.0;
        assert_eq!(millions("vgg16"), 138.4);
        assert_eq!(millions("resnet50"), 25.6);
        assert!((millions("bert-large") - 335.0).abs() < 3.0, "{}", millions("bert-large"));
        assert!((millions("gpt2") - 124.0).abs() < 1.0, "{}", millions("gpt2"));
        assert_eq!(millions("llama-7b"), 6738.4);
    }

    #[test]
    fn passes_take_the_time_that_is_asked_for() {
        for (name, usual) in NAMES {
            for (asked, want) in [(None, usual), (Some(Duration::from_secs(1)), Duration::from_secs(1))] {
                let model = LayerModel::named(name, asked).unwrap();
                let taken: Duration = model.layers.iter().map(|layer| layer.backward + layer.forward).sum();
                assert!((taken.as_secs_f64() - want.as_secs_f64()).abs() < 1e-5, "{name}: {taken:?}");
            }
        }
    }

    #[test]
    fn a_model_without_times_takes_those_that_are_asked_for_by_its_elements() {
        let layer = |elements| ModelLayer::new("a".into(), elements, Duration::ZERO);
        let model = LayerModel { layers: vec![layer(100), layer(300)] };
        let model = model.taking(Duration::from_millis(12));
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let taken: Vec<[f64; 2]> =
            model.layers.iter().map(|layer| [layer.forward, layer.backward].map(millis)).collect();
        let expected = [[1.0, 2.0], [3.0, 6.0]];
        let off = taken.as_flattened().iter().zip(expected.as_flattened()).map(|(a, b)| (a - b).abs());
        assert!(off.fold(0.0, f64::max) < 1e-6, "{taken:?}");
    }

    #[test]
    fn a_number_of_elements_is_a_model_of_equal_parts() {
        let time = Some(Duration::from_millis(96));
        for (text, elements) in [("25M", 25_000_000), ("1.3B", 1_300_000_000), ("7", 7), ("350k", 350_000)] {
            let model = LayerModel::named(text, time).unwrap();
            assert_eq!(model.elements(), elements, "{text}");
            assert!((model.passes().as_secs_f64() - 0.096).abs() < 1e-6, "{text}");
        }
        assert!(LayerModel::named("25M", None).unwrap_err().to_string().contains("--compute MS"));
        assert!(LayerModel::named("25X", time).is_err());
    }

    #[test]
    fn a_wrong_line_of_a_file_is_named() {
        let path = std::env::temp_dir().join(format!("hexagram-model-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            LayerModel::named(path.to_str().unwrap(), None).map_err(|error| error.to_string())
        };
        let model = read("# two layers\na 10 1.5\n\nb 20 3 # the last\n").unwrap();
        assert_eq!(model.layers[1], ModelLayer::new("b".into(), 20, Duration::from_millis(3)));
        for wrong in ["a 10", "a ten 1", "a 10 -1", "a 0 1", "a 10 1 x", "a 10 1 1 1"] {
            let error = read(&format!("a 1 1\n{wrong}\n")).unwrap_err();
            assert!(
                error.contains("line 2") && error.contains(wrong) && error.contains("ELEMENTS"),
                "{error}"
            );
        }
        let four = read("c 3x4,3 0.5 1e-3\n").unwrap();
        assert_eq!((four.elements(), four.passes()), (15, Duration::from_millis(501)));
        assert!(read("# nothing\n").unwrap_err().contains("no parameters"));
        std::fs::remove_file(&path).unwrap();
        let missing = |text| LayerModel::named(text, None).unwrap_err();
        assert!(missing("models/own").to_string().contains("vgg16, resnet50"));
        for (text, meant) in [("vgg17", "vgg16"), ("bert", "bert-large"), ("llama7b", "llama-7b")] {
            let error = missing(text);
            let is_right = matches!(&error, Error::Usage { .. })
                && error.to_string().contains(&format!("did you mean {meant}?"));
            assert!(is_right, "{error}");
        }
    }
}
