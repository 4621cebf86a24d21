//! Comma-separated values: each record is a sample. Open this file for the dialect.
//!
//! ```text
//! record := field (delimiter field)* end;  end := "\n" | "\r\n" | end of file
//! field  := any bytes without delimiter, quote, line end | '"' (any byte but '"' | '""')* '"'
//! ```
//! RFC 4180, with any delimiter; empty lines are no records.

use super::map::Map;
use super::{Cause, Dataset, DatasetError, Fetch};
use crate::loader::{Array, Element};
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// The dialect of a [`Csv`] file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsvOptions {
    /// Whether the first record names the columns.
    pub header: bool,
    /// What stands between fields.
    pub delimiter: u8,
}

impl Default for CsvOptions {
    fn default() -> Self {
        CsvOptions { header: true, delimiter: b',' }
    }
}

/// The records of a mapped UTF-8 file; samples are fields as text. Where each record begins is kept, 16 bytes a
/// record; the values stay in the file.
#[derive(Clone)]
pub struct Csv {
    path: PathBuf,
    map: Arc<Map>,
    delimiter: u8,
    header: Vec<String>,
    columns: usize,
    records: Arc<[Range<usize>]>,
}

impl Csv {
    /// Maps a file and looks for its records. It must not be cut short while it is used: Linux would end the
    /// process with SIGBUS.
    ///
    /// # Errors
    ///
    /// [`DatasetError`] when the file cannot be opened, when its first record cannot be read, when a quoted field
    /// does not end, or when the delimiter is a quote or a line end.
    pub fn open(path: impl AsRef<Path>, options: CsvOptions) -> Result<Self, DatasetError> {
        let path = path.as_ref();
        if b"\"\r\n".contains(&options.delimiter) {
            let what = "quotes and line ends cannot stand between fields";
            return Err(DatasetError::format(path, what, "set `delimiter` to what does, such as a comma"));
        }
        let map = Map::open(path)?;
        let records = records(map.bytes()).map_err(|start| {
            let what = "a quoted field does not end".to_owned();
            at(path, map.bytes(), start, what, "close the quote, or double it where it belongs to the text")
        })?;
        let mut csv = Csv {
            path: path.into(),
            map: Arc::new(map),
            delimiter: options.delimiter,
            header: Vec::new(),
            columns: 0,
            records: records.into(),
        };
        let first = csv.records.first().map(|first| csv.fields(first)).transpose()?.unwrap_or_default();
        csv.columns = first.len();
        if options.header {
            csv.header = first;
            csv.records = csv.records.iter().skip(1).cloned().collect();
        }
        Ok(csv)
    }

    /// The names of the columns; empty without a header.
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// How many fields every record has.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The same records as arrays of numbers, of shape `[columns]`.
    pub fn numbers<T: Number>(self) -> CsvNumbers<T> {
        CsvNumbers { csv: self, number: PhantomData }
    }

    /// The fields of a record.
    fn fields(&self, record: &Range<usize>) -> Result<Vec<String>, DatasetError> {
        let split = split(&self.map.bytes()[record.clone()], self.delimiter);
        split.map_err(|what| self.at(record, what, "write the record as RFC 4180 says, in UTF-8"))
    }

    /// The fields of a sample, as many as there are columns.
    fn sample(&self, index: usize) -> Result<Vec<String>, DatasetError> {
        let record = &self.records[DatasetError::in_range(index, self.records.len())?];
        let fields = self.fields(record)?;
        if fields.len() != self.columns {
            let what = format!("{} fields where the first record has {}", fields.len(), self.columns);
            return Err(self.at(record, what, "write the record in full"));
        }
        Ok(fields)
    }

    fn at(&self, record: &Range<usize>, what: String, remedy: &'static str) -> DatasetError {
        at(&self.path, self.map.bytes(), record.start, what, remedy)
    }
}

impl Dataset for Csv {
    type Sample = Vec<String>;

    fn len(&self) -> usize {
        self.records.len()
    }

    fn get(&self, index: usize, _: &Fetch<'_>) -> Result<Vec<String>, Cause> {
        Ok(self.sample(index)?)
    }
}

/// What a column of numbers may hold: any number that can be written.
pub trait Number: Element + FromStr {}

impl<T: Element + FromStr> Number for T {}

/// The records of a [`Csv`] file as numbers.
#[derive(Clone)]
pub struct CsvNumbers<T> {
    csv: Csv,
    number: PhantomData<T>,
}

impl<T: Number> Dataset for CsvNumbers<T> {
    type Sample = Array<T>;

    fn len(&self) -> usize {
        self.csv.len()
    }

