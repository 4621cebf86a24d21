//! The safetensors format, which other tools read: header length, header, then the bytes of all tensors.
//!
//! ```text
//! len:u64 {"__metadata__":{"fact":"text"},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}} bytes
//! ```
//!
//! Offsets count from the end of the header. Tensors of larger elements come first, so that all are aligned. The header
//! is compact JSON, as written by the safetensors crate: spaces only pad its end to a multiple of eight bytes.

use hexagram_logical::DType;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Largest size of the header, in bytes, as defined by the format. The header lists all tensors.
pub(super) const LONGEST_HEADER: u64 = 100_000_000;

/// Name of the entry for the facts in the header.
const FACTS: &str = "__metadata__";

/// One tensor of a file.
#[derive(Debug, PartialEq)]
pub(super) struct TensorEntry<'a> {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: &'a [u8],
}

/// Returns the bytes of a file.
///
/// # Errors
/// The reason why a file cannot have this content.
pub(super) fn encode(
    facts: &BTreeMap<String, String>,
    mut tensors: Vec<TensorEntry<'_>>,
) -> Result<Vec<u8>, String> {
    tensors.sort_by(|a, b| (Reverse(a.dtype.size()), &a.name).cmp(&(Reverse(b.dtype.size()), &b.name)));
    let mut header = format!("{{{}:{{", quoted(FACTS));
    let facts = facts.iter().map(|(name, fact)| format!("{}:{}", quoted(name), quoted(fact)));
    header.push_str(&facts.collect::<Vec<_>>().join(","));
    header.push('}');
    let mut end = 0;
    for TensorEntry { name, dtype, shape, bytes } in &tensors {
        if name == FACTS {
            return Err(format!("the format keeps the name `{FACTS}` for itself"));
        }
        let start = end;
        end += bytes.len();
        let dtype = name_of(*dtype);
        // Writing to a string cannot fail. A list is written as Rust prints it, without spaces.
        let shape = format!("{shape:?}").replace(' ', "");
        let name = quoted(name);
        let _ = write!(
            header,
            ",{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}"
        );
    }
    header.push('}');
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    if header.len() as u64 > LONGEST_HEADER {
        return Err(format!("its header of {} bytes is longer than the format allows", header.len()));
    }
    let mut file = Vec::with_capacity(8 + header.len() + end);
    file.extend_from_slice(&(header.len() as u64).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    tensors.iter().for_each(|tensor| file.extend_from_slice(tensor.bytes));
    Ok(file)
}

/// Returns the facts and the tensors of a file; `None` if it is damaged.
pub(super) fn decode(file: &[u8]) -> Option<(BTreeMap<String, String>, Vec<TensorEntry<'_>>)> {
    let (len, rest) = file.split_first_chunk::<8>()?;
    let len = u64::from_le_bytes(*len);
    let (header, data) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    let mut json = Json(std::str::from_utf8(header).ok()?.trim_end_matches(' '));
    let mut facts = BTreeMap::new();
    let mut tensors = Vec::new();
    json.object(|json, name| {
        if name == FACTS {
            return json.object(|json, name| facts.insert(name, json.text()?).is_none().then_some(()));
        }
        tensors.push(tensor(json, name, data)?);
        Some(())
    })?;
    // Every byte belongs to one tensor.
    let bytes: usize = tensors.iter().map(|tensor| tensor.bytes.len()).sum();
    (json.0.is_empty() && bytes == data.len()).then_some((facts, tensors))
}

/// Reads the header entry of a tensor.
fn tensor<'a>(json: &mut Json<'_>, name: String, data: &'a [u8]) -> Option<TensorEntry<'a>> {
    let (mut dtype, mut shape, mut place) = (None, None, None);
    json.object(|json, key| {
        match key.as_str() {
            "dtype" => {
                let text = json.text()?;
                dtype = DType::ALL.into_iter().find(|dtype| name_of(*dtype) == text);
            }
            "shape" => shape = Some(json.numbers()?),
            "data_offsets" => place = Some(json.numbers()?),
            _ => return None,
        }
        Some(())
    })?;
    let [start, end] = place?[..] else { return None };
    let (dtype, shape, bytes) = (dtype?, shape?, data.get(start..end)?);
    let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size))?;
    (elements.checked_mul(dtype.size())? == bytes.len()).then_some(TensorEntry { name, dtype, shape, bytes })
}

/// Returns the name of a type in the format, such as `F32`.
fn name_of(dtype: DType) -> String {
    dtype.to_string().to_uppercase()
}

/// Returns a string as JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            control if control < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

/// The rest of a JSON text. Every function returns `None` for unexpected input.
struct Json<'a>(&'a str);

