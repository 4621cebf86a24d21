//! The codecs by the names that users type, such as `top-k(5%)`.

use super::{Codec, catalogue};
use crate::options_text::{Listed, OptionsText, listed};
use hexagram_physical::Result;
use std::sync::Arc;

/// Returns all names.
pub fn names() -> Vec<&'static str> {
    catalogue().names().map(|(name, _)| name).collect()
}

/// Creates the codec from its spelling.
///
/// # Errors
/// [`Error::Usage`](hexagram_physical::Error::Usage) in one line; for an unknown codec, with the nearest names.
pub fn named(text: &str) -> Result<Arc<dyn Codec>> {
    catalogue().named(text)
}

/// Returns the values of an option that accepts any codec. User codecs are accepted if they are in the catalogue with
/// which options are read.
pub fn any_codec() -> Listed<Arc<dyn Codec>> {
    listed(|codec: &Arc<dyn Codec>| spelling(&**codec)).with_check(|codec| codec.check_options())
}

/// Returns the spelling of a codec: its name, if that can be parsed.
pub fn spelling(codec: &dyn Codec) -> OptionsText {
    OptionsText::of_text(&codec.name())
}

#[cfg(test)]
mod tests {
    use super::super::{Keep, PowerSgd, Qsgd, RandomK, TopK, counted};
    use super::*;

    #[test]
    fn every_name_makes_another_codec() {
        let mut full: Vec<String> = names().into_iter().map(|name| named(name).unwrap().name()).collect();
        full.sort();
        full.dedup();
        assert_eq!(full.len(), names().len());
        let error = named("zip").unwrap_err().to_string();
        assert!(error.contains("`zip`") && error.contains("min-max8"), "{error}");
    }

    #[test]
    fn a_codecs_name_spells_it() {
        for text in [
            "f16",
            "bf16(not_finite=saturate)",
            "min-max8",
            "min-max8(block=512)",
            "min-max8(block=whole)",
            "sign",
            "sign(block=7, not_finite=propagate)",
            "qsgd",
            "qsgd(levels=15)",
            "qsgd(levels=3, bucket=64)",
            "top-k(5%)",
            "top-k(0.07%, not_finite=saturate)",
            "top-k(100)",
            "top-k(1.5625%, chunk=4096, bits=2)",
            "random-k(1%)",
            "random-k(12.5%, unbiased=true)",
        ] {
            let codec = named(text).unwrap();
            assert_eq!(codec.name(), text);
            assert_eq!(named(&codec.name()).unwrap().name(), text);
        }
    }

    #[test]
    fn a_wrong_value_is_refused_in_one_line_with_field_value_and_range() {
        for (text, words) in [
            ("top-k(0%)", "keep of top-k is 0%; choose a share of the elements, above 0% and up to 100%"),
            ("top-k(keep=101%)", "keep of top-k is 101%; choose a share"),
            ("top-k(1%, chunk=0)", "chunk of top-k is 0; choose whole, or a whole number, 1 or more"),
            ("top-k(1%, bits=3)", "bits of top-k is 3; choose 32 or 2"),
            ("random-k(0)", "keep of random-k is 0; choose a share"),
            ("qsgd(levels=0)", "levels of qsgd is 0; choose a whole number, 1 or more, 32768 at most"),
            ("qsgd(bucket=0)", "bucket of qsgd is 0; choose a whole number, 1 or more"),
            ("sign(block=0)", "block of sign is 0; choose whole, or a whole number, 1 or more"),
            ("min-max8(block=-3)", "block of min-max8 is -3; choose whole, or a whole number, 1 or more"),
            ("f16(not_finite=maybe)", "not_finite of f16 is maybe; choose refuse or saturate or propagate"),
            ("sign(blocks=3)", "unknown option of sign `blocks`; did you mean block?"),
        ] {
            let error = named(text).unwrap_err().to_string();
            assert!(error.starts_with(words) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn constructors_refuse_in_the_line_that_typed_values_get() {
        let built: [(Result<Arc<dyn Codec>>, &str); 8] = [
            (TopK::new(Keep::Ratio(0.0)).map(counted), "top-k(0%)"),
            (TopK::new(Keep::Ratio(1.5)).map(counted), "top-k(150%)"),
            (TopK::new(Keep::Count(0)).map(counted), "top-k(0)"),
            (RandomK::new(Keep::Count(0)).map(counted), "random-k(0)"),
            (RandomK::unbiased(Keep::Ratio(-0.5)).map(counted), "random-k(-50%)"),
            (Qsgd::new(0).map(counted), "qsgd(levels=0)"),
            (Qsgd::new(40_000).map(counted), "qsgd(levels=40000)"),
            (Qsgd::default().with_bucket(0).map(counted), "qsgd(bucket=0)"),
        ];
        for (built, typed) in built {
            let line = named(typed).unwrap_err().to_string();
            assert_eq!(built.unwrap_err().to_string(), line);
        }
        let none = PowerSgd::new(&[(2, 2)], 0).unwrap_err().to_string();
        assert_eq!(none, "rank of powersgd is 0; choose a whole number, 1 or more");
        let least = PowerSgd::new(&[(2, 2)], 1).unwrap().with_saving(0.5).unwrap_err().to_string();
        assert_eq!(least, "saving of powersgd is 0.5; choose a number, 1 or more");
    }
}
