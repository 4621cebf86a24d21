//! The codecs by the names that users type.

use super::{Codec, E3M0, E4M3, Half, Keep, MinMax8, Qsgd, RandomK, Sign, TopK};
use hexagram_physical::{Error, Result};
use std::sync::Arc;

/// Constructor of a codec with its defaults: QSGD with 7 levels, 1 % kept of what is sparse.
type Make = fn() -> Result<Arc<dyn Codec>>;

/// Part of the elements that sparse codecs keep.
const KEPT: Keep = Keep::Ratio(0.01);

const ALL: [(&str, Make); 9] = [
    ("f16", || Ok(Arc::new(Half::F16))),
    ("bf16", || Ok(Arc::new(Half::BF16))),
    ("minmax8", || Ok(Arc::new(MinMax8::default()))),
    ("e4m3", || Ok(Arc::new(E4M3::default()))),
    ("sign", || Ok(Arc::new(Sign::default()))),
    ("e3m0", || Ok(Arc::new(E3M0::default()))),
    ("qsgd", || Ok(Arc::new(Qsgd::new(7)?))),
    ("topk", || Ok(Arc::new(TopK::new(KEPT)?))),
    ("randomk", || Ok(Arc::new(RandomK::new(KEPT)?))),
];

/// Returns all names.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// Creates the codec of a name, with its defaults.
///
/// # Errors
/// [`Error::Usage`] that lists the names there are.
pub fn named(name: &str) -> Result<Arc<dyn Codec>> {
    let found = ALL.iter().find(|(known, _)| *known == name);
    let Some((_, make)) = found else {
        let remedy = format!("use one of {}", names().join(", "));
        return Err(Error::usage(format!("there is no codec `{name}`"), remedy));
    };
    make()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_makes_another_codec() {
        let mut full: Vec<String> = names().into_iter().map(|name| named(name).unwrap().name()).collect();
        full.sort();
        full.dedup();
        assert_eq!(full.len(), names().len());
        let error = named("zip").unwrap_err().to_string();
        assert!(error.contains("`zip`") && error.contains("minmax8"), "{error}");
    }
}
