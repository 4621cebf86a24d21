//! Comma-separated values: each record is a sample.
//!
//! The format is RFC 4180 with any delimiter, as the `csv` crate reads it. Lines end with `\n`, `\r\n` or `\r`; empty
//! lines are skipped; a quote within a field that does not begin with one is text. The parser of that crate,
//! `csv-core`, is used without its reader, because several threads read records from memory in any order.

use super::map::Map;
use super::{Cause, Dataset, DatasetError, Fetch};
use crate::loader::{Array, Element};
use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The dialect of a [`Csv`] file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsvOptions {
    /// True if the first record names the columns.
    pub header: bool,
    /// Byte between fields.
    pub delimiter: u8,
}

impl Default for CsvOptions {
    fn default() -> Self {
        CsvOptions { header: true, delimiter: b',' }
    }
}

/// The records of a mapped UTF-8 file; a sample is a vector of text fields. The index of records takes 16 bytes per
/// record; the text stays in the file.
#[derive(Clone)]
pub struct Csv {
    path: PathBuf,
    map: Arc<Map>,
    parsers: Arc<Parsers>,
    header: Vec<String>,
    columns: usize,
    records: Arc<[Range<usize>]>,
}

impl Csv {
    /// Maps a file and indexes its records. Do not truncate the file while it is mapped: Linux would end the process
    /// with SIGBUS.
    ///
    /// # Errors
    ///
    /// [`DatasetError`] if the file cannot be opened, its first record cannot be read, a quoted field does not end,
    /// or the delimiter is a quote or a line end.
    pub fn open(path: impl AsRef<Path>, options: CsvOptions) -> Result<Self, DatasetError> {
        let path = path.as_ref();
        if b"\"\r\n".contains(&options.delimiter) {
            let what = "the delimiter is a quote or a line end";
            return Err(DatasetError::format(
                path,
                what,
                "set `delimiter` to a different byte, such as a comma",
            ));
        }
        let map = Map::open(path)?;
        let parsers = Parsers::new(options.delimiter);
        let records = parsers.lend(|parser| records(parser, map.bytes())).map_err(|start| {
            let what = "a quoted field does not end".to_owned();
            at(path, map.bytes(), start, what, "close the quote, or double a quote that is text")
        })?;
        let mut csv = Csv {
            path: path.into(),
            map: Arc::new(map),
            parsers: Arc::new(parsers),
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

    /// Returns the names of the columns; empty without a header.
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// Returns the number of fields of every record.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the same records as arrays of numbers, of shape `[columns]`.
    pub fn numbers<T: Number>(self) -> CsvNumbers<T> {
        CsvNumbers { csv: self, number: PhantomData }
    }

    /// Returns the fields of a record.
    fn fields(&self, record: &Range<usize>) -> Result<Vec<String>, DatasetError> {
        let split = self.parsers.lend(|parser| split(parser, &self.map.bytes()[record.clone()]));
        split.map_err(|what| self.at(record, what, "correct the record: RFC 4180 in UTF-8"))
    }

    /// Returns the fields of a sample, one for each column.
    fn sample(&self, index: usize) -> Result<Vec<String>, DatasetError> {
        let record = &self.records[DatasetError::in_range(index, self.records.len())?];
        let fields = self.fields(record)?;
        if fields.len() != self.columns {
            let what = format!("{} fields, and the first record has {}", fields.len(), self.columns);
            return Err(self.at(record, what, "correct the record"));
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

/// Element type of a column of numbers.
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
                let what = format!("column {} is {field:?}, not a number", column + 1);
                self.csv.at(&self.csv.records[index], what, "correct it, or read the file as text")
            })?;
        }
        Ok(Array::pooled([fields.len()], numbers)?)
    }
}

/// Idle parsers: building one takes longer than reading a record.
struct Parsers {
    builder: ReaderBuilder,
    idle: Mutex<Vec<Reader>>,
}

