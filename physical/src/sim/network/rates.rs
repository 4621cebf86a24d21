//! Rates: the time that arithmetic and messages take a rank of a simulated cluster.
//!
//! A simulated rank computes for real, or not at all, on any machine. Therefore time comes from a table of rates, and
//! never from a clock: the same run takes the same virtual time everywhere.

use crate::error::{Error, Result};
use crate::runtime::Work;
use crate::sim::cluster::link::duration;
use crate::sim::cluster::statement::check_first;
use crate::system::input;
use crate::system::input::in_line;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Rates of one machine, in bytes per second unless stated otherwise. Infinity means no time.
///
/// A file of them has a rate a line, as [`Display`](fmt::Display) writes it:
///
/// ```
/// use hexagram_physical::sim::Rates;
///
/// let rates: Rates = "copy 8e9\nreduce 6e9\nencode bytegrad 1.5e9\nmessage 3us\n".parse()?;
/// assert_eq!(rates.copy, 8e9);
/// assert_eq!(rates.encode["bytegrad"], 1.5e9);
/// assert_eq!(rates.scale, f64::INFINITY);
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// Setting elements to a value, by bytes written.
    pub fill: f64,
    /// Copying, by bytes written.
    pub copy: f64,
    /// Combining elements with others, by bytes written.
    pub reduce: f64,
    /// Multiplying elements, by bytes written.
    pub scale: f64,
    /// Weighted sums, by bytes read.
    pub weighted_sum: f64,
    /// Kernels such as steps of optimizers, by bytes read and written.
    pub kernel: f64,
    /// Products of matrices, in multiplications and additions a second.
    pub product: f64,
    /// Encoding by each codec, in elements per second: by its name with options, or without. The name `*` stands for
    /// all others.
    pub encode: BTreeMap<String, f64>,
    /// Decoding, likewise.
    pub decode: BTreeMap<String, f64>,
    /// Time of each message at either end, whatever its size.
    pub message: Duration,
    /// Work of a processor to send, by bytes.
    pub send: f64,
    /// Work of a processor to receive, by bytes.
    pub receive: f64,
}

/// Lowest rate that can be written: with less, the virtual time of a large model would end before its step.
const LEAST: f64 = 1e3;

impl Rates {
    /// Returns the rates of a machine on which only the network takes time.
    pub fn free() -> Self {
        let free = f64::INFINITY;
        Rates {
            fill: free,
            copy: free,
            reduce: free,
            scale: free,
            weighted_sum: free,
            kernel: free,
            product: free,
            encode: BTreeMap::new(),
            decode: BTreeMap::new(),
            message: Duration::ZERO,
            send: free,
            receive: free,
        }
    }

    /// Returns the time of some arithmetic, in seconds.
    pub(crate) fn seconds(&self, work: &Work) -> f64 {
        match work {
            Work::Fill { bytes } => *bytes as f64 / self.fill,
            Work::Copy { bytes } => *bytes as f64 / self.copy,
            Work::Reduce { bytes } => *bytes as f64 / self.reduce,
            Work::Scale { bytes } => *bytes as f64 / self.scale,
            Work::WeightedSum { terms, bytes } => (terms * bytes) as f64 / self.weighted_sum,
            Work::Kernel { bytes } => *bytes as f64 / self.kernel,
            Work::Product { operations } => *operations as f64 / self.product,
            Work::Encode { codec, elements } => *elements as f64 / of_codec(&self.encode, codec),
            Work::Decode { codec, elements } => *elements as f64 / of_codec(&self.decode, codec),
        }
    }