    fn get(&self, index: usize, fetch: &Fetch<'_>) -> Result<Array<T>, Cause> {
        let fields = self.csv.sample(index)?;
        let mut numbers = fetch.pool().take(fields.len());
        for (column, (number, field)) in numbers.iter_mut().zip(&fields).enumerate() {
            *number = field.trim().parse().map_err(|_| {
                let what = format!("column {} is {field:?} instead of a number", column + 1);
                self.csv.at(&self.csv.records[index], what, "correct it, or read the file as text")
            })?;
        }
        Ok(Array::pooled([fields.len()], numbers)?)
    }
}

/// An error at a byte of a file, told by its line.
fn at(path: &Path, bytes: &[u8], byte: usize, what: String, remedy: &'static str) -> DatasetError {
    let line = bytes[..byte].iter().filter(|byte| **byte == b'\n').count() + 1;
    DatasetError::Format { path: path.into(), place: format!(":{line}"), what, remedy }
}

/// Where each record lies, without its end; or where one begins that does not end.
fn records(bytes: &[u8]) -> Result<Vec<Range<usize>>, usize> {
    let mut records = Vec::new();
    let mut start = 0;
    let mut quoted = false;
    let mut push = |start: usize, end: usize| {
        let end = if bytes[start..end].ends_with(b"\r") { end - 1 } else { end };
        if start < end {
            records.push(start..end);
        }
    };
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'\n' if !quoted => {
                push(start, at);
                start = at + 1;
            }
            _ => {}
        }
    }
    if quoted {
        return Err(start);
    }
    push(start, bytes.len());
    Ok(records)
}

/// The fields of one record.
fn split(record: &[u8], delimiter: u8) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let mut field = Vec::new();
    let mut bytes = record.iter().copied().peekable();
    loop {
        if bytes.next_if_eq(&b'"').is_some() {
            loop {
                match bytes.next() {
                    Some(b'"') if bytes.next_if_eq(&b'"').is_none() => break,
                    Some(byte) => field.push(byte),
                    None => return Err("a quoted field does not end".into()),
                }
            }
        } else {
            field.extend(std::iter::from_fn(|| bytes.next_if(|byte| *byte != delimiter && *byte != b'"')));
        }
        let text = String::from_utf8(std::mem::take(&mut field));
        fields.push(text.map_err(|error| format!("field {} is no UTF-8: {error}", fields.len() + 1))?);
        match bytes.next() {
            None => return Ok(fields),
            Some(byte) if byte == delimiter => {}
            Some(_) => return Err(format!("field {} has quotes in its middle", fields.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_keep_delimiters_quotes_and_line_ends() {
        let fields = |record: &str| split(record.as_bytes(), b',').unwrap();
        assert_eq!(fields(r#"a,"b,c","d ""e""",,"""#.trim_end_matches('"')), ["a", "b,c", "d \"e\"", "", ""]);
        assert_eq!(fields("\"two\nlines\",2"), ["two\nlines", "2"]);
        assert_eq!(fields(""), [""]);
        assert_eq!(split(b"a;b", b';').unwrap(), ["a", "b"]);
    }

    #[test]
    fn broken_records_are_refused() {
        let refused = |record: &[u8], what: &str| {
            let error = split(record, b',').unwrap_err();
            assert!(error.contains(what), "{error}");
        };
        refused(b"\"a", "does not end");
        refused(b"a,b\"c", "field 2 has quotes in its middle");
        refused(b"\"a\"b", "field 1 has quotes in its middle");
        refused(b"a,\xff", "field 2 is no UTF-8");
    }

    #[test]
    fn what_was_quoted_comes_back_and_no_bytes_panic() {
        let mut generator = crate::loader::SampleGenerator::new(0, 0, 0);
        let mut text = |most: u64| -> String {
            let length = generator.below(most);
            (0..length).map(|_| char::from(b"a,\"\n\r "[generator.below(6) as usize])).collect()
        };
        for _ in 0..2000 {
            let rows: Vec<Vec<String>> = (0..3).map(|_| vec![text(6), text(6)]).collect();
            let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
            let line = |row: &Vec<String>| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n";
            let file: String = rows.iter().map(line).collect();
            let found = records(file.as_bytes()).unwrap();
            let read = found.into_iter().map(|range| split(&file.as_bytes()[range], b',').unwrap());
            assert_eq!(read.collect::<Vec<_>>(), rows);
            let garbage = text(20);
            for range in records(garbage.as_bytes()).unwrap_or_default() {
                let _ = split(&garbage.as_bytes()[range], b',');
            }
        }
    }

    #[test]
    fn records_end_with_lines_outside_of_quotes() {
        let found = |text: &str| -> Vec<String> {
            records(text.as_bytes()).unwrap().into_iter().map(|range| text[range].to_owned()).collect()
        };
        assert_eq!(found("a,b\r\n\n1,\"x\ny\"\n2,z"), ["a,b", "1,\"x\ny\"", "2,z"]);
        assert!(found("").is_empty());
        assert_eq!(records(b"a\nb,\"c\nd"), Err(2));
    }
}
