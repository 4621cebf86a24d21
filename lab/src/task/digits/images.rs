//! Images of handwritten digits: small enough to compile in, real enough that accuracy means something. Open
//! this file to see which images are held out, or what a data file of your own has to look like.
//!
//! Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
//! 1998; see `lab/data/README.md`.

use flate2::bufread::MultiGzDecoder;
use hexagram::physical::input;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Pixels of an image: 8 rows of 8.
pub const PIXELS: usize = 64;
/// Different labels: the digits 0 to 9.
pub const CLASSES: usize = 10;
/// The value of a black pixel in the file; white is 0.
const INK: f32 = 16.0;
/// The most bytes of a file, and of what it decompresses to: millions of images.
const LONGEST: u64 = 1 << 30;
/// Number of characters of a wrong value that are shown.
const SHOWN: usize = 40;
/// Every how many images one is held out.
const HELD_OUT_EVERY: usize = 5;

const EMBEDDED: &[u8] = include_bytes!("../../lab/data/digits.csv.gz");

/// Images and what they show.
#[derive(Debug, Clone, PartialEq)]
pub struct Digits {
    pixels: Vec<f32>,
    labels: Vec<u8>,
}

/// Images to learn from, and images to judge the result by.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// Images whose index is no multiple of five.
    pub train: Digits,
    /// Images 0, 5, 10, …
    pub held_out: Digits,
}

/// A file that does not hold digits.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DigitsError {
    /// The file could not be opened.
    #[error("cannot open {}: {cause}; check the path and that you may read the file", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's own words.
        cause: io::Error,
    },

    /// The file ended or broke in the middle, for instance because a download was cut short.
    #[error(
        "{}:{line}: cannot read on: {cause}; the file is cut short or damaged, so fetch it again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line that could not be read, from 1.
        line: usize,
        /// Error of the system or the decompressor.
        cause: io::Error,
    },

    /// The file decompresses to more than anybody means.
    #[error(
        "{} decompresses to more than {LONGEST} bytes, and no more are read; see that it is the file you mean",
        path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
    },

    /// A line has too few or too many values.
    #[error(
        "{}:{line}: {columns} columns instead of {}; a line is 64 pixels and the label, separated by commas",
        path.display(),
        PIXELS + 1
    )]
    Columns {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Number of values of the line.
        columns: usize,
    },

    /// A value is no number, or not one that a pixel or a label can have.
    #[error(
        "{}:{line}: column {column} is {text:?} instead of {expected}; \
         correct the line, or remove it if it is a header",
        path.display()
    )]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// Text in the column.
        text: String,
        /// Values that the column may have.
        expected: &'static str,
    },

    /// The file does not hold even one image for each part of a [`Split`].
    #[error(
        "{} has {rows} rows; it needs two at least, one to learn from and one to judge the result by",
        path.display()
    )]
    TooFew {
        /// The file.
        path: PathBuf,
        /// Number of rows of the file.
        rows: usize,
    },
}

impl Digits {
    /// Rows and columns of an image.
    pub const SIDE: usize = PIXELS.isqrt();

    /// Returns the 1797 images compiled into the program.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), if the program was built from a damaged data file.
    pub fn embedded() -> Result<Self, DigitsError> {
        parse(MultiGzDecoder::new(EMBEDDED), Path::new("lab/data/digits.csv.gz"))
    }