impl Json<'_> {
    /// Consumes `mark`, if it is the next character.
    fn has(&mut self, mark: char) -> bool {
        let rest = self.0.strip_prefix(mark);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, mark: char) -> Option<()> {
        self.has(mark).then_some(())
    }

    /// Reads a list between two marks, separated by commas.
    fn list(
        &mut self,
        open: char,
        close: char,
        mut entry: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.expect(open)?;
        if self.has(close) {
            return Some(());
        }
        loop {
            entry(self)?;
            if self.has(close) {
                return Some(());
            }
            self.expect(',')?;
        }
    }

    /// Reads an object, with `value` for the value of each name.
    fn object(&mut self, mut value: impl FnMut(&mut Self, String) -> Option<()>) -> Option<()> {
        self.list('{', '}', |json| {
            let name = json.text()?;
            json.expect(':')?;
            value(json, name)
        })
    }

    fn numbers(&mut self) -> Option<Vec<usize>> {
        let mut numbers = Vec::new();
        self.list('[', ']', |json| {
            let digits = json.0.find(|letter: char| !letter.is_ascii_digit())?;
            let (number, rest) = json.0.split_at(digits);
            numbers.push(number.parse().ok()?);
            json.0 = rest;
            Some(())
        })?;
        Some(numbers)
    }

    fn text(&mut self) -> Option<String> {
        self.expect('"')?;
        let mut text = String::new();
        let mut letters = self.0.chars();
        loop {
            match letters.next()? {
                '"' => break,
                '\\' => text.push(match letters.next()? {
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'u' => {
                        let (digits, rest) = letters.as_str().split_at_checked(4)?;
                        letters = rest.chars();
                        char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
                    }
                    itself @ ('"' | '\\' | '/') => itself,
                    _ => return None,
                }),
                letter => text.push(letter),
            }
        }
        self.0 = letters.as_str();
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::safetensors::SafeTensors;
    use ::safetensors::tensor::{Dtype, TensorView};

    const ODD: &str = "a \"name\" \\ of\n\u{1}\u{e9}\u{1f600}/";

    fn facts() -> BTreeMap<String, String> {
        [("format", "pt"), (ODD, ODD)].map(|(name, fact)| (name.to_owned(), fact.to_owned())).into()
    }

    fn tensors() -> Vec<TensorEntry<'static>> {
        let tensor = |name: &str, dtype, shape: &[usize], bytes| TensorEntry {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            bytes,
        };
        vec![
            tensor("wide", DType::F64, &[1], &[1, 2, 3, 4, 5, 6, 7, 8]),
            tensor(ODD, DType::F32, &[2, 1], &[1, 2, 3, 4, 5, 6, 7, 8]),
            tensor("none", DType::BF16, &[0, 7], &[]),
            tensor("scalar", DType::Bool, &[], &[1]),
        ]
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let file = encode(&facts(), tensors()).unwrap();
        assert_eq!(decode(&file).unwrap(), (facts(), tensors()));
        let file = encode(&BTreeMap::new(), Vec::new()).unwrap();
        assert_eq!(decode(&file).unwrap(), (BTreeMap::new(), Vec::new()));
    }

    #[test]
    fn the_safetensors_crate_reads_it_and_is_read() {
        let file = encode(&facts(), tensors()).unwrap();
        let found = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(found.len(), 4);
        for TensorEntry { name, shape, bytes, .. } in tensors() {
            let tensor = found.tensor(&name).unwrap();
            assert_eq!((tensor.shape(), tensor.data()), (&shape[..], bytes));
        }
        let (_, header) = SafeTensors::read_metadata(&file).unwrap();
        assert_eq!(header.metadata().clone().unwrap(), facts().into_iter().collect());
        let views =
            [("wide", Dtype::F64, vec![1]), (ODD, Dtype::F32, vec![2, 1])].map(|(name, dtype, shape)| {
                (name, TensorView::new(dtype, shape, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap())
            });
        let file = ::safetensors::serialize(views, Some(facts().into_iter().collect())).unwrap();
        let two: Vec<_> = tensors().into_iter().take(2).collect();
        assert_eq!(decode(&file).unwrap(), (facts(), two));
    }

    #[test]
    fn a_header_that_says_something_else_is_damaged() {
        let of = |header: &str, bytes: usize| {
            let len = (header.len() as u64).to_le_bytes();
            [&len[..], header.as_bytes(), &vec![0; bytes]].concat()
        };
        let one = r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
        assert!(decode(&of(one, 2)).is_some());
        assert!(decode(&of(one, 3)).is_none(), "a byte too many");
        for header in [
            "",
            "{",
            r#"{"x":{}}"#,
            r#"{"x":{"dtype":"U9","shape":[2],"data_offsets":[0,2]}}"#,
            r#"{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,2]}}"#,
            r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}}"#,
            r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
            r#"{"x":{"dtype":"F64","shape":[4611686018427387904,2],"data_offsets":[0,2]}}"#,
            r#"{"x":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,2]}}"#,
            r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}}"#,
            r#"{"__metadata__":{"a":1}}"#,
            r#"{"\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#,
        ] {
            assert!(decode(&of(header, 2)).is_none(), "{header}");
        }
        assert!(decode(&u64::MAX.to_le_bytes()).is_none());
    }
}
