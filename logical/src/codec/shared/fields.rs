//! Common options of several codecs.

use crate::codec::{Keep, NotFinite};
use crate::options_text::{Catalogues, Number, Options, OptionsText, Values, one_of};
use hexagram_physical::Result;

/// Adds the option for the treatment of NaN and infinity.
pub(crate) fn not_finite_field(not_finite: &mut NotFinite, options: &mut Options) -> Result<()> {
    let treatments = [
        ("refuse", NotFinite::Refuse),
        ("saturate", NotFinite::Saturate),
        ("propagate", NotFinite::Propagate),
    ];
    options.field("not_finite", not_finite, one_of(&treatments), "treatment of NaN and infinity")
}

/// Values of the option `keep` of a sparse codec: a share such as `5%`, or a number of elements such as `100`.
pub(crate) struct KeepValues;

impl Values<Keep> for KeepValues {
    fn read(&self, spelling: &OptionsText, _: Option<&Keep>, _: &Catalogues) -> Result<Option<Keep>> {
        let word = spelling.name();
        let keep = match f64::from_word(word) {
            _ if !spelling.arguments().is_empty() => None,
            Some(ratio) if word.ends_with('%') => Some(Keep::Ratio(ratio)),
            _ => word.parse().ok().map(Keep::Count),
        };
        Ok(keep.filter(|keep| keep.holds()))
    }

    fn write(&self, value: &Keep) -> OptionsText {
        OptionsText::of(value.to_string())
    }

    fn accepts(&self, value: &Keep) -> Result<bool> {
        Ok(value.holds())
    }

    fn describe(&self, _: &Catalogues) -> String {
        "a share of the elements, above 0% and up to 100%, or a number of them, 1 or more".to_owned()
    }
}