    /// Reads images from a file: a line an image, 64 pixels from 0 (white) to 16 (black), then the label from
    /// 0 to 9, separated by commas, without a header. A name that ends in `.gz` is decompressed.
    ///
    /// # Errors
    ///
    /// [`DigitsError`], with the file and the line, when the file cannot be read, is no regular one, has more than 1
    /// GiB, also decompressed, or holds something else.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, DigitsError> {
        let path = path.as_ref();
        let bytes =
            input::read(path, LONGEST).map_err(|cause| DigitsError::Open { path: path.into(), cause })?;
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz")) {
            parse(MultiGzDecoder::new(&*bytes), path)
        } else {
            parse(&*bytes, path)
        }
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns true if there are none; never of what was read.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns all pixels, [`PIXELS`] an image, row by row from the top left, from 0.0 (white) to 1.0 (black).
    pub fn pixels(&self) -> &[f32] {
        &self.pixels
    }

    /// Returns the label of each image, from 0 to 9.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Holds out every image whose index is a multiple of five, in the order of the file. The same on every
    /// rank.
    pub fn split(&self) -> Split {
        let (held_out, train): (Vec<usize>, Vec<usize>) =
            (0..self.len()).partition(|index| index % HELD_OUT_EVERY == 0);
        Split { train: self.select(&train), held_out: self.select(&held_out) }
    }

    /// Returns the images named, in that order.
    fn select(&self, indices: &[usize]) -> Digits {
        let image = |&index: &usize| &self.pixels[index * PIXELS..][..PIXELS];
        Digits {
            pixels: indices.iter().flat_map(image).copied().collect(),
            labels: indices.iter().map(|&index| self.labels[index]).collect(),
        }
    }
}

/// Reads all lines; `path` is for the errors.
fn parse(source: impl io::Read, path: &Path) -> Result<Digits, DigitsError> {
    let mut digits = Digits { pixels: Vec::new(), labels: Vec::new() };
    let mut source = BufReader::new(source.take(LONGEST + 1));
    for line in 1.. {
        let mut text = String::new();
        let read = source.read_line(&mut text);
        if source.get_ref().limit() == 0 {
            return Err(DigitsError::TooLong { path: path.into() });
        }
        if read.map_err(|cause| DigitsError::Damaged { path: path.into(), line, cause })? == 0 {
            break;
        }
        if !text.trim().is_empty() {
            digits.push(&Row { text: &text, path, line })?;
        }
    }
    if digits.len() < 2 {
        return Err(DigitsError::TooFew { path: path.into(), rows: digits.len() });
    }
    Ok(digits)
}

/// A line, and where it stands.
struct Row<'a> {
    text: &'a str,
    path: &'a Path,
    line: usize,
}

impl Digits {
    fn push(&mut self, row: &Row<'_>) -> Result<(), DigitsError> {
        let columns: Vec<&str> = row.text.split(',').map(str::trim).collect();
        if columns.len() != PIXELS + 1 {
            return Err(DigitsError::Columns {
                path: row.path.into(),
                line: row.line,
                columns: columns.len(),
            });
        }
        let (pixels, label) = columns.split_at(PIXELS);
        for (pixel, column) in pixels.iter().zip(1..) {
            let value =
                row.value(pixel, column, "a number from 0 to 16", |value| (0.0..=INK).contains(&value))?;
            self.pixels.push(value / INK);
        }
        let is_digit = |value: f32| value.fract() == 0.0 && (0.0..CLASSES as f32).contains(&value);
        self.labels.push(row.value(label[0], PIXELS + 1, "a label from 0 to 9", is_digit)? as u8);
        Ok(())
    }
}

