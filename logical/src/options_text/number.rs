//! Numbers of options, and their text form: 4, 0.25, 25%, 1e-8.

/// Type of a numeric option.
pub trait Number: Copy + PartialOrd + 'static {
    /// Description of the type.
    const KIND: &'static str;
    /// Description of its minimum, if it has one.
    const LEAST: &'static str;

    /// Returns the number in a word; `None` if it is not a number.
    fn from_word(word: &str) -> Option<Self>;

    /// Returns the shortest word for a number.
    fn to_text(self) -> String;

    /// Returns true unless it is infinite or NaN.
    fn is_finite(self) -> bool;
}

macro_rules! whole_numbers {
    ($($T:ty),*) => {$(
        impl Number for $T {
            const KIND: &'static str = "a whole number";
            const LEAST: &'static str = ", 0 or more";

            fn from_word(word: &str) -> Option<Self> {
                word.parse().ok()
            }

            fn to_text(self) -> String {
                self.to_string()
            }

            fn is_finite(self) -> bool {
                true
            }
        }
    )*};
}
whole_numbers!(u32, u64, usize);

impl Number for f64 {
    const KIND: &'static str = "a number";
    const LEAST: &'static str = "";

    fn from_word(word: &str) -> Option<Self> {
        match word.strip_suffix('%') {
            Some(percents) => from_percents(percents),
            None => decimal(word),
        }
    }

    fn to_text(self) -> String {
        let plain = self == 0.0 || (1e-4..1e7).contains(&self.abs()) || !self.is_finite();
        if plain { format!("{self}") } else { format!("{self:e}") }
    }

    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }
}

/// Returns the ratio of a percentage: the float nearest to the decimal number shifted by two places.
fn from_percents(percents: &str) -> Option<f64> {
    decimal(percents)?;
    let (mantissa, exponent) = percents.split_once(['e', 'E']).unwrap_or((percents, "0"));
    let exponent = exponent.parse::<i32>().ok()?.checked_sub(2)?;
    format!("{mantissa}e{exponent}").parse().ok()
}

/// Returns the percentage of a ratio, such that [`f64::from_word`](Number::from_word) returns the ratio.
pub(crate) fn percents(ratio: f64) -> String {
    if ratio == 0.0 {
        return "0%".to_owned();
    }
    let sign = if ratio < 0.0 { "-" } else { "" };
    let text = format!("{:e}", ratio.abs());
    let shifted = text.split_once('e').and_then(|(mantissa, exponent)| {
        let exponent = exponent.parse::<i32>().ok()?.checked_add(2)?;
        Some(shift(mantissa, exponent))
    });
    shifted.map_or_else(|| format!("{sign}{text}"), |text| format!("{sign}{text}%"))
}

/// Returns the decimal number `mantissa · 10^exponent`, where the mantissa has one digit before the point.
fn shift(mantissa: &str, exponent: i32) -> String {
    let digits = mantissa.replace('.', "");
    let places = digits.len() as i32 - 1;
    match exponent {
        -3..=-1 => format!("0.{}{digits}", "0".repeat((-exponent - 1) as usize)),
        0..=3 if exponent >= places => format!("{digits}{}", "0".repeat((exponent - places) as usize)),
        0..=3 => format!("{}.{}", &digits[..=exponent as usize], &digits[exponent as usize + 1..]),
        _ => format!("{mantissa}e{exponent}"),
    }
}

/// Returns the number in a word of digits; `None` for the words of infinity and NaN.
fn decimal(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percents_are_exact() {
        for (ratio, text) in [
            (0.05, "5%"),
            (0.07, "7%"),
            (0.001, "0.1%"),
            (1.0, "100%"),
            (0.125, "12.5%"),
            (1e-9, "1e-7%"),
            (0.0, "0%"),
            (-0.05, "-5%"),
        ] {
            assert_eq!(percents(ratio), text);
            assert_eq!(f64::from_word(text), Some(ratio));
        }
        for word in ["%", "5%%", "NaN", "inf", "-infinity", "1e999", "1e", "e5%", "1e-99999999999%", ""] {
            assert_eq!(f64::from_word(word), None, "{word}");
        }
    }

    proptest! {
        #[test]
        fn a_words_number_has_that_word(number in any::<f64>().prop_filter("finite", |x| x.is_finite())) {
            prop_assert_eq!(f64::from_word(&number.to_text()), Some(number));
        }

        #[test]
        fn a_ratios_percents_are_that_ratio(ratio in 0.0f64..=1.0) {
            prop_assert_eq!(f64::from_word(&percents(ratio)), Some(ratio));
        }
    }
}