impl Parsers {
    fn new(delimiter: u8) -> Self {
        let mut builder = ReaderBuilder::new();
        builder.delimiter(delimiter);
        Parsers { builder, idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with a parser in its initial state.
    fn lend<R>(&self, work: impl FnOnce(&mut Reader) -> R) -> R {
        let idle = self.idle().pop();
        let mut parser = idle.unwrap_or_else(|| self.builder.build());
        parser.reset();
        let outcome = work(&mut parser);
        self.idle().push(parser);
        outcome
    }
}

/// Creates the error for a byte of a file, with its line number.
fn at(path: &Path, bytes: &[u8], byte: usize, what: String, remedy: &'static str) -> DatasetError {
    let line = bytes[..byte].iter().filter(|byte| **byte == b'\n').count() + 1;
    DatasetError::Format { path: path.into(), place: format!(":{line}"), what, remedy }
}

/// Returns the range of each record, or the start of a record whose quotes do not end.
fn records(parser: &mut Reader, bytes: &[u8]) -> Result<Vec<Range<usize>>, usize> {
    let mut records = Vec::new();
    let mut at = 0;
    loop {
        at += bytes[at..].iter().take_while(|byte| b"\r\n".contains(byte)).count();
        if at == bytes.len() {
            return Ok(records);
        }
        let start = at;
        at = end(parser, bytes, start).ok_or(start)?;
        records.push(start..at);
    }
}

/// Returns the end of the record that begins at `start`; `None` if its quotes do not end.
fn end(parser: &mut Reader, bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        // The text is not needed yet.
        let (result, read, ..) = parser.read_record(&bytes[at..], &mut [0; 1024], &mut [0; 64]);
        at += read;
        match result {
            ReadRecordResult::Record => return Some(at),
            ReadRecordResult::InputEmpty => break,
            _ => {}
        }
    }
    // A last line without a line end; within quotes, the line end would be text.
    let (result, ..) = parser.read_record(b"\n", &mut [0; 1024], &mut [0; 64]);
    (result == ReadRecordResult::Record).then_some(at)
}

/// Returns the fields of one record.
fn split(parser: &mut Reader, record: &[u8]) -> Result<Vec<String>, String> {
    // One more byte than the text can have: the parser does not end a field if its buffer is full.
    let mut text = vec![0; record.len() + 1];
    let mut ends = vec![0; record.len() + 1];
    let (result, _, written, mut fields) = parser.read_record(record, &mut text, &mut ends);
    if result == ReadRecordResult::InputEmpty {
        let (_, _, _, last) = parser.read_record(b"\n", &mut text[written..], &mut ends[fields..]);
        fields += last;
    }
    let mut start = 0;
    let field = |(number, end): (usize, &usize)| {
        let field = text[start..*end].to_vec();
        start = *end;
        String::from_utf8(field).map_err(|error| format!("field {} is not UTF-8: {error}", number + 1))
    };
    ends[..fields].iter().enumerate().map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parser(delimiter: u8) -> Reader {
        ReaderBuilder::new().delimiter(delimiter).build()
    }

    #[test]
    fn quotes_keep_delimiters_quotes_and_line_ends() {
        let fields = |record: &str| split(&mut parser(b','), record.as_bytes()).unwrap();
        assert_eq!(fields(r#"a,"b,c","d ""e""",,"#), ["a", "b,c", "d \"e\"", "", ""]);
        assert_eq!(fields("\"two\nlines\",2\r\n"), ["two\nlines", "2"]);
        assert_eq!(fields("a,\"\"\n"), ["a", ""]);
        assert_eq!([fields("alone"), fields("alone\n"), fields("\"alone\"")], [["alone"]; 3]);
        assert_eq!(split(&mut parser(b';'), b"a;b").unwrap(), ["a", "b"]);
        let error = split(&mut parser(b','), b"a,\xff").unwrap_err();
        assert!(error.contains("field 2 is not UTF-8"), "{error}");
    }

    #[test]
    fn what_was_quoted_comes_back_and_no_bytes_panic() {
        let mut generator = crate::loader::SampleGenerator::new(0, 0, 0);
        let mut text = |most: u64| -> String {
            let length = generator.below(most);
            (0..length).map(|_| char::from(b"a,\"\n\r "[generator.below(6) as usize])).collect()
        };
        let parsers = Parsers::new(b',');
        for _ in 0..2000 {
            let rows: Vec<Vec<String>> = (0..3).map(|_| vec![text(6), text(6)]).collect();
            let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
            let line = |row: &Vec<String>| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n";
            let file: String = rows.iter().map(line).collect();
            let found = parsers.lend(|parser| records(parser, file.as_bytes())).unwrap();
            let read = found
                .into_iter()
                .map(|range| parsers.lend(|parser| split(parser, &file.as_bytes()[range]).unwrap()));
            assert_eq!(read.collect::<Vec<_>>(), rows);
            let garbage = text(20);
            for range in parsers.lend(|parser| records(parser, garbage.as_bytes())).unwrap_or_default() {
                let _ = parsers.lend(|parser| split(parser, &garbage.as_bytes()[range]));
            }
        }
    }

    #[test]
    fn records_end_with_lines_outside_of_quotes() {
        let found = |text: &str| -> Vec<String> {
            let records = records(&mut parser(b','), text.as_bytes()).unwrap();
            records.into_iter().map(|range| text[range].trim_end().to_owned()).collect()
        };
        assert_eq!(found("a,b\r\n\n1,\"x\ny\"\n2,z"), ["a,b", "1,\"x\ny\"", "2,z"]);
        assert!(found("").is_empty());
        let long = format!("a\n\"{}\",{}\nb", "x\n".repeat(3000), ",".repeat(300));
        assert_eq!(found(&long).len(), 3);
        assert_eq!(records(&mut parser(b','), b"a\nb,\"c\nd"), Err(2));
        assert_eq!(records(&mut parser(b','), b"a\n\""), Err(2));
    }
}