impl Row<'_> {
    /// Returns the number in a column, if it `fits` there.
    fn value(
        &self,
        text: &str,
        column: usize,
        expected: &'static str,
        fits: impl Fn(f32) -> bool,
    ) -> Result<f32, DigitsError> {
        let Row { path, line, .. } = *self;
        let shown = || text.chars().take(SHOWN).collect();
        let refused = || DigitsError::Value { path: path.into(), line, column, text: shown(), expected };
        text.parse().ok().filter(|&value| fits(value)).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    /// Parses a line of 64 equal pixels and a label.
    fn row(pixel: &str, label: &str) -> String {
        format!("{}{label}\n", format!("{pixel},").repeat(PIXELS))
    }

    fn error(text: &str) -> DigitsError {
        parse(text.as_bytes(), Path::new("mine.csv")).unwrap_err()
    }

    fn gz(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_embedded_images_are_the_published_ones() {
        let digits = Digits::embedded().unwrap();
        assert_eq!(digits.len(), 1797);
        assert_eq!(digits.pixels().len(), 1797 * PIXELS);
        assert!(digits.pixels().iter().all(|pixel| (0.0..=1.0).contains(pixel)));
        assert_eq!(digits.labels()[..12], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
        assert_eq!(digits.pixels()[..8], [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0].map(|pixel| pixel / 16.0));
        let per_label = |label| digits.labels().iter().filter(|&&found| found == label).count();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(per_label),
            [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
        );
    }

    #[test]
    fn every_fifth_image_is_held_out() {
        let digits = Digits::embedded().unwrap();
        let split = digits.split();
        assert_eq!((split.train.len(), split.held_out.len()), (1437, 360));
        let mut train = 0;
        let mut held_out = 0;
        for index in 0..digits.len() {
            let (part, place) =
                if index % 5 == 0 { (&split.held_out, &mut held_out) } else { (&split.train, &mut train) };
            assert_eq!(part.select(&[*place]), digits.select(&[index]));
            *place += 1;
        }
    }

    #[test]
    fn decimal_points_line_ends_and_blank_lines_do_not_matter() {
        let digits = parse(
            (row(" 4.0", "7.0") + "\r\n\n" + &row("4", "7").replace('\n', "\r\n")).as_bytes(),
            Path::new(""),
        );
        assert_eq!(digits.unwrap(), Digits { pixels: vec![0.25; 2 * PIXELS], labels: vec![7, 7] });
    }

    #[test]
    fn bad_lines_are_named_with_a_remedy() {
        let good = row("1", "1");
        let cases = [
            (good.clone() + "1,2,3\n", "mine.csv:2: 3 columns instead of 65; a line is"),
            (good.clone() + &good.replace('\n', ",0\n"), "mine.csv:2: 66 columns instead of 65"),
            (
                good.clone() + &row("x", "1"),
                "mine.csv:2: column 1 is \"x\" instead of a number from 0 to 16; correct",
            ),
            (row("17", "1"), "mine.csv:1: column 1 is \"17\""),
            (row("nan", "1"), "mine.csv:1: column 1 is \"nan\""),
            (
                good.clone() + &row("2", "10"),
                "mine.csv:2: column 65 is \"10\" instead of a label from 0 to 9",
            ),
            (row("2", "-1"), "mine.csv:1: column 65 is \"-1\""),
            (row("2", "1.5"), "mine.csv:1: column 65 is \"1.5\""),
            (row("2", ""), "mine.csv:1: column 65 is \"\""),
            (String::new(), "mine.csv has 0 rows; it needs two at least"),
            ("\n\n".into(), "mine.csv has 0 rows"),
            (good.clone(), "mine.csv has 1 rows"),
        ];
        for (text, message) in cases {
            let error = error(&text).to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn files_are_read_by_the_end_of_their_name() {
        let folder = std::env::temp_dir().join(format!("hexagram-digits-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = row("8", "5").repeat(300);
        let whole = gz(&text);
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.join(name), bytes).unwrap();
            Digits::read(folder.join(name))
        };
        let plain = write("digits.csv", text.as_bytes()).unwrap();
        assert_eq!(plain.len(), 300);
        assert_eq!(write("digits.csv.GZ", &whole).unwrap(), plain);
        assert_eq!(write("two.csv.gz", &[whole.clone(), whole.clone()].concat()).unwrap().len(), 600);

        let messages = [
            write("cut.csv.gz", &whole[..whole.len() - 9]),
            write("empty.csv.gz", b""),
            write("wrong.csv.gz", text.as_bytes()),
            write("wrong.csv", &whole),
        ];
        for damaged in messages {
            let message = damaged.unwrap_err().to_string();
            assert!(message.contains("cut short or damaged, so fetch it again"), "{message}");
            assert!(message.starts_with(&folder.display().to_string()), "{message}");
        }
        for endless in [Path::new("/dev/zero"), &folder] {
            let message = Digits::read(endless).unwrap_err().to_string();
            assert!(message.starts_with(&format!("cannot open {}: it is a", endless.display())), "{message}");
        }
        let absent = Digits::read(folder.join("absent.csv")).unwrap_err().to_string();
        assert!(absent.contains("absent.csv") && absent.contains("check the path"), "{absent}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
