//! Parameter groups: parameters with their own learning rate or weight decay.
//!
//! ```text
//! γ ← γ · group.learning_rate        λ ← λ · group.weight_decay        from the first group with the parameter
//! ```

use crate::plugin::{Tensor, check_option};
use hexagram_logical::{Error, Result};
use std::collections::BTreeSet;
use std::ops::Range;

/// Parameters whose learning rate and weight decay have their own factors.
///
/// ```
/// use hexagram::algorithms::optimizer::{AdamW, Members, ParameterGroup};
/// use hexagram::algorithms::EngineOptions;
/// use std::sync::Arc;
///
/// let options = EngineOptions {
///     optimizer: Some(Arc::new(AdamW { weight_decay: 0.1, ..AdamW::default() })),
///     groups: vec![
///         ParameterGroup { learning_rate: 0.1, ..ParameterGroup::of(Members::Named("head.*".into())) },
///         ParameterGroup { weight_decay: 0.0, ..ParameterGroup::of(Members::Vectors) },
///     ],
///     ..EngineOptions::default()
/// };
/// assert_eq!(options.groups.len(), 2);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterGroup {
    /// Parameters of the group. A parameter that matches several groups belongs to the first of them.
    pub members: Members,
    /// Factor of the learning rate, at least 0. Default: 1.
    pub learning_rate: f64,
    /// Factor of the weight decay, at least 0. Default: 1.
    pub weight_decay: f64,
}

/// Parameters of a [`ParameterGroup`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Members {
    /// Parameters of fewer than two dimensions: biases, and the scales and shifts of norms.
    Vectors,
    /// Parameters whose name matches; `*` stands for any characters, or none.
    Named(String),
    /// Parameters with one of these names.
    Listed(BTreeSet<String>),
}

impl ParameterGroup {
    /// Creates a group of these parameters, with factors of 1.
    pub fn of(members: Members) -> Self {
        ParameterGroup { members, learning_rate: 1.0, weight_decay: 1.0 }
    }

    /// Refuses invalid factors.
    pub(crate) fn check(&self) -> Result<()> {
        let sound = |factor: f64| factor.is_finite() && factor >= 0.0;
        let named = |field: &str| format!("{field} of the parameter group {:?}", self.members);
        check_option(sound(self.learning_rate), &named("learning_rate"), &self.learning_rate, "0 or more")?;
        check_option(sound(self.weight_decay), &named("weight_decay"), &self.weight_decay, "0 or more")
    }
}

impl Members {
    /// Returns true if a parameter is one of them.
    fn include(&self, tensor: &Tensor) -> bool {
        match self {
            Members::Vectors => tensor.shape.len() < 2,
            Members::Named(pattern) => matches(pattern, &tensor.name),
            Members::Listed(names) => names.contains(&*tensor.name),
        }
    }
}

/// Returns true if a name matches a pattern with `*`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = name.split_once(part) else { return false };
        name = after;
    }
    name.ends_with(tail)
}

/// Consecutive tensors of a bucket in the same parameter group: an elementwise optimizer processes them in one pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Range of the elements within the bucket.
    pub elements: Range<usize>,
    /// Range of the tensors within [`Update::tensors`](super::Update::tensors).
    pub tensors: Range<usize>,
    /// Factor of the learning rate.
    pub learning_rate: f64,
    /// Factor of the weight decay.
    pub weight_decay: f64,
}

impl Section {
    /// Creates the single section of an undivided bucket, with factors of 1 and without tensors.
    pub fn whole(elements: usize) -> Self {
        Section { elements: 0..elements, tensors: 0..0, learning_rate: 1.0, weight_decay: 1.0 }
    }
}

/// Returns the sections of a bucket, which cover it in the order of its elements.
pub(crate) fn sections(groups: &[ParameterGroup], tensors: &[Tensor]) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for (at, tensor) in tensors.iter().enumerate() {
        let group = groups.iter().find(|group| group.members.include(tensor));
        let learning_rate = group.map_or(1.0, |group| group.learning_rate);
        let weight_decay = group.map_or(1.0, |group| group.weight_decay);
        let elements = tensor.elements.clone();
        match sections.last_mut() {
            Some(last) if (last.learning_rate, last.weight_decay) == (learning_rate, weight_decay) => {
                last.elements.end = elements.end;
                last.tensors.end = at + 1;
            }
            _ => sections.push(Section { elements, tensors: at..at + 1, learning_rate, weight_decay }),
        }
    }
    sections
}

/// Fails if a group has a name that no parameter has.
pub(crate) fn check_names<'a>(
    groups: &[ParameterGroup],
    tensors: impl Iterator<Item = &'a Tensor> + Clone,
) -> Result<()> {
    for group in groups {
        let Members::Named(pattern) = &group.members else { continue };
        if !tensors.clone().any(|tensor| group.members.include(tensor)) {
            let what = format!("no parameter of the model has a name like the parameter group's `{pattern}`");
            return Err(Error::usage(what, "see the names in the model, or leave the group out"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("*", "a.b"),
            ("a*", "a"),
            ("*.b", "a.b"),
            ("a*b*c", "a.b.bc"),
            ("**", "a"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a", "ab"), ("", "a"), ("a*a", "a"), ("*b", "ba"), ("a*b*c", "acb"), ("b*", "ab")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn neighbours_of_one_group_are_one_section() {
        let tensor = |name: &str, shape: &[usize], start: usize| Tensor {
            name: name.into(),
            shape: shape.to_vec(),
            elements: start..start + shape.iter().product::<usize>(),
        };
        let tensors = [
            tensor("w", &[2, 2], 0),
            tensor("b", &[2], 4),
            tensor("scale", &[], 6),
            tensor("head.w", &[1, 3], 7),
        ];
        let groups = [
            ParameterGroup { learning_rate: 0.5, ..ParameterGroup::of(Members::Named("head.*".into())) },
            ParameterGroup { weight_decay: 0.0, ..ParameterGroup::of(Members::Vectors) },
        ];
        let section = |elements, tensors, learning_rate, weight_decay| Section {
            elements,
            tensors,
            learning_rate,
            weight_decay,
        };
        let expected =
            [section(0..4, 0..1, 1.0, 1.0), section(4..7, 1..3, 1.0, 0.0), section(7..10, 3..4, 0.5, 1.0)];
        assert_eq!(sections(&groups, &tensors), expected);
        assert_eq!(sections(&[], &tensors), [section(0..10, 0..4, 1.0, 1.0)]);
        check_names(&groups, tensors.iter()).unwrap();
        let error = check_names(&groups, tensors[..3].iter()).unwrap_err().to_string();
        assert!(error.contains("`head.*`"), "{error}");
    }
}
