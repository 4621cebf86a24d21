//! The codecs by the names that users type.

use super::{Codec, Half, MinMax8, Sign};
use hexagram_physical::{Error, Result};
use std::sync::Arc;

/// A codec with its defaults.
type Make = fn() -> Arc<dyn Codec>;

const ALL: [(&str, Make); 4] = [
    ("f16", || Arc::new(Half::F16)),
    ("bf16", || Arc::new(Half::BF16)),
    ("minmax8", || Arc::new(MinMax8::default())),
    ("sign", || Arc::new(Sign::default())),
];

/// All names.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// The codec of that name, with its defaults.
///
/// # Errors
/// [`Error::Usage`] that lists the names there are.
pub fn named(name: &str) -> Result<Arc<dyn Codec>> {
    let found = ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, make)| make()).ok_or_else(|| {
        let remedy = format!("use one of {}", names().join(", "));
        Error::usage(format!("there is no codec `{name}`"), remedy)
    })
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