    fn plain(&mut self) -> [(&'static str, &mut f64); 9] {
        [
            ("fill", &mut self.fill),
            ("copy", &mut self.copy),
            ("reduce", &mut self.reduce),
            ("scale", &mut self.scale),
            ("weighted_sum", &mut self.weighted_sum),
            ("kernel", &mut self.kernel),
            ("product", &mut self.product),
            ("send", &mut self.send),
            ("receive", &mut self.receive),
        ]
    }

    /// Returns the error for a malformed line.
    fn wrong(&mut self, line: &str) -> Error {
        let names = self.plain().map(|(name, _)| name).join(", ");
        let remedy = format!(
            "write `NAME BYTES_A_SECOND`, 1e3 or more, with one of {names} (operations of `product`); `encode CODEC \
             ELEMENTS_A_SECOND`, `decode` likewise; or `message 3us`"
        );
        Error::usage(format!("`{line}` is not a rate"), remedy)
    }

    /// Decodes a line; returns `None` if it is malformed.
    fn set(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let value = words.next()?;
        let rate = |text: &str| text.parse().ok().filter(|rate: &f64| *rate >= LEAST);
        match name {
            "message" => self.message = duration(value)?,
            "encode" => drop(self.encode.insert(value.to_owned(), rate(words.next()?)?)),
            "decode" => drop(self.decode.insert(value.to_owned(), rate(words.next()?)?)),
            _ => *self.plain().into_iter().find(|(other, _)| *other == name)?.1 = rate(value)?,
        }
        words.next().is_none().then_some(())
    }
}

/// Returns the rate of a codec: that of its whole name, or of the name without options, or of all others.
fn of_codec(rates: &BTreeMap<String, f64>, codec: &str) -> f64 {
    let stem = codec.split('(').next().unwrap_or(codec);
    let found = [codec, stem, "*"].iter().find_map(|name| rates.get(*name));
    found.copied().unwrap_or(f64::INFINITY)
}

impl FromStr for Rates {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut rates = Rates::free();
        let mut lines = HashMap::new();
        for (at, line) in input::statements(text) {
            rates.set(line).ok_or_else(|| in_line(at, rates.clone().wrong(line)))?;
            // All but the value.
            let named = line.rsplit_once(char::is_whitespace).map_or(line, |(named, _)| named);
            let earlier = lines.insert(named.split_whitespace().collect::<Vec<_>>(), at);
            check_first(line, earlier).map_err(|error| in_line(at, error))?;
        }
        Ok(rates)
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, rate) in self.clone().plain() {
            if rate.is_finite() {
                writeln!(f, "{name} {rate:e}")?;
            }
        }
        for (name, rates) in [("encode", &self.encode), ("decode", &self.decode)] {
            rates.iter().try_for_each(|(codec, rate)| writeln!(f, "{name} {codec} {rate:e}"))?;
        }
        writeln!(f, "message {}ns", self.message.as_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_codec_has_the_rate_of_its_name_with_options_or_without_or_of_all_others() {
        let text = "encode top-k 1e9\nencode top-k(1%) 2e9\nencode top 5e9\nencode * 4e9\n";
        let rates: Rates = text.parse().unwrap();
        let seconds = |codec: &str| rates.seconds(&Work::Encode { codec: codec.into(), elements: 4_000 });
        assert_eq!(["top-k(1%)", "top-k(5%)", "sign", "top-q"].map(seconds), [2e-6, 4e-6, 1e-6, 1e-6]);
    }

    #[test]
    fn a_file_is_read_as_it_is_written_and_a_wrong_line_is_named() {
        let text = "# a machine\ncopy 8e9\nencode top-k(1%) 5e8 # slow\nencode * 1e9\nmessage 2us\n";
        let rates: Rates = text.parse().unwrap();
        assert_eq!(rates.to_string().parse::<Rates>().unwrap(), rates);
        assert_eq!(rates.seconds(&Work::Encode { codec: "top-k(1%)".into(), elements: 500 }), 1e-6);
        assert_eq!(rates.seconds(&Work::Encode { codec: "sign".into(), elements: 1000 }), 1e-6);
        assert_eq!(rates.seconds(&Work::Decode { codec: "sign".into(), elements: 1000 }), 0.0);
        assert_eq!(rates.seconds(&Work::Product { operations: 1000 }), 0.0);
        for wrong in [
            "copy",
            "copy fast",
            "copy -1",
            "copy 1e-300",
            "cpoy 1e9",
            "encode sign",
            "message 3",
            "copy 1e9 1e9",
        ] {
            let error = format!("fill 1e9\n{wrong}\n").parse::<Rates>().unwrap_err().to_string();
            assert!(
                error.contains("line 2") && error.contains(wrong) && error.contains("weighted_sum"),
                "{error}"
            );
        }
        for twice in
            ["copy 1e9\ncopy 2e9\n", "encode sign 1e9\nencode  sign 2e9\n", "message 1us\nmessage 1us\n"]
        {
            let error = twice.parse::<Rates>().unwrap_err().to_string();
            assert!(error.contains("line 2: ") && error.contains("repeats line 1"), "{error}");
        }
    }
}
