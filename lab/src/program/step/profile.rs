//! A model's layers and their CPU times, from a file or by default.

use crate::program::simulate::job::{FORWARD, matrix};
use hexagram::algorithms::Parameter;
use hexagram::physical::input;
use hexagram::{DType, Error, Result};
use std::path::Path;
use std::time::Duration;

/// Maximum elements of one parameter: a typing error must not cause an allocation that ends the process.
const MOST: usize = 1 << 31;
/// The most bytes of a profile: far more than any model has layers.
const LONGEST: u64 = 16 << 20;

/// One layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProfileLayer {
    pub(crate) name: String,
    /// Sizes of its parameters.
    pub(crate) shapes: Vec<Vec<usize>>,
    /// CPU time of its forward pass.
    pub(crate) forward: Duration,
    /// CPU time of its backward pass.
    pub(crate) backward: Duration,
}

/// A model, in the order of its forward pass.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Profile {
    pub(crate) layers: Vec<ProfileLayer>,
}

impl Profile {
    /// Reads a profile; without a file, the default.
    pub(super) fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = input::read_text(path, LONGEST).map_err(|cause| {
            let remedy = "choose an existing file with one line per layer";
            Error::system(format!("read the profile {}", path.display()), cause, remedy)
        })?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let lines =
            text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let layers: Result<Vec<ProfileLayer>> =
            lines.map(|(at, line)| layer(line).map_err(|why| unreadable(at, why))).collect();
        let layers = layers?;
        if layers.is_empty() {
            return Err(Error::usage(
                "the profile has no layers",
                "write one line per layer; see `hexagram help step`",
            ));
        }
        Ok(Profile { layers })
    }

    /// Returns all parameters, in the order of the layers.
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let of = |layer: &ProfileLayer| -> Vec<Parameter> {
            let parameter = |(at, shape): (usize, &Vec<usize>)| Parameter {
                name: format!("{}.{at}", layer.name),
                dtype: DType::F32,
                shape: shape.clone(),
            };
            layer.shapes.iter().enumerate().map(parameter).collect()
        };
        self.layers.iter().flat_map(of).collect()
    }
}

impl Default for Profile {
    fn default() -> Self {
        let layer = |at: usize| ProfileLayer {
            name: format!("layer{at}"),
            shapes: vec![vec![1024, 1024], vec![1024]],
            forward: Duration::from_millis(2),
            backward: Duration::from_millis(4),
        };
        Profile { layers: (0..8).map(layer).collect() }
    }
}

/// Parses `name 1024x1024,1024 0.002 0.004`, or returns the defect of the line.
pub(crate) fn layer(line: &str) -> std::result::Result<ProfileLayer, &'static str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if let [name, elements, backward] = words[..] {
        return of_elements(name, elements, backward);
    }
    let [name, shapes, forward, backward] = words[..] else { return Err("it does not have four words") };
    let seconds = |word: &str| {
        let time = word.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        time.ok_or("the seconds must be 0 or more")
    };
    Ok(ProfileLayer {
        name: name.to_owned(),
        shapes: shapes.split(',').map(shape).collect::<std::result::Result<_, _>>()?,
        forward: seconds(forward)?,
        backward: seconds(backward)?,
    })
}

/// Parses `name 1049600 4`, the form that `simulate` also reads: elements, and milliseconds of the backward pass.
fn of_elements(
    name: &str,
    elements: &str,
    backward: &str,
) -> std::result::Result<ProfileLayer, &'static str> {
    let elements = elements.parse().ok().filter(|elements| (1..=MOST).contains(elements));
    let elements = elements.ok_or("the elements must be a whole number from 1 to 2147483648")?;
    let millis = backward.parse().ok().filter(|millis: &f64| (0.0..1e9).contains(millis));
    let backward = Duration::from_secs_f64(millis.ok_or("the milliseconds must be 0 or more")? / 1e3);
    let shapes = vec![matrix(elements)];
    Ok(ProfileLayer { name: name.to_owned(), shapes, forward: backward.mul_f64(FORWARD), backward })
}

fn shape(text: &str) -> std::result::Result<Vec<usize>, &'static str> {
    let sizes: Option<Vec<usize>> = text.split('x').map(|size| size.parse().ok()).collect();
    let sizes = sizes.ok_or("the sizes must be whole numbers separated by x")?;
    match sizes.iter().try_fold(1usize, |elements, size| elements.checked_mul(*size)) {
        Some(0) => Err("a parameter has 0 elements"),
        Some(elements) if elements <= MOST => Ok(sizes),
        _ => Err("a parameter has more than 2147483648 elements"),
    }
}

fn unreadable(line: usize, why: &str) -> Error {
    let what = format!("line {} of the profile cannot be read: {why}", line + 1);
    Error::usage(what, "write `name 1024x1024,1024 0.002 0.004`: name, sizes, seconds forwards and backwards")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_line_by_line() {
        let profile = Profile::parse("# a comment\n\nfc 3x4,3 0.5 1e-3\n").unwrap();
        let forward = Duration::from_millis(500);
        let backward = Duration::from_millis(1);
        let shapes = vec![vec![3, 4], vec![3]];
        assert_eq!(profile.layers, [ProfileLayer { name: "fc".to_owned(), shapes, forward, backward }]);
        let parameters = profile.parameters();
        let short = Profile::parse("fc 15 4\n").unwrap().layers.remove(0);
        assert_eq!(
            (short.shapes, short.forward, short.backward.as_millis()),
            (vec![vec![15]], Duration::from_millis(2), 4)
        );
        assert_eq!((parameters[0].len(), parameters[1].len(), &*parameters[1].name), (12, 3, "fc.1"));
    }

    #[test]
    fn bad_profiles_are_refused_by_line() {
        for line in
            ["fc", "fc 3xx4 1 1", "fc 3x4 1", "fc 3 -1", "fc 3 1 -1", "fc 3 1 nan", "fc 3 1 1 1", "fc a 1 1"]
        {
            let text = Profile::parse(&format!("fc 3 0 0\n{line}")).unwrap_err().to_string();
            assert!(text.contains("line 2"), "{line}: {text}");
        }
        assert!(Profile::parse("#\n").is_err());
    }

    #[test]
    fn sizes_that_no_parameter_has_are_refused_with_the_reason() {
        for (sizes, why) in [
            ("99999999x999", "more than 2147483648"),
            ("9999999999x9999999999", "more than 2147483648"),
            ("2147483649", "more than 2147483648"),
            ("3x0", "0 elements"),
        ] {
            let text = Profile::parse(&format!("fc 3,{sizes} 0 0")).unwrap_err().to_string();
            assert!(text.contains("line 1") && text.contains(why), "{sizes}: {text}");
        }
        assert!(Profile::parse("fc 2147483648 0 0").is_ok());
    }
}
